"""``hemf evaluate`` measures learners of every kind on the same ratings."""

from __future__ import annotations

import pytest


def test_sgd_is_evaluated_like_any_model(hemf, club, evaluate_keys):
    arguments = ("evaluate", "--train", club.train, "--test", club.test, "--model", "sgd")
    run = hemf(*arguments, "--set", "n_factors=3", "--set", "epochs=40")
    assert run.code == 0, run.err
    answer = run.json
    assert list(answer) == evaluate_keys
    assert 0.2 < answer["mae"] < answer["rmse"] < 1.5
    assert answer["train_rmse"] < answer["rmse"]
    assert answer["sweeps"] == 40
    for unknown in ("coverage90", "nlpd", "pit", "user_communities", "item_communities"):
        assert answer[unknown] is None


@pytest.mark.parametrize("model", ["bias", "popularity"])
def test_simple_baselines_are_evaluated_like_any_model(hemf, club, evaluate_keys, model):
    arguments = ("evaluate", "--train", club.train, "--test", club.test, "--model", model)
    run = hemf(*arguments, "--top", 3)
    assert run.code == 0, run.err
    assert list(run.json)[: len(evaluate_keys)] == evaluate_keys
    assert 0.2 < run.json["rmse"] < 1.5
    assert run.json["coverage90"] is None
    assert 0 <= run.json["ndcg@3"] <= 1


def test_a_model_that_only_ranks_is_evaluated_by_its_ranking(hemf, club, evaluate_keys):
    arguments = ("evaluate", "--train", club.train, "--test", club.test)
    run = hemf(*arguments, "--model", "ease:regularization=2", "--top", "3,8", "--report", "page")
    assert run.code == 0, run.err
    assert list(run.json)[: len(evaluate_keys)] == evaluate_keys
    assert [run.json[name] for name in ("rmse", "mae", "train_rmse", "nlpd")] == [None] * 4
    assert 0 < run.json["recall@3"] <= run.json["recall@8"] <= 1
    popular = hemf(*arguments, "--model", "popularity", "--top", "3,8").json
    beside = popular["popularity"]
    assert beside == run.json["popularity"] == {name: popular[name] for name in beside}


def test_a_model_that_only_ranks_needs_a_ranking(hemf):
    run = hemf("evaluate", "--train", "none.csv", "--test", "none.csv", "--model", "ease")
    assert run.code == 1
    assert "it ranks, and predicts no ratings; add --top 10" in run.err


@pytest.mark.parametrize(
    ("top", "complaint"),
    [("many", "expected a whole number"), ("5,,9", "with commas"), ("-3", "expected a whole"),
     ("0", "at least 1"), ("5,5", "without repetitions"), ("", "expected a whole number")],
)  # fmt: skip
def test_lengths_of_lists_are_checked_before_anything_is_read(hemf, top, complaint):
    run = hemf("evaluate", "--train", "none.csv", "--test", "none.csv", f"--top={top}")
    assert run.code == 1
    assert complaint in run.err


@pytest.mark.parametrize("model", ["sgd:epochs=3", "m3f-tib:samples=3", "gibbs:samples=3"])
def test_models_that_predict_are_ranked_too(hemf, club, model):
    arguments = ("evaluate", "--train", club.train, "--test", club.test, "--model", model)
    run = hemf(*arguments, "--top", 5, "--set", "n_factors=2")
    assert run.code == 0, run.err
    assert 0 < run.json["ndcg@5"] <= 1


def test_the_same_seed_gives_the_same_sgd(hemf, club):
    arguments = ("evaluate", "--train", club.train, "--test", club.test, "--model", "sgd")
    first, second, third = (
        hemf(*arguments, "--seed", seed, "--set", "rating_range=-99,99").json for seed in (5, 5, 6)
    )
    assert first["rmse"] == second["rmse"] != third["rmse"]


def test_settings_of_sgd_are_checked_before_anything_is_read(hemf):
    arguments = ("evaluate", "--train", "none.csv", "--test", "none.csv", "--model", "sgd")
    for setting, complaint in (("epochs=0", "epochs must be"), ("factors=3", "no parameter")):
        run = hemf(*arguments, "--set", setting)
        assert run.code == 1
        assert complaint in run.err


@pytest.mark.parametrize(
    "model",
    [
        "bpmf:samples=20,burn_in=5",
        "m3f-tib:user_topics=3,samples=20",
        "m3f-tif:item_topics=1",
        "gibbs:samples=20",
    ],
)
def test_samplers_are_evaluated_like_any_model(hemf, club, evaluate_keys, model):
    arguments = ("evaluate", "--train", club.train, "--test", club.test, "--model", model)
    settings = ("--set", "n_factors=2", "--set", "samples=15", "--set", "burn_in=5")
    run = hemf(*arguments, *settings)
    assert run.code == 0, run.err
    answer = run.json
    assert list(answer) == evaluate_keys
    assert 0.2 < answer["mae"] < answer["rmse"] < 1.5
    assert 0.5 < answer["coverage90"] <= 1.0
    assert answer["sweeps"] == (20 if model.startswith("m3f-tif") else 25)  # own settings win
    assert answer["user_communities"] is None
    again = hemf(*arguments, *settings, "--n-jobs", 1).json
    assert again["rmse"] == answer["rmse"]


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("m3f-tib:user_topics=0", "user_topics must be a whole number of at least 1"),
        ("m3f-tif:item_topics=2.5", "item_topics must be a whole number"),
        ("bpmf:n_factors=true", "n_factors must be a whole number"),
        ("bpmf:topics=2", "BPMF has no parameter 'topics'; it has n_factors, samples"),
        ("bpmf:fast", "expected name=value after the colon"),
        (
            "svd",
            "there is no such model; choose one of hemf, sgd, gibbs, bpmf, m3f-tib, m3f-tif, bias",
        ),
    ],
)
def test_a_model_that_cannot_be_is_one_line_before_anything_is_read(hemf, model, complaint):
    run = hemf("evaluate", "--train", "none.csv", "--test", "none.csv", "--model", model)
    assert run.code == 1
    assert complaint in run.err
    assert run.err.count("\n") == 1


def test_a_sampler_is_no_model_of_a_stream(hemf, club):
    run = hemf("stream", "--ratings", club.train, "--model", "bpmf")
    assert run.code == 1
    assert "it learns all ratings at once; choose one of hemf, sgd" in run.err


def test_samplers_say_now_and_then_how_far_they_are(hemf, club, monkeypatch):
    monkeypatch.setattr("hemf.cli.output.SECONDS_BETWEEN_LINES", 0.0)
    options = ("--model", "bpmf:samples=3,burn_in=1,n_factors=2")
    run = hemf("evaluate", "--train", club.train, "--test", club.test, *options)
    assert "iteration 4/4 · RMSE" in run.err
