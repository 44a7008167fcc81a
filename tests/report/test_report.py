"""The report is one file that shows everything, needs nothing, and trusts no id."""

from __future__ import annotations

import re
import tempfile
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from hemf import ConvergenceWarning, HeMF, Ratings
from hemf.data import datasets

VOID = {"meta", "br", "link", "img", "hr", "input"}


def render_report(model, **options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        model.report(path, **options)
        return path.read_text("utf-8")


class Checker(HTMLParser):
    """Tags that match, and ids that are there once."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def ratings():
    drawn = datasets.draw(60, 40, density=0.3, user_communities=2, item_communities=2, rng=0)
    return Ratings.from_any(drawn.frame())


@pytest.fixture(scope="module")
def model(ratings):
    return HeMF(n_factors=3, tol=1e-3, rng=0).fit(ratings)


@pytest.fixture(scope="module")
def html(model, ratings):
    some = ratings.select(np.arange(100))
    return render_report(model, title="Club & <friends>", held_out=some, facts={"peer": "0.9"})


def test_it_is_well_formed_and_every_id_is_there_once(html):
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))


def test_it_needs_nothing_from_elsewhere(html):
    assert not re.search(r"https?:|//[a-z]|<script|<link|@import|<img", html)
    for target in re.findall(r'href="([^"]{0,30})', html):
        assert target.startswith(("#", "data:image/png;base64")), target


def test_pictures_follow_the_page_into_the_dark(html):
    assert "prefers-color-scheme: dark" in html
    pictures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(pictures) == 8
    for picture in pictures:
        assert "fill: var(--ink)" in picture
        assert "#22272e" not in picture  # no ink of the light page is left
        assert 'role="img" aria-label="' in picture


def test_it_shows_the_figures_that_matter(html, model):
    text = re.sub(r"<[^>]*>", " ", html)
    for shown in (
        f"{model.ratings_.n_ratings:,}",
        f"{model.n_user_communities_} × {model.n_item_communities_}",
        f"{model.elbo_:,.0f}",
        "RMSE, held out",
        "in 90 % intervals, held out",
        "peer",
        "Typical items",
        "Intervals on 100 held-out ratings",
    ):
        assert shown in text, shown


def test_it_recommends_to_the_user_with_most_ratings(html, model):
    counts = np.diff(model.ratings_.by_user.indptr)
    user = model.ratings_.users.ids[counts.argmax()]
    assert f"Best for <bdi>{user}</bdi>" in html
    for item in model.recommend(user, 10)[0]:
        assert f"<td><bdi>{item}</bdi></td>" in html


def test_without_held_out_ratings_it_says_whose_intervals_these_are(model):
    html = render_report(model)
    assert "These are the ratings learnt from" in html
    assert "RMSE, held out" not in html


def test_titles_and_ids_are_text_whatever_they_hold(html):
    assert "Club &amp; &lt;friends&gt;" in html
    data = [("<b>", "</td><script>", 5.0), ("&amp;", "x", 1.0), ("<b>", "x", 2.0)]
    hostile = HeMF(n_factors=1, max_sweeps=1, rng=0).fit(data)
    shown = render_report(hostile)
    assert "<script>" not in shown
    assert "&lt;/td&gt;&lt;script&gt;" in shown
    assert "&amp;amp;" in shown


@pytest.mark.parametrize(
    "data",
    [
        [(1, 1, 3.0)],
        [(1, item, 4.0) for item in range(5)],
        [(user, item, float(user * item)) for user in range(4) for item in range(4)],
    ],
    ids=["one rating", "one user, equal ratings", "all rated"],
)
@pytest.mark.filterwarnings("ignore:all 5 ratings are 4")
def test_the_smallest_data_has_a_report(data):
    model = HeMF(n_factors=1, max_sweeps=1, rating_range=None, rng=0).fit(data)
    assert "Rated highest by user" in render_report(model)


# -- models that learn online -------------------------------------------------------------------

NOT_SHOWN = "<p>Not shown: "


def online(ratings, history, start) -> HeMF:
    model = HeMF(n_factors=2, history=history, max_sweeps=5, rng=0)
    some, more = ratings.select(np.arange(400)), ratings.select(np.arange(400, ratings.n_ratings))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = model.fit(some) if start == "fitted" else model.partial_fit(some)
    return model.partial_fit(more)


def not_shown(html: str) -> list[str]:
    return [
        re.sub("</?bdi>", "", title)
        for title in re.findall(r"<h3>((?:[^<]|</?bdi>)*)</h3>" + NOT_SHOWN, html)
    ]


@pytest.mark.parametrize(
    ("history", "start", "is_judged"),
    [
        ("full", "from nothing", False),
        ("none", "fitted", False),
        ("none", "from nothing", True),
        (5, "fitted", True),
    ],
)
def test_what_is_not_known_is_not_shown_and_the_report_says_why(ratings, history, start, is_judged):
    model = online(ratings, history, start)
    held_out = ratings.select(np.arange(100)) if is_judged else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        html = render_report(model, held_out=held_out)
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    missing = not_shown(html)
    user = model.ratings_.users.ids[model.state_.counts["user"].argmax()]
    by_sweep = {"Lower bound and error by sweep", "Active communities"}
    by_rating = {"Who rates what how", f"Rated highest by {user}"}
    if not is_judged:
        by_rating.add("Calibration of intervals")
    expected = by_sweep if start == "from nothing" else set()
    expected = expected | by_rating if history == "none" else expected
    assert set(missing) == expected
    assert ("learnt online from the beginning" in html) == (start == "from nothing")
    assert ("<span>seconds</span>" in html) == (start == "fitted")
    assert f"<b>{ratings.n_ratings:,}</b><span>ratings learnt from</span>" in html
    assert f"Best for <bdi>{user}</bdi>" in html
    assert "Community sizes" in html
    assert ("What was learnt online since" in html) == (start == "fitted")


def test_figures_of_some_ratings_say_of_how_many(ratings):
    model = online(ratings, 1, "fitted")
    kept = model.ratings_.n_ratings
    assert 0 < kept < ratings.n_ratings
    html = render_report(model)
    assert f"Of the {kept:,} ratings that are kept, of {ratings.n_ratings:,} learnt." in html
    assert "RMSE, ratings kept" in html
    assert "RMSE, training" not in html
    assert "may have been rated: not all ratings are kept" in html
    assert re.search(r"Of \d+ ratings that are kept, of \d+ learnt\.", html)


def test_a_model_whose_every_rating_was_taken_back_has_a_report():
    data = [(user, item, float(user * item)) for user in range(4) for item in range(4)]
    model = HeMF(n_factors=1, rng=0).partial_fit(data).partial_fit(removed=data)
    assert "Calibration of intervals" in not_shown(render_report(model))


def test_an_example_may_be_a_stranger(model):
    html = render_report(model, example_user="nobody")
    assert "Best for <bdi>nobody</bdi>" in html
    assert not_shown(html) == ["Rated highest by nobody"]


# -- files --------------------------------------------------------------------------------------


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path, model, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device", "a temporary name")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*report.html'"):
        model.report(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff]")


def test_names_from_right_to_left_leave_the_text_around_them_alone():
    """Every one is isolated: figures and commas after it else go to its other side."""
    people, films = ["שרה", "דוד (תל אביב)", "ann", "محمد"], ["ערב", "3 לילות", "day", "ليل"]
    data = [(u, i, 1 + (3 * a + b) % 5) for a, u in enumerate(people) for b, i in enumerate(films)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        html = render_report(
            HeMF(n_factors=1, rng=0).fit(data), title="סרטים", example_user="שרה", held_out=None
        )
    body = html[html.index("<body>") :]
    assert len(RIGHT_TO_LEFT.findall(body)) > 50
    assert not RIGHT_TO_LEFT.search(re.sub(r"<bdi>.*?</bdi>", "", body))
