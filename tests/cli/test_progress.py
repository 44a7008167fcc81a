"""What is shown on the way: live on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from hemf.batch.callbacks import SweepReport
from hemf.cli.output import FitProgress, Output, figures, outlook


def report(sweep: int, held_out: float | None = None) -> SweepReport:
    return SweepReport(sweep, 10, -1234.5, {}, 0.9, held_out, 4, 3, 0.5, float(sweep))


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def look(monkeypatch):
    """Put a terminal where stderr is, and return it; every report is drawn."""
    monkeypatch.setattr("hemf.cli.output.SECONDS_BETWEEN_PICTURES", 0.0)

    def put() -> Screen:
        screen = Screen()
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setenv("TERM", "xterm")
        return screen

    return put  # not yet: pytest exchanges the streams between set-up and test


def test_a_terminal_shows_the_fit_live(look):
    screen = look()
    with FitProgress(Output()) as show:
        show(report(1))
        show(report(5, held_out=0.95))
    shown = screen.getvalue()
    assert "sweep   5/10" in shown
    assert "ELBO -1,234 · RMSE 0.9000 · held-out 0.9500 · communities 4 × 3" in shown
    assert "at most 0:05 left" in shown


def test_trials_of_merges_and_splits_are_shown(look):
    screen = look()
    with FitProgress(Output()) as show:
        show(replace(report(5), trials_next=True))
    shown = screen.getvalue()
    assert "trying merges and splits" in shown
    assert "left" not in shown


def test_elsewhere_there_is_a_line_every_few_seconds(capsys, monkeypatch):
    with FitProgress(Output()) as show:
        show(report(1))
        assert capsys.readouterr().err == ""
        monkeypatch.setattr("hemf.cli.output.SECONDS_BETWEEN_LINES", 0)
        show(report(2))
        show(report(3))
    streams = capsys.readouterr()
    assert len(streams.err.splitlines()) == 2
    assert streams.out == ""


@pytest.mark.parametrize("silence", [{"json": True}, {"quiet": True}])
def test_nothing_is_shown_where_silence_was_asked_for(look, silence, monkeypatch):
    screen = look()
    monkeypatch.setattr("hemf.cli.output.SECONDS_BETWEEN_LINES", 0)
    output = Output(**silence)
    with output.status("busy"), FitProgress(output) as show, output.download("ml-1m") as fetched:
        show(report(1))
        fetched(10, 100)
    output.remark("unheard")
    assert screen.getvalue() == ""


def test_a_download_is_shown_with_its_size(look):
    screen = look()
    with Output().download("ml-1m") as fetched:
        fetched(3_000_000, 6_000_000)
    shown = screen.getvalue()
    assert "fetching ml-1m" in shown
    assert "3.0/6.0 MB" in shown


def test_time_left_is_what_the_remaining_sweeps_would_take():
    assert outlook(report(4), report(1)) == "at most 0:06 left"
    assert outlook(report(1), report(1)) == ""


def test_held_out_error_is_named_only_where_there_is_one():
    assert "held-out" not in figures(report(1))


def test_whether_someone_watches_is_asked_before_rich_takes_over_the_stream(look, monkeypatch):
    look()
    output = Output()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert output.live
