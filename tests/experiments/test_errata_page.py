"""The page on what was reproduced points at tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hemf.experiments import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
REFERENCES = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("path", "name"), REFERENCES)
def test_every_test_that_is_named_exists(path, name):
    assert f"def {name}(" in (ROOT / path).read_text("utf-8")


def test_every_erratum_has_its_test():
    errata = PAGE.split("## The paper's errata")[1].split("\n## ")[0]
    rows = [line for line in errata.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 12
    for row in rows:
        assert "`tests/" in row, row


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_on_the_page(name):
    kind, number = re.fullmatch(r"([a-z]+)(\d+)", name).groups()
    assert f"{kind.capitalize()} {number}" in PAGE
