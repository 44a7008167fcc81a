from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import socket
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest

from hemf.data import datasets
from hemf.errors import DatasetError

RATINGS = "196\t242\t3\t881250949\n186\t302\t4\t891717742\n"


class Server:
    """A web server of a few files that remembers what it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.promise_more = 0  # bytes announced but never sent
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body = outer.files.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body) + outer.promise_more))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


def archive_of(members: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("HEMF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEMF_DATASETS_URL", raising=False)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


@pytest.fixture
def nowhere() -> str:
    """Address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def publish(server, monkeypatch):
    """Put an archive on the server and its checksum into the catalogue; return the bytes."""

    def put(data: bytes | None = None, *, md5_of: bytes | None = None) -> bytes:
        if data is None:
            data = archive_of({"ml-100k/u.data": RATINGS, "ml-100k/README": "terms"})
        real = datasets.find("ml-100k")
        tiny = dataclasses.replace(real, name="tiny", md5=md5(md5_of or data))
        monkeypatch.setitem(datasets.DATASETS, "tiny", tiny)
        server.files["/ml-100k.zip"] = data
        return data

    return put


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_data_set_is_downloaded_verified_and_extracted(server, publish, folder):
    publish()
    path = datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert path == folder / "tiny" / "u.data"
    assert path.read_text() == RATINGS
    assert everything_in(folder) == ["tiny", "tiny/README", "tiny/u.data"]


def test_what_is_there_needs_no_network(server, publish, folder, nowhere):
    publish()
    assert datasets.cached("tiny", folder=folder) is None
    first = datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert len(server.asked) == 1
    assert datasets.fetch("tiny", folder=folder, base_url=nowhere) == first
    assert datasets.cached("tiny", folder=folder) == first


def test_progress_ends_at_the_size_of_the_archive(server, publish, folder):
    data = publish(archive_of({"ml-100k/u.data": RATINGS * 20_000}))
    seen: list[tuple[int, int | None]] = []
    datasets.fetch(
        "tiny",
        folder=folder,
        base_url=server.url,
        progress=lambda done, total: seen.append((done, total)),
    )
    done = [step for step, _ in seen]
    assert len(seen) > 1
    assert done == sorted(done)
    assert seen[-1] == (len(data), len(data))


def test_the_environment_names_cache_and_mirror(server, publish, tmp_path, monkeypatch):
    publish()
    monkeypatch.setenv("HEMF_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HEMF_DATASETS_URL", server.url + "/")
    assert datasets.fetch("tiny") == tmp_path / "elsewhere" / "datasets" / "tiny" / "u.data"


