"""``hemf tune`` as people run it."""

from __future__ import annotations

import io
import shlex

import pytest

from hemf import HeMF

QUICK = ("--set", "max_user_communities=1", "--set", "max_item_communities=1", "--set", "tol=0.001")
TRY = ("--try", "n_factors=2,3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tune")


@pytest.fixture(scope="module")
def answer(club, folder, process_in):
    """How a search answered, with everything it can write."""
    run = process_in("tune", club.ratings, *QUICK, *TRY, "-o", "best.hemf", "--plot", "p.html",
                 "--results", "r.jsonl", "--json", folder=folder)  # fmt: skip
    assert run.code == 0, run.err
    return run.json


def test_the_document_tells_all(answer, folder):
    assert answer["by"] == "rmse"
    assert answer["ended"] == "done"
    scores = {t["number"]: t["score"] for t in answer["trials"] if t["ended"] != "behind"}
    assert scores[answer["best"]] == min(scores.values()) == answer["score"]
    assert answer["default_score"] == answer["trials"][0]["score"]
    assert answer["trials"][0]["described"] == "defaults"
    assert {t["settings"]["n_factors"] for t in answer["trials"]} == {20, 2, 3}
    page = (folder / "p.html").read_text()
    assert "<td><bdi>defaults</bdi></td>" in page
    assert page.count("← best") == 1


def test_the_best_model_is_kept(answer, club, folder):
    model = HeMF.load(folder / "best.hemf")
    assert model.n_factors == answer["settings"]["n_factors"]
    assert model.n_ratings_ == len(club.ratings.read_text().splitlines()) - 1


def test_the_command_that_it_gives_makes_the_same_model(answer, folder, process_in):
    words = shlex.split(answer["command"])
    assert words[0] == "hemf"
    run = process_in(*words[1:], folder=folder)
    assert run.code == 0, run.err
    ours, theirs = (HeMF.load(folder / name) for name in ("model.hemf", "best.hemf"))
    pairs = ours.ratings_.users.ids[:5].tolist(), ours.ratings_.items.ids[:5].tolist()
    assert ours.predict(*pairs).tolist() == theirs.predict(*pairs).tolist()
    params = ours.get_params()
    assert params == theirs.get_params()
    made = eval(answer["python"].removesuffix(".fit(ratings)"), {"HeMF": HeMF})
    made.set_params(buffer=params["buffer"])  # tests have another default: conftest.py
    assert made.get_params() == params


def test_people_get_a_table(club, answer, folder, on_terminal):
    run = on_terminal("tune", club.ratings, *QUICK, *TRY, "--trials", "2", "--results",
               folder / "r.jsonl")  # fmt: skip
    assert run.code == 0, run.err
    lines = run.out.splitlines()
    assert lines[0].split()[:3] == ["trial", "settings", "sweeps"]
    assert lines[1].split()[:2] == ["1", "defaults"]
    assert sum("← best" in line for line in lines) == 1
    assert any(line.startswith("hemf fit ") for line in lines)
    assert any(line.startswith("HeMF(") for line in lines)
    assert "The trials were used up" in run.out
    assert "trial 1 · defaults · RMSE" in run.err


def test_the_gain_is_of_what_was_asked_for(club, on_terminal):
    run = on_terminal("tune", club.ratings, *QUICK, *TRY, "--by", "elbo")
    assert run.code == 0, run.err
    first, best = (
        next(line.split() for line in run.out.splitlines() if mark in line)
        for mark in (" defaults ", "← best")
    )
    gain = f"Best is trial {best[0]}: ELBO {best[4]} for {first[4]} ("
    assert best[0] != "1"
    assert gain in run.out


def test_features_may_be_tried(club, hemf, tmp_path):
    users = sorted({line.split(",")[0] for line in club.ratings.read_text().splitlines()[1:]})
    (tmp_path / "people.csv").write_text(
        "\n".join(["user,number", *(f"{user},{k % 7}" for k, user in enumerate(users))])
    )
    run = hemf("tune", club.ratings, *QUICK, "--set", "n_factors=2", "--try",
               "user_features=true,false", "--user-features", "people.csv", "--json")  # fmt: skip
    assert run.code == 0, run.err
    tried = [trial["settings"]["user_features"] for trial in run.json["trials"]]
    assert tried[0] is True
    assert tried[-1] is False
    used = run.json["settings"]["user_features"]
    assert ("--user-features people.csv" in run.json["command"]) == used
    assert ("user_features=user_features" in run.json["python"]) == used


def test_ctrl_c_says_what_was_found(club, on_terminal, monkeypatch, tmp_path):
    from hemf.cli import tune as tune_progress

    def watch(self, report):
        if report.trials and report.sweep is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr(tune_progress.TuneProgress, "__call__", watch)
    run = on_terminal("tune", club.ratings, *QUICK, *TRY, "-o", "m.hemf")
    assert run.code == 130
    assert "Interrupted; the result is the best so far." in run.out
    assert any(line.startswith("hemf fit ") for line in run.out.splitlines())
    assert "interrupted" in run.err
    assert not (tmp_path / "m.hemf").exists()


def test_a_terminal_shows_the_table_grow(club):
    from rich.console import Console

    from hemf.cli.output import Output
    from hemf.cli.tune import TuneProgress
    from hemf.tuning import SearchReport, tune

    seen: list[SearchReport] = []
    tune(club.ratings, fixed={"max_sweeps": 4, "n_factors": 2}, trials=2,
         callback=seen.append)  # fmt: skip
    progress = TuneProgress(Output(), 1)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(progress._drawn(next(s for s in seen if s.trials and s.sweep is not None)))
    shown = console.export_text()
    assert "defaults" in shown
    assert "sweep 1 · held-out RMSE" in shown
    assert "left in this round" in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--try", "factors=3,5"), "no parameter 'factors'"),
        (("--set", "factors=3"), "no parameter 'factors'"),
        (("--try", "n_factors=0,5"), "n_factors must be"),
        (("--try", "n_factors"), "expected name=value,value"),
        (("--try", "n_factors="), "expected name=value,value"),
        (("--try", "moods=true"), "no timestamps"),
        (("--set", "moods=true"), "no timestamps"),
        (("--try", "item_features=true,false"), "item_features are not given"),
        (("--try", "seed=1,2"), "no parameter 'seed'"),
        (("--folds", "20"), "20 folds of 1/10"),
        (("--plot", "p.gif"), ".html or .png"),
        (("-o", "no/such/m.hemf"), "there is no folder"),
    ],
)
def test_wrong_calls_are_one_line(club, hemf, options, words):
    run = hemf("tune", club.ratings, *options)
    assert run.code == 1
    assert words in run.err
    assert len(run.err.splitlines()) == 1
    assert not run.out


def test_too_few_ratings_are_refused(hemf, tmp_path):
    (tmp_path / "few.csv").write_text("user,item,rating\n1,2,3\n2,2,4\n3,1,5")
    run = hemf("tune", "few.csv")
    assert run.code == 1
    assert "3 ratings are too few to hold out" in run.err
