from __future__ import annotations

import struct

import numpy as np
import pytest

from hemf import Ratings
from hemf.data.datasets import draw
from hemf.errors import DatasetError
from hemf.experiments import PackedRatings, read_packed
from hemf.experiments.packed import ItemRatings, write_packed


@pytest.fixture
def drawn():
    return draw(300, 40, density=0.2, levels=(1, 2, 3, 4, 5), rng=1)


@pytest.fixture
def path(tmp_path, drawn):
    def items():
        for item in range(40):
            mine = np.flatnonzero(drawn.items == item)
            mine = mine[np.argsort(drawn.users[mine])]
            yield ItemRatings(100 + item, 7 + 3 * drawn.users[mine], drawn.ratings[mine])

    write_packed(tmp_path / "ratings.packed", items())
    return tmp_path / "ratings.packed"


def test_blocks_are_the_columns(path):
    packed = PackedRatings.open(path)
    for size in (1, 999, 10**9):
        blocks = list(packed.blocks(size))
        assert max(len(block[0]) for block in blocks) <= size
        for together, column in zip(zip(*blocks, strict=True), packed.columns(), strict=False):
            np.testing.assert_array_equal(np.concatenate(together), column)
            assert together[0].dtype == column.dtype


def test_ratings_are_those_of_the_columns(path, drawn):
    ratings = PackedRatings.open(path).ratings()
    columns = read_packed(path)
    same = Ratings.from_any(columns.known, users=ratings.users, items=ratings.items)
    for mine, other in ((ratings.by_user, same.by_user), (ratings.by_item, same.by_item)):
        np.testing.assert_array_equal(mine.indptr, other.indptr)
        np.testing.assert_array_equal(mine.indices, other.indices)
        np.testing.assert_array_equal(mine.values, other.values)
        assert [a.dtype for a in (mine.indptr, mine.indices, mine.values)] == [
            np.int64, np.int32, np.float32,
        ]  # fmt: skip
    assert set(ratings.users.ids.tolist()) == set((7 + 3 * drawn.users).tolist())
    assert (np.diff(ratings.users.ids) > 0).all()


def test_a_file_cut_off_is_damaged(path):
    whole = path.read_bytes()
    for size in (0, 10, 64, 1000, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match=r"is damaged|is no file of packed ratings"):
            PackedRatings.open(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(DatasetError, match="is damaged"):
        PackedRatings.open(path)


def test_an_index_that_does_not_fit_is_damage(path):
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DatasetError, match="its index does not fit"):
        PackedRatings.open(path)


def test_a_newer_format_is_refused(path):
    whole = bytearray(path.read_bytes())
    whole[8:12] = struct.pack("<I", 2)
    path.write_bytes(whole)
    with pytest.raises(DatasetError, match="format 2, and this version of hemf reads format 1"):
        PackedRatings.open(path)


def test_other_files_and_folders_are_refused(tmp_path):
    (tmp_path / "text").write_text("1,2,3\n" * 100)
    with pytest.raises(DatasetError, match="is no file of packed ratings"):
        PackedRatings.open(tmp_path / "text")
    with pytest.raises(DatasetError, match="is a folder"):
        PackedRatings.open(tmp_path)
    with pytest.raises(DatasetError, match="cannot be read"):
        PackedRatings.open(tmp_path / "nothing")
