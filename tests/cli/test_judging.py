"""``hemf evaluate`` says how honest predictions are and how well they rank."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hemf import HeMF
from hemf.baselines import Popularity
from hemf.cli.output import Output, counted
from hemf.evaluation import judge, ranking_metrics

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

SETTINGS = ("--set", "n_factors=3", "--set", "max_sweeps=20")


@pytest.fixture(scope="module")
def stars(tmp_path_factory):
    """Ratings of one to five stars in two files."""
    rng = np.random.default_rng(0)
    taste = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 40))
    users, items = np.nonzero(rng.random((60, 40)) < 0.5)
    ratings = np.clip(np.round(3.3 + taste[users, items] + 0.5 * rng.normal(size=users.size)), 1, 5)
    lines = [f"u{u},i{i},{r:g}" for u, i, r in zip(users, items, ratings, strict=True)]
    rng.shuffle(lines)
    folder = tmp_path_factory.mktemp("stars")
    train, test = folder / "train.csv", folder / "test.csv"
    train.write_text("\n".join(["user,item,rating", *lines[250:]]))
    test.write_text("\n".join(["user,item,rating", *lines[:250]]))
    return folder, train, test


@pytest.fixture(scope="module")
def judged(stars, process_in):
    folder, train, test = stars
    options = ("--top", "10,5", "--level", 4, "--report", "page.html")
    run = process_in(
        "evaluate", "--train", train, "--test", test, *SETTINGS, *options, folder=folder
    )
    assert run.code == 0, run.err
    return run.json, (folder / "page.html").read_text()


def test_it_prints_what_the_library_finds(judged, stars):
    answer, _ = judged
    _, train, test = stars
    model = HeMF(n_factors=3, max_sweeps=20, rng=0).fit(train)
    table = np.loadtxt(test, delimiter=",", skiprows=1, dtype=str)
    actual = table[:, 2].astype(float)
    predicted = model.predict_distribution(table[:, 0], table[:, 1])
    found = judge(actual, predicted, levels=[1, 2, 3, 4, 5]).to_dict()
    assert answer["pit"] == pytest.approx(found.pop("pit"))
    assert {name: answer[name] for name in found} == pytest.approx(found)
    for n in (5, 10):
        ranks = ranking_metrics(model, train, test, n, level=4).to_dict()
        assert {name: answer[name] for name in ranks} == pytest.approx(ranks)
        ranks = ranking_metrics(Popularity().fit(train), train, test, n, level=4).to_dict()
        beside = {name: value for name, value in ranks.items() if "@" in name}
        assert {name: answer["popularity"][name] for name in beside} == pytest.approx(beside)
    assert answer["log_score"] < np.log(5)
    assert sum(answer["pit"]) == pytest.approx(1.0)
    assert 0 < answer["recall@5"] <= 1


def test_the_page_shows_it(judged):
    answer, html = judged
    text = re.sub(r"<[^>]*>", " ", html)
    for figure in (answer["rmse"], answer["nlpd"], answer["log_score"]):
        assert f"{figure:.4f}" in text
    for figure in (answer["ndcg@5"], answer["recall@10"], answer["popularity"]["ndcg@10"]):
        assert f"{figure:.4f}" in text
    assert f"{100 * answer['coverage90']:.1f}" in text
    assert len(re.findall("<svg", html)) == 2
    assert not re.search(r'(src|href)="(?!#)', html)  # nothing from elsewhere


def test_a_model_that_is_never_unsure_has_a_page_too(hemf, stars):
    folder, train, test = stars
    page = folder / "sgd.html"
    options = ("--model", "sgd:epochs=3", "--report", page)
    run = hemf("evaluate", "--train", train, "--test", test, *options)
    assert run.code == 0, run.err
    assert run.json["nlpd"] is None
    assert "predicts no distributions" in page.read_text()


def test_a_page_that_cannot_be_written_is_said_before_anything_is_read(hemf, stars):
    folder, _, test = stars
    run = hemf("evaluate", "--train", "none.csv", "--test", test, "--report", folder / "no" / "p")
    assert run.code == 1
    assert "there is no folder" in run.err
    run = hemf("evaluate", "--train", "none.csv", "--test", test, "--report", test)
    assert "would overwrite" in run.err


def test_what_nobody_likes_cannot_be_ranked(hemf, stars):
    _, train, test = stars
    options = ("--top", 3, "--level", 9, "--set", "max_sweeps=2")
    run = hemf("evaluate", "--train", train, "--test", test, *options)
    assert run.code == 1
    assert "rating of 9 or more" in run.err


def test_counting_is_shown_once_it_takes_a_while(monkeypatch, capsys):
    monkeypatch.setattr("hemf.cli.output.SECONDS_BETWEEN_LINES", 0.0)
    with counted(Output(), "ranking") as show:
        show(1, 4)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("hemf.cli.output.SECONDS_BEFORE_COUNTING", 0.0)
    with counted(Output(), "ranking") as show:
        show(1, 4)
    assert re.match(r"ranking  1/4 · 0:0\d left", capsys.readouterr().err)
