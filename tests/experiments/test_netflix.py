from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hemf import Ratings
from hemf.errors import DatasetError, DatasetWarning
from hemf.experiments import convert_netflix, datasets, read_netflix
from hemf.experiments.netflix import load_netflix

MOVIES = {
    1: ["1488844,3,2005-09-06", "822109,5,2005-05-13", "7,1,1999-12-31"],
    2: ["7,2,2004-02-29"],
    17770: ["2649429,4,2005-12-31", "822109,4,2000-01-01"],
}
ROWS = [  # by movie, then user
    (7, 1, 1), (822109, 1, 5), (1488844, 1, 3), (7, 2, 2), (822109, 17770, 4), (2649429, 17770, 4),
]  # fmt: skip


def lines(movies) -> list[str]:
    return [line for movie, rated in movies.items() for line in (f"{movie}:", *rated)]


def text(movies, end="\n") -> bytes:
    return "".join(line + end for line in lines(movies)).encode()


def place_per_movie(folder, end="\n"):
    folder.mkdir(parents=True, exist_ok=True)
    for movie, rated in MOVIES.items():
        (folder / f"mv_{movie:07d}.txt").write_bytes(text({movie: rated}, end))
    return folder


def place_combined(folder, end="\n"):
    folder.mkdir(parents=True, exist_ok=True)
    first = {1: MOVIES[1], 2: MOVIES[2]}
    (folder / "combined_data_1.txt").write_bytes(text(first, end))
    (folder / "combined_data_2.txt").write_bytes(text({17770: MOVIES[17770]}, end))
    return folder


def rows_of(path) -> list[tuple[float, ...]]:
    columns = read_netflix(path)
    return list(zip(*(column.tolist() for column in columns.known[:3]), strict=True))


def converted(source, target, **options):
    convert_netflix(source, target, **options)
    return target


@pytest.fixture
def converts(tmp_path):
    """Give a function that converts a file of these lines, and returns the new file."""

    def convert(given: list[str] | bytes, name="combined_data_1.txt", **options):
        path = tmp_path / name
        content = given if isinstance(given, bytes) else "\n".join([*given, ""]).encode()
        path.write_bytes(content)
        return converted(path, tmp_path / "ratings.parquet", **options)

    convert.folder = tmp_path
    return convert


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("place", [place_per_movie, place_combined])
def test_both_forms_give_the_same_ratings(tmp_path, place, end):
    target = tmp_path / "ratings.parquet"
    assert convert_netflix(place(tmp_path / "given", end), target) == (3, 6)
    assert rows_of(target) == ROWS


def test_the_folder_of_the_original_archive_is_found(tmp_path):
    place_per_movie(tmp_path / "training_set")
    assert rows_of(converted(tmp_path, tmp_path / "ratings.parquet")) == ROWS


@pytest.mark.parametrize("block", [1, 7, 20, 30, 1 << 20])
def test_blocks_may_end_anywhere(converts, block):
    assert rows_of(converts(lines(MOVIES), block=block)) == ROWS


def test_the_last_line_may_lack_its_end(converts):
    assert rows_of(converts(text(MOVIES)[:-1])) == ROWS


def test_dates_are_kept_when_asked_for(converts):
    assert read_netflix(converts(lines(MOVIES))).timestamps is None
    path = converts(lines(MOVIES), dates=True)
    times = read_netflix(path).timestamps
    assert times.astype("datetime64[s]").astype("datetime64[D]").astype(str).tolist() == [
        "1999-12-31", "2005-05-13", "2005-09-06", "2004-02-29", "2000-01-01", "2005-12-31",
    ]  # fmt: skip
    assert load_netflix(path).timestamps.tolist() == times[[0, 3, 1, 4, 2, 5]].tolist()


def test_ratings_are_those_of_the_columns(converts):
    path = converts(lines(MOVIES))
    ratings, columns = load_netflix(path), read_netflix(path)
    assert [column.dtype for column in columns.known] == [np.int32, np.int32, np.float32]
    for same in (Ratings.from_any(path), Ratings.from_any(columns.known)):
        assert sorted(triples(same)) == sorted(triples(ratings)) == sorted(ROWS)
    for mine in (ratings.by_user, ratings.by_item):
        assert [a.dtype for a in (mine.indptr, mine.indices, mine.values)] == [
            np.int64, np.int32, np.float32,
        ]  # fmt: skip
    assert ratings.users.ids.tolist() == [7, 822109, 1488844, 2649429]
    assert ratings.items.ids.tolist() == [1, 2, 17770]


def triples(ratings: Ratings) -> list[tuple[float, ...]]:
    users, items, values = ratings.triples()
    return list(
        zip(ratings.users.ids[users], ratings.items.ids[items], values.tolist(), strict=True)
    )


