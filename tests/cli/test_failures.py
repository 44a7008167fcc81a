"""Every error is one line and a code that is not 0, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hemf.cli import doctor

BAD_FITS = {
    "a directory": (["."], "is a directory"),
    "a missing file": (["nowhere.csv"], "nowhere.csv: no such file"),
    "neither file nor data set": (["nowhere"], "no data set of that name; there are ml-100k"),
    "an unknown kind of file": (["ratings.xls"], "cannot tell what kind of file"),
    "an empty file": (["empty.csv"], "empty.csv is empty"),
    "unknown columns": (["ratings.csv", "--columns", "who,what,stars"], "no column 'who'"),
    "columns of a data set": (["ml-1m", "--columns", "a,b,c"], "leave --columns out"),
    "a textual rating": (["bad.csv"], "'good'"),
    "an unknown parameter": (["ratings.csv", "--set", "factors=3"], "it has n_factors, max_user"),
    "a setting without a value": (["ratings.csv", "--set", "n_factors"], "expected name=value"),
    "zero factors": (["ratings.csv", "--set", "n_factors=0"], "n_factors must be a whole number"),
    "a wrong word": (["ratings.csv", "--set", "evb=magic"], "must be one of 'closed'"),
    "no threads": (["ratings.csv", "--n-jobs", "0"], "n_jobs must be"),
    "a folder that is not there": (["ratings.csv", "-o", "no/m.hemf"], "there is no folder"),
    "a folder as the model": (["ratings.csv", "-o", "."], "is a directory"),
    "a report into nowhere": (["ratings.csv", "--report", "no/r.html"], "there is no folder"),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ratings.csv").write_text("user,item,rating\nann,tea,5\nbob,tea,3\n")
    (tmp_path / "ratings.xls").write_text("x")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "bad.csv").write_text("user,item,rating\nann,tea,good\nbob,tea,3\n")
    return tmp_path


def assert_one_line(run, text):
    assert run.code == 1
    assert run.out == ""
    assert len(run.err.splitlines()) == 1
    assert run.err.startswith("hemf: ")
    assert text in run.err


@pytest.mark.parametrize(("arguments", "text"), BAD_FITS.values(), ids=BAD_FITS.keys())
def test_fit_refuses(hemf, folder, arguments, text):
    before = sorted(folder.iterdir())
    given = arguments if "-o" in arguments else [*arguments, "-o", "m.hemf"]
    assert_one_line(hemf("fit", *given), text)
    assert sorted(folder.iterdir()) == before


def test_a_process_that_fails_says_so_the_same_way(process, folder):
    assert_one_line(process("fit", "bad.csv", "-o", "m.hemf", "--json"), "'good'")


@pytest.mark.parametrize("control", ["\x1b[31m", "\x1b]0;x\x07", "\x00", "\x7f", "\x9b31m"])
def test_control_characters_are_escaped(hemf, tmp_path, control):
    escaped = repr(control)[1:-1]
    (tmp_path / "e.csv").write_text(f"a{control}b,c,d\nx,y,z\n")
    assert_one_line(hemf("fit", "e.csv", "-o", "m.hemf"), f"found the columns a{escaped}b, c, d")
    assert_one_line(hemf("fit", "ratings.csv", "--set", f"a{control}=1", "-o", "m.hemf"), escaped)
    assert escaped in hemf(f"a{control}").err  # a command that does not exist
    if "\x00" not in control:
        assert_one_line(hemf("predict", f"a{control}.hemf", "e.csv"), f"a{escaped}.hemf")


def test_control_characters_of_ids_are_escaped_on_terminals(on_terminal, club, tmp_path):
    shutil.copy(club.model, tmp_path / "m.hemf")
    (tmp_path / "new.csv").write_text("user,item,rating\nzo\x1b[31me,2,4.5\nzo\x1b[31me,3,4\n")
    assert on_terminal("update", "m.hemf", "new.csv", "--batch-id", "\x1b[1m").code == 0
    for command in (
        ("update", "m.hemf", "new.csv", "--batch-id", "\x1b[1m"),
        ("explain", "m.hemf", "zo\x1b[31me", "4"),
        ("predict", "m.hemf", "new.csv"),
    ):
        run = on_terminal(*command)
        assert run.code == 0, run.err
        assert "\x1b" not in run.out
        assert "\\x1b[" in run.out


def test_damaged_models_are_refused(hemf, club, tmp_path):
    whole = club.model.read_bytes()
    (tmp_path / "cut.hemf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "other.hemf").write_text("user,item\n")
    assert_one_line(hemf("communities", "cut.hemf"), "damaged or incomplete")
    assert_one_line(hemf("recommend", "other.hemf", "--user", "1"), "not a hemf model")
    assert_one_line(hemf("explain", "missing.hemf", "1", "2", "--json"), "no such file")


def test_predict_refuses_what_it_cannot_read_or_write(hemf, club, folder):
    assert_one_line(hemf("predict", club.model, "missing.csv"), "missing.csv: no such file")
    assert_one_line(hemf("predict", club.model, "."), "is a directory")
    assert_one_line(hemf("predict", club.model, "ratings.csv", "-o", "x.doc"), "must end in .csv")


def test_the_advice_for_pairs_without_a_header_works(hemf, club, tmp_path):
    (tmp_path / "p.csv").write_text("ann,tea\nbob,tea\n")
    assert_one_line(hemf("predict", club.model, "p.csv"), "--columns 0,1")
    assert hemf("predict", club.model, "p.csv", "--columns", "0,1", "--json").json["pairs"] == 2


def test_ids_that_cannot_be_saved_are_refused_before_the_first_sweep(hemf, tmp_path, monkeypatch):
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    days = [datetime.date(2024, 2, day) for day in (28, 29)]
    table = pa.table({"user": days, "item": ["tea", "tea"], "rating": [5.0, 3.0]})
    pq.write_table(table, tmp_path / "dates.parquet")
    monkeypatch.setattr("hemf.HeMF.fit", lambda *_, **__: pytest.fail("a fit was begun"))
    run = hemf("fit", "dates.parquet", "-o", "m.hemf")
    assert_one_line(run, "user datetime.date(2024, 2, 28) cannot be saved")
    assert not (tmp_path / "m.hemf").exists()


def test_evaluate_names_the_models_there_are(hemf, folder):
    run = hemf("evaluate", "--train", "ratings.csv", "--test", "ratings.csv", "--model", "magic")
    assert_one_line(run, "choose one of hemf")


def test_unknown_data_sets_are_refused_with_the_likely_ones(hemf):
    assert_one_line(hemf("data", "fetch", "ml-1M", "--json"), "did you mean ml-1m")
    assert_one_line(hemf("data", "describe", "jester"), "there are ml-100k")


def test_without_network_it_says_what_to_put_where(hemf, tmp_path):
    run = hemf("data", "fetch", "ml-100k", "-q", HEMF_DATASETS_URL="http://127.0.0.1:9")
    assert_one_line(run, "put ml-100k.zip into the folder")
    assert str(tmp_path / "cache") in run.err


def test_debug_shows_the_traceback(process):
    run = process("fit", "nowhere.csv", "-o", "m.hemf", "--debug")
    assert run.code == 1
    assert "Traceback" in run.err
    assert "DataError: nowhere.csv: no such file" in run.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("arguments", "unbuffered"), [("--help", ""), ("fit --help", "1"), ("data list", "")]
)
def test_output_that_cannot_be_written_is_one_line(arguments, unbuffered):
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "hemf.cli", *arguments.split()],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (run.returncode, run.stderr) == (1, "hemf: No space left on device\n")


@pytest.mark.skipif(os.name != "posix", reason="descriptors of POSIX")
@pytest.mark.parametrize(
    ("closed", "code", "rows", "error"),
    [
        (">&-", 1, 0, "hemf: Bad file descriptor\n"),
        ("2>&-", 0, 101, ""),
        ("<&- 2>&-", 0, 101, ""),
    ],
)
def test_channels_that_are_closed_from_the_start(club, closed, code, rows, error):
    command = [sys.executable, "-m", "hemf.cli", "predict", str(club.model), str(club.test)]
    run = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (run.returncode, len(run.stdout.splitlines()), run.stderr) == (code, rows, error)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("command", "target", "reason"),
    [
        ("fit new.csv -o m.hemf --set n_factors=1", ">/dev/full", "No space left on device"),
        ("update m.hemf new.csv", ">&-", "Bad file descriptor"),
        ("update m.hemf new.csv", "| true", "the output could not be printed"),
    ],
)
def test_an_error_after_the_model_was_written_says_so(
    club, hemf, tmp_path, command, target, reason
):
    (tmp_path / "new.csv").write_text("user,item,rating\nuser-1,2,1.5\nzoe,3,4.0\nzoe,2,3.0\n")
    model = Path(shutil.copy(club.model, tmp_path / "m.hemf"))
    run = subprocess.run(
        ["sh", "-c", f'"$0" -m hemf.cli {command} {target}', sys.executable],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == (0 if "|" in target else 1)  # of the last in a pipe
    assert run.stderr.splitlines()[-1] == f"hemf: {reason}; the model file m.hemf was written"
    written = model.read_bytes()
    assert written != club.model.read_bytes()
    if command.startswith("update"):
        again = hemf(*command.split())
        assert again.code == 0
        assert "has been learnt before; nothing was changed" in again.out
        assert model.read_bytes() == written


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_model_that_cannot_be_written_to_standard_output_was_not_written(club, tmp_path):
    run = subprocess.run(
        ["sh", "-c", 'exec "$0" -m hemf.cli update "$1" "$2" -o - >/dev/full', sys.executable,
         str(club.model), str(club.test)],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == "hemf: No space left on device"


@pytest.mark.skipif(os.name != "posix", reason="descriptors of POSIX")
def test_standard_input_that_is_closed_is_empty(club):
    run = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "hemf.cli", "predict",
         str(club.model), "-"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (1, "hemf: standard input is empty\n")


def test_a_fit_without_room_in_memory_is_refused(hemf, club, tmp_path, monkeypatch):
    monkeypatch.setattr("hemf.batch.inputs.available_bytes", lambda: 200_000)
    run = hemf("fit", club.ratings, "-o", "m.hemf")
    assert_one_line(run, "n_factors=20 with 80 users and 50 items needs about")
    assert not (tmp_path / "m.hemf").exists()


def test_wrong_usage_is_explained(hemf, club):
    run = hemf("recommend", club.model)
    assert run.code == 2
    assert "--user" in run.err
    run = hemf("recommend", club.model, "--user", "1", "--strategy", "luck")
    assert run.code == 2
    assert "luck" in run.err


def test_doctor_tells_what_is_broken(hemf, folder):
    broken = hemf("doctor", "--json", HEMF_CACHE=str(folder / "ratings.csv"))
    assert broken.code == 1
    assert broken.json["ok"] is False
    assert [one["check"] for one in broken.json["checks"] if not one["ok"]] == ["cache folder"]
    run = hemf("doctor", HEMF_CACHE=str(folder / "ratings.csv"))
    assert run.code == 1
    assert "FAIL  cache folder" in run.out
    assert run.err == "hemf: broken: cache folder\n"


@pytest.mark.skipif(os.name != "posix", reason="users of POSIX")
def test_a_user_without_a_home_can_list_data_sets_and_is_told_where_they_go(
    hemf, monkeypatch, tmp_path
):
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)  # in no list of users
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert hemf("data", "list", HEMF_CACHE="").code == 0
    for name in doctor.CHECKS.keys() - {"cache folder"}:
        monkeypatch.delitem(doctor.CHECKS, name)
    run = hemf("doctor", HEMF_CACHE="")
    assert run.code == 0
    assert "hemf-54321, since there is no home folder; HEMF_CACHE chooses" in run.out


def test_the_end_of_a_file_is_not_an_interrupt(hemf, folder, monkeypatch):
    """Click takes an EOFError for Ctrl-C: what went wrong would not be seen."""

    def ended(*_, **__):
        raise EOFError

    monkeypatch.setattr("hemf.estimator.HeMF.fit", ended)
    with pytest.raises(RuntimeError, match="ended unexpectedly"):
        hemf("fit", "ratings.csv", "-o", "m.hemf")


def test_a_home_folder_that_is_not_known_is_a_folder_that_is_not_there(hemf, club):
    nobody = "~a-user-that-is-not-there"
    for command in (
        ("predict", f"{nobody}/m.hemf", club.test),
        ("predict", club.model, f"{nobody}/pairs.csv"),
        ("fit", f"{nobody}/ratings.csv", "-o", "m.hemf"),
        ("fit", club.ratings, "-o", f"{nobody}/m.hemf"),
    ):
        assert_one_line(hemf(*command), nobody)
