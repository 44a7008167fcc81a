from __future__ import annotations

import re

import pytest

from hemf.reproduce.report import render, write_report
from hemf.reproduce.runner import Request, plan, run

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")


@pytest.fixture
def html(small, stream, folder, tmp_path):
    experiments = [small(), small("other", dataset="eachmovie"), stream]
    planned = plan(experiments, Request(tmp_path / "out", data=folder, quick=True))
    return render(planned, run(planned).by_key)


def test_the_page_needs_no_network_and_says_what_it_is_of(html):
    assert not re.search(r"https?:|src=|@import|<link|<script", html)
    assert html.count("<svg") >= 6
    assert "quick form" in html
    assert "<b>stand-in</b>: a sample of EachMovie&#x27;s heavy voters" in html
    assert "0.8311" in html
    for title in ("A small one", "A other one", "A stream one"):
        assert title in html
    for method in ("M³F-TIB(2,1,2)", "HeMF-oVB, no history", "SGD (2 passes; step"):
        assert method in html
    assert html.count("Number of communities") == 3
    assert "CPU seconds" in html


def test_what_is_missing_is_on_the_page(small, folder, tmp_path):
    (folder / "eachmovie-ads-sample.parquet").unlink()
    experiments = [small(), small("other", dataset="eachmovie")]
    planned = plan(experiments, Request(tmp_path / "out", data=folder))
    path = tmp_path / "report.html"
    write_report(path, planned, {})
    assert "Not run: EachMovie is not here" in path.read_text("utf-8")
    assert path.read_text("utf-8").count("Nothing of it has been run yet") == 2
