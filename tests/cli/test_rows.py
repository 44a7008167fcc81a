"""Off a terminal, commands write all of their rows, for other programs to read."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from hemf import HeMF
from hemf.cli.__main__ import main

STRANGE = ["a,b", 'say "hi"', "line\nbreak", "Zoë 113", " spaced ", "007", "x;y|z\t", "'q'", "日本"]


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A model whose ids are hard to write, and pairs of them in a file."""
    folder = tmp_path_factory.mktemp("strange")
    pairs = [(user, item) for user in STRANGE for item in STRANGE]
    rows = [(*pair, place % 5 + 1.0) for place, pair in enumerate(pairs)]
    HeMF(n_factors=1, tol=0.1, rng=0).fit(rows).save(folder / "m.hemf")
    with open(folder / "pairs.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("user", "item"), *pairs])
    return folder


@pytest.fixture
def piped(monkeypatch, capsysbinary):
    """Run a command with bytes at its stdin; return its code, stdout and stderr."""

    def run(command, *arguments, given=b"", folder=None):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        monkeypatch.setattr(sys, "argv", ["hemf", command, *map(str, arguments)])
        if folder is not None:
            monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main()
        streams = capsysbinary.readouterr()
        return int(ended.value.code or 0), streams.out, streams.err.decode()

    return run


def test_a_process_reads_its_stdin_and_writes_its_stdout(strange, piped):
    command, pairs = ("predict", strange / "m.hemf", "-"), (strange / "pairs.csv").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "hemf.cli", *map(str, command)],
        input=pairs, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.decode()) == piped(*command, given=pairs)


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_predict_writes_every_pair_to_a_pipe(hemf, club, tmp_path):
    pairs = [(f"user-{place % 80}", place % 50) for place in range(5000)]
    lines = [f"{user},{item}" for user, item in pairs]
    (tmp_path / "pairs.csv").write_text("\n".join(["user,item", *lines]))
    run = hemf("predict", club.model, "pairs.csv")
    assert run.code == 0
    rows = read_csv(run.out)
    assert [(row["user"], int(row["item"])) for row in rows] == pairs
    mean = HeMF.load(club.model).predict(*map(list, zip(*pairs, strict=True)))
    assert [float(row["mean"]) for row in rows] == mean.tolist()


def test_a_terminal_shows_a_table_and_says_what_it_left_out(on_terminal, club):
    run = on_terminal("predict", club.model, club.test)
    assert len(run.out.splitlines()) == 22
    assert run.out.splitlines()[-1].startswith("… and 80 more")
    assert len(on_terminal("predict", club.model, club.test, "-o", "-").out.splitlines()) == 101
    refused = on_terminal("predict", club.model, club.test, "--format", "parquet")
    assert refused.code == 1
    assert "not for terminals" in refused.err


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_output_fed_back_as_input_gives_the_same(kind, strange, hemf):
    model = strange / "m.hemf"
    expected = hemf("predict", model, strange / "pairs.csv")
    assert {row["user"] for row in read_csv(expected.out)} == set(STRANGE)
    assert {row["known"] for row in read_csv(expected.out)} == {"true"}
    hemf("predict", model, strange / "pairs.csv", "--format", kind, "-o", f"out.{kind}")
    assert hemf("predict", model, f"out.{kind}").out == expected.out


def test_a_dash_is_stdin_and_stdout(piped, strange, tmp_path):
    model, pairs = strange / "m.hemf", (strange / "pairs.csv").read_bytes()
    code, direct, error = piped("predict", model, "-", given=pairs)
    assert (code, error) == (0, "")
    assert piped("predict", "-", strange / "pairs.csv", given=model.read_bytes())[1] == direct
    code, parquet, _ = piped("predict", model, "-", "-o", "-", "--format", "parquet", given=pairs)
    assert code == 0
    assert pq.read_table(io.BytesIO(parquet)).num_rows == len(STRANGE) ** 2
    assert piped("predict", model, "-", given=parquet)[1] == direct
    code, _, error = piped("predict", "-", "-", given=pairs)
    assert code == 1
    assert "can be read once" in error
    code, _, error = piped("predict", model, "-", given=b"user,item\nonly\n")
    assert code == 1
    assert error.startswith("hemf: standard input: row 0")
    assert not list(tmp_path.iterdir())


