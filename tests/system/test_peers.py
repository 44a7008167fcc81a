"""The comparison with peers, on peers made up here: no network, nothing installed."""

from __future__ import annotations

import io
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from rich.console import Console

from hemf import HeMF
from hemf.evaluation import nlpd, rmse

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


def module(name: str, folder: Path = BENCHMARKS) -> ModuleType:
    sys.path.insert(0, str(folder))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(folder))


peers, runs, settings, splits = (
    module(name) for name in ("peers", "_peer_runs", "_peer_settings", "_peer_splits")
)
adapter = module("adapter", BENCHMARKS / "_peer_adapters")

HONEST = """
import numpy as np
PACKAGES = ()
def run(task, settings):
    assert not hasattr(task, "test_ratings")
    assert not list(task._folder.glob("*test_ratings*"))
    with task.clock.running("fit"):
        mean = np.full(task.test_users.size, float(settings["say"]))
        mean[0] = np.nan
        mean[1] = 99.0
    task.point(0.5, 1, np.zeros(mean.size))
    task.point(1.5, 2, mean)
    task.finish(mean, np.full(mean.size, 2.0) if settings["sure"] else None)
"""
CRASH = """
PACKAGES = ()
def run(task, settings):
    raise RuntimeError("factors are not finite")
"""
SILENT = """
import os
PACKAGES = ()
def run(task, settings):
    os._exit(7)
"""
SHORT = """
import numpy as np
PACKAGES = ()
def run(task, settings):
    task.finish(np.zeros(1))
"""
SLOW = """
import time
PACKAGES = ()
def run(task, settings):
    time.sleep(60)
"""


@pytest.fixture
def split():
    train = (np.array([5, 5, 9, 7]), np.array([1, 2, 1, 2]), np.array([1.0, 2.0, 5.0, 4.0]))
    test = (np.array([9, 7, 8]), np.array([2, 1, 1]), np.array([4.0, 5.0, 2.0]))
    return splits.Split.of("made-up", train, test)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A peer with this adapter, which runs in this environment."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def peer(source: str, **given) -> object:
        name = f"fake_{len(list(tmp_path.glob('*.py')))}"
        (tmp_path / f"{name}.py").write_text(source)
        return runs.Peer(name, name, settings=given)

    return peer


@pytest.fixture
def runner(tmp_path):
    return runs.Runner(runs.Environments(tmp_path / "envs"))


def test_errors_are_of_clipped_predictions_and_the_mean_stands_in_for_missing_ones(
    runner, fake, split
):
    row = runner.row(fake(HONEST, say=2.5, sure=True), split)
    forecast = np.array([3.0, 5.0, 2.5])  # the mean of train, the largest of train, itself
    off = split.test[2] - forecast
    assert row["rmse"] == pytest.approx(np.sqrt(np.mean(off**2)))
    assert row["mae"] == pytest.approx(np.mean(np.abs(off)))
    assert row["missing"] == 1
    assert row["nlpd"] == pytest.approx(nlpd(split.test[2], forecast, np.full(3, 2.0)))
    assert row["coverage90"] == 1.0
    assert row["peak_rss_mb"] > 1
    assert row["cpu_seconds"] == row["fit_cpu_seconds"] + row["predict_cpu_seconds"]
    first = np.sqrt(np.mean((split.test[2] - 1.0) ** 2))  # zeros, clipped to the smallest
    assert [point["rmse"] for point in row["curve"]] == pytest.approx([first, row["rmse"]])


def test_without_deviations_there_is_no_nlpd(runner, fake, split):
    row = runner.row(fake(HONEST, say=2.5, sure=False), split)
    assert (row["nlpd"], row["coverage90"]) == (None, None)
    assert row["rmse"] > 0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (CRASH, "exit code 1: RuntimeError: factors are not finite"),
        (SILENT, "exit code 7: no reason given"),
        (SHORT, "(1,) predictions for 3 pairs"),
    ],
)
def test_a_peer_that_crashes_is_a_row_that_says_so(runner, fake, split, source, reason):
    row = runner.row(fake(source), split)
    assert row["failure"] == reason
    assert "rmse" not in row


def test_a_peer_that_does_not_end_is_a_row_that_says_so(runner, fake, split):
    runner.timeout = 1.0
    assert runner.row(fake(SLOW), split)["failure"] == "took more than 1 s"


def test_an_install_that_fails_is_a_row_and_is_not_tried_again(
    runner, split, monkeypatch, tmp_path
):
    made = []
    monkeypatch.setattr(runs.venv, "create", lambda home, **_: made.append(home))
    python = tmp_path / "envs" / "sick" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found' >&2\nexit 1\n")
    python.chmod(0o755)
    sick = runs.Peer("sick", "with_sick", "sick", ("sick==1.0",))
    for _ in range(2):
        failure = runner.row(sick, split)["failure"]
        assert failure == "install failed: ERROR: No matching distribution found"
    assert made == [tmp_path / "envs" / "sick"]


