"""The source is clean by the project's own rules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_ruff_has_no_complaint():
    result = run("ruff", "check", ".")
    assert result.returncode == 0, result.stdout


def test_code_is_formatted():
    result = run("ruff", "format", "--check", ".")
    assert result.returncode == 0, result.stdout


def test_types_are_strict():
    result = run("mypy", "--strict")
    assert result.returncode == 0, result.stdout


def test_no_source_file_does_more_than_one_job():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "src").rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 800
    }
    assert not long


def test_files_that_guides_name_exist():
    """Paths are from the root, or from src/hemf or tests as in the guides' tables."""
    named = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")
    guides = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    paths = {path for guide in guides for path in named.findall(guide.read_text(encoding="utf-8"))}
    assert paths
    places = (ROOT, ROOT / "src/hemf", ROOT / "tests")
    assert not [path for path in paths if not any((place / path).is_file() for place in places)]
