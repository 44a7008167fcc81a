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
        for sitting in range(8):
            mood = rng.normal()
            for item in rng.choice(40, 6, replace=False):
                rating = 3 + mood + 0.02 * item + rng.normal(scale=0.2)
                lines.append((sitting, f"u{user},{sitting}-{item},{rating:.2f},{sitting}"))
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
    before = (files / "m.hemf").read_bytes()
    update = run_in("update", "m.hemf", "test.csv", folder=files)
    assert update.code != 0
    assert "not there for models with moods yet" in update.err
    assert (files / "m.hemf").read_bytes() == before


@pytest.mark.parametrize("setting", ["moods=true", "implicit_features=true"])
def test_stream_refuses_before_anything_is_fitted(files, run_in, setting):
    run = run_in("stream", "--ratings", "train.csv", "--warm-start", "0.5", "--set", setting,
                 folder=files)  # fmt: skip
    assert run.code != 0
    assert "hemf stream is not there for models with" in run.err