@pytest.mark.parametrize(
    ("platform", "variable", "tail"),
    [
        ("unix.Unix", "XDG_CACHE_HOME", "hemf"),
        ("unix.Unix", None, ".cache/hemf"),
        ("macos.MacOS", None, "Library/Caches/hemf"),
        ("windows.Windows", None, "hemf"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(
    platform, variable, tail, monkeypatch, tmp_path
):
    monkeypatch.delenv("HEMF_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("platformdirs.PlatformDirs", resolve_name(f"platformdirs.{platform}"))
    monkeypatch.setattr("platformdirs.windows.get_win_folder", lambda name: str(tmp_path))
    if variable:
        monkeypatch.setenv(variable, str(tmp_path))
    assert datasets.cache_folder() == tmp_path / tail


@pytest.mark.skipif(os.name != "posix", reason="users of POSIX")
def test_without_a_home_the_cache_is_a_temporary_folder(monkeypatch, tmp_path):
    for name in ("HEMF_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)  # in no list of users
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert datasets.cache_folder() == tmp_path / "hemf-54321"
    assert datasets.cached("ml-100k") is None
    (tmp_path / "hemf-54321").mkdir()  # by another user
    with pytest.raises(DatasetError, match="hemf-54321 belongs to another user; set HEMF_CACHE"):
        datasets.cache_folder()


def test_a_wrong_checksum_leaves_nothing(server, publish, folder):
    data = publish(md5_of=b"another archive")
    with pytest.raises(DatasetError, match="wrong checksum") as caught:
        datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert md5(data) in str(caught.value)
    assert md5(b"another archive") in str(caught.value)
    assert everything_in(folder) == []


def test_the_catalogue_checksum_of_a_real_set_refuses_a_forgery(server, folder):
    server.files["/ml-1m.zip"] = archive_of({"ml-1m/ratings.dat": "1::1::5::1\n"})
    with pytest.raises(DatasetError, match="c4d9eecfca2ab87c1945afe126590906"):
        datasets.fetch("ml-1m", folder=folder, base_url=server.url)
    assert everything_in(folder) == []


def test_a_download_that_breaks_off_leaves_nothing(server, publish, folder):
    publish()
    server.promise_more = 1000
    with pytest.raises(DatasetError, match=r"broke off after|connection failed"):
        datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert everything_in(folder) == []


def test_a_missing_file_says_so_and_what_to_do(server, publish, folder):
    publish()
    server.files.clear()
    with pytest.raises(DatasetError, match="404") as caught:
        datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert "by hand" in str(caught.value)
    assert everything_in(folder) == []


def test_without_network_the_error_says_what_to_put_where(folder, nowhere):
    with pytest.raises(DatasetError, match="no connection") as caught:
        datasets.fetch("ml-1m", folder=folder, base_url=nowhere)
    message = str(caught.value)
    assert "https://files.grouplens.org/datasets/movielens/ml-1m.zip" in message
    assert f"put ml-1m.zip into the folder {folder}" in message
    assert "\n" not in message
    assert everything_in(folder) == []


def test_an_address_that_is_none_is_a_clear_error(folder):
    with pytest.raises(DatasetError, match="could not be downloaded"):
        datasets.fetch("ml-1m", folder=folder, base_url="not an address")


def test_an_archive_placed_by_hand_is_verified_and_used(publish, folder, nowhere):
    data = publish()
    folder.mkdir()
    (folder / "ml-100k.zip").write_bytes(data)
    path = datasets.fetch("tiny", folder=folder, base_url=nowhere)
    assert path.read_text() == RATINGS
    assert (folder / "ml-100k.zip").exists(), "the user's own file stays"


def test_a_damaged_archive_placed_by_hand_is_refused_and_left_alone(publish, folder, nowhere):
    data = publish()
    folder.mkdir()
    (folder / "ml-100k.zip").write_bytes(data[:-1])
    with pytest.raises(DatasetError, match=r"wrong checksum.*Delete .*ml-100k\.zip"):
        datasets.fetch("tiny", folder=folder, base_url=nowhere)
    assert everything_in(folder) == ["ml-100k.zip"]


LATEST = archive_of({"ml-latest/ratings.csv": "userId,movieId,rating,timestamp\n1,2,4.5,3\n"})


@pytest.mark.parametrize(
    "line", ["MD5 (ml-latest.zip) = {}", "{}  ml-latest.zip\n"], ids=["BSD", "GNU"]
)
def test_a_set_that_changes_is_verified_by_the_checksum_beside_it(server, folder, line):
    server.files["/ml-latest.zip"] = LATEST
    server.files["/ml-latest.zip.md5"] = line.format(md5(LATEST).upper()).encode()
    loaded = datasets.load("ml-latest", folder=folder, base_url=server.url)
    assert loaded.ratings.tolist() == [4.5]


def test_a_set_that_changes_is_refused_when_the_checksum_beside_it_differs(server, folder):
    server.files["/ml-latest.zip"] = LATEST
    server.files["/ml-latest.zip.md5"] = md5(b"newer").encode()
    with pytest.raises(DatasetError, match="wrong checksum"):
        datasets.fetch("ml-latest", folder=folder, base_url=server.url)
    assert everything_in(folder) == []


def test_a_checksum_file_without_checksum_is_an_error(server, folder):
    server.files["/ml-latest.zip.md5"] = b"<html>sign in first</html>"
    with pytest.raises(DatasetError, match="holds no MD5"):
        datasets.fetch("ml-latest", folder=folder, base_url=server.url)


def test_a_set_that_changes_can_be_placed_by_hand_with_its_checksum(folder, nowhere):
    folder.mkdir()
    (folder / "ml-latest.zip").write_bytes(LATEST)
    with pytest.raises(DatasetError, match=r"put ml-latest\.zip and ml-latest\.zip\.md5 into"):
        datasets.fetch("ml-latest", folder=folder, base_url=nowhere)
    (folder / "ml-latest.zip.md5").write_text(md5(LATEST))
    assert datasets.fetch("ml-latest", folder=folder, base_url=nowhere).is_file()


def test_paths_inside_an_archive_lead_nowhere(server, publish, folder, tmp_path):
    evil = {
        "../escaped.txt": "x",
        "../../escaped.txt": "x",
        str(tmp_path / "absolute.txt"): "x",
        "ml-100k/unknown.exe": "x",
        "ml-100k/../../u.item": "x",
        "ml-100k/u.data": RATINGS,
    }
    publish(archive_of(evil))
    datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert everything_in(folder) == ["tiny", "tiny/u.data"]
    assert everything_in(tmp_path) == ["data", "data/tiny", "data/tiny/u.data"]


def test_an_archive_without_ratings_is_refused(server, publish, folder):
    publish(archive_of({"ml-100k/README": "terms"}))
    with pytest.raises(DatasetError, match=r"holds no ml-100k/u\.data"):
        datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert everything_in(folder) == []


def test_what_is_no_archive_is_refused(server, publish, folder):
    publish(b"this is no archive")
    with pytest.raises(DatasetError, match="not a readable zip archive"):
        datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert everything_in(folder) == []


def test_a_member_with_rotten_bytes_is_refused(server, publish, folder):
    data = archive_of({"ml-100k/README": "terms", "ml-100k/u.data": RATINGS})
    publish(data.replace(b"881250949", b"881250948"))
    with pytest.raises(DatasetError, match="not a readable zip archive"):
        datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert everything_in(folder) == []


def test_a_full_disk_is_told_and_leaves_nothing(server, publish, folder, monkeypatch):
    publish()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(DatasetError, match=r"No space left.*HEMF_CACHE"):
        datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert everything_in(folder) == []


def test_a_file_in_place_of_the_folder_is_told(server, publish, tmp_path):
    publish()
    (tmp_path / "taken").write_text("")
    with pytest.raises(DatasetError, match="could not be stored in"):
        datasets.fetch("tiny", folder=tmp_path / "taken", base_url=server.url)


def test_an_interrupted_download_leaves_nothing_and_the_next_succeeds(server, publish, folder):
    publish()

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        datasets.fetch("tiny", folder=folder, base_url=server.url, progress=interrupt)
    assert everything_in(folder) == []
    assert datasets.fetch("tiny", folder=folder, base_url=server.url).is_file()


def test_a_half_filled_folder_is_completed(server, publish, folder):
    publish()
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "README").write_text("old")
    datasets.fetch("tiny", folder=folder, base_url=server.url)
    assert (folder / "tiny" / "README").read_text() == "terms"


def test_load_gives_the_four_columns(server, publish, folder):
    publish()
    users, items, ratings, timestamps = datasets.load("tiny", folder=folder, base_url=server.url)
    np.testing.assert_array_equal(users, [196, 186])
    np.testing.assert_array_equal(items, [242, 302])
    np.testing.assert_array_equal(ratings, [3, 4])
    np.testing.assert_array_equal(timestamps, [881250949, 891717742])
