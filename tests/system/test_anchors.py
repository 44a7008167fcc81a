"""Every formula of docs/model.md is cited by the code that implements it and by a test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
ANCHORS = re.findall(r'<a id="([^"]+)"></a>', PAGE)


def citations(folder: str) -> set[str]:
    """Anchors of the page that Python files of a folder cite."""
    files = (ROOT / folder).rglob("*.py")
    texts = (file.read_text(encoding="utf-8") for file in files if file != Path(__file__))
    return {anchor for text in texts for anchor in re.findall(r"docs/model\.md#([\w-]+)", text)}


def test_anchors_are_unique():
    assert ANCHORS
    assert len(ANCHORS) == len(set(ANCHORS))


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_every_formula_is_cited(folder):
    assert sorted(set(ANCHORS) - citations(folder)) == []


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples"])
def test_every_citation_resolves(folder):
    assert sorted(citations(folder) - set(ANCHORS)) == []


def test_links_inside_the_page_resolve():
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= set(ANCHORS)
