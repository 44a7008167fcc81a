from __future__ import annotations

import pytest

from hemf.errors import ParameterError
from hemf.evaluation import PROTOCOLS
from hemf.experiments import EXPERIMENTS, select
from hemf.experiments.data import SOURCES
from hemf.experiments.runner import LEARNERS

PARTS = [part for experiment in EXPERIMENTS.values() for part in experiment.parts]


def test_all_is_the_table_and_every_figure_that_is_not_a_drawing():
    names = ["table1", *(f"figure{number}" for number in range(4, 11))]
    assert [experiment.name for experiment in select(["all"])] == names


@pytest.mark.parametrize("part", PARTS)
def test_every_part_names_what_there_is(part):
    assert part.dataset in SOURCES
    assert part.protocol in PROTOCOLS
    assert {method.learner for method in part.methods} <= LEARNERS.keys()
    assert set(part.printed) <= {method.label for method in part.methods}
    assert (part.n_chunks is None) == (part.protocol != "chunks")


def test_printed_errors_are_the_papers():
    weak, random, each, _ = EXPERIMENTS["table1"].parts
    assert weak.printed["HeMF-bVB"].test == 0.8311
    assert random.printed == weak.printed
    assert weak.printed["M³F-TIB(2,1,40)"].test == 0.8478
    assert each.printed["HeMF-bVB"].train == 0.8835
    assert weak.splits == 10


def test_chunks_are_as_many_as_the_paper_says():
    counts = {name: [part.n_chunks for part in EXPERIMENTS[name].parts] for name in EXPERIMENTS}
    assert counts["figure5"] == [30]
    assert counts["figure6"] == [10, 30, 60, 100]
    assert counts["figure8"] == counts["figure10"] == [60]


def test_samplers_have_the_topics_and_factors_of_their_names():
    for part in PARTS:
        for method in part.methods:
            if method.label.startswith("M³F"):
                numbers = [method.settings[name] for name in ("user_topics", "item_topics")]
                numbers.append(method.settings["n_factors"])
                assert method.label.endswith(f"({','.join(map(str, numbers))})")


def test_the_quick_form_does_less():
    for part in PARTS:
        assert part.quick_splits <= part.splits
        full, quick = (part.methods_of(quick=quick) for quick in (False, True))
        assert quick
        assert len(quick) <= len(full)


@pytest.mark.parametrize(
    ("name", "hint"), [("tabel1", "did you mean table1"), ("x", "there are table1, figure4")]
)
def test_an_unknown_name_is_an_error_with_the_likely_ones(name, hint):
    with pytest.raises(ParameterError, match=hint):
        select([name])
