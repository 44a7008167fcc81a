"""``hemf stream`` judges any number of models on one stream."""

from __future__ import annotations

import io
import re
import sys

import numpy as np
import pytest

from hemf.baselines import SGD
from hemf.cli import output, stream
from hemf.cli.models import parse_model
from hemf.cli.output import Output
from hemf.errors import ParameterError
from hemf.evaluation import CurvePoint, rmse
from hemf.report.model import stream_figure, windowed

ONLINE = ["sgd", "hemf"]
KEYS = ["rmse", "ratings_per_second", "p50_us", "p99_us", "new_users", "new_items"]
SMALL = ("--set", "n_factors=3")


@pytest.fixture
def times(tmp_path):
    """A file in which every rating comes before the one above it."""
    rng = np.random.default_rng(5)
    users, items = rng.integers(0, 30, 400), rng.integers(0, 20, 400)
    ratings = np.clip(np.round(3 + np.sin(users) + np.cos(items)), 1, 5)
    lines = [
        f"u{u},{i},{r:.0f},{1000 - k}"
        for k, (u, i, r) in enumerate(zip(users, items, ratings, strict=True))
    ]
    path = tmp_path / "times.csv"
    path.write_text("\n".join(["user,item,rating,timestamp", *lines]))
    return path, ([f"u{u}" for u in users[::-1]], items[::-1], ratings[::-1])


def no_work(monkeypatch):
    monkeypatch.setattr("hemf.cli.models.warm_up", lambda *_, **__: pytest.fail("work was begun"))


# -- for machines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize("model", ONLINE)
def test_the_keys_that_others_rely_on_come_first(hemf, club, model, batch_size):
    run = hemf(
        "stream", "--ratings", club.ratings, "--model", model, "--batch-size", batch_size,
        "--warm-start", "0.5", "--json", *SMALL,
    )  # fmt: skip
    assert run.code == 0, run.err
    answer = run.json
    assert list(answer)[: len(KEYS)] == KEYS
    assert 0.2 < answer["rmse"] < 2
    assert answer["ratings_per_second"] > 100
    assert 0 < answer["p50_us"] <= answer["p99_us"] < 1e6
    assert answer["ratings"] == answer["warm_start_ratings"] == 600
    assert answer["curve"][-1]["ratings"] == 600
    assert answer["curve"][-1]["running_rmse"] == answer["rmse"]
    assert answer["test_rmse"] is None
    assert run.err == ""


@pytest.mark.parametrize("model", ONLINE)
def test_everyone_is_new_to_a_model_that_starts_from_nothing(hemf, club, model):
    answer = hemf("stream", "--ratings", club.ratings, "--model", model, "--json", *SMALL).json
    assert (answer["new_users"], answer["new_items"]) == (80, 50)
    assert answer["warm_start_ratings"] == 0
    assert (answer["user_communities"] is None) == (model == "sgd")


def test_the_error_is_that_of_the_library(hemf, times):
    path, stream = times
    answer = hemf("stream", "--ratings", path, "--model", "sgd", "--json").json
    expected = SGD(rng=0).predict_then_learn(stream)
    assert answer["rmse"] == pytest.approx(rmse(stream[2], expected))
    assert answer["order"] == "time"


def test_orders_are_time_file_and_random(hemf, times):
    path, _ = times
    orders = {
        order: hemf("stream", "--ratings", path, "--model", "sgd", "--order", order, "--json").json
        for order in ("time", "file", "random")
    }
    assert len({answer["rmse"] for answer in orders.values()}) == 3
    assert [answer["order"] for answer in orders.values()] == list(orders)
    untimed = ("--columns", "user,item,rating")
    answer = hemf("stream", "--ratings", path, "--model", "sgd", *untimed, "--json").json
    assert answer["order"] == "file"
    assert answer["rmse"] == orders["file"]["rmse"]


@pytest.mark.parametrize("model", ONLINE)
def test_the_seed_decides_about_everything_random(hemf, club, model):
    first, again, other = (
        hemf(
            "stream", "--ratings", club.ratings, "--order", "random", "--seed", seed,
            "--model", model, "--limit", 500, "--json", *SMALL,
        ).json
        for seed in (1, 1, 2)
    )  # fmt: skip
    assert first["rmse"] == again["rmse"] != other["rmse"]
    assert first["ratings"] == 500


@pytest.mark.parametrize("model", ONLINE)
def test_test_ratings_are_predicted_at_every_tenth(hemf, club, model):
    answer = hemf(
        "stream", "--ratings", club.train, "--test", club.test, "--model", model, "--json", *SMALL
    ).json
    tested = [point for point in answer["curve"] if point["test_rmse"] is not None]
    assert [point["ratings"] for point in tested] == [110 * k for k in range(1, 11)]
    assert 0.2 < answer["test_rmse"] == tested[-1]["test_rmse"] < 2


