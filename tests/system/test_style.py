"""The source is clean by the project's own rules."""

from __future__ import annotations

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
