"""Pairs that samplers and baselines are asked about, and ratings that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hemf.arguments import as_ids, paired
from hemf.errors import DataError, UnknownIdError
from hemf.options import checked_range
from hemf.parameters import choice
from hemf.ratings import pairs_from_any
from hemf.reading.identifiers import factorise
from hemf.reading.values import Values
from hemf.unknown import Asked, warn_of_unknown
from hemf.vocabulary import Vocabulary

RowNumbers = npt.NDArray[Any]


class Known(NamedTuple):
    """Ids of one side, and what finds the rows of ids: -1 for those that nothing is known of."""

    ids: Vocabulary
    find: Callable[[Any], RowNumbers]


class Pairs(NamedTuple):
    """Rows of pairs, -1 for strangers."""

    users: RowNumbers
    items: RowNumbers
    alone: bool
    """Whether a single pair was given, not a list of them."""
    user_ids: Any
    """Ids of the pairs, one for each, to ask another model: what they came from may be used up."""
    item_ids: Any

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Whether both are known."""
        return np.asarray((self.users >= 0) & (self.items >= 0))


def asked(users: Any, items: Any, known_users: Known, known_items: Known, unknown: str) -> Pairs:
    """Find the rows of ids given as `HeMF.predict` takes them.

    ``unknown="error"`` refuses ids that are not known; with ``"prior"`` they are welcome.
    """
    choice("unknown", unknown, ("prior", "error"))
    if items is None:
        users, items = pairs_from_any(users, users=known_users.ids, items=known_items.ids)
    user_ids, item_ids, alone = paired(
        as_ids(users, known_users.ids), as_ids(items, known_items.ids)
    )
    user_rows, item_rows = known_users.find(user_ids), known_items.find(item_ids)
    if unknown == "error":
        _refuse("user", user_ids, user_rows < 0)
        _refuse("item", item_ids, item_rows < 0)
    elif (user_rows < 0).any() or (item_rows < 0).any():
        warn_of_unknown(
            Asked("user", user_ids, user_rows < 0, known_users.ids, known_items.ids),
            Asked("item", item_ids, item_rows < 0, known_items.ids, known_users.ids),
        )
    return Pairs(user_rows, item_rows, alone, user_ids, item_ids)


def _refuse(side: str, ids: Any, which: npt.NDArray[np.bool_]) -> None:
    """Raise an error that names the first of these ids, if there is any."""
    if which.any():
        at = int(np.argmax(which))
        value = factorise(ids).decode().item(at)
        raise UnknownIdError(
            f"{side} {value!r} at row {at} is not known to the model", value=value, row=at
        )


def check_inside(ratings: Values, rating_range: str | tuple[float, float] | None) -> None:
    """Raise an error that names the first rating outside of a range, if one is given.

    >>> check_inside(np.float32([1, 5]), (1, 5))
    """
    limits = checked_range(rating_range)
    if isinstance(limits, tuple):
        outside = (ratings < limits[0]) | (ratings > limits[1])
        if outside.any():
            row = int(outside.argmax())
            value = float(ratings[row])
            raise DataError(
                f"rating {value:g} at row {row} is outside the rating_range {limits}; "
                "correct it, or choose a wider range",
                value=value,
                row=row,
            )
