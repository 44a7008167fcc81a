"""``hemf evaluate`` measures learners of every kind on the same ratings."""

from __future__ import annotations


def test_sgd_is_evaluated_like_any_model(hemf, club, evaluate_keys):
    arguments = ("evaluate", "--train", club.train, "--test", club.test, "--model", "sgd")
    run = hemf(*arguments, "--set", "n_factors=3", "--set", "epochs=40")
    assert run.code == 0, run.err
    answer = run.json
    assert list(answer) == evaluate_keys
    assert 0.2 < answer["mae"] < answer["rmse"] < 1.5
    assert answer["train_rmse"] < answer["rmse"]
    assert answer["sweeps"] == 40
    for unknown in ("coverage90", "user_communities", "item_communities"):
        assert answer[unknown] is None


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
