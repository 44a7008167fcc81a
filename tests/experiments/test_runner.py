from __future__ import annotations

import json

import pytest

from hemf import __version__
from hemf.errors import DataError, DatasetError, ParameterError
from hemf.evaluation import fingerprint
from hemf.experiments import runner
from hemf.experiments.catalog import Method
from hemf.experiments.plan import RESULTS, Request, plan
from hemf.experiments.report import compare_all, conclusions, render
from hemf.experiments.runner import SPLITS, run

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")


def lines(request):
    path = request.output / RESULTS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def request_(folder, tmp_path):
    return Request(tmp_path / "out", data=folder)


@pytest.fixture
def runs(monkeypatch):
    """Labels and data of what was really run, in order."""
    seen = []

    def spied(name, learner):
        def run_one(trial, settings, seed, progress):
            seen.append((name, fingerprint(trial.train), fingerprint(trial.test), seed))
            return learner(trial, settings, seed, progress)

        return run_one

    for name, learner in list(runner.LEARNERS.items()):
        monkeypatch.setitem(runner.LEARNERS, name, spied(name, learner))
    return seen


def test_every_result_says_what_it_is_of(small, request_):
    planned = plan([small()], request_)
    results = run(planned)
    first = lines(request_)[0]
    assert first["method"] == "HeMF-bVB"
    assert (first["dataset"], first["protocol"], first["split"]) == ("ml-1m", "weak", 0)
    assert first["stand_in"] is None
    assert first["n_train"] + first["n_test"] == 300
    assert first["settings"] == {"n_factors": 2, "max_sweeps": 3}
    assert [point["iteration"] for point in first["curve"]] == [1, 2, 3]
    assert first["curve"][-1]["test_rmse"] == pytest.approx(first["test_rmse"], abs=0.05)
    assert first["curve"][0]["communities"] == [1, 1]
    assert 0 < first["curve"][0]["cpu_seconds"] <= first["cpu_seconds"]
    assert set(results.by_key) == {task.key for task in planned.tasks}


def test_all_first_splits_come_first_and_every_method_gets_the_same(small, request_, runs):
    run(plan([small()], request_))
    assert [name for name, *_ in runs] == ["hemf", "bpmf", "m3f-tib"] * 2
    assert len({(train, test) for _, train, test, _ in runs[:3]}) == 1
    assert len({(train, test) for _, train, test, _ in runs}) == 2


def test_a_killed_run_continues_where_it_was(small, request_, runs):
    planned = plan([small()], request_)
    run(planned)
    path = request_.output / RESULTS
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b'"curve"')])  # in the middle of the last line
    runs.clear()
    results = run(plan([small()], request_))
    assert [name for name, *_ in runs] == ["m3f-tib"]
    assert results.notes
    assert len(lines(request_)) == len(planned.tasks)
    again = {entry["key"]: entry["test_rmse"] for entry in lines(request_)}
    assert again == {
        entry["key"]: entry["test_rmse"] for entry in map(json.loads, whole.splitlines())
    }


def test_nothing_is_run_twice(small, request_, runs):
    run(plan([small(), small("alike")], request_))
    assert len(runs) == 6
    run(plan([small("alike")], request_))
    assert len(runs) == 6


def test_another_seed_or_other_settings_are_another_result(small, request_):
    one = plan([small()], request_).tasks[0]
    other = plan([small()], Request(request_.output, data=request_.data, seed=1)).tasks[0]
    assert one.key != other.key


def test_a_split_file_of_other_data_is_an_error_before_anything_is_run(
    small, request_, runs, write
):
    run(plan([small()], request_))
    before = (request_.output / RESULTS).read_bytes()
    write(request_.data / "ml-1m.parquet", seed=9)
    runs.clear()
    with pytest.raises(DataError, match="holds splits of another data set"):
        run(plan([small()], request_))
    assert not runs
    assert (request_.output / RESULTS).read_bytes() == before


def test_splits_are_saved_once_for_each_protocol(small, stream, request_):
    run(plan([small(), stream], request_))
    names = sorted(path.name for path in (request_.output / SPLITS).iterdir())
    assert names == ["ml-1m-4-chunks-seed0-2.npz", "ml-1m-weak-seed0-2.npz"]


