"""What the README and the documentation show is what happens."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import tempfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
RATING = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def commands(text: str) -> list[str]:
    """Shell commands line by line, without their comments."""
    lines = (re.sub(r"(^|\s+)#.*", "", line).strip() for line in text.splitlines())
    return [" ".join(line.split()) for line in lines if line]


@cache
def output_of(code: str) -> str:
    """What a block of code prints; each runs once, in an empty folder."""
    printed = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
    ):
        exec(compile(code, "<documentation>", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=f"{page.name}-{number}")
        for page in PAGES
        for number, code in enumerate(blocks(page, "python"), 1)
    ],
)
def test_code_in_the_documentation_runs(code):
    output_of(code)


def test_the_readme_predicts_a_rating_and_how_sure_it_is():
    code = blocks(README, "python")[0]
    printed = RATING.search(output_of(code))
    assert printed, "no rating ± uncertainty in the output"
    mean, std = map(float, printed.groups())
    assert 1 <= mean <= 5
    assert 0 < std < 2
    promised = RATING.search(code)
    assert promised, "the README does not say what to expect"
    printed_mean, printed_std = map(float, promised.groups())
    assert std == pytest.approx(printed_std, abs=0.1)
    # Other versions of NumPy draw other ratings from the same seed: as far off as that may be.
    assert abs(mean - printed_mean) < 3 * printed_std


def test_the_example_predicts_and_recommends(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "quickstart.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert RATING.search(printed)
    assert "recommended: film-" in printed


def test_two_commands_on_the_first_screen_do_everything():
    first_screen = "\n".join(README.read_text("utf-8").splitlines()[:25])
    demo, test = commands(blocks(README, "sh")[0])
    for command in (demo, test):
        assert command.startswith("python3 -m venv .venv && ")
        assert command.split("&&")[-1].strip() in first_screen
    assert demo.endswith(".venv/bin/hemf demo")
    assert test.endswith(".venv/bin/pytest")


def test_the_checks_run_the_second_command_of_the_readme():
    _, test = commands(blocks(README, "sh")[0])
    script = ROOT / ".ci" / "run"
    assert test in commands(script.read_text("utf-8"))
    assert script.stat().st_mode & 0o111, ".ci/run cannot be executed"


def test_what_the_readme_links_to_is_there():
    links = re.findall(r"\]\(([^)#]+)", README.read_text("utf-8"))
    for link in links:
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_files_that_the_architecture_names_are_there():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    names = re.findall(r"`([\w/]+\.py)`", page)
    assert len(names) > 20
    places = (ROOT, ROOT / "src" / "hemf")
    missing = [name for name in names if not any((place / name).is_file() for place in places)]
    assert [name for name in missing if "NAME" not in name] == []


def test_every_package_is_in_the_architecture():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = {path.parent.name for path in (ROOT / "src" / "hemf").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"`(\w+)`", page))