def test_an_environment_is_made_once_and_anew_when_it_should_hold_something_else(
    monkeypatch, tmp_path
):
    made = []
    monkeypatch.setattr(
        runs.Environments,
        "_make",
        lambda self, home, python, wanted: (home.mkdir(exist_ok=True), made.append(wanted)),
    )
    old = runs.Peer("peer", "with_peer", "peer", ("peer==1.0",))
    new = runs.Peer("peer", "with_peer", "peer", ("peer==2.0",))
    for peer in (old, old, new):
        runs.Environments(tmp_path).python(peer)
    assert made == [["peer==1.0"], ["peer==2.0"]]


@pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
def test_hemf_runs_as_a_peer_with_the_predictions_that_it_has_here(runner, rng):
    users, items = np.divmod(rng.permutation(900)[:500], 30)
    ratings = rng.integers(1, 6, 500).astype(float)
    given = {"n_factors": 2, "communities": "one", "max_sweeps": 5, "noise_scales": None}
    split = splits.Split.of(
        "made-up",
        (users[:450], items[:450], ratings[:450]),
        (users[450:], items[450:], ratings[450:]),
    )
    row = runner.row(runs.Peer("hemf", "with_hemf", settings=given), split)
    assert "failure" not in row, row
    own = {name: given[name] for name in ("n_factors", "max_sweeps", "noise_scales")}
    model = HeMF(**own, max_user_communities=1, max_item_communities=1, rng=0).fit(split.train)
    mean, std = model.predict(*split.test[:2], return_std=True)
    assert row["rmse"] == pytest.approx(rmse(split.test[2], mean))
    assert row["nlpd"] == pytest.approx(nlpd(split.test[2], mean, std))
    assert [point["iterations"] for point in row["curve"]] == [2, 4, 5]
    assert row["curve"][-1]["rmse"] == pytest.approx(row["rmse"], abs=1e-6)
    assert row["versions"].keys() >= {"hemf", "numpy"}


def row(name: str, *curve: tuple[float, float], **more) -> dict:
    points = [{"cpu_seconds": s, "iterations": k, "rmse": e} for k, (s, e) in enumerate(curve)]
    figures = {"mae": 0.5, "nlpd": None, "coverage90": None, "peak_rss_mb": 100.0}
    return {
        "set": "made-up",
        "peer": name,
        "settings": {},
        "part": "test",
        "rmse": curve[-1][1],
        "fit_cpu_seconds": curve[-1][0],
        "predict_cpu_seconds": 0.25,
        "curve": points,
        **figures,
        **more,
    }


ROWS = [
    row("slow", (5.0, 0.95), (50.0, 0.90)),
    {"set": "made-up", "peer": "sick", "settings": {}, "part": "test", "failure": "no compiler"},
    row("hemf", (1.0, 0.92), (2.0, 0.89), nlpd=1.25, coverage90=0.9),
    row("rough", (0.1, 0.97)),
]


def test_rows_are_from_best_to_worst_with_the_time_to_the_errors_of_others():
    found = {row["peer"]: row for row in peers.summary(ROWS)}
    assert list(found) == ["hemf", "slow", "rough", "sick"]
    assert {row["target"] for row in found.values()} == {0.90}  # the median
    assert found["hemf"]["seconds_to_target"] == 2.0
    assert found["slow"]["seconds_to_target"] == 50.0
    assert found["rough"]["seconds_to_target"] is None
    assert found["slow"]["hemf_seconds"] == 2.0
    assert found["rough"]["hemf_seconds"] == 1.0


def test_a_target_may_be_given():
    found = {row["peer"]: row for row in peers.summary(ROWS, 0.96)}
    assert found["slow"]["seconds_to_target"] == 5.0
    assert found["rough"]["seconds_to_target"] is None


def test_the_table_shows_figures_and_failures():
    console = Console(file=io.StringIO(), width=150)
    console.print(peers.table("made-up", ROWS))
    lines = console.file.getvalue().splitlines()
    ours = next(line for line in lines if "hemf" in line and "0.8900" in line)
    assert re.findall(r"[\d.]+|–", ours) == [
        "0.8900", "0.5000", "1.2500", "0.900", "2.0", "0.2", "100", "2.0", "2.0",
    ]  # fmt: skip
    assert any("sick" in line and "no compiler" in line for line in lines)