def test_ids_of_the_test_file_are_meant_as_those_of_the_stream(hemf, tmp_path):
    (tmp_path / "stream.csv").write_text("user,item,rating\n" + "7,x,5\nann,x,1\n" * 20)
    (tmp_path / "test.csv").write_text("user,item,rating\n7,x,5\n")
    arguments = ("--test", "test.csv", "--model", "sgd:power=0,step=0.3", "--json")
    answer = hemf("stream", "--ratings", "stream.csv", *arguments).json
    assert answer["test_rmse"] < 1  # a stranger would get the mean, 3


def test_pairs_that_come_again_are_all_learnt(hemf, tmp_path):
    (tmp_path / "again.csv").write_text("user,item,rating\n" + "ann,tea,4\n" * 30)
    run = hemf("stream", "--ratings", "again.csv", "--model", "sgd", "--json")
    assert run.json["ratings"] == 30
    assert run.err == ""


@pytest.mark.parametrize("history", ["none", "full", "8"])
def test_every_history_can_be_chosen(hemf, club, history):
    arguments = ("--warm-start", "0.3", "--json", *SMALL)
    one = hemf("stream", "--ratings", club.ratings, "--history", history, *arguments).json
    spec = f"hemf:history={history}"
    other = hemf("stream", "--ratings", club.ratings, "--model", spec, *arguments).json
    assert one["rmse"] == other["rmse"]
    assert one["user_communities"] >= 1
    users, items = one["curve"][-1]["communities"]
    assert (users, items) == (one["user_communities"], one["item_communities"])


# -- several models -------------------------------------------------------------------------------


def test_models_side_by_side_have_the_figures_that_each_has_alone(hemf, club):
    specs = ["sgd:step=0.02", "sgd", "sgd:n_factors=2,rating_range=0,9"]
    given = [part for spec in specs for part in ("--model", spec)]
    answer = hemf("stream", "--ratings", club.ratings, *given, "--json").json
    assert "rmse" not in answer
    assert [entry["model"] for entry in answer["models"]] == specs
    for spec, entry in zip(specs, answer["models"], strict=True):
        assert list(entry)[: len(KEYS)] == KEYS
        alone = hemf("stream", "--ratings", club.ratings, "--model", spec, "--json").json
        assert alone["rmse"] == entry["rmse"]
        assert alone["models"][0]["curve"] == alone["curve"] == entry["curve"]


def test_settings_are_for_those_that_do_not_say_otherwise(hemf, club):
    both = ("--model", "sgd", "--model", "sgd:step=0.01")
    answer = hemf("stream", "--ratings", club.ratings, *both, "--set", "step=0.1", "--json").json
    for spec, entry in zip(("sgd:step=0.1", "sgd:step=0.01"), answer["models"], strict=True):
        alone = hemf("stream", "--ratings", club.ratings, "--model", spec, "--json").json
        assert alone["rmse"] == entry["rmse"]


def test_settings_that_one_model_has_do_not_bother_the_other(hemf, club):
    answer = hemf(
        "stream", "--ratings", club.ratings, "--model", "hemf", "--model", "sgd", "--json",
        "--set", "max_sweeps=3", "--history", "none", "--set", "n_factors=2",
    ).json  # fmt: skip
    alone = hemf("stream", "--ratings", club.ratings, "--model", "sgd:n_factors=2", "--json").json
    assert answer["models"][1]["rmse"] == alone["rmse"]


def test_a_history_that_no_model_keeps_is_remarked_upon(hemf, club):
    run = hemf("stream", "--ratings", club.ratings, "--model", "sgd", "--history", "full")
    assert run.code == 0
    assert run.err == "--history full: none of these models has a history\n"


def test_a_model_is_a_name_and_settings():
    assert parse_model("sgd:step=0.1,rating_range=1,5,power=0") == (
        "sgd",
        ["step=0.1", "rating_range=1,5", "power=0"],
    )
    with pytest.raises(ParameterError, match="expected name=value after the colon"):
        parse_model("sgd:fast")


# -- for people -----------------------------------------------------------------------------------


