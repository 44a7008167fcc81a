"""``hemf data`` against a server of our own: listed, described, fetched once, used by name."""

from __future__ import annotations

import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path):
    """Serve a tiny ml-latest-small with its checksum; yield the address."""
    import hashlib

    folder = tmp_path / "served"
    folder.mkdir()
    archive = folder / "ml-latest-small.zip"
    rows = [
        f"{user},{item},{1 + (user * item) % 9 / 2},{user}"
        for user in range(1, 9)
        for item in range(1, 9)
    ]
    with zipfile.ZipFile(archive, "w") as opened:
        text = "\n".join(["userId,movieId,rating,timestamp", *rows])
        opened.writestr("ml-latest-small/ratings.csv", text)
    md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    (folder / "ml-latest-small.zip.md5").write_text(f"{md5}  ml-latest-small.zip")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder)) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_data_sets_are_listed(hemf):
    rows = hemf("data", "list", "--json").json["datasets"]
    assert rows[0]["name"] == "ml-100k"
    assert rows[0]["cached"] is None
    assert "ml-1m" in hemf("data", "list").out


def test_data_sets_are_described_with_their_terms(hemf):
    assert "Terms: GroupLens" in hemf("data", "describe", "ml-1m").out
    assert hemf("data", "describe", "ml-1m", "--json").json["ratings"] == 1_000_209


def test_a_data_set_is_fetched_once_and_then_known_by_name(hemf, server, tmp_path):
    run = hemf("data", "fetch", "ml-latest-small", HEMF_DATASETS_URL=server)
    assert run.code == 0, run.err
    assert run.out.strip() == str(tmp_path / "cache/datasets/ml-latest-small/ratings.csv")
    assert "GroupLens" in run.err  # the terms are shown
    again = hemf("data", "fetch", "ml-latest-small", "--json", HEMF_DATASETS_URL="http://[::1]:9")
    assert again.json["path"] == run.out.strip()
    fitted = hemf("fit", "ml-latest-small", "-o", "m.hemf", "--json", "--set", "max_sweeps=2")
    assert fitted.json["ratings"] == 64


def test_a_fit_that_downloads_shows_the_terms_once(hemf, server):
    fit = ("fit", "ml-latest-small", "-o", "m.hemf", "--set", "max_sweeps=2")
    first = hemf(*fit, HEMF_DATASETS_URL=server)
    assert first.code == 0, first.err
    assert "GroupLens" in first.err
    assert "GroupLens" not in hemf(*fit).err


def test_a_data_set_that_is_offered_no_more_says_what_to_put_where(hemf, tmp_path):
    assert "says where to put its files" in hemf("data", "describe", "netflix").out
    run = hemf("data", "fetch", "netflix")
    assert run.code != 0
    assert "cannot be downloaded" in run.err
    home = tmp_path / "cache/datasets/netflix"
    assert str(home) in run.err
    home.mkdir(parents=True)
    rows = [f"{movie}:\n1,3,2005-09-06\n2,{movie},2005-09-06\n" for movie in (1, 2, 3)]
    (home / "combined_data_1.txt").write_text("".join(rows))
    assert hemf("data", "fetch", "netflix").out.strip() == str(home / "ratings.parquet")
    fitted = hemf("fit", "netflix", "-o", "m.hemf", "--json", "--set", "max_sweeps=2")
    assert fitted.json["ratings"] == 6
