"""A community that appears in a stream is found, and stays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hemf import HeMF
from hemf.data.datasets import emerging
from hemf.online import communities, updates


def parts(n: int) -> tuple[Any, list[Any]]:
    """The beginning of a stream in which a community of users appears half-way, and the rest."""
    truth = emerging(appears=0.5, separation=7.0, item_communities=4, rng=0)
    columns = [np.asarray(column) for column in truth.columns]
    length = len(columns[0])
    cuts = [round(0.4 * length), *range(round(0.4 * length) + n, length, n), length]
    pieces = [[c[a:b] for c in columns] for a, b in pairwise(cuts)]
    return [c[: cuts[0]] for c in columns], [tuple(piece) for piece in pieces]


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seen, when a split was made, of each that was."""
    made: list[int] = []
    make = communities.make_split

    def noted(side: Any, store: Any, split: Any) -> None:
        made.append(store.size.size)
        make(side, store, split)

    monkeypatch.setattr(updates, "make_split", noted)
    return made


def test_a_split_that_recent_ratings_speak_for_stays(splits: list[int]) -> None:
    start, pieces = parts(500)
    model = HeMF(n_factors=4, rng=0, n_jobs=1).fit(tuple(start))
    before = model.n_user_communities_ + model.n_item_communities_
    for piece in pieces:
        model.partial_fit(piece)
    assert splits
    assert model.n_user_communities_ + model.n_item_communities_ > before
