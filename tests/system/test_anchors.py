"""Every formula of docs/model.md is cited by the code that implements it and by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
ANCHORS = re.findall(r'<a id="([^"]+)"></a>', PAGE)
CITED = re.compile(r"docs/model\.md#([\w-]+)")
ABOVE = re.compile(r"^ *# docs/model\.md#([\w-]+).*\n(?: *[@#)\]].*\n|    .*\n)*? *def test_", re.M)
"""An anchor in a comment above a test, decorators between."""


def texts(folder: str) -> list[str]:
    files = (ROOT / folder).rglob("*.py")
    return [file.read_text(encoding="utf-8") for file in files if file != Path(__file__)]


def citations(folder: str) -> set[str]:
    """Anchors of the page that Python files of a folder cite."""
    return {anchor for text in texts(folder) for anchor in CITED.findall(text)}


def test_anchors_are_unique():
    assert ANCHORS
    assert len(ANCHORS) == len(set(ANCHORS))


def test_every_formula_is_implemented():
    assert sorted(set(ANCHORS) - citations("src")) == []


def test_every_formula_is_proven():
    proven = {anchor for text in texts("tests") for anchor in ABOVE.findall(text)}
    assert sorted(set(ANCHORS) - proven) == []


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples"])
def test_every_citation_resolves(folder):
    assert sorted(citations(folder) - set(ANCHORS)) == []


def test_links_to_the_page_resolve():
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= set(ANCHORS)
    for page in (ROOT / "docs").glob("*.md"):
        linked = re.findall(r"\]\(model\.md#([\w-]+)\)", page.read_text(encoding="utf-8"))
        assert set(linked) <= set(ANCHORS), page.name
