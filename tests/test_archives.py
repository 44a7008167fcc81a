from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hemf import _files
from hemf._files import FileArchive, atomic_write, decoded, encoded, write_archive
from hemf.errors import ModelFileError

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.uuids()
)
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner).map(tuple), max_leaves=6)


def files_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


class FullDisk:
    """A file on a disk with room for so many bytes."""

    def __init__(self, room: int, *opened) -> None:
        self.stream, self.room = open(*opened), room  # noqa: SIM115

    def write(self, data) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.stream.write(data)

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self.stream.close()


def same_value(left, right) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same_value, left, right))
    return repr(left) == repr(right)  # tells 0.0 from -0.0


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NESTED)
def test_plain_values_come_back_as_they_were(value):
    assert same_value(decoded(json.loads(json.dumps(encoded(value), allow_nan=False))), value)


def test_not_a_number_and_numbers_of_many_digits_come_back():
    assert np.isnan(decoded(encoded(float("nan"))))
    assert decoded(encoded(7**9000)) == 7**9000
    assert decoded(encoded(-(10**30))) == -(10**30)


def test_numpy_numbers_become_python_ones():
    assert encoded(np.float32(0.5)) == 0.5
    assert type(encoded(np.int64(3))) is int
    assert encoded(np.True_) is True


@pytest.mark.parametrize("value", [object(), {1}, np.datetime64("2001-01-01"), 1j, np.zeros(2)])
def test_a_value_without_a_form_is_refused(value):
    with pytest.raises(TypeError, match="has no JSON form"):
        encoded(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.empty((0, 4)),
        np.array([np.nan, -0.0, 1e-320]),
        np.arange(10)[::2],
    ],
)
def test_arrays_come_back_to_the_bit(array, tmp_path):
    write_archive(tmp_path / "a", {"x.npy": array})
    with open(tmp_path / "a", "rb") as found:
        back = FileArchive(found).array("x.npy")
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


def test_arrays_of_the_other_byte_order_are_turned_round(tmp_path):
    write_archive(tmp_path / "a", {"x.npy": np.arange(3, dtype=">f8")})
    with open(tmp_path / "a", "rb") as found:
        back = FileArchive(found).array("x.npy")
    assert back.dtype == np.float64
    assert back.dtype.isnative
    assert back.tolist() == [0.0, 1.0, 2.0]


def test_objects_are_never_pickled(tmp_path):
    with pytest.raises(ValueError, match="pickle"):
        write_archive(tmp_path / "a", {"x.npy": np.array([{}, None])})
    assert files_in(tmp_path) == []


def test_the_same_content_gives_the_same_bytes(tmp_path):
    members = {"a.json": b"[]", "b/c.npy": np.arange(5)}
    for name in ("one", "two"):
        write_archive(tmp_path / name, members)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_writing_takes_no_second_copy_of_a_large_array(tmp_path):
    large = np.zeros(8 << 20)  # 64 MiB; NumPy writes 16 at a time
    tracemalloc.start()
    write_archive(tmp_path / "a", {"x.npy": large})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


def test_reading_takes_no_second_copy_of_a_large_array(tmp_path):
    write_archive(tmp_path / "a", {"x.npy": np.zeros(8 << 20)})
    tracemalloc.start()
    with open(tmp_path / "a", "rb") as found:
        FileArchive(found).array("x.npy")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 70 << 20


@pytest.mark.parametrize("room", [0, 100, 4000, 9000])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(room, tmp_path, monkeypatch):
    path = tmp_path / "a.hemf"
    write_archive(path, {"x.npy": np.zeros(1000)})
    before = path.read_bytes()
    monkeypatch.setattr(_files, "open", lambda *a: FullDisk(room, *a), raising=False)
    with pytest.raises(ModelFileError, match=r"a\.hemf could not be saved: No space left") as info:
        write_archive(path, {"x.npy": np.ones(1000), "y.npy": np.ones(1000)})
    assert isinstance(info.value, OSError)
    assert path.read_bytes() == before
    assert files_in(tmp_path) == ["a.hemf"]


def test_a_disk_that_is_full_only_at_the_end_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.hemf"
    path.write_bytes(b"old")

    def fail(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_files.os, "fsync", fail)
    with pytest.raises(ModelFileError, match="No space left"):
        write_archive(path, {"x.npy": np.ones(10)})
    assert path.read_bytes() == b"old"
    assert files_in(tmp_path) == ["a.hemf"]


@pytest.mark.skipif(os.name != "posix", reason="the limit on file sizes is POSIX")
def test_a_file_larger_than_the_system_allows_leaves_nothing(tmp_path):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(ModelFileError, match="could not be saved: File too large"):
            write_archive(tmp_path / "a.hemf", {"x.npy": np.ones(1 << 16)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_in(tmp_path) == []


def test_an_interrupt_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.hemf"
    path.write_bytes(b"old")

    def save() -> None:
        with atomic_write(path) as fresh:
            fresh.write_bytes(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save()
    assert path.read_bytes() == b"old"
    assert files_in(tmp_path) == ["a.hemf"]


def test_a_crash_in_the_middle_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.hemf"
    path.write_bytes(b"old")
    crash = (
        "import os, sys\n"
        "from hemf._files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as fresh:\n"
        "    fresh.write_bytes(b'new' * 100_000)\n"
        "    os._exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", crash, str(path)], timeout=60, check=False)
    assert done.returncode == 3
    assert path.read_bytes() == b"old"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"nowhere/a\.hemf could not be saved.*folder"):
        write_archive(tmp_path / "nowhere" / "a.hemf", {})


def test_a_directory_is_no_file_to_write_to(tmp_path):
    with pytest.raises(ModelFileError, match="is a directory"):
        write_archive(tmp_path, {})
    assert files_in(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="there are no device files")
def test_a_device_is_not_replaced():
    with pytest.raises(ModelFileError, match="is a device"):
        write_archive("/dev/null", {})
    assert not Path("/dev/null").is_file()


@pytest.mark.skipif(os.name != "posix", reason="links and modes are POSIX")
def test_a_link_stays_a_link_and_a_mode_stays_a_mode(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    write_archive(link, {"a": b"new"})
    assert link.is_symlink()
    assert zipfile.is_zipfile(target)
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_a_new_file_has_the_mode_that_any_new_file_has(tmp_path):
    (tmp_path / "any").write_bytes(b"")
    write_archive(tmp_path / "new", {})
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "any").stat().st_mode
