"""Every command does what it says, for people and for machines."""

from __future__ import annotations

import csv
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hemf import HeMF
from hemf.cli import demo as demo_command
from hemf.cli.output import Output
from hemf.data import datasets

IMPATIENT = """
import hemf.cli.output
from hemf.cli.__main__ import main
hemf.cli.output.SECONDS_BETWEEN_LINES = 0
main()
"""
SETTINGS = ("--set", "n_factors=3", "--set", "tol=0.001")
COMMANDS = (
    "demo",
    "fit",
    "update",
    "predict",
    "recommend",
    "similar",
    "communities",
    "explain",
    "evaluate",
    "stream",
    "doctor",
)


def test_help_lists_every_command(process):
    run = process("--help")
    assert run.code == 0
    for name in (*COMMANDS, "data"):
        assert re.search(rf"^  {name} +\w", run.out, re.MULTILINE), name


@pytest.mark.parametrize("name", [*COMMANDS, "data list", "data fetch", "data describe"])
def test_every_command_has_help(hemf, name):
    run = hemf(*name.split(), "--help")
    assert run.code == 0
    assert f"Usage: hemf {name} " in run.out
    for option in ("--json", "--quiet", "--debug"):
        assert option in run.out


def test_version_is_that_of_the_library(hemf):
    import hemf as library

    assert hemf("--version").out.split() == ["hemf", library.__version__]


def test_fit_says_in_json_what_it_found(club):
    answer = club.fitted.json
    assert answer["users"] == 80
    assert answer["items"] == 50
    assert answer["ratings"] == 1080  # a tenth is held out
    assert answer["validation_rmse"] > 0
    assert answer["user_communities"] >= 1
    assert Path(answer["model"]) == club.model
    assert club.fitted.err == ""


def test_fit_keeps_a_model_that_the_library_opens(club):
    model = HeMF.load(club.model)
    assert model.n_factors == 3
    assert 0 < model.predict("user-3", 4) < 10


def test_fit_writes_a_report_that_needs_nothing_else(club):
    html = club.report.read_text()
    assert html.count("<svg") == 8
    assert not re.search(r"https?://|<script|<link|src=", html)


def test_fit_tells_people_what_it_found(hemf, club, tmp_path):
    run = hemf("fit", club.train, "-o", "m.hemf", "--seed", 3, "--n-jobs", 1, "--set", "tol=0.1")
    assert run.code == 0
    assert "1,100 ratings of 50 items by 80 users" in run.out
    assert (tmp_path / "m.hemf").exists()


def test_fit_warns_of_sweeps_that_ran_out_in_one_line(hemf, club):
    run = hemf("fit", club.train, "-o", "m.hemf", "--set", "max_sweeps=2")
    assert run.code == 0
    assert run.err.startswith("warning: the bound was still rising")
    assert len(run.err.splitlines()) == 1


def test_fit_takes_columns_of_any_name(hemf, tmp_path):
    (tmp_path / "calls.tsv").write_text("when\tclient\tms\tservice\n9\ta\t10\tx\n9\tb\t20\tx\n")
    run = hemf(
        "fit", "calls.tsv", "-o", "m.hemf", "--columns", "client,service,ms", "--json", "-q",
        "--set", "max_sweeps=2",
    )  # fmt: skip
    assert run.code == 0
    assert run.json["users"] == 2


def test_predict_shows_means_deviations_and_what_is_unknown(on_terminal, club, tmp_path):
    (tmp_path / "pairs.csv").write_text("user,item\nuser-1,2\nnobody,2\n")
    run = on_terminal("predict", club.model, "pairs.csv")
    assert run.code == 0
    rows = [line.split() for line in run.out.splitlines()]
    assert rows[0] == ["user", "item", "mean", "std", "known"]
    assert [row[0] for row in rows[1:]] == ["user-1", "nobody"]
    assert [row[4] for row in rows[1:]] == ["yes", "no"]
    assert run.err.startswith("1 of 2 pairs")


