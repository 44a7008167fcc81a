"""Pairs to predict, and their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hemf._checks import check_choice
from hemf._typing import AnyArray, BoolArray, IdsLike
from hemf.data.ratings import pairs_from_any
from hemf.data.unknown import RequestedIds, warn_of_unknown
from hemf.data.vocabulary import Vocabulary, as_ids, factorise, pair_up
from hemf.errors import UnknownIdError, row_error


class KnownIds(NamedTuple):
    """Ids of one side, and a function that finds their rows: -1 for unknown ids."""

    ids: Vocabulary
    find: Callable[[IdsLike], AnyArray]


class Pairs(NamedTuple):
    """Rows of pairs, -1 for unknown ids."""

    users: AnyArray
    items: AnyArray
    is_single: bool
    """Whether a single pair was given, not a list of them."""
    user_ids: IdsLike
    """Ids of the pairs. An iterator that they came from is used up."""
    item_ids: IdsLike

    @property
    def known(self) -> BoolArray:
        """Whether both ids are known."""
        return np.asarray((self.users >= 0) & (self.items >= 0))


def find_pairs(
    users: IdsLike, items: IdsLike, known_users: KnownIds, known_items: KnownIds, unknown: str
) -> Pairs:
    """Find the rows of ids given as in `HeMF.predict`.

    ``unknown`` is ``"error"`` to reject unknown ids, or ``"prior"`` to accept them.
    """
    check_choice("unknown", unknown, ("prior", "error"))
    if items is None:
        users, items = pairs_from_any(users, users=known_users.ids, items=known_items.ids)
    user_ids, item_ids, is_single = pair_up(
        as_ids(users, known_users.ids), as_ids(items, known_items.ids)
    )
    user_rows, item_rows = known_users.find(user_ids), known_items.find(item_ids)
    if unknown == "error":
        for side, ids, rows in (("user", user_ids, user_rows), ("item", item_ids, item_rows)):
            if (rows < 0).any():
                row = int(np.argmax(rows < 0))
                id = factorise(ids).decode().item(row)
                raise row_error(side, id, row, "is not known to the model", UnknownIdError)
    elif (user_rows < 0).any() or (item_rows < 0).any():
        warn_of_unknown(
            RequestedIds("user", user_ids, user_rows < 0, known_users.ids, known_items.ids),
            RequestedIds("item", item_ids, item_rows < 0, known_items.ids, known_users.ids),
        )
    return Pairs(user_rows, item_rows, is_single, user_ids, item_ids)


# -- unknown ids ---------------------------------------------------------------------------------