@pytest.mark.parametrize("settings", [{"n_factors": 0}, {"user_topics": 0}])
def test_a_parameter_of_zero_is_an_error_and_finished_results_stay(small, request_, settings):
    good = Method("BPMF", "bpmf", {"n_factors": 2, "samples": 2, "burn_in": 0})
    bad = Method("M³F", "m3f-tib", {"n_factors": 2, "samples": 2, "burn_in": 0, **settings})
    with pytest.raises(ParameterError, match=next(iter(settings))):
        run(plan([small(methods=(good, bad), splits=1)], request_))
    assert [entry["method"] for entry in lines(request_)] == ["BPMF"]


def test_missing_data_leave_the_other_parts(small, request_):
    (request_.data / "eachmovie-ads-sample.parquet").unlink()
    planned = plan([small(), small("other", dataset="eachmovie")], request_)
    assert len(planned.tasks) == 6
    assert "vote.txt" in planned.missing[0]
    with pytest.raises(DatasetError, match=r"vote\.txt"):
        plan([small(dataset="eachmovie")], request_)


def test_ctrl_c_keeps_what_is_finished(small, request_):
    def stop(task, share, line):
        if task.method.label == "M³F-TIB(2,1,2)":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan([small()], request_), stop)
    assert [entry["method"] for entry in lines(request_)] == ["HeMF-bVB", "BPMF"]


def test_progress_rises_to_the_whole(small, request_):
    shares = []
    run(plan([small()], request_), lambda task, share, line: shares.append(share))
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert 0.9 < shares[-1] <= 1.0


def test_learners_of_chunks_are_asked_after_each(stream, request_):
    run(plan([stream], Request(request_.output, data=request_.data, splits=1)))
    by_method = {entry["method"]: entry for entry in lines(request_)}
    for entry in by_method.values():
        assert [point["iteration"] for point in entry["curve"]] == list(range(1, 9))
        assert entry["test_rmse"] == entry["curve"][-1]["test_rmse"]
    assert by_method["HeMF-oVB"]["curve"][-1]["communities"]
    chosen = by_method["SGD"]["chosen"]
    assert chosen["step"] in runner.STEPS
    assert chosen["tried"] == len(runner.STEPS) * len(runner.PENALTIES)


def test_results_say_which_version_of_the_code_they_are_of(small, request_):
    planned = plan([small()], request_)
    results = run(planned).by_key
    assert {entry["version"] for entry in lines(request_)} == {__version__}
    assert planned.other_versions(results) == {}
    assert planned.remark_on_versions(results) is None


def test_results_of_other_versions_are_kept_and_told_of(small, request_, runs):
    run(plan([small()], request_))
    first, second, *others = lines(request_)
    del first["version"]  # as it was before versions were noted
    second["version"] = "0.0.9"
    path = request_.output / RESULTS
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (first, second, *others)))
    before = path.read_bytes()
    runs.clear()
    planned = plan([small()], request_)
    results = run(planned).by_key
    assert not runs
    assert path.read_bytes() == before
    assert planned.other_versions(results) == {"0.0.9": 1, "a version not noted": 1}
    remark = planned.remark_on_versions(results)
    assert f"1 of 0.0.9, 1 of a version not noted. This is {__version__}." in remark
    assert planned.remark_on_versions({}) is None
    (comparison,) = compare_all(planned, planned.experiments[0], results)
    line = " ".join(conclusions(comparison))
    assert f"HeMF-bVB by {__version__} and a version not noted; BPMF by 0.0.9 and" in line
    assert "holds results of other versions of hemf" in render(planned, results)


def test_the_error_of_a_sampler_is_of_all_its_draws(small, request_):
    few = Method("BPMF", "bpmf", {"n_factors": 2, "samples": 6, "burn_in": 1, "kept": 1})
    run(plan([small(methods=(few,), splits=1)], request_))
    (entry,) = lines(request_)
    assert entry["test_rmse"] == entry["curve"][-1]["test_rmse"]