def test_a_model_may_go_through_pipes(piped, club, tmp_path):
    settings = ("--set", "n_factors=1", "--set", "max_sweeps=2", "-q")
    code, model, _ = piped("fit", "-", "-o", "-", *settings, given=club.ratings.read_bytes())
    assert code == 0
    code, updated, error = piped("update", "-", club.test, "-o", "-", given=model)
    assert code == 0, error
    assert "100 ratings learnt" in error
    facts = json.loads(piped("describe", "-", "--json", given=updated)[1])
    assert facts["model"] == "standard input"
    assert [batch["ratings"] for batch in facts["batches"]] == [100]
    code, _, error = piped("update", "-", club.test, given=model)
    assert code == 1
    assert "name the new file with -o" in error
    code, _, error = piped("fit", club.ratings, "-o", "-", "--json")
    assert code == 1
    assert "cannot both go to standard output" in error


def test_a_quote_that_is_not_closed_is_found_in_standard_input(piped, club):
    rows = "".join(f"w{k},{k % 40},3\n" for k in range(100_000))
    given = f'user,item,rating\nu,"i,3\n{rows}'.encode()
    code, out, error = piped("evaluate", "--train", "-", "--test", club.test, given=given)
    assert (code, out) == (1, b"")
    assert error.startswith("hemf: standard input: line 2 has a quote that is not closed")


def test_reports_and_trials_go_to_standard_output(piped, club, tmp_path):
    settings = ("--set", "n_factors=1", "--set", "max_sweeps=2")
    data = ("--train", club.train, "--test", club.test, *settings)
    code, page, error = piped("evaluate", *data, "--report", "-", folder=tmp_path)
    assert code == 0, error
    assert page.startswith(b"<!doctype html>")
    assert page.rstrip().endswith(b"</html>")
    assert json.loads(error[error.index("{") :])["rmse"] > 0
    code, out, error = piped("evaluate", *data, "--report", "-", "--json", folder=tmp_path)
    assert (code, out) == (1, b"")
    assert "cannot both go to standard output" in error
    tune = ("tune", club.train, *settings[2:], "--try", "n_factors=1,2", "--results")
    code, trials, error = piped(*tune, "-", folder=tmp_path)
    assert code == 0, error
    head, *lines = [json.loads(line) for line in trials.splitlines()]
    assert "search" in head
    assert {1, 2} <= {line["settings"].get("n_factors") for line in lines}
    (tmp_path / "trials.jsonl").write_bytes(trials)
    code, _, error = piped(*tune, "trials.jsonl", folder=tmp_path)
    assert code == 0, error
    assert [path.name for path in tmp_path.iterdir()] == ["trials.jsonl"]
    assert (tmp_path / "trials.jsonl").read_bytes() == trials


def test_what_was_written_before_a_failure_goes_to_standard_output_as_to_a_file(
    hemf, club, monkeypatch
):
    from hemf.cli import evaluate

    def fails(*_):
        raise OSError(28, "No space left on device", "page.html")

    def write_and_fail(path, *facts):
        path.write_text("<html>")
        fails()

    data = ("--train", club.train, "--test", club.test, "--set", "max_sweeps=2")
    monkeypatch.setattr(evaluate, "write_html", fails)
    run = hemf("evaluate", *data, "--report", "-")
    assert (run.code, run.out) == (1, "")
    monkeypatch.setattr(evaluate, "write_html", write_and_fail)
    run = hemf("evaluate", *data, "--report", "-")
    assert (run.code, run.out) == (1, "<html>")


def test_a_folder_cannot_be_standard_output(hemf):
    run = hemf("reproduce", "table1", "--quick", "-o", "-")
    assert run.code == 1
    assert "--output takes a folder" in run.err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name")
