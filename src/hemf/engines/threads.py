"""Ratings in memory, half-sweeps on the threads of one machine.

Rows are cut into chunks of similar work, always at the same places, and their statistics are
added in the order of the chunks: the result is the same, to the bit, for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.sparse import csr_array

from hemf._checks import thread_count
from hemf._typing import OTHER, Array, Float64Array, Int32Array, Int64Array, Storage
from hemf.data.ratings import Sparse
from hemf.engines.base import (
    CHOICES,
    RATINGS,
    HalfSweep,
    LoadOptions,
    Model,
    RatingTables,
    Rows,
)
from hemf.model.communities import Statistics
from hemf.model.moods import MoodPosterior, MoodPrior, Moods, MoodSums
from hemf.model.rows import pack, unpack

CHUNKS = 64


@dataclass(frozen=True)
class Sessions:
    """Ratings of one rater at one time, as groups."""

    indptr: Int64Array
    """Where the sessions of each rater begin, and the last ends."""
    times: Int64Array
    """Time of each session."""
    of_ratings: dict[str, Int32Array]
    """Session of each rating, in the order of each side's table."""

    @classmethod
    def of(cls, users: Rows, times: Int64Array) -> Sessions:
        """Group ratings by rater and time; ``times`` are in the order of the users' table.

        >>> table = Sparse(np.array([0, 3]), np.array([0, 1, 2], np.int32), np.ones(3))
        >>> Sessions.of(table, np.array([5, 3, 5])).of_ratings["user"].tolist()
        [1, 0, 1]
        """
        n_rows = users.indptr.size - 1
        of_user = np.repeat(np.arange(n_rows), np.diff(users.indptr))
        order = np.lexsort((times, of_user))
        user, time = of_user[order], times[order]
        begins = np.ones(order.size, bool)
        begins[1:] = (user[1:] != user[:-1]) | (time[1:] != time[:-1])
        session = np.empty(order.size, np.int32)
        session[order] = np.cumsum(begins) - 1
        indptr = np.zeros(n_rows + 1, np.int64)
        np.cumsum(np.bincount(user[begins], minlength=n_rows), out=indptr[1:])
        by_item = np.argsort(users.indices, kind="stable")
        return cls(indptr, time[begins], {"user": session, "item": session[by_item]})


