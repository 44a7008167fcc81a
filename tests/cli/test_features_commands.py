"""Features of users and items on the command line."""

from __future__ import annotations

import numpy as np
import pytest

from hemf import HeMF

SMALL = ("--set", "n_factors=2", "--set", "max_user_communities=1", "--set",
         "max_item_communities=1", "--set", "tol=0.001")  # fmt: skip
FILES = ("--user-features", "people.csv", "--item-features", "things.tsv")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Ratings that depend on where people are from and what things are; some have no rating."""
    folder, rng = tmp_path_factory.mktemp("features"), np.random.default_rng(0)
    town, kind = rng.integers(2, size=90), rng.integers(2, size=70)
    people = ["age,userId,town"]
    people += [f"{20 + u % 50},{u},{('Rome', 'Oslo')[town[u]]}" for u in range(90)]
    (folder / "people.csv").write_text("\n".join(people))
    title = ["" if i in (5, 6) else f"thing number {i}" for i in range(70)]
    things = [f"{i}\t{title[i]}\t{('hot|sweet', 'cold')[kind[i]]}" for i in range(70)]
    (folder / "things.tsv").write_text("\n".join(["product\ttitle\tkinds", *things]))
    lines = {"train": ["userId,product,rating"], "test": ["userId,product,rating"]}
    for user in range(90):
        for item in rng.choice(70, 12, replace=False):
            rating = 3 + (1 if town[user] == kind[item] else -1) + rng.normal(scale=0.3)
            new = user >= 80 or item >= 60
            lines["test" if new else "train"].append(f"{user},{item},{rating:.2f}")
    for name, part in lines.items():
        (folder / f"{name}.csv").write_text("\n".join(part))
    return folder


def test_evaluate_predicts_newcomers_by_their_features(files, run_in):
    data = ("evaluate", "--train", "train.csv", "--test", "test.csv", "--json", *SMALL)
    without, with_features = run_in(*data, folder=files), run_in(*data, *FILES, folder=files)
    assert with_features.code == 0, with_features.err
    assert with_features.json["rmse"] < 0.5 * without.json["rmse"]


def test_a_fitted_file_predicts_newcomers_by_their_features(files, run_in):
    fit = run_in("fit", "train.csv", "-o", "m.hemf", *FILES, *SMALL, folder=files)
    assert fit.code == 0, fit.err
    assert "things.tsv: title is different in every row and is left out" in fit.err
    model = HeMF.load(files / "m.hemf")
    assert model.given_features_["user"].encoder.blocks == {"(numbers)": 1, "town": 2}
    assert model.given_features_["item"].encoder.blocks == {"kinds": 3}
    assert model.given_features_["user"].newcomers.ids.tolist() == list(
        range(80, 90)
    )  # numbers, not text
    run = run_in("predict", "m.hemf", "test.csv", "--json", folder=files)
    means = {(row["user"], row["item"]): row["mean"] for row in run.json["predictions"]}
    rows = [line.split(",") for line in (files / "test.csv").read_text().splitlines()[1:]]
    off = [means[int(user), int(item)] - float(rating) for user, item, rating in rows]
    assert np.sqrt(np.mean(np.square(off))) < 0.6


def test_implicit_features_go_with_given_ones(files, run_in):
    run = run_in("fit", "train.csv", "-o", "i.hemf", *FILES, *SMALL, "--set",
                 "implicit_features=true", folder=files)  # fmt: skip
    assert run.code == 0, run.err
    assert HeMF.load(files / "i.hemf").implicit_features is True


def test_several_files_tell_of_one_side(files, hemf, tmp_path):
    more = tmp_path / "more.csv"
    more.write_text("\n".join(["id,shoes", *(f"{user},{user % 7}" for user in range(90))]))
    fit = hemf("fit", files / "train.csv", "-o", "two.hemf", "--user-features",
               files / "people.csv", "--user-features", more, *SMALL)  # fmt: skip
    assert fit.code == 0, fit.err
    blocks = HeMF.load(tmp_path / "two.hemf").given_features_["user"].encoder.blocks
    assert blocks == {"(numbers) 1": 1, "(numbers) 2": 1, "town 1": 2}


def test_ids_stand_in_the_column_of_the_ratings_or_in_the_first(files, hemf, tmp_path):
    names = (files / "train.csv").read_text().replace("userId,product", "client,service")
    (tmp_path / "r.csv").write_text(names)
    # of the name chosen for the ratings, though another has a usual one
    rows = [f"x{user},{user},{('Rome', 'Oslo')[user % 2]}" for user in range(90)]
    (tmp_path / "named.csv").write_text("\n".join(["user,client,town", *rows]))
    # no names at all, as MovieLens has it: the first
    (tmp_path / "bare.dat").write_text("\n".join(f"{u}::{'FM'[u % 2]}::{u % 5}" for u in range(90)))
    for name, blocks in {
        "named.csv": {"town": 2},
        "bare.dat": {"(numbers)": 1, "column 1": 2},
    }.items():
        fit = hemf("fit", "r.csv", "-o", "m.hemf", "--columns", "client,service,rating",
                   "--user-features", name, *SMALL)  # fmt: skip
        assert fit.code == 0, fit.err
        given = HeMF.load(tmp_path / "m.hemf").given_features_["user"]
        assert given.encoder.blocks == blocks
        assert len(given.newcomers) == 10  # of 90 that have features


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gone.csv", None, ["gone.csv", "no such file"]),
        ("alone.csv", "user\n1\n2", ["alone.csv", "user alone"]),
        ("twice.csv", "user,age\n1,20\n1,30", ["twice.csv", "user 1 at row 1", "one row"]),
        ("same.csv", "user,age,age\n1,20,3", ["same.csv", "2 columns are called 'age'"]),
        ("blank.csv", "user,age\n1,20\n,30", ["blank.csv", "column 'user'", "row 1 is missing"]),
        ("far.csv", "user,age\n1,20\n2,inf", ["far.csv", "user 2 at row 1", "column 'age'"]),
        ("else.csv", "user,age\nann,20\nbob,30", ["user_features", "none of its 2 ids"]),
        ("flat.csv", "user,age\n1,20\n2,20", ["user_features", "constant"]),
        ("what.xls", "user,age\n1,20", ["what.xls", "kind of file"]),
        ("uneven.csv", "user,age\n1,20\n2,20,4", ["uneven.csv", "row 1", "3 fields"]),
    ],
)
def test_bad_files_are_named(files, hemf, tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    run = hemf("fit", files / "train.csv", "-o", "m.hemf", "--user-features", name, *SMALL)
    assert run.code == 1
    assert len(run.err.splitlines()) == 1
    assert all(word in run.err for word in words), run.err
    assert not (tmp_path / "m.hemf").exists()


def test_a_model_does_not_overwrite_its_features(files, hemf, tmp_path):
    (tmp_path / "u.csv").write_text("user,age\n1,20\n2,30")
    run = hemf("fit", files / "train.csv", "-o", "u.csv", "--user-features", "u.csv")
    assert run.code == 1
    assert "would overwrite" in run.err


def test_baselines_refuse_features(files, hemf):
    run = hemf("evaluate", "--train", files / "train.csv", "--test", files / "test.csv",
               "--model", "sgd", "--user-features", files / "people.csv")  # fmt: skip
    assert run.code == 1
    assert "only hemf and gibbs learn from features" in run.err


def test_update_hands_features_on_only_where_given(files, hemf, club, monkeypatch):
    """What becomes of them is the model's affair."""
    seen = []
    monkeypatch.setattr(HeMF, "partial_fit", lambda model, *_, **more: seen.append(more))
    (files / "few.csv").write_text("user,town\nuser-3,Rome\nuser-900,Bonn")
    for more in ((), ("--user-features", files / "few.csv")):
        run = hemf("update", club.model, club.test, "-o", "new.hemf", *more)
        assert run.code == 0, run.err
    assert list(seen[0]) == ["removed", "previous"]
    assert list(seen[1]) == ["removed", "previous", "user_features"]
    (table,) = seen[1]["user_features"]
    assert table.ids.tolist() == ["user-3", "user-900"]
    assert table.labels == {"town": ["Rome", "Bonn"]}
