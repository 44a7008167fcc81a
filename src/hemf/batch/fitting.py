"""What `HeMF.fit` does: read and check everything, fit, and hand the result over at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hemf._checks import check_callables, check_implicit_features, check_rng, resolve_rating_range
from hemf._options import fit_options, online_options
from hemf.batch.fit import fit_batch
from hemf.batch.inputs import (
    check_memory,
    error_on,
    hold_out,
    side_information,
    standardised,
    warn_of_equal,
    warn_of_outlier,
)
from hemf.data.ratings import Ratings, pairs_from_any
from hemf.errors import DataError
from hemf.online.journal import settle

if TYPE_CHECKING:
    from hemf.estimator import HeMF


def fit(
    model: HeMF,
    ratings: Any,
    y: Any,
    *,
    columns: Any,
    features: dict[str, Any],
    validation: Any,
    callbacks: Any,
) -> None:
    """See `hemf.HeMF.fit`; ``features`` are those of each side, or None."""
    from hemf.online.learner import prepare

    options, rng = fit_options(model), check_rng(model.rng)
    implicit = check_implicit_features(model.implicit_features)
    told = check_callables("callbacks", callbacks)
    online_options(model)  # checked now rather than when the first rating arrives
    if y is not None:
        users, items = pairs_from_any(ratings, columns)
        ratings, columns = (users, items, y), None
    data = Ratings.from_any(
        ratings,
        columns=columns,
        duplicates=model.duplicates,
        exact=options.dtype == np.float64,
    )
    if not data.n_ratings:
        raise DataError("there are no ratings to learn from")
    warn_of_equal(data)
    if isinstance(model.rating_range, str):
        warn_of_outlier(data)
    if options.moods and data.timestamps is None:
        raise DataError(
            "moods are learnt from when ratings were given, and these have no timestamps; give a "
            "fourth column with them, or set moods=False"
        )
    validated = model.validation_fraction > 0
    check_memory(data, options, validated=validated)
    train, held_out, validate = data, None, None
    if validated:
        train, held_out, validate = hold_out(data, model.validation_fraction, rng)
    designs, given = side_information(train, features, implicit=implicit, dtype=options.dtype)
    check_memory(data, options, validated=validated, designs=designs)
    rows, limits = (
        standardised(train, options.dtype),
        resolve_rating_range(model.rating_range, (data.minimum, data.maximum)),
    )
    result = fit_batch(
        rows,
        train.scale,
        options,
        rng,
        designs=designs,
        times=train.timestamps if options.moods else None,
        validate=validate,
        watch=None if validation is None else error_on(validation, train, limits),
        callbacks=told,
    )
    prepared = prepare(result.state, train, train.mean, online_options(model))
    with model._turn:
        settle(model)
        model._adopt(
            result.state,
            coupled=options.coupled,
            _table=train,
            held_out_=held_out,
            rating_range_=limits,
            global_mean_=train.mean,
            rating_scale_=train.scale,
            history_=result.history,
            converged_=result.converged,
            batches_=(),
            _given=given,
            _prepared=prepared,
        )