@dataclass
class EntriesInMemory:
    """Standardised ratings, or choices, of both sides; see `hemf.engines.base.EntryTable`."""

    tables: dict[str, Sparse]
    """Entries by side; choices have no values."""
    background: float = 0.0
    """w₀, the weight of a pair that was not observed."""
    sessions: Sessions | None = None
    n_jobs: int | None = None

    @property
    def n_ratings(self) -> int:
        """Number of ratings, or of choices."""
        return self.tables["user"].nnz

    @property
    def total_weight(self) -> float:
        """Σ u_ij over the entries, and w₀ for each pair that was not observed."""
        n_pairs = self.tables["user"].n_rows * self.tables["item"].n_rows
        return self.n_ratings + self.background * (n_pairs - self.n_ratings)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Type in which ratings are stored."""
        return self.tables["user"].values.dtype

    def counts(self, side: str) -> Int64Array:
        """Return the number of ratings of every row of a side."""
        return np.diff(self.tables[side].indptr)

    def row(
        self, side: str, row: int, moods: Moods | None = None
    ) -> tuple[Int32Array, Float64Array]:
        """Return a row's columns, ascending, and its standardised ratings less ``moods``."""
        indptr = self.tables[side].indptr
        span = slice(indptr[row], indptr[row + 1])
        columns, values = self.tables[side].indices[span], self._values(side, moods, span)
        return columns, values.astype(np.float64) if values.size else np.ones(columns.size)

    def row_sums(self, side: str, other: Float64Array) -> Float64Array:
        """Return Σ_j other_j of every row of a side, over the columns j that it has rated."""
        table = self.tables[side]
        return _row_sums(table, other[table.indices])

    def residuals(self, pseudo_ratings: float) -> csr_array:
        """Return scaled ratings less both sides' offsets."""
        return scaled_residuals(self.tables["user"], self.tables["item"].n_rows, pseudo_ratings)

    # docs/model.md#row-factors
    def half_sweep(
        self, side: str, model: Model, *, coupled: bool = True, hold: bool = False
    ) -> HalfSweep:
        """Update all rows of a side in place against the moments of the other side."""
        from hemf.kernels import rows as kernels
        from hemf.kernels import structures

        own, other = model.sides[side], model.sides[OTHER[side]]
        table, layout, communities = self.tables[side], own.layout, own.communities
        moments, membership, n_rows = own.moments, own.membership, table.n_rows
        precision = pack(communities.precision)
        count, order = communities.count, layout.order
        cuts = chunk_bounds(table.indptr, order)
        n_chunks = cuts.size - 1
        ratings = structures.Ratings.of(
            table.indptr, table.indices, self._values(side, model.moods)
        )
        weight = other.weights.astype(other.moments.mean.dtype)
        others = structures.OtherRows.of(
            other.moments.mean, other.moments.second, weight, self.background
        )
        prior = structures.Prior(
            free=layout.free,
            pinned=layout.pinned,
            precision=precision,
            natural_mean=np.ascontiguousarray(communities.natural_mean),
            log_weight=np.ascontiguousarray(communities.log_weight),
        )
        noise = np.ascontiguousarray(model.noise / own.weights)
        errors, has_features = np.zeros(n_rows), own.regression is not None
        information = np.zeros(n_rows if has_features else 0)
        posterior = structures.Posterior(
            noise, moments.mean, moments.second, membership, errors, hold
        )
        features = structures.Features(
            np.zeros((0, order)), np.zeros(0), np.zeros((0, order)), information
        )
        if own.regression is not None:
            root = np.linalg.cholesky(communities.precision[0])
            features = structures.Features(
                own.regression.shift, own.regression.leverage, root, information
            )
        found = structures.Statistics(
            size=np.zeros((n_chunks, count)),
            first=np.zeros((n_chunks, count, order)),
            scatter=np.zeros((n_chunks, *precision.shape)),
            entropy=np.zeros(n_chunks),
        )
        update = structures.RowUpdate(cuts, ratings, others, prior, posterior, features, found)
        chosen = kernels.coupled_rows if coupled else kernels.mean_field_rows
        run = chosen.compiled(moments.mean.dtype)

        def work(begin: int, end: int) -> None:
            memory = structures.sweep_memory(
                others, order, int(cuts[end] - cuts[begin]), communities=count,
                covariances=len(precision), has_features=has_features,
            )  # fmt: skip
            run(begin, end, update, memory)

        self._share_out(work, n_chunks)
        if model.moods is not None:
            variance = model.moods.posterior.spread[self._session(side)]
            errors += _row_sums(table, variance * other.weights[table.indices])
        statistics = Statistics(
            size=found.size.sum(axis=0),
            first=found.first.sum(axis=0),
            scatter=unpack(found.scatter.sum(axis=0)),
            entropy=float(found.entropy.sum()),
        )
        return HalfSweep(moments, membership, statistics, errors, information)

    def start_moods(self) -> Moods | None:
        """Return moods of zero for every session; None without timestamps."""
        if self.sessions is None:
            return None
        return Moods.start(self.sessions.indptr, self.sessions.times)

    # docs/model.md#moods
    def mood_information(self, model: Model) -> tuple[Float64Array, Float64Array]:
        """Return Σ τ_i υ_j/σ² of each session, and the same sum of (r - E[a·b]) times it."""
        from hemf.kernels.moods import gather
        from hemf.kernels.structures import Ratings, SessionInformation

        users, items, table = model.sides["user"], model.sides["item"], self.tables["user"]
        session = self._session("user")
        assert self.sessions is not None
        precision = np.zeros(self.sessions.times.size)
        natural_mean = precision.copy()
        cuts = chunk_bounds(table.indptr, users.layout.order)
        own, other = users.weights / model.noise, np.ascontiguousarray(items.weights)
        ratings = Ratings.of(table.indptr, table.indices, table.values)
        information = SessionInformation(precision, natural_mean)
        run = gather.compiled(users.moments.mean.dtype)

        def work(begin: int, end: int) -> None:
            run(
                begin, end, cuts, ratings, session, users.moments.mean, items.moments.mean, own,
                other, information,
            )  # fmt: skip

        self._share_out(work, cuts.size - 1)
        return precision, natural_mean

    def smooth_moods(
        self, prior: MoodPrior, precision: Float64Array, natural_mean: Float64Array
    ) -> tuple[MoodPosterior, MoodSums]:
        """Return the posterior of moods given the result of `mood_information`."""
        from hemf.kernels.moods import SUMS, smooth
        from hemf.kernels.structures import SessionInformation, SessionPosterior

        assert self.sessions is not None
        indptr, n_sessions = self.sessions.indptr, self.sessions.times.size
        cuts = chunk_bounds(indptr, 1)
        new = MoodPosterior.none(n_sessions)
        sums = np.zeros((cuts.size - 1, SUMS))
        information = SessionInformation(precision, natural_mean)
        posterior = SessionPosterior(**vars(new))
        numbers = np.array([prior.persistence, prior.variance, prior.extra])
        run = smooth.compiled(np.float64)

        def work(begin: int, end: int) -> None:
            run(begin, end, cuts, indptr, information, numbers, posterior, sums)

        self._share_out(work, cuts.size - 1)
        n_raters = int((np.diff(indptr) > 0).sum())
        first, now, before, product, extra, divergence = sums.sum(axis=0).tolist()
        return new, MoodSums(first, now, before, product, extra, divergence, n_raters, n_sessions)

    def _session(self, side: str) -> Int32Array:
        assert self.sessions is not None
        return self.sessions.of_ratings[side]

    def _values(self, side: str, moods: Moods | None, span: slice = slice(None)) -> Array:
        values = self.tables[side].values[span]
        if moods is None:
            return values
        return values - moods.posterior.mean.astype(values.dtype)[self._session(side)[span]]

    def _share_out(self, work: Callable[[int, int], None], n_chunks: int) -> None:
        share_out(work, n_chunks, thread_count(self.n_jobs))