def test_a_pipe_with_a_name_is_read_like_a_file(piped, club, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = subprocess.Popen(["cp", str(club.test), str(tmp_path / "pipe")])
    code, out, error = piped("predict", club.model, tmp_path / "pipe")
    writer.wait()
    assert code == 0, error
    assert len(out.splitlines()) == 101


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="descriptors with a name")
def test_a_descriptor_with_a_name_is_written_to(club, piped, tmp_path):
    pairs, model = str(club.test), str(club.model)
    code, out, error = piped("predict", model, pairs, "-o", "/dev/stdout")
    assert (code, len(out.splitlines())) == (0, 101), error
    log = tmp_path / "log.csv"
    log.write_text("kept\n")
    with log.open("a") as file:  # as by >> in a shell
        subprocess.run(
            [sys.executable, "-m", "hemf.cli", "predict", model, pairs, "-o", "/dev/stdout"],
            stdout=file, timeout=60, check=True,
        )  # fmt: skip
    assert log.read_text().splitlines()[:2] == ["kept", '"user","item","mean","std","known"']
    reading, writing = os.pipe()
    subprocess.run(
        [sys.executable, "-m", "hemf.cli", "predict", model, pairs, "--format", "csv", "-o",
         f"/dev/fd/{writing}"],
        pass_fds=[writing], timeout=60, check=True,
    )  # fmt: skip
    os.close(writing)
    with open(reading, "rb") as file:
        assert file.read() == out


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(club, tmp_path):
    lines = [f"user-{place % 80},{place % 50}" for place in range(150_000)]  # pipes hold some
    (tmp_path / "pairs.csv").write_text("\n".join(["user,item", *lines]))
    process = subprocess.Popen(
        [sys.executable, "-m", "hemf.cli", "predict", club.model, tmp_path / "pairs.csv"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == b'"user","item","mean","std","known"\n'
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_other_commands_write_rows_too(hemf, club):
    rows = read_csv(hemf("recommend", club.model, "--user", "user-1", "--user", "user-2").out)
    assert [(row["user"], row["rank"]) for row in rows] == [
        (user, str(rank)) for user in ("user-1", "user-2") for rank in range(1, 11)
    ]
    rows = read_csv(hemf("similar", club.model, "--user", "user-1", "--item", "2", "-n", "3").out)
    assert [(row["side"], row["id"], row["rank"]) for row in rows] == [
        (side, id, str(rank))
        for side, id in (("item", "2"), ("user", "user-1"))
        for rank in range(1, 4)
    ]
    assert all(-1.0 <= float(row["similarity"]) <= 1.0 < 1.0 + float(row["std"]) for row in rows)
    view = HeMF.load(club.model).communities("user")
    rows = read_csv(hemf("communities", club.model, "--side", "user", "--members").out)
    assert {row["id"]: int(row["community"]) for row in rows} == view.labels
    rows = read_csv(hemf("communities", club.model).out)
    assert sum(int(row["members"]) for row in rows) == 130
    run = hemf("communities", club.model, "--format", "jsonl")
    assert json.loads(run.out.splitlines()[0])["typical"][0].keys() == {"id", "rating", "lift"}
    rows = read_csv(hemf("explain", club.model, "user-1", "2", "-n", "3").out)
    parts = {row["name"]: float(row["value"]) for row in rows}
    assert [row["what"] for row in rows].count("rated item") == 3
    made_of = ("global_mean", "user_offset", "item_offset", "interaction")
    assert sum(parts[name] for name in made_of) == pytest.approx(parts["mean"])
    rows = read_csv(hemf("data", "list").out)
    assert "ml-100k" in [row["name"] for row in rows]
    both = ("--model", "sgd", "--model", "sgd:step=0.01")
    rows = read_csv(hemf("stream", "--ratings", club.train, *both).out)
    assert [row["model"] for row in rows] == ["sgd", "sgd:step=0.01"]


def test_tuning_writes_its_trials_and_says_the_rest_on_stderr(hemf, club):
    fast = ("--set", "max_sweeps=3", "--try", "n_factors=1,2", "--trials", "2")
    run = hemf("tune", club.ratings, *fast)
    assert run.code == 0, run.err
    assert [row["number"] for row in read_csv(run.out)] == ["1", "2"]
    assert "\nhemf fit " in run.err


def test_json_and_a_format_exclude_each_other(hemf, club):
    run = hemf("recommend", club.model, "--user", "user-1", "--json", "--format", "csv")
    assert run.code == 1
    assert "exclude each other" in run.err
