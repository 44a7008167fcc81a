"""Inputs of a fit: validation ratings, features, warnings and the memory needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pkgutil import resolve_name
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from hemf._checks import available_bytes, format_bytes, rating_text, resolve_rating_range
from hemf._options import FitOptions
from hemf._typing import (
    SIDES,
    Array,
    FeaturesLike,
    Float64Array,
    IdsLike,
    Int64Array,
    RatingsLike,
    Storage,
)
from hemf.batch.choices import choice_features, fit_choices
from hemf.batch.fit import BatchState
from hemf.data.features import FeatureEncoder, as_parts, read_table, scatter_rows
from hemf.data.ratings import Ratings, pairs_from_any, validation_pairs, warn_of_equal
from hemf.data.sources import ColumnChoice
from hemf.data.vocabulary import Vocabulary
from hemf.engines import ENGINES
from hemf.engines.base import Engine, LoadOptions
from hemf.engines.threads import max_chunks
from hemf.errors import DataError, OutlierWarning, ParameterError, warn_caller
from hemf.model.regression import (
    CHOSEN,
    DIRECT,
    HOW_MANY,
    PRECISE,
    RATED,
    Block,
    Design,
    implicit_blocks,
)
from hemf.model.rows import pair_moments
from hemf.model.side import with_stranger
from hemf.model.state import GivenFeatures


class FitInputs(NamedTuple):
    """Checked inputs of a fit."""

    train: Ratings
    held_out: Ratings | None
    engine: Engine
    """Owner of the standardised training ratings."""
    choices: BatchState | None
    """Result of the fit of choices; None where they are not learnt."""
    rating_range: tuple[float, float] | None
    designs: dict[str, Design]
    features: dict[str, GivenFeatures]
    validate: Callable[[BatchState], float] | None
    """RMSE of a state on held-out ratings."""
    watch: Callable[[BatchState], float] | None
    """RMSE of a state on ratings given for validation."""


def read_inputs(
    ratings: RatingsLike,
    y: IdsLike,
    columns: ColumnChoice,
    features: Mapping[str, FeaturesLike],
    validation: RatingsLike,
    options: FitOptions,
    rng: np.random.Generator,
) -> FitInputs:
    """Read and check everything that `hemf.HeMF.fit` is given, before anything is learnt."""
    if y is not None:
        users, items = pairs_from_any(ratings, columns)
        ratings, columns = (users, items, y), None
    data = Ratings.from_any(
        ratings,
        columns=columns,
        duplicates=options.duplicates,
        exact=options.dtype == np.float64,
    )
    if not data.n_ratings:
        raise DataError("there are no ratings to learn from")
    warn_of_equal(data)
    if isinstance(options.rating_range, str):
        warn_of_outlier(data)
    if options.moods and data.timestamps is None:
        raise DataError(
            "moods are learnt from when ratings were given, and these have no timestamps; give a "
            "fourth column with them, or set moods=False"
        )
    validated = options.validation_fraction > 0
    check_memory(data, options, validated=validated)
    train, held_out, validate = data, None, None
    if validated:
        train, held_out, validate = split_validation(data, options.validation_fraction, rng)
    chosen: type[Engine] = resolve_name(ENGINES["threads"])
    background = options.unobserved_weight if options.choices else None
    engine = chosen.load(
        train, LoadOptions(options.dtype, options.n_jobs, options.moods, background)
    )
    choices = fit_choices(engine, options, rng) if options.choices else None
    designs, given = side_information(
        train, features, implicit=options.implicit_features, choices=choices, dtype=options.dtype
    )
    check_memory(data, options, validated=validated, designs=designs)
    limits = resolve_rating_range(options.rating_range, (data.minimum, data.maximum))
    watch = None if validation is None else validation_rmse(validation, train, limits)
    return FitInputs(train, held_out, engine, choices, limits, designs, given, validate, watch)


OUTLIER_RATIO = 10.0  # of the range with a rating to the range without it
MIN_RATINGS = 20  # to look for an outlier


def warn_of_outlier(ratings: Ratings) -> None:
    """Warn of one rating far outside all others, likely a typing error."""
    values = ratings.by_user.values
    if values.size < MIN_RATINGS:
        return
    ends = np.partition(values, [0, 1, values.size - 2, values.size - 1])
    low, second, last, high = (float(ends[k]) for k in (0, 1, -2, -1))
    if high - low > OUTLIER_RATIO * (last - second) > 0.0:
        value, others = (high, (low, last)) if high - last > second - low else (low, (second, high))
        warn_caller(
            f"one rating is {rating_text(value)}, and all others are from {rating_text(others[0])} "
            f"to {rating_text(others[1])}; if it is a mistake, correct it and fit again, and "
            "declare rating_range to have such ratings refused",
            OutlierWarning,
        )


def split_validation(
    data: Ratings, fraction: float, rng: np.random.Generator
) -> tuple[Ratings, Ratings, Callable[[BatchState], float]]:
    """Split the ratings; also return a function for the RMSE of a state on the second part.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> split_validation(data, 0.5, np.random.default_rng(0))[:2]
    (Ratings(2 users, 1 items, 1 ratings), Ratings(2 users, 1 items, 1 ratings))
    """
    from hemf.evaluation.splits import random_split

    if data.n_ratings < 2:
        raise DataError("a single rating cannot be split; set validation_fraction=0")
    kept, held = random_split(data.n_ratings, fraction, rng=rng)
    train, (users, items, values) = data.select(kept), data.triples()
    rows = {"user": users[held].astype(np.int64), "item": items[held].astype(np.int64)}
    actual, times = values[held], None if data.timestamps is None else data.timestamps[held]

    def error(state: BatchState) -> float:
        return _rmse(state, rows, train, actual, times)

    return train, data.select(held), error


def validation_rmse(
    ratings: RatingsLike, train: Ratings, limits: tuple[float, float] | None
) -> Callable[[BatchState], float]:
    """Return a function for the RMSE of a state on ratings that it does not learn from.

    >>> data = Ratings.from_any([("ann", "tea", 5), ("bob", "tea", 3)])
    >>> callable(validation_rmse([("bob", "milk", 4)], data, (3.0, 5.0)))
    True
    """
    users, items, actual, times = validation_pairs(ratings, train)
    found = {}
    for name, ids, known, table in (
        ("user", users, train.users, train.by_user),
        ("item", items, train.items, train.by_item),
    ):
        rows = known.rows(ids).astype(np.int64)
        is_unrated = np.diff(table.indptr, append=table.indptr[-1])[rows] == 0
        found[name] = rows, np.where(is_unrated, -1, rows)

    def error(state: BatchState) -> float:
        chosen = {  # a row with features is no stranger
            name: rows if state.sides[name].regression is not None else rated
            for name, (rows, rated) in found.items()
        }
        return _rmse(state, chosen, train, actual, times, limits)

    return error


def _rmse(
    state: BatchState,
    rows: Mapping[str, Int64Array],
    train: Ratings,
    actual: Array,
    times: Int64Array | None,
    limits: tuple[float, float] | None = None,
) -> float:
    """RMSE of a state on ratings of these rows; -1 is a stranger."""
    left, right = (
        with_stranger(state.sides[name]) if (rows[name] < 0).any() else state.sides[name].moments
        for name in SIDES
    )
    mean, _ = pair_moments(left, right, rows["user"], rows["item"], variance=False)
    if state.moods is not None and times is not None:
        mean += state.moods.at(rows["user"], times)[0]
    predicted = train.mean + train.scale * mean
    if limits is not None:
        np.clip(predicted, *limits, out=predicted)
    return float(np.sqrt(np.mean((predicted - actual) ** 2)))


def r2_score(actual: Float64Array, predicted: Float64Array) -> float:
    """Return R²; of ratings that are all equal, 1 if predicted exactly and else 0.

    >>> r2_score(np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    0.5
    """
    if not actual.size:
        raise DataError("there are no ratings to score predictions on")
    residual = float(np.sum((actual - predicted) ** 2))
    total = float(np.sum((actual - actual.mean()) ** 2))
    return 1.0 - residual / total if total > 0.0 else float(residual == 0.0)


# ------------------------------------------------------------------------------------------------
# Features of users and items.


def read_features(
    features: FeaturesLike, side: str, known: Vocabulary
) -> tuple[GivenFeatures, csr_array]:
    """Encode features of users or items; also return the matrix of the known rows.

    A row without features has zeros: the mean of numbers, and no label. Features of ids without
    ratings are kept to predict such newcomers.

    >>> people = Vocabulary(["ann", "bob"])
    >>> given, rows = read_features({"ann": [1.0], "eve": [3.0]}, "user", people)
    >>> rows.toarray().tolist(), given.newcomers.ids.tolist()
    ([[-1.0], [0.0]], ['eve'])
    """
    tables = [read_table(part, side) for part in as_parts(features)]
    encoder = FeatureEncoder.learn(tables, side)
    for taken in encoder.blocks.keys() & {CHOSEN, RATED, HOW_MANY}:
        raise DataError(
            f"{side}_features: {taken!r} is the name of implicit features; give the column "
            "another name",
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
    given = GivenFeatures(encoder, newcomers, csr_array(encoded[~here]))
    return given, scatter_rows(csr_array(encoded[here]), rows[here], len(known))


def side_information(
    ratings: Ratings,
    features: Mapping[str, FeaturesLike],
    *,
    implicit: Collection[str],
    choices: BatchState | None = None,
    dtype: Storage = np.float64,
) -> tuple[dict[str, Design], dict[str, GivenFeatures]]:
    """Return the designs of the sides with features, and the given features.

    ``implicit`` are the sides with implicit features. These, and those of ``choices``, come last:
    newcomers have only the given ones.
    """
    sides = {
        "user": (ratings.users, ratings.by_user, ratings.n_items),
        "item": (ratings.items, ratings.by_item, ratings.n_users),
    }
    designs, given = {}, {}
    for side, (known, table, n_other) in sides.items():
        blocks: dict[str, Block] = {}
        if features.get(side) is not None:
            given[side], encoded = read_features(features[side], side, known)
            end = 0
            for name, width in given[side].encoder.blocks.items():
                blocks[name] = encoded[:, end : end + width]
                end += width
        if choices is not None:
            blocks[CHOSEN] = choice_features(choices, side)
        if side in implicit:
            blocks |= implicit_blocks(table.indptr, table.indices, n_other)
        if blocks:
            designs[side] = Design.of(blocks, dtype)
    return designs, given


# ------------------------------------------------------------------------------------------------
# Memory that a fit needs, checked before it starts.


DOUBLE = 8  # bytes of a float64


def check_memory(
    ratings: Ratings,
    options: FitOptions,
    *,
    validated: bool,
    designs: Mapping[str, Design] = MappingProxyType({}),
) -> None:
    """Raise an error if a fit needs more memory than available (see `fit_bytes`)."""
    needed, there = fit_bytes(ratings, options, validated=validated), available_bytes()
    needed += sum(regression_bytes(design, options.n_factors) for design in designs.values())
    if there is None or needed <= there:
        return
    limits = [f"max_{side}_communities" for side, n in options.max_communities.items() if n > 1]
    raise ParameterError(
        f"n_factors={options.n_factors} with {ratings.n_users:,} users and {ratings.n_items:,} "
        f"items needs about {format_bytes(needed)} of memory, and {format_bytes(there)} are "
        f"available; choose a smaller {' or '.join(['n_factors', *limits])}",
        value=options.n_factors,
    )


def fit_bytes(ratings: Ratings, options: FitOptions, *, validated: bool) -> int:
    """Estimate the peak memory of a fit in addition to the ratings.

    It consists of the state; of its larger side a copy to try changes on, and the second moments in
    float64 to cluster rows; and the statistics of a half-sweep. A fit that is ``validated`` on
    held-out ratings keeps the best state too.
    """
    itemsize = np.dtype(options.dtype).itemsize
    sides, statistics = [], []
    for name, n_rows in (("user", ratings.n_users), ("item", ratings.n_items)):
        layout, communities = options.layout(name), min(options.max_communities[name], n_rows)
        sides.append(n_rows * (layout.total + layout.packed + communities) * itemsize)
        numbers = (1 if options.tied[name] else communities) * layout.order * (layout.order + 1)
        statistics.append(max_chunks(n_rows) * numbers // 2 * DOUBLE)
    working = 1 + DOUBLE // itemsize if options.seeds else 2  # the start needs two copies
    moods = ratings.n_ratings * (8 + 2 * itemsize + 8 * DOUBLE) if options.moods else 0
    return moods + sum(sides) * (2 if validated else 1) + working * max(sides) + max(statistics)


def regression_bytes(design: Design, n_factors: int) -> int:
    """Estimate the peak memory of regressing factors on features.

    The peak is reached when a new C is computed while the old one is still in memory.

    >>> import numpy as np
    >>> regression_bytes(Design.of({"few": np.ones((1000, 2))}), 3) < 1e6
    True
    """
    size = min(design.n_rows, design.n_columns)
    solutions = 6 * DOUBLE * (n_factors + 1) * (design.n_rows + design.n_columns)
    entries = 6 * design.values.size * (design.values.itemsize + 4)
    if size > DIRECT:
        return solutions + entries
    matrices = 4 + 2 * (design.widths.size if design.n_rows < design.n_columns else 1)
    itemsize = DOUBLE if size <= PRECISE else design.values.itemsize
    return solutions + entries + matrices * size * size * itemsize