def test_predict_in_json_is_what_the_library_predicts(hemf, club, tmp_path):
    (tmp_path / "pairs.csv").write_text("user,item\nuser-1,2\nnobody,2\n")
    answer = hemf("predict", club.model, "pairs.csv", "--json").json
    mean, std = HeMF.load(club.model).predict("user-1", 2, return_std=True)
    first, second = answer["predictions"]
    assert first == {"user": "user-1", "item": 2, "mean": mean, "std": std, "known": True}
    assert second["known"] is False
    assert answer["unknown"] == 1


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.parquet"])
def test_predict_writes_a_table(hemf, club, tmp_path, name):
    run = hemf("predict", club.model, club.test, "-o", name, "--json")
    assert run.json == {"pairs": 100, "unknown": 0, "output": name}
    path = tmp_path / name
    if path.suffix == ".parquet":
        rows = pq.ParquetFile(path).read().to_pylist()
    else:
        with path.open() as file:
            rows = list(csv.DictReader(file, delimiter="\t" if name == "out.tsv" else ","))
    assert len(rows) == 100
    assert list(rows[0]) == ["user", "item", "mean", "std", "known"]
    assert float(rows[0]["std"]) > 0


def test_recommend_lists_what_is_not_rated_yet(hemf, club):
    answer = hemf("recommend", club.model, "--user", "user-1", "-n", "5", "--json").json
    (one,) = answer["recommendations"]
    assert one["known"] is True
    model = HeMF.load(club.model)
    assert [row["item"] for row in one["items"]] == model.recommend("user-1", 5)[0].tolist()
    assert all(row["std"] > 0 for row in one["items"])


def test_recommend_answers_for_several_users_and_newcomers(on_terminal, club):
    run = on_terminal(
        "recommend", club.model, "--user", "user-1", "--user", "zoe", "--strategy", "ucb"
    )
    assert run.code == 0
    assert "user zoe is unknown" in run.err
    assert len(re.findall(r"\d+ +\d\.\d ± \d\.\d", run.out)) == 20


def test_recommend_can_include_what_is_rated(hemf, club):
    every = ("-n", "50", "--include-seen", "--strategy", "thompson", "--json")
    answer = hemf("recommend", club.model, "--user", "user-1", *every).json
    assert len(answer["recommendations"][0]["items"]) == 50


def test_recommend_can_list_items_that_differ(hemf, club):
    plain, diverse = (
        hemf("recommend", club.model, "--user", "user-1", "--diversity", amount, "--json").json
        for amount in ("0", "0.9")
    )
    model = HeMF.load(club.model)
    for answer, diversity in ((plain, 0.0), (diverse, 0.9)):
        found = [row["item"] for row in answer["recommendations"][0]["items"]]
        assert found == model.recommend("user-1", diversity=diversity)[0].tolist()
    assert plain != diverse
    run = hemf("recommend", club.model, "--user", "user-1", "--diversity", "2")
    assert run.code == 2
    assert "--diversity" in run.err


def test_similar_lists_items_and_users(hemf, club):
    answer = hemf("similar", club.model, "--item", "2", "--user", "user-1", "-n", "4", "--json")
    model = HeMF.load(club.model)
    asked = (("item", 2, model.similar_items), ("user", "user-1", model.similar_users))
    for found, (side, id, ask) in zip(answer.json["answers"], asked, strict=True):
        assert (found["side"], found["id"]) == (side, id)
        ids, similarities, std = ask(id, 4, return_std=True)
        assert [row["id"] for row in found["similar"]] == ids.tolist()
        assert [row["similarity"] for row in found["similar"]] == pytest.approx(similarities)
        assert [row["std"] for row in found["similar"]] == pytest.approx(std)


def test_similar_is_a_table_for_people(on_terminal, club):
    run = on_terminal("similar", club.model, "--item", "2", "--item", "3", "-n", "5")
    assert run.code == 0
    assert len(re.findall(r"^ *\d+ +-?\d\.\d\d ± \d\.\d\d$", run.out, re.MULTILINE)) == 10
    assert "item 2" in run.out