@dataclass
class Threads:
    """Engine of one machine: everything is in memory."""

    components: dict[str, EntriesInMemory]

    @classmethod
    def load(cls, ratings: RatingTables, options: LoadOptions) -> Self:
        """Return an engine that holds these ratings, standardised.

        >>> from hemf.data.ratings import Ratings
        >>> ratings = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
        >>> engine = Threads.load(ratings, LoadOptions(np.float32))
        >>> engine.components["ratings"].row("item", 0)[1]
        array([ 1., -1.])
        """
        grouped, n_jobs = None, options.n_jobs
        if options.sessions:
            assert ratings.timestamps is not None
            grouped = Sessions.of(ratings.by_user, ratings.timestamps)
        engine = cls.of(standardised(ratings, options.dtype), sessions=grouped, n_jobs=n_jobs)
        if options.background is not None:
            pairs = {
                side: Sparse(table.indptr, table.indices, np.zeros(0, options.dtype))
                for side, table in (("user", ratings.by_user), ("item", ratings.by_item))
            }
            engine.components[CHOICES] = EntriesInMemory(pairs, options.background, n_jobs=n_jobs)
        return engine

    @classmethod
    def of(
        cls,
        tables: dict[str, Sparse],
        *,
        sessions: Sessions | None = None,
        n_jobs: int | None = None,
    ) -> Self:
        """Return an engine that holds tables of standardised ratings, one of each side."""
        return cls({RATINGS: EntriesInMemory(tables, sessions=sessions, n_jobs=n_jobs)})


def standardised(ratings: RatingTables, dtype: Storage) -> dict[str, Sparse]:
    """Return the ratings of each side with mean 0 and scale 1.

    >>> from hemf.data.ratings import Ratings
    >>> ratings = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> standardised(ratings, np.float32)["item"].values.tolist()
    [1.0, -1.0]
    """

    def side(table: Rows) -> Sparse:
        # In float64: of large ratings that differ little, float32 would leave few digits.
        values = table.values.astype(np.float64)
        values -= ratings.mean
        values /= ratings.scale
        return Sparse(table.indptr, table.indices, values.astype(dtype, copy=False))

    return {"user": side(ratings.by_user), "item": side(ratings.by_item)}


def scaled_residuals(table: Sparse, n_columns: int, pseudo_ratings: float) -> csr_array:
    """Return ratings less the offsets of rows and columns; see `EntryTable.residuals`."""
    counts, other_counts = np.diff(table.indptr), np.bincount(table.indices, minlength=n_columns)
    of_row = np.repeat(np.arange(counts.size), counts)
    if table.values.size:
        left = table.values.astype(np.float64)
        offset = np.bincount(table.indices, left, n_columns) / (other_counts + pseudo_ratings)
        left -= offset[table.indices]
        left -= (np.bincount(of_row, left, counts.size) / (counts + pseudo_ratings))[of_row]
    else:  # choices: that a pair was observed is the signal
        left = np.ones(table.nnz)
    left /= np.sqrt(counts + pseudo_ratings)[of_row]
    left /= np.sqrt(other_counts + pseudo_ratings)[table.indices]
    return csr_array((left, table.indices, table.indptr), shape=(counts.size, n_columns))


def _row_sums(table: Sparse, each: Array) -> Float64Array:
    """Return the sum over the ratings of every row of a number for each rating."""
    running = np.concatenate([[0.0], np.cumsum(each)])
    return np.asarray(running[table.indptr[1:]] - running[table.indptr[:-1]])


def share_out(work: Callable[[int, int], None], n_chunks: int, threads: int) -> None:
    """Call ``work`` on ranges of chunks, long ones first, so that threads end together.

    A call costs tens of microseconds in which other threads may have to wait for the interpreter:
    there are about a dozen for each thread, not one for each chunk.
    """
    if threads == 1 or n_chunks == 1:
        work(0, n_chunks)
        return
    ranges, begin = [], 0
    while begin < n_chunks:
        end = begin + max(1, (n_chunks - begin) // (2 * threads))
        ranges.append((begin, end))
        begin = end
    left = iter(ranges)

    def take_ranges() -> None:
        for one in left:
            work(*one)

    with ThreadPoolExecutor(threads - 1) as pool:  # the caller is one of the threads
        helpers = [pool.submit(take_ranges) for _ in range(threads - 1)]
        take_ranges()
        for helper in helpers:
            helper.result()


def max_chunks(n_rows: int) -> int:
    """Return the number of chunks that rows are cut into, at most."""
    return min(CHUNKS, max(1, n_rows // 32))


def chunk_bounds(indptr: Int64Array, order: int) -> Int64Array:
    """Cut rows into at most CHUNKS ranges of similar work: a row's solve costs ~2·order ratings."""
    n_rows = indptr.size - 1
    work = indptr + 2 * order * np.arange(n_rows + 1)
    targets = np.linspace(0, work[-1], max_chunks(n_rows) + 1)
    cuts = np.unique(np.searchsorted(work, targets))
    cuts[0], cuts[-1] = 0, n_rows
    return cuts.astype(np.int64)
