from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hemf.experiments.catalog import BY_CHUNKS, Method
from hemf.experiments.plan import Request, plan
from hemf.experiments.report import render, write_report
from hemf.experiments.runner import run

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")


@pytest.fixture
def html(small, stream, folder, tmp_path):
    experiments = [small(), small("other", dataset="eachmovie"), stream]
    planned = plan(experiments, Request(tmp_path / "out", data=folder, quick=True))
    return render(planned, run(planned).by_key)


def test_the_page_needs_no_network_and_says_what_it_is_of(html):
    assert not re.search(r"https?:|src=|@import|<link|<script", html)
    assert html.count("<svg") >= 3  # communities of so small data do not change
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
    assert path.read_text("utf-8").count("Not run yet") == 2


def test_columns_in_which_nothing_stands_are_left_out(html):
    printed, stand_in, fed = (
        html.split("A small one")[1].partition("A other one")[0],
        *(html.split(title)[1] for title in ("A other one", "A stream one")),
    )
    assert "paper, test" in printed
    assert "test less paper&#x27;s" in printed
    assert "test less paper&#x27;s" not in stand_in
    assert "paper, test" not in fed
    assert "HeMF less it, paired" in fed


def test_numbers_of_chunks_stand_in_one_table_without_empty_cards(stream, folder, tmp_path):
    online = Method("HeMF-oVB", "ovb", {"n_factors": 2, "passes": 1})
    (part,) = stream.parts
    parts = tuple(replace(part, n_chunks=n, methods=(online,), splits=1) for n in (2, 3))
    experiment = replace(stream, name=BY_CHUNKS, parts=parts)
    planned = plan([experiment], Request(tmp_path / "out", data=folder))
    page = render(planned, run(planned).by_key)
    assert page.count("<table") == 2  # of the data, and of what was measured
    assert "2 chunks: HeMF-oVB (1 passes)" in page
    assert "In words" not in page


def test_numbers_of_communities_that_never_change_are_said_and_not_drawn(stream, folder, tmp_path):
    planned = plan([stream], Request(tmp_path / "out", data=folder, splits=1))
    results = {key: dict(entry) for key, entry in run(planned).by_key.items()}

    def drawn(*numbers):
        for entry in results.values():
            entry["curve"] = [
                {**point, "communities": pair}
                for point, pair in zip(entry["curve"], numbers, strict=False)
            ]
        return render(planned, results)

    changing = drawn([1, 1], [2, 1])
    assert "At every step" not in changing
    assert 'aria-label="Communities by step"' in changing
    still = drawn([3, 1], [3, 1])
    assert "At every step 3 of users and 1 of items." in still
    assert 'aria-label="Communities by step"' not in still
