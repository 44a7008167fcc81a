"""The data sets hemf knows: where they are, how to verify them, on what terms they come.

A new data set is one more entry in :data:`DATASETS`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from hemf.errors import DatasetError

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the bytes expected (None where unknown)."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One data set as its owner publishes it.

    >>> find("ml-1m").archive
    'ml-1m.zip'
    """

    name: str
    title: str
    url: str | None  # of the zip archive; None: the owner offers it no more
    md5: str | None  # of the archive; None: it changes, read it from the .md5 beside the archive
    ratings_member: str  # the file in the archive that holds the ratings
    placed: str | None = None  # where there is no archive: what to put into the set's own folder
    other_members: tuple[str, ...] = ()  # worth keeping beside it: terms, titles, people
    format: str  # how the ratings are written, a key of hemf.datasets.READERS
    users: int | None  # None: it changes from release to release
    items: int | None
    ratings: int | None
    scale: tuple[float, float, float]  # lowest rating, highest rating, step
    megabytes: float  # of the archive, about
    terms: str
    citation: str

    @property
    def archive(self) -> str:
        """File name of the archive; empty where there is none."""
        return PurePosixPath(self.url or "").name

    @property
    def members(self) -> tuple[str, ...]:
        """Every file taken from the archive, the ratings last."""
        return (*self.other_members, self.ratings_member)

    @property
    def ratings_file(self) -> str:
        """Name of the ratings file once extracted."""
        return PurePosixPath(self.ratings_member).name


_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
_HARPER_KONSTAN = (
    "F. Maxwell Harper and Joseph A. Konstan (2015). The MovieLens Datasets: History and Context. "
    "ACM Transactions on Interactive Intelligent Systems 5(4), article 19. "
    "https://doi.org/10.1145/2827872"
)
_NOT_PASSED_ON = (
    "GroupLens, University of Minnesota: for research; acknowledge the use in publications; "
    "no endorsement may be implied; neither commercial use nor passing the data on without "
    "the owner's permission. The README beside the ratings is binding."
)
_PASSED_ON_ALIKE = (
    "GroupLens, University of Minnesota: for research; acknowledge the use in publications; "
    "no endorsement may be implied; no commercial use without the owner's permission; "
    "may be passed on under the same conditions. The README beside the ratings is binding."
)
NETFLIX_FILES = (
    "the folder training_set with mv_0000001.txt to mv_0017770.txt, or the files "
    "combined_data_1.txt to combined_data_4.txt"
)
"""What to have of the Netflix Prize."""

_WHOLE_STARS = (1.0, 5.0, 1.0)
_HALF_STARS = (0.5, 5.0, 0.5)


def _csv_release(
    name: str,
    title: str,
    *,
    md5: str | None,
    counts: tuple[int, int, int] | None,
    megabytes: float,
) -> Dataset:
    """Describe one of the newer MovieLens releases, which share layout and terms."""
    users, items, ratings = counts or (None, None, None)
    return Dataset(
        name=name,
        title=title,
        url=f"{_GROUPLENS}/{name}.zip",
        md5=md5,
        ratings_member=f"{name}/ratings.csv",
        other_members=(f"{name}/README.txt", f"{name}/movies.csv"),
        format="csv",
        users=users,
        items=items,
        ratings=ratings,
        scale=_HALF_STARS,
        megabytes=megabytes,
        terms=_PASSED_ON_ALIKE,
        citation=_HARPER_KONSTAN,
    )


