from __future__ import annotations

from types import SimpleNamespace

import pytest

from hemf.evaluation import Summary
from hemf.experiments.catalog import Method, Printed
from hemf.experiments.plan import Request, plan
from hemf.experiments.report import compare_all, conclusions, findings, reached


@pytest.fixture
def measured(small, folder, tmp_path):
    """Make comparisons of an experiment from errors, by method and split."""

    def make(errors, *, quick=False, **options):
        experiment = small(**options)
        planned = plan([experiment], Request(tmp_path, data=folder, quick=quick))
        results = {
            task.key: {
                "test_rmse": errors[task.method.label][task.split],
                "train_rmse": 0.7,
                "cpu_seconds": 10.0,
                "settings": task.settings,
                "n_train": 90,
                "n_test": 10,
                "curve": [
                    {"cpu_seconds": 1.0, "test_rmse": 0.86},
                    {"cpu_seconds": 5.0, "test_rmse": errors[task.method.label][task.split]},
                ],
            }
            for task in planned.tasks
            if task.method.label in errors
        }
        return planned, experiment, compare_all(planned, experiment, results)

    return make


def test_means_are_over_splits_and_differences_are_paired(measured):
    _, _, (one,) = measured({"HeMF-bVB": [0.83, 0.85], "BPMF": [0.84, 0.861]})
    ours, rival = one.rows
    assert ours.test.mean == pytest.approx(0.84)
    assert ours.test.standard_error == pytest.approx(0.01)
    assert ours.ahead is None
    assert rival.ahead.mean == pytest.approx(-0.0105)
    assert rival.ahead.n == 2
    assert one.ours is ours
    assert one.rivals == [rival]


def test_the_printed_error_stands_beside_ours(measured):
    _, _, (one,) = measured({"HeMF-bVB": [0.83, 0.85]})
    assert one.rows[0].printed.test == 0.8311
    assert any("0.0089 above" in sentence for sentence in conclusions(one))


def test_it_says_who_ended_lower_and_whether_it_is_significant(measured):
    _, _, (one,) = measured(
        {"HeMF-bVB": [0.83, 0.85], "BPMF": [0.84, 0.8601], "M³F-TIB(2,1,2)": [0.82, 0.88]}
    )
    below, _ = conclusions(one)[:2]
    assert below.startswith("HeMF-bVB ends below BPMF (by 0.0101")
    assert "not significant" in below.split(";")[1]


def test_it_says_so_where_the_paper_is_contradicted(measured):
    _, _, (one,) = measured({"HeMF-bVB": [0.83, 0.85], "BPMF": [0.82, 0.84]})
    first = conclusions(one)[0]
    assert first.startswith("HeMF-bVB does not end below one that the paper did not try")
    assert "BPMF never" in conclusions(one)[1]
    _, _, (one,) = measured({"HeMF-bVB": [0.83, 0.85], "M³F-TIB(2,1,2)": [0.82, 0.84]})
    assert conclusions(one)[0].startswith("Unlike in the paper, HeMF-bVB does not end below M³F")


def test_the_time_to_reach_another_is_a_share_of_its_time():
    ours = {"curve": [{"cpu_seconds": t, "test_rmse": 1 / t} for t in (1.0, 2.0, 4.0)]}
    half = reached([(ours, {"test_rmse": 0.5, "cpu_seconds": 20.0})])
    assert (half.cpu_seconds, half.share) == (2.0, 0.1)
    never = reached([(ours, {"test_rmse": 0.1, "cpu_seconds": 20.0})])
    assert (never.splits, never.of) == (0, 1)


def test_a_stand_in_is_not_compared_with_printed_numbers(measured):
    _, _, (one,) = measured({"HeMF-bVB": [0.83, 0.85]}, dataset="eachmovie")
    (sentence,) = conclusions(one)
    assert sentence.startswith("These are not the paper's data")


def test_the_quick_form_says_that_it_is(measured):
    planned, experiment, compared = measured({"HeMF-bVB": [0.8, 0.8]}, quick=True)
    assert "quick form" in findings(planned, experiment, compared)[-1]
    assert "A sampler would end lower" in findings(planned, experiment, compared)[-1]


def test_the_quick_form_of_a_stream_says_nothing_of_samplers(measured):
    fed = (Method("HeMF-oVB", "ovb", {"passes": 3}), Method("SGD", "sgd", {"passes": 10}))
    planned, experiment, compared = measured(
        {"HeMF-oVB": [0.8, 0.8], "SGD": [0.9, 0.9]}, quick=True, methods=fed
    )
    text = findings(planned, experiment, compared)[-1]
    assert "quick form" in text
    assert "sampler" not in text


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ((0.83, 0.84, 0.85), "As in the paper, larger chunks end lower"),
        ((0.84, 0.83, 0.85), "larger chunks do not always end lower"),
        ((0.8301, 0.83, 0.8304), "hardly depends on the size"),
    ],
)
def test_chunk_sizes_are_judged_by_the_final_errors(errors, verdict):
    compared = [
        SimpleNamespace(
            part=SimpleNamespace(n_chunks=number),
            stand_in=None,
            rows=[],
            ours=SimpleNamespace(test=Summary(error, float("nan"), 1)),
        )
        for number, error in zip((10, 30, 100), errors, strict=True)
    ]
    planned = SimpleNamespace(request=SimpleNamespace(quick=False))
    (sentence,) = findings(planned, SimpleNamespace(name="figure6"), compared)
    assert verdict in sentence
    assert "100 chunks" in sentence


def two_protocols(ours, theirs):
    """Compare HeMF (printed 0.8311) and M³F (0.8478), given their errors under both protocols."""

    def row(label, error, printed):
        return SimpleNamespace(
            label=label, test=Summary(error, 0.001, 10), printed=Printed(0.7, printed)
        )

    return [
        SimpleNamespace(
            part=SimpleNamespace(protocol=protocol),
            stand_in=None,
            rows=[row("HeMF-bVB", mine, 0.8311), row("M³F", other, 0.8478)],
        )
        for protocol, mine, other in zip(("weak", "random 90/10"), ours, theirs, strict=True)
    ]


def test_printed_errors_are_told_by_the_protocol_they_agree_with():
    planned = SimpleNamespace(request=SimpleNamespace(quick=False))
    compared = two_protocols(ours=(0.846, 0.83), theirs=(0.849, 0.833))
    text = findings(planned, SimpleNamespace(name="table1"), compared)
    assert text[1].endswith("the printed error agrees with a random tenth withheld.")
    assert text[2].endswith("the printed error agrees with one rating of every user withheld.")
    assert "seem not to be of one protocol" in text[3]


def test_printed_errors_that_agree_with_neither_protocol_say_nothing_about_it():
    planned = SimpleNamespace(request=SimpleNamespace(quick=False))
    compared = two_protocols(ours=(0.846, 0.83), theirs=(0.862, 0.833))
    text = findings(planned, SimpleNamespace(name="table1"), compared)
    assert text[2].endswith("agrees with neither.")
    assert len(text) == 3