def test_a_damaged_file_is_an_error(converts):
    path = converts(lines(MOVIES))
    whole = path.read_bytes()
    for size in (0, 10, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match="delete the file to have it made again"):
            read_netflix(path)
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    with pytest.raises(DatasetError, match="delete the file to have it made again"):
        read_netflix(path)
    with pytest.raises(DatasetError, match="cannot be read"):
        read_netflix(path.parent / "nothing")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "an empty line"),
        ("7", "1 fields where 3 are expected"),
        ("7,3", "2 fields where 3 are expected"),
        ("7,3,2005-09-06,1", "4 fields where 3 are expected"),
        ("ann,3,2005-09-06", "the user is no number from 1 to 2,649,429"),
        (",3,2005-09-06", "the user is no number from 1 to 2,649,429"),
        ("-7,3,2005-09-06", "the user is no number from 1 to 2,649,429"),
        ("0,3,2005-09-06", "the user is no number from 1 to 2,649,429"),
        ("2649430,3,2005-09-06", "the user is no number from 1 to 2,649,429"),
        ("99999999999999999999999,3,2005-09-06", "the user is no number from 1 to 2,649,429"),
        ("7,0,2005-09-06", "the rating is no number from 1 to 5"),
        ("7,6,2005-09-06", "the rating is no number from 1 to 5"),
        ("7,10,2005-09-06", "the rating is no number from 1 to 5"),
        ("7,,2005-09-06", "the rating is no number from 1 to 5"),
        ("7,x,2005-09-06", "the rating is no number from 1 to 5"),
        ("7,3.5,2005-09-06", "the rating is no number from 1 to 5"),
        ("7,3,yesterday", "the date is not one written YYYY-MM-DD"),
        ("7,3,2005-02-30", "the date is not one written YYYY-MM-DD"),
        ("7,3,2005-13-01", "the date is not one written YYYY-MM-DD"),
        ("7,3,2005-00-01", "the date is not one written YYYY-MM-DD"),
        ("7,3,2005-01-00", "the date is not one written YYYY-MM-DD"),
        ("7,3,2005/09/06", "the date is not one written YYYY-MM-DD"),
        ("7,3,1905-09-06", "the date is not between 1995 and 2010"),
        ("7,3,2005-09-06 ", "the date is not one written YYYY-MM-DD"),
        ("7,3,2005-09-0", "the date is not one written YYYY-MM-DD"),
        ("0:", "the movie is no number from 1 to 17,770"),
        ("17771:", "the movie is no number from 1 to 17,770"),
        ("Heat:", "the movie is no number from 1 to 17,770"),
        (":", "the movie is no number from 1 to 17,770"),
        ("-1:", "the movie is no number from 1 to 17,770"),
    ],
)
def test_a_malformed_line_is_named_and_nothing_is_written(converts, bad, why):
    given = lines(MOVIES)
    given.insert(3, bad)
    with pytest.raises(DatasetError, match=f"combined_data_1.txt, line 4: {why}") as caught:
        converts(given)
    assert caught.value.row == 4
    assert caught.value.value == bad
    assert "expected a rating such as" in str(caught.value)
    assert [path.name for path in converts.folder.iterdir()] == ["combined_data_1.txt"]


def test_a_malformed_line_in_a_later_block_is_named(converts):
    many = [f"{user},3,2005-01-01" for user in range(1, 20_001)]
    with pytest.raises(DatasetError, match=r"line 20003: the rating .* '5,7,2005-01-01'"):
        converts(["1:", *many, "2:", "5,7,2005-01-01"], block=1000)


def test_a_file_cut_off_in_a_line_is_an_error(converts):
    with pytest.raises(DatasetError, match="line 9: the date"):
        converts(text(MOVIES)[:-3])


@pytest.mark.parametrize("at", [3, 9])
def test_a_movie_without_ratings_is_an_error(converts, at):
    given = lines(MOVIES)
    given.insert(at if at == 9 else 4, "5:")
    with pytest.raises(DatasetError, match=r"movie 5 has no ratings; is the file cut off"):
        converts(given)


def test_a_rating_before_any_movie_is_an_error(converts):
    with pytest.raises(DatasetError, match="line 1: a rating before any movie: '7,1,1999-12-31'"):
        converts(["7,1,1999-12-31", *lines(MOVIES)])


def test_a_movie_that_comes_twice_is_an_error(tmp_path, converts):
    with pytest.raises(DatasetError, match=r"line 3: movie 1 comes a second time.*line 1"):
        converts(["1:", "7,1,1999-12-31", "1:", "8,1,1999-12-31"])
    folder = place_combined(tmp_path / "given")
    (folder / "combined_data_3.txt").write_text("2:\n8,1,1999-12-31\n")
    with pytest.raises(DatasetError, match=r"3\.txt, line 1: movie 2 .*1\.txt, line 5"):
        converted(folder, tmp_path / "ratings.parquet")


