"""Moods on the command line."""

from __future__ import annotations

import numpy as np
import pytest

SMALL = ("--set", "n_factors=2", "--set", "max_user_communities=1", "--set",
         "max_item_communities=1", "--set", "moods=true")  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Ratings of people who are sometimes generous, with the times; a tenth is apart."""
    folder, rng = tmp_path_factory.mktemp("moods"), np.random.default_rng(0)
    lines = []
    for user in range(60):
        for session in range(8):
            mood = rng.normal()
            for item in rng.choice(40, 6, replace=False):
                rating = 3 + mood + 0.02 * item + rng.normal(scale=0.2)
                lines.append((session, f"u{user},{session}-{item},{rating:.2f},{session}"))
    kept = rng.random(len(lines)) < 0.9
    for name, wanted in (("train", True), ("test", False)):
        part = [line for (_, line), is_kept in zip(lines, kept, strict=True) if is_kept == wanted]
        (folder / f"{name}.csv").write_text("\n".join(["user,item,rating,timestamp", *part]))
    return folder


def test_evaluate_judges_ratings_at_their_times(files, run_in):
    data = ("evaluate", "--train", "train.csv", "--test", "test.csv", "--json")
    moody = run_in(*data, *SMALL, folder=files)
    assert moody.code == 0, moody.err
    plain = run_in(*data, *SMALL[:-2], folder=files)
    assert moody.json["rmse"] < 0.6 * plain.json["rmse"]


def test_a_fitted_file_serves_every_command(files, run_in):
    fit = run_in("fit", "train.csv", "-o", "m.hemf", "--report", "r.html", *SMALL, folder=files)
    assert fit.code == 0, fit.err
    for command in (
        ("recommend", "m.hemf", "--user", "u1"),
        ("explain", "m.hemf", "u1", "1-1"),
        ("communities", "m.hemf"),
    ):
        run = run_in(*command, folder=files)
        assert run.code == 0, run.err
    update = run_in("update", "m.hemf", "test.csv", "-o", "n.hemf", "--json", folder=files)
    assert update.code == 0, update.err
    assert update.json["ratings"] == update.json["changed"] + len(new_pairs(files))
    before = (files / "n.hemf").read_bytes()
    (files / "untimed.csv").write_text("user,item,rating\nu1,1-1,4\n")
    untimed = run_in("update", "n.hemf", "untimed.csv", folder=files)
    assert untimed.code != 0
    assert "these have no timestamps" in untimed.err
    assert (files / "n.hemf").read_bytes() == before


def new_pairs(files):
    """Pairs of the test part that the training part does not have."""
    pairs = {}
    for name in ("train", "test"):
        lines = (files / f"{name}.csv").read_text().splitlines()[1:]
        pairs[name] = {tuple(line.split(",")[:2]) for line in lines}
    return pairs["test"] - pairs["train"]


def test_predict_looks_at_the_times_of_pairs(files, run_in):
    fit = run_in("fit", "train.csv", "-o", "p.hemf", *SMALL, folder=files)
    assert fit.code == 0, fit.err
    timed = run_in("predict", "p.hemf", "test.csv", "--json", folder=files).json
    lines = (files / "test.csv").read_text().splitlines()
    (files / "pairs.csv").write_text("\n".join(",".join(x.split(",")[:2]) for x in lines))
    plain = run_in("predict", "p.hemf", "pairs.csv", "--json", folder=files).json
    actual = np.array([float(line.split(",")[2]) for line in lines[1:]])
    errors = [
        float(np.mean((np.array([p["mean"] for p in answer["predictions"]]) - actual) ** 2))
        for answer in (timed, plain)
    ]
    assert errors[0] < 0.8 * errors[1]


@pytest.fixture(scope="module")
def coming(tmp_path_factory):
    """The same people in the order of time, and items that all of their sessions may have."""
    folder, rng = tmp_path_factory.mktemp("coming"), np.random.default_rng(1)
    lines = {"stream": [], "test": []}
    for user in range(60):
        chosen = rng.permutation(60)
        for session in range(9):
            mood = rng.normal()
            for item in chosen[6 * session : 6 * session + 6]:
                rating = 3 + mood + 0.02 * item + rng.normal(scale=0.2)
                line = f"u{user},i{item},{rating:.2f},{session}"
                lines["test" if rng.random() < 0.1 else "stream"].append((session, line))
    for name, part in lines.items():
        ordered = [line for _, line in sorted(part, key=lambda pair: pair[0])]
        (folder / f"{name}.csv").write_text("\n".join(["user,item,rating,timestamp", *ordered]))
    return folder


@pytest.mark.parametrize("batch_size", ["1", "100"])
def test_stream_predicts_with_the_mood_of_the_time(coming, run_in, batch_size):
    files = coming
    data = ("stream", "--ratings", "stream.csv", "--test", "test.csv", "--warm-start", "0.5",
            "--batch-size", batch_size, "--json")  # fmt: skip
    moody = run_in(*data, *SMALL, folder=files)
    assert moody.code == 0, moody.err
    plain = run_in(*data, *SMALL[:-2], folder=files)
    if batch_size == "1":  # a batch is predicted before any of its sessions is known
        assert moody.json["rmse"] < 0.9 * plain.json["rmse"]
    assert moody.json["test_rmse"] < 0.8 * plain.json["test_rmse"]


def test_a_start_that_factors_explain_does_not_close_moods_for_good(files, run_in):
    """Every session has items of its own: of the first two, factors leave nothing for moods."""
    data = ("stream", "--ratings", "train.csv", "--test", "test.csv", "--warm-start", "0.3",
            "--json")  # fmt: skip
    moody, plain = (run_in(*data, *settings, folder=files).json for settings in (SMALL, SMALL[:-2]))
    assert moody["test_rmse"] < 0.6 * plain["test_rmse"]