def test_similar_to_nothing_or_to_what_is_unknown_is_an_error(hemf, club):
    run = hemf("similar", club.model)
    assert run.code == 1
    assert "give --item or --user" in run.err
    run = hemf("similar", club.model, "--user", "User 1")
    assert run.code == 1
    assert "did you mean 'user-1'?" in run.err
    run = hemf("similar", club.model, "--item", "2", "--by", "choices")
    assert run.code == 1
    assert "has not learnt choices" in run.err


def test_ids_are_found_as_numbers_or_text(hemf, club):
    answer = hemf("explain", club.model, "user-1", "2", "--json").json
    assert (answer["user"], answer["item"]) == ("user-1", 2)
    assert answer["known_user"] is answer["known_item"] is True


def test_explain_tells_people_why(on_terminal, club):
    run = on_terminal("explain", club.model, "user-1", "2", "-n", "2")
    assert run.code == 0
    assert "±" in run.out
    assert run.out.count("because '") + run.out.count("because 1") <= 3


def test_communities_of_both_sides_come_with_biclusters(hemf, club):
    answer = hemf("communities", club.model, "--json").json
    assert set(answer) == {"user", "item", "biclusters"}
    assert sum(row["size"] for row in answer["user"]["communities"]) == pytest.approx(80, rel=1e-3)
    assert sum(map(sum, answer["biclusters"]["size"])) == 1080


def test_communities_of_one_side_for_people(on_terminal, club):
    run = on_terminal("communities", club.model, "--side", "item")
    assert "item communities" in run.out
    assert "user communities\n" not in run.out
    assert "mean rating" in run.out


def test_members_are_named_in_full_for_machines(hemf, club):
    plain = hemf("communities", club.model, "--json").json
    answer = hemf("communities", club.model, "--json", "--members").json
    model = HeMF.load(club.model)
    for side in ("user", "item"):
        view = model.communities(side)
        listed = [entry.pop("member_ids") for entry in answer[side]["communities"]]
        assert listed == [view.members(d) for d in range(len(view))]
    assert answer == plain


def test_members_are_named_as_far_as_a_line_goes_for_people(on_terminal, club):
    run = on_terminal("communities", club.model, "--side", "user", "--members")
    view = HeMF.load(club.model).communities("user")
    lines = run.out.split("users, most probable first\n")[1].splitlines()
    assert len(view.members(0)) > 10
    for d in range(len(view)):
        found = view.members(d)
        rest = f", and {len(found) - 10} more" if len(found) > 10 else ""
        shown = ", ".join(found[:10]) + rest or "-"
        assert lines[d].split(maxsplit=1) == [str(d), shown]
    assert "users in it" not in on_terminal("communities", club.model).out


def test_evaluate_prints_the_keys_that_others_rely_on(process, club, evaluate_keys):
    run = process("evaluate", "--train", club.train, "--test", club.test, *SETTINGS)
    assert run.code == 0, run.err
    answer = run.json
    assert list(answer) == evaluate_keys
    assert 0.2 < answer["rmse"] < 1
    assert answer["mae"] < answer["rmse"]
    assert answer["train_rmse"] < answer["rmse"]
    assert 0.8 < answer["coverage90"] <= 1
    assert answer["peak_rss_mb"] > 20
    assert answer["cpu_seconds"] > 0


def test_the_same_seed_gives_the_same_answer(hemf, club):
    arguments = ("--train", club.train, "--test", club.test, "--set", "max_sweeps=9")
    first, second = (
        hemf("evaluate", *arguments, "--seed", "5", "--n-jobs", jobs).json for jobs in (1, 2)
    )
    assert first["rmse"] == second["rmse"]


def test_doctor_finds_this_machine_fit(hemf):
    run = hemf("doctor", "--json")
    assert run.code == 0, run.out
    answer = run.json
    assert answer["ok"] is True
    names = [check["check"] for check in answer["checks"]]
    assert {"versions", "cores", "memory", "BLAS", "cache folder", "kernels"} <= set(names)


@pytest.fixture(scope="module")
def demo(tmp_path_factory, process_in):
    folder = tmp_path_factory.mktemp("demo")
    run = process_in("demo", "-o", "shown.html", "--json", folder=folder)
    assert run.code == 0, run.err
    return run.json, (folder / "shown.html").read_text(), run.err