def test_people_get_a_table(on_terminal, club):
    run = on_terminal(
        "stream", "--ratings", club.train, "--test", club.test, "--model", "sgd",
        "--model", "sgd:step=0.01", "--warm-start", "0.1", "--batch-size", "50",
    )  # fmt: skip
    assert run.code == 0
    summary, *table = run.out.splitlines()
    assert re.match(
        r"990 ratings in file order, in batches of 50, after 110 learnt in batch; \d+ new", summary
    )
    assert "communities" in table[1]
    assert [line.split()[0] for line in table[2:]] == ["sgd", "sgd:step=0.01"]
    assert all(len(re.findall(r" \d\.\d{4}", line)) == 3 for line in table[2:])


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_stream_live(hemf, club, monkeypatch):
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(output, "SECONDS_BETWEEN_PICTURES", 0)
    monkeypatch.setattr(sys, "stderr", screen)
    both = ("--model", "sgd:step=0.01", "--model", "sgd")
    assert hemf("stream", "--ratings", club.ratings, *both).code == 0
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue())
    for text in ("sgd  1,200/1,200", "0:00 left", "ratings/s", "p99 µs", "communities"):
        assert text in shown
    assert "80 new users, 50 new items" in shown
    last = shown[shown.rindex("1,200/1,200") :]
    assert re.search(r"sgd:step=0\.01 +\d\.\d{4}", last)  # stays when the next one has its turn


def test_elsewhere_there_is_a_line_now_and_then(hemf, club, monkeypatch):
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0)
    run = hemf("stream", "--ratings", club.ratings, "--model", "sgd")
    assert len(run.err.splitlines()) == 10
    assert re.match(r"sgd  120/1,200 · RMSE \d\.\d+ · last 10,000 \d", run.err)
    silent = hemf("stream", "--ratings", club.ratings, "--model", "sgd", "--quiet")
    assert silent.err == ""


def test_ctrl_c_prints_what_was_measured_and_ends_with_130(hemf, club, monkeypatch):
    real, calls = stream.StreamProgress.__call__, []

    def interrupt(self, stream):
        calls.append(stream.ratings)
        if len(calls) == 14:
            raise KeyboardInterrupt
        real(self, stream)

    monkeypatch.setattr(stream.StreamProgress, "__call__", interrupt)
    both = ("--model", "sgd", "--model", "sgd:step=0.01", "--model", "sgd:step=0.02")
    run = hemf("stream", "--ratings", club.ratings, *both, "--plot", "p.png", "--json")
    assert run.code == 130
    assert run.err == "hemf: interrupted\n"
    assert run.json["interrupted"] is True
    assert [entry["ratings"] for entry in run.json["models"]] == [1200, 480]
    calls.clear()
    run = hemf("stream", "--ratings", club.ratings, *both)
    assert run.code == 130
    assert len(run.out.splitlines()) == 3  # names, and the two that had begun


