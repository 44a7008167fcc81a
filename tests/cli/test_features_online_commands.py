"""``hemf update`` and ``hemf stream`` learn with features too."""

from __future__ import annotations

import pytest

from hemf import HeMF


@pytest.fixture
def kept(club, tmp_path):
    """A model with implicit features of one's own, and a file of new ratings."""
    settings = {"n_factors": 2, "max_sweeps": 5, "rng": 0, "n_jobs": 1}
    with pytest.warns(match="still rising"):
        model = HeMF(**settings, implicit_features=True).fit(club.ratings)
    model.save(tmp_path / "m.hemf")
    (tmp_path / "new.csv").write_text("user,item,rating\nzoe,2,4.5\nuser-1,999,2.0\nzoe,3,4.0\n")
    return tmp_path / "m.hemf"


def test_a_model_with_features_is_updated(hemf, kept, tmp_path):
    model = HeMF.load(kept).partial_fit(tmp_path / "new.csv")
    run = hemf("update", "m.hemf", "new.csv", "--json")
    assert run.code == 0, run.err
    assert (run.json["new_users"], run.json["new_items"]) == (1, 1)
    after = HeMF.load(kept)
    assert after.state_.sides["user"].regression is not None
    assert after.predict("zoe", 999) == model.predict("zoe", 999)


@pytest.mark.parametrize("start", ["0", "0.5"])
def test_a_stream_makes_features_of_its_ratings(hemf, club, start):
    common = ("stream", "--ratings", club.ratings, "--json", "--set", "n_factors=2")
    plain, with_features = (
        hemf(*common, "--warm-start", start, *settings)
        for settings in ((), ("--set", "implicit_features=true"))
    )
    assert with_features.code == 0, with_features.err
    assert 0.2 < with_features.json["rmse"] < 2
    assert with_features.json["rmse"] != plain.json["rmse"]


def test_a_stream_from_nothing_that_forgets_cannot(hemf, club):
    run = hemf(
        "stream", "--ratings", club.ratings, "--history", "none", "--set", "implicit_features=true"
    )
    assert run.code != 0
    assert 'history="full"' in run.err