def test_demo_warns_of_nothing(demo):
    assert "warning" not in demo[2].lower()


def test_demo_finds_what_was_planted_and_beats_biases(demo):
    answer = demo[0]
    assert answer["rmse"] < 0.6 * answer["bias_rmse"]
    assert 0.87 < answer["coverage90"] < 0.93
    for side in ("user", "item"):
        found = answer["communities"][side]
        assert found["found"] == found["planted"] == 3
        assert found["adjusted_rand_index"] > 0.9


def test_demo_gets_to_know_people_who_join(demo):
    joined = demo[0]["stream"]
    assert joined["new_users"] == 20
    assert joined["rmse_later"] < 0.8 * joined["rmse_first"]
    assert joined["rmse_later"] < 1.1 * demo[0]["rmse"]  # as well as those there from the start


def test_demo_writes_a_report_on_withheld_ratings(demo):
    answer, html, _ = demo
    assert f"{answer['rmse']:.4f}" in html
    assert f"Best for <bdi>{answer['user']}</bdi>" in html
    assert "Intervals on 2,900 held-out ratings" in html


def test_demo_writes_its_report_to_standard_output(hemf, tmp_path, monkeypatch):
    small = datasets.draw(80, 50, density=0.3, user_communities=2, item_communities=2, rng=1)
    monkeypatch.setattr(datasets, "demo_ratings", lambda seed: small)
    run = hemf("demo", "-o", "-")
    assert run.code == 0, run.err
    assert run.out.startswith("<!doctype html>")
    assert run.out.rstrip().endswith("</html>")
    assert re.search(r"RMSE \d\.\d{4}", run.err)
    assert "Report: standard output" in run.err
    assert "\x1b" not in run.err
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]


def test_demo_tells_people_what_it_found(demo, capsys):
    demo_command._show(Output(), demo[0])
    shown = capsys.readouterr().out
    assert len(re.findall(r"  film-\d{4}  \d\.\d ± \d\.\d\n", shown)) == 5
    assert "3 found, 3 planted, agreement" in shown
    assert "20 people join" in shown
    assert "Report: shown.html" in shown


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal there")
def test_ctrl_c_ends_with_130_and_one_line(club, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "fit", str(club.ratings), "-o", "m.hemf",
         "--set", "tol=0", "--set", "max_sweeps=1000000"],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()  # progress, every few seconds where there is no terminal
    assert re.match(r"sweep \d+/1000000 · ELBO .* · RMSE .* · communities \d+ × \d+", line)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "hemf: interrupted"
    assert "Traceback" not in err
    assert time.monotonic() - begin < 10
    assert not (tmp_path / "m.hemf").exists()


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [sys.executable, "-m", "hemf.cli", "data", "list", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=30) == 1


def test_a_likely_mistake_is_one_warning_on_stderr_also_with_json(hemf, tmp_path):
    rows = "".join(f"{u},{i},{(u * i) % 5}\n" for u in range(100, 112) for i in range(1, 9))
    (tmp_path / "r.csv").write_text("user,item,rating\n" + rows)
    (tmp_path / "swapped.csv").write_text("user,item\n1,100\n2,101\n")
    model = tmp_path / "m.hemf"
    hemf("fit", tmp_path / "r.csv", "-o", model, "--set", "max_sweeps=3")
    for arguments in (
        ("predict", model, tmp_path / "swapped.csv"),
        ("explain", model, "1", "100"),
        ("recommend", model, "--user", "1"),
    ):
        for more in ((), ("--json",)):
            run = hemf(*arguments, *more)
            assert run.code == 0
            assert run.err.count("warning: ") == 1
            assert "swapped" in run.err or "1 is one of the items" in run.err
        assert run.json
        assert not hemf(*arguments, "--json", "--quiet").err
    (tmp_path / "clicks.csv").write_text("user,item,rating\n" + "1,2,1\n3,4,1\n")
    run = hemf("fit", tmp_path / "clicks.csv", "-o", model, "--json")
    assert run.err.count("warning: all 2 ratings are 1") == 1
