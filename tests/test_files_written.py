"""A file is replaced whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from hemf._files import atomic_write, file_lock, file_state, remove_leftovers, temporary_folder
from hemf.errors import ModelFileError


def test_an_error_on_the_way_leaves_everything_as_it_was(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as fresh:
        fresh.write_text("half, then \ud800", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="permissions and links of POSIX")
def test_links_and_permissions_are_kept(tmp_path):
    path, link = tmp_path / "a.txt", tmp_path / "link.txt"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with atomic_write(link) as fresh:
        fresh.write_text("new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.name != "posix", reason="devices of POSIX")
def test_a_device_is_written_to_as_it_is():
    with atomic_write("/dev/null") as fresh:
        fresh.write_text("gone")
    assert not os.path.isfile("/dev/null")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no/a\.txt"), atomic_write("no/a.txt") as fresh:
        fresh.write_text("x")


# -- temporary files -----------------------------------------------------------------------------

posix = pytest.mark.skipif(os.name != "posix", reason="permissions and locks of POSIX")
STALE = ".hemf-0123456789abcdef.tmp"

HOLDER = """
import sys, time
from hemf._files import atomic_write, file_lock
with {how}(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def another_process(how, path):
    """Another process inside ``atomic_write`` or ``file_lock``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(how=how), str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@posix
def test_a_temporary_file_is_its_owners_alone_and_the_result_has_the_usual_mode(tmp_path):
    path = tmp_path / "a.txt"
    before = os.umask(0o027)
    try:
        with atomic_write(path) as fresh:
            assert fresh.stat().st_mode & 0o777 == 0o600
            fresh.write_text("new")
            assert fresh.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


@posix
def test_a_file_that_only_its_owner_may_read_is_never_shown_to_others(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o600)
    with atomic_write(path) as fresh:
        fresh.write_text("new")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_the_owner_is_kept(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    os.chown(path, 1234, 5678)
    with atomic_write(path) as fresh:
        fresh.write_text("new")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 5678)


@posix
def test_what_a_killed_process_left_is_swept_by_the_next_writer(tmp_path):
    with another_process("atomic_write", tmp_path / "a.txt") as process:
        process.kill()
        process.wait()
    (tmp_path / ".hemf-fedcba9876543210.lock").touch()
    left = sorted(place.suffix for place in tmp_path.iterdir())
    assert left == [".lock", ".tmp"]
    with atomic_write(tmp_path / "b.txt") as fresh:
        fresh.write_text("b")
    assert [place.name for place in tmp_path.iterdir()] == ["b.txt"]


@posix
def test_what_is_in_use_or_not_ours_is_not_swept(tmp_path):
    other = tmp_path / ".hemf-notes.tmp"
    other.touch()
    (tmp_path / STALE).symlink_to(other)
    with (
        another_process("atomic_write", tmp_path / "a.txt"),
        atomic_write(tmp_path / "b.txt") as fresh,
    ):
        fresh.write_text("b")
        remove_leftovers(tmp_path)
        assert len(list(tmp_path.glob(".hemf-*.tmp"))) == 4
    remove_leftovers(tmp_path)
    assert sorted(place.name for place in tmp_path.iterdir()) == [STALE, other.name, "b.txt"]


@posix
def test_a_folder_of_a_killed_process_is_swept(tmp_path):
    (tmp_path / STALE / "inner").mkdir(parents=True)
    with temporary_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        remove_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == [folder]
    assert not list(tmp_path.iterdir())


def test_a_file_that_has_changed_since_is_not_replaced(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    expected = file_state(path)
    with atomic_write(path) as fresh:
        fresh.write_text("by another")
    with (
        pytest.raises(ModelFileError, match="changed by another program"),
        atomic_write(path, expected=expected) as fresh,
    ):
        fresh.write_text("mine")
    assert path.read_text() == "by another"
    with atomic_write(path, expected=file_state(path)) as fresh:
        fresh.write_text("mine")
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


# -- locks ---------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("by_link", [False, True])
def test_one_process_at_a_time_has_a_file_and_others_say_who(by_link, tmp_path):
    path, link = tmp_path / "model.hemf", tmp_path / "link.hemf"
    link.symlink_to(path)
    messages = []
    with (
        another_process("file_lock", path) as process,
        pytest.raises(ModelFileError, match=rf"in use by another hemf \(process {process.pid}\)"),
        file_lock(link if by_link else path, seconds=0.3, waiting=messages.append),
    ):
        pass
    assert len(messages) == 1
    with file_lock(path, seconds=0.0):  # the holder was killed
        pass
    assert list(tmp_path.iterdir()) == [link]


@posix
def test_a_waiting_process_goes_on_when_the_other_ends(tmp_path):
    with another_process("file_lock", tmp_path / "m") as process:
        with file_lock(tmp_path / "m", seconds=60.0, waiting=lambda text: process.kill()):
            pass
        assert process.wait() != 0


@posix
def test_a_lock_is_open_to_every_user_and_holds_no_secret(tmp_path):
    with file_lock(tmp_path / "m"):
        (lock,) = tmp_path.iterdir()
        assert lock.stat().st_mode & 0o777 == 0o666
        assert lock.read_text() == str(os.getpid())
