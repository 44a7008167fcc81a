"""What is known of users and items beside their ratings, as a fit takes it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hemf.errors import DataError
from hemf.features.encoder import FeatureEncoder, placed
from hemf.features.tables import parts_of, read_table
from hemf.model.design import Design
from hemf.model.implicit import HOW_MANY, RATED, implicit_blocks
from hemf.ratings import Ratings
from hemf.vocabulary import Vocabulary


@dataclass(frozen=True)
class Given:
    """Features of one side that were given to a fit: how they are encoded, and of newcomers."""

    encoder: FeatureEncoder
    newcomers: Vocabulary
    """Ids that have features but no place among the rows."""
    features: csr_array
    """Of the newcomers, encoded."""


def read_features(features: Any, side: str, known: Vocabulary) -> tuple[Given, csr_array]:
    """Encode features of users or items; also return those of the rows that are known.

    A row without features has zeros, which is the mean of numbers and no label at all. Features of
    ids that have no ratings are kept: they are what such a newcomer is predicted by.

    >>> people = Vocabulary(["ann", "bob"])
    >>> given, rows = read_features({"ann": [1.0], "eve": [3.0]}, "user", people)
    >>> rows.toarray().tolist(), given.newcomers.ids.tolist()
    ([[-1.0], [0.0]], ['eve'])
    """
    tables = [read_table(part, side) for part in parts_of(features)]
    encoder = FeatureEncoder.learn(tables, side)
    for taken in encoder.blocks.keys() & {RATED, HOW_MANY}:
        raise DataError(
            f"{side}_features: a column cannot be called {taken!r}, which is what the features are "
            "called that ratings make; give it another name",
            value=taken,
        )
    ids, encoded = encoder.encode(tables)
    rows = known.rows(ids)
    here = rows >= 0
    if not here.any():
        example = known.ids[0] if len(known) else None
        raise DataError(
            f"{side}_features: none of its {len(ids):,} ids is among those of the ratings: it has "
            f"{ids[0]!r}, and they have {example!r}; ids that look alike may differ in type",
            value=ids[0],
        )
    newcomers = Vocabulary([id for id, row in zip(ids, rows, strict=True) if row < 0])
    given = Given(encoder, newcomers, csr_array(encoded[~here]))
    return given, placed(csr_array(encoded[here]), rows[here], len(known))


def side_information(
    ratings: Ratings,
    features: dict[str, Any],
    *,
    implicit: Collection[str],
    dtype: type[np.floating] = np.float64,
) -> tuple[dict[str, Design], dict[str, Given]]:
    """Return the features of each side that has any, and what was given of them.

    ``implicit`` are the sides that have what ratings tell of who rated, too.
    What was given comes before what is implicit, for of newcomers only the former is known.
    """
    sides = {
        "user": (ratings.users, ratings.by_user, ratings.n_items),
        "item": (ratings.items, ratings.by_item, ratings.n_users),
    }
    designs, given = {}, {}
    for side, (known, table, n_other) in sides.items():
        blocks: dict[str, Any] = {}
        if features.get(side) is not None:
            given[side], encoded = read_features(features[side], side, known)
            end = 0
            for name, width in given[side].encoder.blocks.items():
                blocks[name] = encoded[:, end : end + width]
                end += width
        if side in implicit:
            blocks |= implicit_blocks(table.indptr, table.indices, n_other)
        if blocks:
            designs[side] = Design.of(blocks, dtype)
    return designs, given
