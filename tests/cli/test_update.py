"""``hemf update`` lets a kept model learn, or leaves it as it was."""

from __future__ import annotations

import shutil

import pytest

from hemf import HeMF

KEYS = {
    "users", "items", "ratings", "new_users", "new_items", "changed", "removed", "user_communities",
    "item_communities", "seconds", "model",
}  # fmt: skip


@pytest.fixture
def kept(club, tmp_path):
    """A model file of one's own, and one of new ratings."""
    shutil.copy(club.model, tmp_path / "m.hemf")
    (tmp_path / "new.csv").write_text(
        "user,item,rating\nzoe,2,4.5\nuser-1,2,1.5\nuser-1,999,2.0\nzoe,3,4.0\n"
    )
    return tmp_path / "m.hemf"


def test_new_ratings_users_and_items_are_learnt_and_kept(hemf, kept):
    before = HeMF.load(kept)
    run = hemf("update", "m.hemf", "new.csv", "--json")
    assert run.code == 0, run.err
    answer = run.json
    assert answer.keys() >= KEYS
    assert (answer["ratings"], answer["new_users"], answer["new_items"]) == (4, 1, 1)
    assert (answer["users"], answer["items"]) == (81, 51)
    assert answer["removed"] == 0
    assert answer["model"] == "m.hemf"
    after = HeMF.load(kept)
    assert after.predict("zoe", 2, return_known=True)[1]
    assert not before.predict("zoe", 2, return_known=True)[1]
    assert after.predict("zoe", 2) != before.predict("zoe", 2)


def test_it_is_what_the_library_does(hemf, kept, tmp_path):
    model = HeMF.load(kept).partial_fit(tmp_path / "new.csv")
    hemf("update", "m.hemf", "new.csv")
    pairs = (["zoe", "user-1", "user-2", "stranger"], [2, 999, 3, 4])
    assert HeMF.load(kept).predict(*pairs).tolist() == model.predict(*pairs).tolist()


def test_with_a_name_of_its_own_the_old_model_stays(hemf, kept, tmp_path):
    before = kept.read_bytes()
    run = hemf("update", "m.hemf", "new.csv", "-o", "newer.hemf")
    assert run.code == 0
    assert "4 ratings learnt" in run.out
    assert "1 new users, 1 new items; 81 users and 51 items in all" in run.out
    assert "model: newer.hemf" in run.out
    assert kept.read_bytes() == before
    assert HeMF.load(tmp_path / "newer.hemf").n_users_ == 81


def test_ratings_are_taken_back(hemf, kept, tmp_path):
    model = HeMF.load(kept)
    user, item = (
        model.ratings_.users.ids[0],
        model.ratings_.items.ids[model.ratings_.triples()[1][0]],
    )
    (tmp_path / "removed.csv").write_text(f"user,item\n{user},{item}\n")
    run = hemf("update", "m.hemf", "new.csv", "--removed", "removed.csv", "--json")
    assert run.code == 0, run.err
    assert run.json["removed"] == 1
    expected = model.partial_fit(tmp_path / "new.csv", removed=[(user, item)])
    assert HeMF.load(kept).predict(user, item) == expected.predict(user, item)


def test_ratings_may_be_taken_back_alone(hemf, kept, tmp_path):
    model = HeMF.load(kept)
    items, _ = model.ratings_.by_user.row(0)
    pairs = [(model.ratings_.users.ids[0], model.ratings_.items.ids[item]) for item in items[:2]]
    lines = [f"{user},{item}" for user, item in pairs]
    (tmp_path / "removed.csv").write_text("\n".join(["user,item", *lines]))
    run = hemf("update", "m.hemf", "--removed", "removed.csv", "--json")
    assert run.code == 0, run.err
    assert (run.json["ratings"], run.json["changed"], run.json["removed"]) == (0, 0, 2)
    assert HeMF.load(kept).n_ratings_ == model.n_ratings_ - 2


def test_without_anything_to_learn_there_is_nothing_to_do(hemf, kept):
    run = hemf("update", "m.hemf")
    assert run.code == 1
    assert "give a file of ratings, or --removed" in run.err


def test_a_rating_of_a_pair_that_is_known_is_a_changed_one(hemf, kept, tmp_path):
    model = HeMF.load(kept)
    items, _ = model.ratings_.by_user.row(0)
    user, item = model.ratings_.users.ids[0], model.ratings_.items.ids[items[0]]
    (tmp_path / "again.csv").write_text(f"user,item,rating\n{user},{item},1.25\nzoe,2,3\n")
    run = hemf("update", "m.hemf", "again.csv")
    assert run.code == 0, run.err
    assert "2 ratings learnt" in run.out
    assert "1 of them changed ones" in run.out
    assert HeMF.load(kept).n_ratings_ == model.n_ratings_ + 1


