"""A file is replaced whole or not at all."""

from __future__ import annotations

import os

import pytest

from hemf.writing import replacing


def test_an_error_on_the_way_leaves_everything_as_it_was(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(path) as fresh:
        fresh.write_text("half, then \ud800", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="permissions and links of POSIX")
def test_links_and_permissions_are_kept(tmp_path):
    path, link = tmp_path / "a.txt", tmp_path / "link.txt"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with replacing(link) as fresh:
        fresh.write_text("new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.name != "posix", reason="devices of POSIX")
def test_a_device_is_written_to_as_it_is():
    with replacing("/dev/null") as fresh:
        fresh.write_text("gone")
    assert not os.path.isfile("/dev/null")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no/a\.txt"), replacing("no/a.txt") as fresh:
        fresh.write_text("x")
