"""``hemf update`` lets a kept model learn, or leaves it as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from hemf import HeMF
from hemf._files import file_lock
from hemf.online.record import KEPT, Batch, remember

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


# -- once, and one at a time ---------------------------------------------------------------------


def test_two_updates_at_once_are_both_learnt(kept, tmp_path):
    processes = []
    for number in range(2):
        name = tmp_path / f"new-{number}.csv"
        name.write_text(f"user,item,rating\nnew-{number},2,4.5\n")
        command = [sys.executable, "-m", "hemf.cli", "update", kept, name, "--json"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    ends = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    model = HeMF.load(kept)
    assert model.predict(["new-0", "new-1"], 2, return_known=True)[1].all()
    assert len(model.batches_) == 2
    assert not list(tmp_path.glob(".hemf-*"))


def test_a_model_that_stays_in_use_is_left_alone(hemf, kept):
    before = kept.read_bytes()
    with file_lock(kept):
        run = hemf("update", "m.hemf", "new.csv", "--wait", "0.2")
        again = hemf("update", "m.hemf", "new.csv", "--wait", "0", "-o", "other.hemf")
    assert run.code == 1
    waits, failed = run.err.splitlines()
    assert "is in use by another hemf" in waits
    assert "waiting up to 0.2 s" in waits
    assert failed.startswith("hemf: m.hemf is in use")
    assert kept.read_bytes() == before
    assert again.code == 0, again.err  # reads M, which is always whole, and writes another file


@pytest.mark.parametrize("command", ["fit", "tune"])
def test_other_writers_wait_for_the_file_too(command, hemf, kept, club, monkeypatch):
    defaults = {"seconds": 0.1, "waiting": print}
    monkeypatch.setattr(file_lock.__wrapped__, "__kwdefaults__", defaults)
    fast = ("--set", "max_sweeps=1", "--set", "n_factors=1")
    trials = ("--trials", "1") if command == "tune" else ()
    before = kept.read_bytes()
    with file_lock(kept):
        run = hemf(command, club.ratings, "-o", kept, *fast, *trials)
    assert run.code == 1
    assert "is in use by another hemf" in run.err
    assert kept.read_bytes() == before


def test_a_model_that_another_program_replaced_meanwhile_is_not_overwritten(
    hemf, kept, club, monkeypatch
):
    learn = HeMF.partial_fit

    def replaced_meanwhile(self, *args, **kwargs):
        shutil.copy(club.model, kept)
        return learn(self, *args, **kwargs)

    monkeypatch.setattr(HeMF, "partial_fit", replaced_meanwhile)
    run = hemf("update", "m.hemf", "new.csv")
    assert run.code == 1
    assert "m.hemf was changed by another program" in run.err
    assert kept.read_bytes() == club.model.read_bytes()


@pytest.mark.parametrize("history", ["full", "none"])
def test_the_same_batch_is_learnt_once(history, hemf, kept, club):
    fast = ("--set", "max_sweeps=2", "--set", "n_factors=1", "--set", f"history='{history}'")
    assert hemf("fit", club.ratings, "-o", "m.hemf", *fast).code == 0
    first = hemf("update", "m.hemf", "new.csv", "--json").json
    assert first["applied"] is True
    content = kept.read_bytes()
    (kept.parent / "copy.csv").write_bytes((kept.parent / "new.csv").read_bytes())
    second = hemf("update", "m.hemf", "copy.csv", "--json").json
    assert second.keys() == first.keys()
    assert (second["applied"], second["ratings"]) == (False, 0)
    assert second["batch_id"] == first["batch_id"]
    assert kept.read_bytes() == content
    run = hemf("update", "m.hemf", "new.csv")
    assert run.code == 0
    assert "has been learnt before" in run.out
    assert "--again" in run.out
    n_ratings = HeMF.load(kept).n_ratings_
    assert hemf("update", "m.hemf", "new.csv", "--again", "--json").json["applied"] is True
    assert HeMF.load(kept).n_ratings_ == n_ratings + (0 if history == "full" else 4)
    assert hemf("update", "m.hemf", "--removed", "new.csv", "--json").json["applied"] is True


def test_a_batch_has_the_name_it_is_given(hemf, kept, tmp_path):
    (tmp_path / "other.csv").write_text("user,item,rating\nmax,2,4.5\n")
    assert hemf("update", "m.hemf", "new.csv", "--batch-id", "monday", "--json").json["applied"]
    run = hemf("update", "m.hemf", "other.csv", "--batch-id", "monday")
    assert run.code == 0
    assert "batch monday has been learnt before" in run.out
    assert "had other content" in run.err
    assert hemf("update", "m.hemf", "new.csv", "--batch-id", "tuesday", "--json").json["applied"]
    assert [batch.id for batch in HeMF.load(kept).batches_] == ["monday", "tuesday"]


def test_batches_stay_with_the_model_until_it_is_fitted_anew(hemf, kept, tmp_path):
    hemf("update", "m.hemf", "new.csv", "--batch-id", "monday")
    model = HeMF.load(kept).partial_fit([("zoe", 2, 3.0)])
    model.save(kept)
    assert [batch.id for batch in HeMF.load(kept).batches_] == ["monday"]
    assert HeMF(n_factors=1, max_sweeps=1).fit(tmp_path / "new.csv").batches_ == ()


def test_the_last_thousand_batches_are_remembered():
    known = ()
    for number in range(KEPT + 5):
        known = remember(known, Batch(str(number), "", 1))
    assert len(known) == KEPT == 1000
    assert known[0].id == "5"


def test_describe_says_what_is_in_a_model(hemf, kept):
    hemf("update", "m.hemf", "new.csv", "--batch-id", "monday")
    facts = hemf("describe", "m.hemf", "--json").json
    model = HeMF.load(kept)
    assert facts["bytes"] == kept.stat().st_size
    assert (facts["users"], facts["items"]) == (81, 51)
    assert facts["ratings"] == model.n_ratings_
    assert facts["sweeps"] == model.n_sweeps_
    assert (facts["history"], facts["online"]) == ("full", True)
    assert (facts["format_version"], facts["library_version"]) == (1, "0.1.0")
    assert [(batch["id"], batch["ratings"]) for batch in facts["batches"]] == [("monday", 4)]
    shown = hemf("describe", "m.hemf")
    assert "  monday  4 ratings" in shown.out
    assert "81 users" in shown.out