@pytest.fixture
def forgetful(club, tmp_path):
    """A model file that keeps no ratings, the model, and a rating that it has learnt."""
    model = HeMF(n_factors=2, history="none", rng=0).fit(HeMF.load(club.model).ratings_)
    user, item = 0, int(model.ratings_.by_user.row(0)[0][0])
    pair = model.ratings_.users.ids[user], model.ratings_.items.ids[item]
    rating = float(model.ratings_.by_user.row(0)[1][0])
    model.partial_fit([("zoe", 2, 3.0)])
    model.save(tmp_path / "m.hemf")
    return model, pair, rating


def test_what_changed_ratings_were_may_be_said(hemf, forgetful, tmp_path):
    model, (user, item), rating = forgetful
    (tmp_path / "new.csv").write_text(f"user,item,rating\nann,{item},2.0\n{user},{item},1.5\n")
    (tmp_path / "old.csv").write_text(f"item,user,rating\n{item},{user},{rating}\n")
    run = hemf("update", "m.hemf", "new.csv", "--previous", "old.csv", "--json")
    assert run.code == 0, run.err
    after = HeMF.load(tmp_path / "m.hemf")
    assert after.n_ratings_ == model.n_ratings_ + 1  # ann's; the other is the same pair
    model.partial_fit([("ann", item, 2.0), (user, item, 1.5)], previous=[float("nan"), rating])
    assert after.predict(user, item) == model.predict(user, item)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["new.csv", "--previous", "old.csv"], "is not among those that change"),
        (["--removed", "old.csv", "--previous", "old.csv"], "give the new ones, too"),
        (["new.csv", "--previous", "no.csv"], "no.csv: no such file"),
    ],
)
def test_what_does_not_change_cannot_have_been_before(hemf, forgetful, tmp_path, arguments, text):
    _, (user, item), rating = forgetful
    (tmp_path / "new.csv").write_text("user,item,rating\nann,2,2.0\n")
    (tmp_path / "old.csv").write_text(f"user,item,rating\n{user},{item},{rating}\n")
    before = (tmp_path / "m.hemf").read_bytes()
    run = hemf("update", "m.hemf", *arguments)
    assert run.code == 1
    assert text in run.err
    assert (tmp_path / "m.hemf").read_bytes() == before


def test_columns_may_have_any_name(hemf, kept, tmp_path):
    (tmp_path / "calls.csv").write_text("what,who,stars\n2,zoe,4.5\n")
    run = hemf("update", "m.hemf", "calls.csv", "--columns", "who,what,stars", "--json")
    assert run.json["new_users"] == 1


REFUSED = {
    "a textual rating": ("user,item,rating\nann,2,3\nann,3,good\n", "'good'"),
    "a missing rating": ("user,item,rating\nann,2,3\nann,3,\n", "row 1"),
    "no ratings": ("user,item,rating\n", "no rows"),
    "no such columns": ("who,what,stars\nann,2,3\n", "column"),
}


@pytest.mark.parametrize(("content", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_a_failed_update_leaves_the_model_as_it_was(hemf, kept, tmp_path, content, text):
    before = kept.read_bytes()
    (tmp_path / "bad.csv").write_text(content)
    files = sorted(tmp_path.iterdir())
    run = hemf("update", "m.hemf", "bad.csv")
    assert run.code == 1
    assert run.out == ""
    assert len(run.err.splitlines()) == 1
    assert text in run.err
    assert kept.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == files


def test_taking_back_what_was_never_given_is_refused(hemf, kept, tmp_path):
    before = kept.read_bytes()
    (tmp_path / "removed.csv").write_text("user,item\nnobody,2\n")
    run = hemf("update", "m.hemf", "new.csv", "--removed", "removed.csv")
    assert run.code == 1
    assert "nobody" in run.err
    assert kept.read_bytes() == before


def test_an_interrupted_update_leaves_the_model_as_it_was(hemf, kept, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    before = kept.read_bytes()
    monkeypatch.setattr(HeMF, "partial_fit", interrupt)
    run = hemf("update", "m.hemf", "new.csv")
    assert (run.code, run.err) == (130, "hemf: interrupted\n")
    assert kept.read_bytes() == before


def test_files_that_are_in_the_way_are_named(hemf, kept, club):
    for arguments, text in (
        (["no.hemf", "new.csv"], "no.hemf: no such file"),
        (["new.csv", "new.csv"], "would overwrite new.csv"),
        (["m.hemf", "new.csv", "-o", "new.csv"], "would overwrite new.csv"),
        (["m.hemf", "no.csv"], "no.csv: no such file"),
        (["m.hemf", "new.csv", "-o", "no/m.hemf"], "there is no folder"),
        (["m.hemf", "new.csv", "--removed", "no.csv"], "no.csv: no such file"),
    ):
        run = hemf("update", *arguments)
        assert run.code == 1
        assert text in run.err
