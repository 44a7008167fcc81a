"""Checks of ratings that a batch adds, replaces or removes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from hemf._checks import rating_text
from hemf._typing import SIDES, Array, Int64Array
from hemf.data.ratings import Ratings, pairs_from_any, read_in_order
from hemf.data.vocabulary import CodedIds, RatingBook, Vocabulary, as_array
from hemf.errors import DataError, OutlierWarning, warn_caller
from hemf.model.state import FittedModel, given_at_fit
from hemf.online.clocks import is_far
from hemf.online.state import OnlineState, add_new_rows, recall

More = dict[str, tuple[list[Any], csr_array]]
"""Ids and encoded features of each side that there are any of."""


def read_more(model: FittedModel | None, features: dict[str, Any]) -> More:
    """Encode features as those of the fit were; labels that are new are ignored."""
    more = {}
    for side, table in features.items():
        if table is not None:
            more[side] = given_at_fit(model, side).encoder.encode(table)
    return more


def check_possible(known: tuple[float, float] | None, called: str, values: Array) -> None:
    """Raise DataError for removed or previous ratings outside the observed range."""
    if known is None:
        return
    # In float32, which ratings may have been kept in.
    given = values.astype(np.float32)
    outside = (given < np.float32(known[0])) | (given > np.float32(known[1]))
    if outside.any():
        row = int(outside.argmax())
        value = float(values[row])
        raise DataError(
            f"{called}: no rating of {rating_text(value)} can have been given, as at row "
            f"{row}; all are from {rating_text(known[0])} to {rating_text(known[1])}",
            value=value,
            row=row,
        )


def check_on_record(
    state: OnlineState, called: str, users: Int64Array, items: Int64Array, values: Array
) -> None:
    """Raise DataError for removed or previous ratings that are not the ones in the history.

    Pairs that are not listed are an error only with a full history.
    """
    with_value = np.flatnonzero(~np.isnan(values))
    if not with_value.size or state.window == 0:
        return
    codes = recall(state, users[with_value], items[with_value], values[with_value])
    kept = np.where(codes >= 0, state.book.values[codes], np.nan)
    given = values[with_value].astype(np.float64)
    # What is on record may have been given, or kept, in float32.
    wrong = (codes >= 0) & (kept != given) & (kept != given.astype(np.float32))
    if state.is_complete:
        wrong |= codes < 0
    if wrong.any():
        at = int(wrong.argmax())
        row, value = int(with_value[at]), float(values[with_value[at]])
        instead = "there is none of it" if codes[at] < 0 else f"it is {rating_text(kept[at])}"
        raise DataError(
            f"{called}: a rating of {rating_text(value)} at row {row} is not the one on "
            f"record; {instead}",
            value=value,
            row=row,
        )


def given_before(previous: Any, n: int) -> Array:
    """Return what each of n ratings was before, NaN for those that are new."""
    if previous is None:
        return np.full(n, np.nan)
    try:
        before = np.asarray(previous, np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise DataError("previous must be numbers, NaN for a rating that is new") from None
    if before.size != n:
        raise DataError(f"previous has {before.size} ratings for {n} that are new")
    if np.isinf(before).any():
        row = int(np.isinf(before).argmax())
        raise DataError(f"previous rating at row {row} is infinite", row=row)
    return before


def check_previous(before: Array, users: Int64Array, items: Int64Array) -> None:
    """Raise DataError for a previous rating of a user or an item that is not known."""
    wrong = ~np.isnan(before) & ((users < 0) | (items < 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"previous rating {rating_text(before[row])} at row {row} is of a pair that is "
            "not known; NaN is for ratings that are new",
            value=float(before[row]),
            row=row,
        )


class Taken(NamedTuple):
    """Ratings to remove, by rows; ids and values as given, for messages."""

    users: Int64Array
    items: Int64Array
    values: Array
    ids: tuple[Any, Any]

    def codes(self, book: RatingBook) -> Int64Array:
        """Codes of the ratings, -1 where the caller did not say what they were."""
        codes = np.full(self.users.size, -1, np.int64)
        given = ~np.isnan(self.values)
        codes[given] = book.codes(self.values[given])
        return codes


def measurements(state: OnlineState, taken: Taken) -> Taken:
    """Return every rating on record of pairs to remove whose ratings are not given.

    There is one of each pair, unless repeated ratings count as measurements.
    """
    unsaid = np.isnan(taken.values)
    if not state.options.counts_repeats or not unsaid.any():
        return taken
    rows, values = [], []
    for row in range(taken.users.size):
        listed = taken.values[row : row + 1]
        if unsaid[row] and taken.users[row] >= 0:
            others, codes = state.stores["user"].history.row(int(taken.users[row]))
            codes = codes[others == taken.items[row]]
            listed = state.book.values[codes] if codes.size else listed
        rows.append(np.full(listed.size, row))
        values.append(listed)
    each = np.concatenate(rows)
    ids = taken.ids[0][each], taken.ids[1][each]
    return Taken(taken.users[each], taken.items[each], np.concatenate(values), ids)


def read_removed(
    removed: Any, columns: Any, users: Vocabulary, items: Vocabulary, *, needs_rating: bool
) -> Taken:
    """Return the ratings to remove, given in any form that ratings or pairs may have."""
    values, columns = None, _columns_of(removed, columns)
    if needs_rating:
        try:
            read = read_in_order(removed, None, columns, users=users, items=items)
        except DataError as error:
            raise DataError(
                "without a full history, removed must hold the ratings that were given, "
                f"as user, item, rating: {error}",
                value=error.value,
                row=error.row,
            ) from None
        user_ids, item_ids, values = read.users.decode(), read.items.decode(), read.ratings
    else:
        user_ids, item_ids = pairs_from_any(removed, columns, users=users, items=items)
    if values is None:
        values = np.full(len(user_ids), np.nan)
    return Taken(users.rows(user_ids), items.rows(item_ids), values, (user_ids, item_ids))


def _columns_of(removed: Any, columns: Any) -> Any:
    """Return the columns to read of removed ratings; names apply only to data with names."""
    chosen = columns.values() if isinstance(columns, Mapping) else columns
    by_name = isinstance(chosen, Iterable) and any(isinstance(one, str) for one in chosen)
    rows = isinstance(removed, list | tuple) and not isinstance(removed[0], Mapping)
    nameless = rows or (isinstance(removed, np.ndarray) and removed.dtype.names is None)
    return None if isinstance(removed, Ratings) or (by_name and nameless) else columns


def check_removed(state: OnlineState, taken: Taken, given: set[tuple[int, int]]) -> None:
    """Raise DataError for a removed rating that is not known, or that the batch gives too.

    ``given`` are the rows of users and items that the batch gives ratings of.
    """
    there: Counter[tuple[int, int]] = Counter()
    for name, rows in (("user", taken.users), ("item", taken.items)):
        known = rows[rows >= 0]
        counts = np.bincount(known, minlength=state.stores[name].n_rows)
        short = np.flatnonzero(counts > state.counts[name])
        if short.size:
            row = int(np.flatnonzero(rows == short[0])[0])
            one = taken.ids[SIDES.index(name)].item(row)
            raise DataError(
                f"{name} {one!r} has {state.counts[name][short[0]]} ratings, of which "
                f"{counts[short[0]]} would be removed",
                value=one,
                row=row,
            )
    for row, (user, item) in enumerate(
        zip(taken.users.tolist(), taken.items.tolist(), strict=True)
    ):
        ids = taken.ids[0].item(row), taken.ids[1].item(row)
        rated = user >= 0 and item >= 0 and has_rated(state, user, item)
        before = there[user, item]
        if not rated or (before and before >= times_listed(state, user, item)):
            raise DataError(
                f"user {ids[0]!r} has no rating of item {ids[1]!r} that could be removed, "
                f"at row {row}",
                value=ids,
                row=row,
            )
        if (user, item) in given:
            raise DataError(
                f"the rating of item {ids[1]!r} by user {ids[0]!r} is both given and removed, "
                f"at row {row}",
                value=ids,
                row=row,
            )
        there[user, item] += 1


def times_listed(state: OnlineState, user: int, item: int) -> int:
    """How many ratings of a pair are listed; more than one where each counts."""
    return int((state.stores["user"].history.row(user)[0] == item).sum())


def has_rated(state: OnlineState, user: int, item: int) -> bool:
    """Whether a pair may have been rated: it is listed, or both have ratings that are not."""
    if times_listed(state, user, item):
        return True
    rows = (state.stores["user"], user), (state.stores["item"], item)
    return all(store.count[row] > store.history.length[row] for store, row in rows)


# ------------------------------------------------------------------------------------------------
# Rows of new ids, and ratings that are far from all others.


MAX_DISTANCE = 1e9  # standard deviations


class Arrivals:
    """Ids of a stream, which get rows when they first appear."""

    def __init__(self, ids: Vocabulary, coded: CodedIds) -> None:
        self._ids = ids
        self._coded = coded
        self._rows = np.empty(0, np.int64)  # of the distinct ids so far

    def rows(self, state: OnlineState, name: str, part: slice) -> Int64Array:
        """Return the rows of the next part of the stream."""
        codes = self._coded.codes[part]
        come = max(self._rows.size, int(codes.max()) + 1)
        new = as_array(self._coded.distinct)[self._rows.size : come]
        if len(new):
            self._rows = np.concatenate([self._rows, self._ids.add(new)])
            add_new_rows(state, name, len(self._ids) - state.stores[name].n_rows)
        return np.asarray(self._rows[codes])


def check_distance(state: OnlineState, values: Array) -> None:
    """Raise DataError for ratings so far from the others that their squares would overflow."""
    far = np.abs(values.astype(np.float64) - state.centre) > MAX_DISTANCE * state.unit
    if far.any():
        row = int(far.argmax())
        raise DataError(
            f"rating {rating_text(values[row])} at row {row} is too far from the others, "
            f"which are about {state.centre:g} ± {state.unit:g}",
            value=float(values[row]),
            row=row,
        )


@contextmanager
def finite(state: OnlineState) -> Iterator[None]:
    """Raise DataError where learning leaves numbers that are not finite.

    The call is undone then. All numbers of a row enter the statistics of its communities.
    """
    try:
        yield
        stores = state.stores.values()
        sums = [float(store.first.sum() + store.scatter.sum()) for store in stores]
        is_finite = math.isfinite(state.noise + sum(sums))
    except np.linalg.LinAlgError:
        is_finite = False
    if not is_finite:
        raise DataError(
            "these ratings cannot be learnt: sums of them and of those learnt before would be out "
            "of range, and the model stays as it was; look for ratings that are far from all "
            "others, remove them with removed=, or fit a new model without them"
        )


def warn_far(
    state: OnlineState, known: tuple[float, float] | None, values: npt.NDArray[np.float32]
) -> None:
    """Warn of a rating far outside the range of those learnt before.

    ``known`` is that range where it was observed, None where it was declared or not wanted.
    """
    if known is None or not values.size:
        return
    low, high = known
    outside = np.maximum(low - values.astype(np.float64), values - high)
    row = int(outside.argmax())
    value = float(values[row])
    if is_far((low, high), (min(low, value), max(high, value)), state.seen):
        least, most = rating_text(low), rating_text(high)
        warn_caller(
            f"rating {rating_text(value)} at row {row} is far outside the ratings learnt before, "
            f"which are from {least} to {most}; if it is a mistake, learn the pair again with "
            f"the right rating, and declare rating_range=({least}, {most}) to have such ratings "
            "refused",
            OutlierWarning,
        )