def test_ctrl_c_before_the_first_rating_has_nothing_to_print(hemf, club, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hemf.cli.models.warm_up", interrupt)
    run = hemf("stream", "--ratings", club.ratings, "--model", "sgd", "--json")
    assert (run.code, run.out, run.err) == (130, "", "hemf: interrupted\n")


# -- pictures -------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else(on_terminal, club, tmp_path):
    run = on_terminal(
        "stream", "--ratings", club.train, "--test", club.test, "--plot", "p.html",
        "--model", "sgd", "--model", "sgd:step=0.01",
    )  # fmt: skip
    assert "plot: p.html" in run.out
    html = (tmp_path / "p.html").read_text()
    assert html.count("<svg") == 1
    assert not re.search(r"https?://|<script|<link|src=", html)
    for text in ("train.csv", "sgd:step=0.01", "test ratings", "ratings seen", "1,100 ratings in"):
        assert text in html


def test_a_png_is_the_figure_alone(hemf, club, tmp_path):
    run = hemf("stream", "--ratings", club.train, "--model", "sgd", "--plot", "p.png", "--json")
    assert run.json["plot"] == "p.png"
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def points(n: int, *, tested: bool = False) -> list[CurvePoint]:
    return [
        CurvePoint(100 * k, 1 + 1 / k, 1.2, 1.1 if tested and k % 10 == 0 else None)
        for k in range(1, n + 1)
    ]


def test_the_figure_has_a_line_for_every_model_and_counts_the_warm_start():
    curves = [(f"model {k}", points(40, tested=True)) for k in range(8)]
    figure = stream_figure(curves, start=1000)
    stream, test = figure.axes
    looks = {(line.get_color(), str(line.get_linestyle())) for line in stream.lines}
    assert len(stream.lines) == len(test.lines) == len(looks) == 8
    assert stream.lines[0].get_xdata()[[0, -1]].tolist() == [1100, 5000]
    assert test.lines[0].get_xdata().tolist() == [2000, 3000, 4000, 5000]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [name for name, _ in curves]


def test_without_test_ratings_there_is_one_panel():
    assert len(stream_figure([("sgd", points(3))]).axes) == 1


def test_the_stream_is_drawn_over_a_window_of_a_twentieth():
    curve = [CurvePoint(10 * k, float(k), 0.0) for k in range(1, 61)]
    ratings, values = zip(*windowed(curve), strict=True)
    assert ratings[:2] == (10, 20)
    assert values[0] == 1.0
    assert values[-1] == pytest.approx(np.sqrt((58**2 + 59**2 + 60**2) / 3))


def test_a_leap_at_the_beginning_does_not_hide_the_rest():
    curve = [CurvePoint(10 * k, 30.0 if k == 1 else 1.0 + 0.1 / k, 0.0) for k in range(1, 41)]
    low, high = stream_figure([("sgd", curve)]).axes[0].get_ylim()
    assert high < 30
    assert low > 0.9


# -- what cannot be -------------------------------------------------------------------------------

REFUSED = {
    "an unknown model": (["--model", "river"], "choose one of hemf, sgd"),
    "an unknown setting": (["--model", "sgd:speed=1"], "no parameter 'speed'"),
    "an unknown common setting": (["--model", "sgd", "--set", "speed=1"], "no parameter 'speed'"),
    "no setting at all": (["--model", "sgd", "--set", "step"], "expected name=value"),
    "an unknown history": (["--history", "some"], 'history must be "full", "none" or a number'),
    "a wrong value": (["--model", "sgd:step=-1"], "step must be a number at least 0"),
    "all as warm start": (["--model", "sgd", "--warm-start", "1"], "at least 0 and below 1"),
    "a negative warm start": (["--model", "sgd", "--warm-start", "-0.1"], "at least 0"),
    "nothing left": (["--model", "sgd", "--warm-start", "0.9999"], "leaves none of the 1200"),
    "no timestamps": (["--model", "sgd", "--order", "time"], "no timestamps to order them by"),
    "a picture into nowhere": (["--model", "sgd", "--plot", "no/p.html"], "there is no folder"),
    "an unknown kind of picture": (["--model", "sgd", "--plot", "p.gif"], ".html or .png"),
    "a missing test file": (["--model", "sgd", "--test", "no.csv"], "no.csv: no such file"),
}


@pytest.mark.parametrize(("arguments", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_before_the_work(hemf, club, arguments, text, monkeypatch):
    no_work(monkeypatch)
    run = hemf("stream", "--ratings", club.ratings, *arguments)
    assert run.code == 1
    assert run.out == ""
    assert len(run.err.splitlines()) == 1
    assert text in run.err


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("no.csv", "no.csv: no such file"),
        ("nothing", "no data set of that name; there are ml-100k"),
        ("ml-100k --columns a,b,c", "leave --columns out"),
        (".", "is a directory"),
    ],
)
def test_ratings_that_are_not_there_are_named(hemf, data, text):
    run = hemf("stream", "--model", "sgd", "--ratings", *data.split())
    assert run.code == 1
    assert text in run.err


def test_the_picture_does_not_take_the_place_of_the_ratings(hemf, times, tmp_path):
    path, _ = times
    path.rename(tmp_path / "times.png")
    run = hemf("stream", "--ratings", "times.png", "--model", "sgd", "--plot", "times.png")
    assert run.code == 1
    assert "would overwrite" in run.err


def test_silence_is_silent():
    with stream.StreamProgress(Output(json=True), "sgd") as show:
        show(None)  # not even looked at


def test_the_next_choices_are_ranked_beside_a_list_of_the_most_rated(hemf, club):
    arguments = ("stream", "--ratings", club.ratings, "--warm-start", 0.2, "--model", "sgd")
    run = hemf(*arguments, "--top", "3,9", "--ranked", 40, "--json")
    assert run.code == 0, run.err
    answer = run.json
    assert 0 < answer["ranked_choices"] <= 40
    assert 0 <= answer["ndcg@3"] <= answer["ndcg@9"] <= answer["hit_rate@9"] <= 1
    assert 0 < answer["popularity"]["hit_rate@9"] <= 1
    assert answer["models"][0]["popularity"] == answer["popularity"]
    without = hemf(*arguments, "--json").json
    assert without["rmse"] == answer["rmse"]
    assert "ndcg@9" not in without


def test_rankings_of_a_stream_are_shown_in_its_table(on_terminal, club):
    run = on_terminal("stream", "--ratings", club.ratings, "--model", "sgd", "--top", 5)
    assert run.code == 0, run.err
    assert "NDCG@5" in run.out
    assert "most rated" in run.out
    run = on_terminal("stream", "--ratings", club.ratings, "--top", "x")
    assert "--top x: expected a whole number" in run.err