def test_a_user_who_rates_a_movie_twice_is_an_error(converts):
    with pytest.raises(DatasetError, match="line 4: user 7 has rated movie 1 before"):
        converts(["1:", "7,1,1999-12-31", "8,1,1999-12-31", "7,2,2000-12-31"])


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_file_is_an_error(converts, content):
    with pytest.raises(DatasetError, match=r"is empty|an empty line"):
        converts(content)


def test_binary_rubbish_is_an_error(converts):
    for content in (bytes(range(256)) * 100, b"\0" * 100_000, b":" * 100_000):
        with pytest.raises(DatasetError, match="line 1: "):
            converts(content, block=1000)


def test_a_file_of_one_movie_holds_that_movie_alone(converts):
    with pytest.raises(DatasetError, match=r"line 1: expected ratings of movie 3 alone.*'1:'"):
        converts(["1:", *MOVIES[1]], name="mv_0000003.txt")
    with pytest.raises(DatasetError, match=r"line 5: expected ratings of movie 1 alone.*'2:'"):
        converts(["1:", *MOVIES[1], "2:", *MOVIES[2]], name="mv_0000001.txt")


def test_what_is_not_there_is_said(tmp_path):
    target = tmp_path / "ratings.parquet"
    with pytest.raises(DatasetError, match=r"there is no .*nothing"):
        converted(tmp_path / "nothing", target)
    with pytest.raises(DatasetError, match=r"no ratings of the Netflix Prize; expected the folder"):
        converted(tmp_path, target)
    (tmp_path / "mv_0000001.txt").mkdir()
    with pytest.raises(DatasetError, match="is a folder, not a file"):
        converted(tmp_path, target)


def test_both_forms_at_once_are_an_error(tmp_path):
    place_combined(place_per_movie(tmp_path / "given"))
    with pytest.raises(DatasetError, match="holds the ratings more than once"):
        converted(tmp_path / "given", tmp_path / "ratings.parquet")


def test_an_older_file_stays_when_a_new_one_fails(converts):
    converts(lines(MOVIES))
    with pytest.raises(DatasetError, match="line 1"):
        converts(["nonsense"])
    assert rows_of(converts.folder / "ratings.parquet") == ROWS


def test_a_place_that_cannot_be_written_is_said(converts):
    converts(lines(MOVIES))
    with pytest.raises(DatasetError, match=r"could not be written.*Nothing was kept"):
        converted(
            converts.folder / "combined_data_1.txt", converts.folder / "no" / "ratings.parquet"
        )


def test_progress_goes_from_nothing_to_all_bytes(converts):
    progressed = []
    converts(lines(MOVIES), block=40, progress=lambda *numbers: progressed.append(numbers))
    done, totals = zip(*progressed, strict=True)
    assert set(totals) == {len(text(MOVIES))}
    assert list(done) == sorted(done)
    assert done[-1] == totals[0]


def test_memory_stays_that_of_a_few_blocks(tmp_path):
    """Some tens of megabytes of text, of which only blocks and one movie are ever held."""
    path = tmp_path / "combined_data_1.txt"
    users = np.arange(1, 30_001)
    rated = "".join(f"{user},{1 + user % 5},2005-09-06\n" for user in users)

    def peak(movies: int) -> int:
        with path.open("w") as file:
            for movie in range(1, movies + 1):
                file.write(f"{movie}:\n{rated}")
        tracemalloc.start()
        found = convert_netflix(path, tmp_path / "ratings.parquet", block=1 << 19)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found == (movies, movies * len(users))
        return most

    few, many = peak(5), peak(50)
    assert path.stat().st_size > 25e6
    assert many < 1.3 * few
    assert many < 12e6


# -- by name ------------------------------------------------------------------------------------


def test_placed_files_are_converted_once_and_load_by_name(tmp_path):
    place_combined(tmp_path / "netflix")
    assert datasets.cached("netflix", folder=tmp_path) is None
    with pytest.warns(DatasetWarning, match=r"6 ratings of 3 items, where .* 100,480,507"):
        columns = datasets.load("netflix", folder=tmp_path)
    assert columns.users.tolist() == [row[0] for row in ROWS]
    for path in (tmp_path / "netflix").glob("combined*"):
        path.unlink()
    ratings = datasets.load_ratings("netflix", folder=tmp_path)
    assert (ratings.n_users, ratings.n_items, ratings.n_ratings) == (4, 3, 6)


def test_without_files_it_is_said_what_to_put_where(tmp_path):
    with pytest.raises(DatasetError) as caught:
        datasets.fetch("netflix", folder=tmp_path)
    for words in ("cannot be downloaded", "mv_0000001.txt", "combined_data_1.txt", str(tmp_path)):
        assert words in str(caught.value)
    (tmp_path / "netflix").mkdir()
    (tmp_path / "netflix" / "movie_titles.txt").touch()
    with pytest.raises(DatasetError, match="holds no ratings of the Netflix Prize"):
        datasets.fetch("netflix", folder=tmp_path)