def test_the_table_is_there_in_markdown_too():
    found = peers.markdown("made-up", ROWS).splitlines()
    assert found[0] == "## made-up"
    cells = [line.count("|") for line in found[2:]]
    assert cells == [12] * 6  # titles, rule and four peers, of eleven columns
    assert found[-1].startswith("| sick |")
    assert found[-1].endswith("| no compiler |")


def test_a_table_of_failures_alone_can_be_shown():
    console = Console(file=io.StringIO(), width=150)
    console.print(peers.table("made-up", ROWS[1:2]))
    assert "no compiler" in console.file.getvalue()


def test_results_are_kept_and_failures_tried_again(tmp_path):
    path = tmp_path / "rows.json"
    results = peers.Results(path)
    for one in ROWS:
        results.add(one)
    again = peers.Results(path)
    assert again.rows == json.loads(json.dumps(ROWS))
    assert again.find("made-up", "hemf", {}, "test")["rmse"] == 0.89
    assert again.find("made-up", "hemf", {"n_factors": 3}, "test") is None
    assert again.find("made-up", "hemf", {}, "train") is None
    assert again.find("made-up", "sick", {}, "test") is None
    again.add(row("sick", (1.0, 0.8)))
    assert [r["peer"] for r in peers.Results(path).rows] == ["slow", "hemf", "rough", "sick"]


def test_ids_are_numbered_with_those_of_the_training_part_first(split):
    assert (split.n_users, split.n_items) == (4, 2)
    assert split.train[0].tolist() == [0, 0, 2, 1]
    assert split.test[0].tolist() == [2, 1, 3]  # 8 is not in train
    assert split.test[1].tolist() == [1, 0, 0]


def test_held_out_ratings_are_of_the_training_part_alone(split):
    part = splits.held_out(split)
    both = np.concatenate([part.train[2], part.test[2]])
    assert sorted(both) == sorted(split.train[2])
    assert part.test[2].size == 1


def test_settings_for_a_large_set_are_searched_on_some_of_its_users(rng):
    users, items = np.divmod(np.arange(2000), 20)
    ratings = rng.normal(size=2000)
    large = splits.Split.of("made-up", (users, items, ratings), (users[:1], items[:1], ratings[:1]))
    part = splits.held_out(large, most=1000)
    assert part.n_users == 10
    assert part.train[2].size + part.test[2].size == 200
    assert set(part.train[2]) | set(part.test[2]) <= set(ratings)
    assert splits.held_out(large).n_users == 100


def test_time_inside_a_callback_does_not_count_as_fitting(monkeypatch):
    now = iter([0.0, 10.0, 13.0, 20.0, 25.0])
    monkeypatch.setattr(adapter.time, "process_time", lambda: next(now))
    clock = adapter.Clock()
    with clock.running("fit"):
        with clock.running("predict"):
            pass
        assert clock.fitted() == 17.0
    assert clock.spent == {"fit": 22.0, "predict": 3.0}


def test_the_curve_has_few_points():
    assert [n for n in range(1, 50) if adapter.worth_a_point(n)] == [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48,
    ]  # fmt: skip


def test_every_peer_has_the_settings_that_its_adapter_reads():
    folder = BENCHMARKS / "_peer_adapters"
    for on in splits.FILES:
        for name in settings.ADAPTERS:
            peer = settings.peer(name, on)
            source = (folder / f"{peer.adapter}.py").read_text()
            if peer.adapter == "with_surprise":
                svd, knn = source.split("def neighbours")
                source = knn if peer.settings["algorithm"] == "knn" else svd
            read = set(re.findall(r'settings\["(\w+)"\]', source))
            assert read <= set(peer.settings), (on, name)


def test_environments_are_names_and_versions_alone():
    for wanted in settings.ENVIRONMENTS.values():
        for requirement in wanted:
            assert re.fullmatch(r"[A-Za-z0-9._-]+([=<>]=?[\w.]+)?", requirement)


@pytest.mark.parametrize("name", ["filmtrust", "flixster"])
def test_splits_are_those_of_the_other_benchmarks(shared_data, monkeypatch, name):
    accuracy = module("accuracy")
    monkeypatch.setattr(accuracy, "FOLDER", shared_data)
    monkeypatch.setattr(splits, "FOLDER", shared_data)
    if not splits.is_there(name):
        pytest.skip(f"{name} is not in {shared_data}")
    train, test = accuracy.split(splits.FILES[name])
    found = splits.load(name)
    assert np.array_equal(found.train[2], train[2].astype(float))
    assert np.array_equal(found.test[2], test[2].astype(float))
    known = dict(zip(train[0].tolist(), found.train[0].tolist(), strict=True))
    assert len(set(known.values())) == len(known) == found.train[0].max() + 1
    assert all(
        known.get(old, new) == new
        for old, new in zip(test[0].tolist(), found.test[0].tolist(), strict=True)
    )
