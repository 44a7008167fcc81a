from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest

from hemf.errors import DatasetError
from hemf.experiments import datasets

MOVIELENS = (
    "ml-100k",
    "ml-1m",
    "ml-10m",
    "ml-20m",
    "ml-25m",
    "ml-latest-small",
    "ml-latest",
)


def test_every_movielens_release_is_there():
    assert set(MOVIELENS) <= set(datasets.names())


@pytest.mark.parametrize("name", datasets.names())
def test_every_entry_is_whole(name):
    entry = datasets.find(name)
    assert entry.name == name
    if entry.url is None:
        assert entry.placed
    else:
        assert entry.url.startswith("https://")
        assert entry.archive.endswith(".zip")
    assert entry.md5 is None or re.fullmatch("[0-9a-f]{32}", entry.md5)
    assert callable(entry.read)
    assert entry.members[-1] == entry.ratings_member
    bare = [PurePosixPath(member).name for member in entry.members]
    assert len(set(bare)) == len(bare), "two members would be extracted to the same file"
    assert all(not part.startswith(".") for member in entry.members for part in member.split("/"))
    lowest, highest, step = entry.scale
    assert (highest - lowest) / step == round((highest - lowest) / step)


@pytest.mark.parametrize("name", datasets.names())
def test_the_description_has_terms_citation_and_address(name):
    entry, text = datasets.find(name), datasets.describe(name)
    assert entry.terms in text
    assert entry.citation in text
    if entry.url is None:
        assert "no longer offered" in text
        assert entry.placed in text
    else:
        assert entry.url in text
        assert (entry.md5 or f"{entry.url}.md5") in text


def test_releases_that_change_are_verified_by_the_checksum_beside_them():
    assert datasets.find("ml-latest").md5 is None
    assert "changes" in datasets.describe("ml-latest")


def test_an_unknown_name_is_answered_with_the_likely_ones():
    with pytest.raises(DatasetError, match="did you mean ml-20m") as caught:
        datasets.find("ml20m")
    assert caught.value.value == "ml20m"


def test_a_name_like_no_other_is_answered_with_all():
    with pytest.raises(DatasetError, match=r"ml-100k, ml-1m.*ml-latest"):
        datasets.describe("netflix-of-mars")
