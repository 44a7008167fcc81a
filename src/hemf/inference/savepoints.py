"""A state that can go back to what it was; `hemf.inference.journal` says how."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hemf.inference.binding import patience
from hemf.inference.history import distinct
from hemf.inference.journal import Journal, content_of, generator_state, mappings_of
from hemf.inference.online_options import ALL
from hemf.inference.rowstore import (
    ALL_ARRAYS,
    PLACE,
    RECORDED,
    SUMS,
    WHOLE,
    RowStore,
)
from hemf.inference.settled import OTHER

if TYPE_CHECKING:
    from hemf.inference.history import RatingBook
    from hemf.inference.online_features import RowFeatures
    from hemf.inference.online_moods import OnlineMoods
    from hemf.inference.online_options import OnlineOptions
    from hemf.model.packing import Float64
    from hemf.model.side import Side

Wholes = npt.NDArray[np.int64]


@cache
def _mappings(cls: Any) -> list[str]:
    """Names of the fields of a state that are dictionaries."""
    return [field.name for field in fields(cls) if str(field.type).startswith("dict[")]


class Undoable:
    """What a state that learns online has to announce before it changes, so as to be undone.

    Every function that writes to rows, histories or moods in place announces it by one of the
    ``keep`` methods. Anything else is copied when a savepoint is made.
    """

    sides: dict[str, Side]
    stores: dict[str, RowStore]
    book: RatingBook
    options: OnlineOptions
    is_buffering: bool
    rng: np.random.Generator
    total: Float64
    features: dict[str, RowFeatures]
    moods: OnlineMoods | None
    journal: Journal | None

    @property
    def window(self) -> int:
        """Ratings of each row that are kept as of now; `ALL` while a stream is buffered."""
        return ALL if self.is_buffering else self.options.window

    @property
    def is_complete(self) -> bool:
        """Whether every rating is in the history."""
        return self.window == ALL

    def savepoint(self) -> int:
        """Return a place for `back_to`: everything can be put back, to the bit, as it is now.

        Small things are copied at once. Rows, their histories and moods are kept when `keep` and
        the like announce that they will change, which every function that changes them has to do.
        Savepoints may be nested.
        """
        journal = self.journal
        if journal is None or not journal.is_open:
            self.journal = journal = Journal()
        mark = journal.mark()
        own = vars(self)
        mappings: list[dict[Any, Any]] = [own, vars(self.book)]
        mappings += [vars(side) for side in self.sides.values()]
        cls: Any = type(self)
        mappings += [own[name] for name in _mappings(cls)]
        for features in self.features.values():
            mappings += [vars(features), features.later]
        arrays = [self.total]
        add = journal.add
        for store in self.stores.values():
            arrays += [store.size, store.first, store.scatter, store.totals]
            add(store.mark())
            add(store.history.mark())
        add(mappings_of(mappings))
        add(content_of(*arrays))
        add(generator_state(self.rng))
        if self.moods is not None:
            journal.add(self.moods.mark())
        return mark

    def back_to(self, savepoint: int) -> None:
        """Undo everything since a `savepoint`; it can be made once more."""
        journal = self.journal
        assert journal is not None
        journal.undo(savepoint)

    def release(self, savepoint: int) -> None:
        """Let what was done since a `savepoint` stay, unless an earlier one is gone back to."""
        if savepoint == 0 and self.journal is not None:
            self.journal.close()

    @property
    def _open_journal(self) -> Journal | None:
        """The journal, where anything is to be kept in it."""
        return self.journal if self.journal is not None and self.journal.is_open else None

    def keep(
        self, name: str, rows: Wholes | None = None, only: Collection[str] | None = None
    ) -> None:
        """Announce that rows of a side, or all, will change; ``only`` some of the `RowArrays`."""
        journal, store = self._open_journal, self.stores[name]
        if journal is None or journal.has(None, store):
            return
        if rows is None:
            if journal.once(None if only is None else tuple(only), store):
                store.keep_all(journal, ALL_ARRAYS if only is None else only)
        elif rows.size:
            store.keep(journal, rows, ALL_ARRAYS if only is None else tuple(only))

    def keep_outside(self, name: str, rows: Wholes, n: Any, *, back: bool = False) -> None:
        """Announce that ratings outside the newest of these rows will be summed up.

        That changes the rows and those of the other side; see `History.outside`.
        """
        journal = self._open_journal
        if journal is not None:
            partners = self.stores[name].history.outside(rows, n, self.window, back=back)
            if partners.size:
                self.stores[OTHER[name]].keep(journal, partners, SUMS, lists=WHOLE)

    def keep_moods(self, raters: Wholes | None = None) -> None:
        """Announce that the moods of these raters, or of all, will change."""
        journal = self._open_journal
        if journal is not None and self.moods is not None:
            if raters is not None and raters.size == self.moods.n_raters:
                raters = None
            if raters is not None or journal.once(None, self.moods):
                journal.add(self.moods.keep(raters))

    def keep_sittings(self) -> None:
        """Announce that sittings will get other numbers."""
        journal = self._open_journal
        if journal is not None:
            self.keep_moods()
            pools = [store.history.sitting for store in self.stores.values()]
            journal.add(content_of(*pools))

    def keep_batch(self, rows: dict[str, Wholes]) -> None:
        """Announce that ratings of these rows of each side will be learnt at once."""
        journal, window = self._open_journal, self.window
        if journal is None:
            return
        lists = 0 if window == 0 else WHOLE if window > 0 else PLACE
        for name, own in rows.items():
            touched = distinct(own)
            # One row that is refreshed at once is kept in one step rather than two.
            is_refreshed = touched.size == 1 and patience(self.options, window, name) == 0.0
            names = ALL_ARRAYS if is_refreshed else RECORDED
            self.stores[name].keep(journal, touched, names, lists=lists)

    def keep_changed(self, rows: dict[str, Wholes], is_changed: npt.NDArray[np.bool_]) -> None:
        """Announce which ratings of a batch change or take back one that is listed."""
        journal = self._open_journal
        if journal is not None and self.is_complete and is_changed.any():
            for name, own in rows.items():
                self.stores[name].keep(journal, distinct(own[is_changed]), (), lists=WHOLE)

    def keep_stream(self, users: Wholes, items: Wholes) -> None:
        """Announce that these pairs will be rated one after the other."""
        journal, window = self._open_journal, self.window
        if journal is None:
            return
        for name, own in (("user", users), ("item", items)):
            touched, counts = np.unique(own, return_counts=True)
            self.stores[name].keep(journal, touched, lists=WHOLE if window != 0 else 0)
            if window > 0:
                self.keep_outside(name, touched, counts, back=True)
        self.keep_moods(distinct(users))