_ENTRIES = (
    Dataset(
        name="ml-100k",
        title="MovieLens 100K (1998)",
        url=f"{_GROUPLENS}/ml-100k.zip",
        md5="0e33842e24a9c977be4e0107933c0723",
        ratings_member="ml-100k/u.data",
        other_members=("ml-100k/README", "ml-100k/u.item", "ml-100k/u.genre", "ml-100k/u.user"),
        format="tabs",
        users=943,
        items=1_682,
        ratings=100_000,
        scale=_WHOLE_STARS,
        megabytes=4.9,
        terms=_NOT_PASSED_ON,
        citation=_HARPER_KONSTAN,
    ),
    Dataset(
        name="ml-1m",
        title="MovieLens 1M (2003)",
        url=f"{_GROUPLENS}/ml-1m.zip",
        md5="c4d9eecfca2ab87c1945afe126590906",
        ratings_member="ml-1m/ratings.dat",
        other_members=("ml-1m/README", "ml-1m/movies.dat", "ml-1m/users.dat"),
        format="double-colon",
        users=6_040,
        items=3_706,
        ratings=1_000_209,
        scale=_WHOLE_STARS,
        megabytes=5.9,
        terms=_NOT_PASSED_ON,
        citation=_HARPER_KONSTAN,
    ),
    Dataset(
        name="ml-10m",
        title="MovieLens 10M (2009)",
        url=f"{_GROUPLENS}/ml-10m.zip",
        md5="ce571fd55effeba0271552578f2648bd",
        ratings_member="ml-10M100K/ratings.dat",
        other_members=("ml-10M100K/README.html", "ml-10M100K/movies.dat"),
        format="double-colon",
        users=69_878,
        items=10_677,
        ratings=10_000_054,
        scale=_HALF_STARS,
        megabytes=65.6,
        terms=_NOT_PASSED_ON,
        citation=_HARPER_KONSTAN,
    ),
    _csv_release(
        "ml-20m",
        "MovieLens 20M (2015)",
        md5="cd245b17a1ae2cc31bb14903e1204af3",
        counts=(138_493, 26_744, 20_000_263),
        megabytes=198.7,
    ),
    _csv_release(
        "ml-25m",
        "MovieLens 25M (2019)",
        md5="6b51fb2759a8657d3bfcbfc42b592ada",
        counts=(162_541, 59_047, 25_000_095),
        megabytes=262.0,
    ),
    _csv_release(
        "ml-latest-small",
        "MovieLens Latest, small (changes over time)",
        md5=None,
        counts=None,
        megabytes=1.0,
    ),
    _csv_release(
        "ml-latest",
        "MovieLens Latest (changes over time, about 33 million ratings)",
        md5=None,
        counts=None,
        megabytes=350.0,
    ),
    Dataset(
        name="eachmovie",
        title="EachMovie (1997)",
        url=None,
        md5=None,
        ratings_member="eachmovie/vote.txt",
        placed="the file vote.txt",
        format="votes",
        users=72_916,
        items=1_628,
        ratings=2_811_983,
        scale=(1.0, 6.0, 1.0),
        megabytes=100.0,
        terms=(
            "Copyright Digital Equipment Corporation 1997; offered no more. The terms that came "
            "with your copy are binding."
        ),
        citation=(
            "Paul McJones (1997). EachMovie collaborative filtering data set. DEC Systems "
            "Research Center."
        ),
    ),
    Dataset(
        name="netflix",
        title="Netflix Prize (2006)",
        url=None,
        md5=None,
        ratings_member="netflix/ratings.packed",
        placed=NETFLIX_FILES,
        format="packed",
        users=480_189,
        items=17_770,
        ratings=100_480_507,
        scale=_WHOLE_STARS,
        megabytes=2_000.0,
        terms="Netflix; offered no more. The README that came with your copy is binding.",
        citation=(
            "James Bennett and Stan Lanning (2007). The Netflix Prize. Proceedings of KDD Cup "
            "and Workshop 2007."
        ),
    ),
)

DATASETS: dict[str, Dataset] = {entry.name: entry for entry in _ENTRIES}
"""Every data set by name, the smallest release of a family first."""


def names() -> list[str]:
    """Names of all data sets.

    >>> names()[:3]
    ['ml-100k', 'ml-1m', 'ml-10m']
    """
    return list(DATASETS)


def find(name: str) -> Dataset:
    """Return the entry of that name, or an error that names the likely ones.

    >>> find("ml-100k").ratings
    100000
    >>> find("ml-1M")
    Traceback (most recent call last):
    hemf.errors.DatasetError: no data set is called 'ml-1M'; did you mean ml-1m, ml-10m?
    """
    try:
        return DATASETS[name]
    except KeyError:
        likely = difflib.get_close_matches(str(name).lower(), DATASETS, n=2, cutoff=0.7)
        hint = f"did you mean {', '.join(likely)}?" if likely else f"there are {', '.join(names())}"
        raise DatasetError(f"no data set is called {name!r}; {hint}", value=name) from None


def describe(name: str) -> str:
    """Return what a person should know before fetching: size, scale, terms, citation.

    >>> print(describe("ml-100k").splitlines()[1])
    100,000 ratings, 943 users × 1,682 items, rated 1 to 5 in steps of 1
    """
    entry = find(name)
    if entry.ratings is None:
        size = "number of ratings changes from release to release"
    else:
        size = f"{entry.ratings:,} ratings, {entry.users:,} users × {entry.items:,} items"
    lowest, highest, step = entry.scale
    source = (
        f"Archive: {entry.url} (about {entry.megabytes:g} MB)",
        f"Checksum: {f'MD5 {entry.md5}' if entry.md5 else f'MD5 as in {entry.url}.md5'}",
    )
    if entry.url is None:
        source = (
            "Archive: offered no more by its owner",
            f"Files: if you have them, {entry.placed} (about {entry.megabytes:g} MB)",
        )
    return "\n".join(
        (
            f"{entry.name}: {entry.title}",
            f"{size}, rated {lowest:g} to {highest:g} in steps of {step:g}",
            *source,
            f"Terms: {entry.terms}",
            f"Cite: {entry.citation}",
        )
    )
