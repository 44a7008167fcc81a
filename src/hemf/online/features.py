"""Features of rows online: their effect is updated with the ratings, and learnt again.

The effect f_i of the features of a row changes with each of its ratings (`hemf.model.regression`).
With a full history the regression is fitted again after so many ratings that its cost for each
rating is constant, and whenever all rows of a side are refreshed at once, as in a sweep. The
contributions of rows to their communities are updated exactly. With a shorter history the
regression stays that of the fit, and is applied to new ratings and rows.

The leverage c_i of a row is as of the last update of C; that of a new row is the mean.

A row counts with the features that it had when it was last refreshed, or its side regressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from hemf._typing import OTHER, Float64Array
from hemf.data.features import as_parts
from hemf.errors import DataError
from hemf.model.regression import (
    RATED,
    CovarianceSummary,
    Design,
    Regression,
    UnknownFeatures,
    given_part,
    implicit_blocks,
)
from hemf.model.rows import lower_triangle, pack
from hemf.model.side import learn_features
from hemf.model.state import FittedModel, GivenFeatures
from hemf.online.state import OnlineState, RowFeatures, is_exact, keep
from hemf.online.store import RowStore

AGAIN = 0.25  # ratings learnt, for each on record, after which a regression is fitted again
CHUNK = 16_384  # rows whose parts are turned to double precision at a time


# -- beginnings ----------------------------------------------------------------------------------


def adopt(state: OnlineState) -> None:
    """Continue from the regressions of a fit; communities have no contributions of rows yet."""
    for name, side in state.sides.items():
        if side.regression is not None:
            state.features[name] = RowFeatures(given_part(side.regression.design))
            speak(state, name, side.regression)
            state.stores[name].leverage[:] = side.regression.leverage
            state.stores[name].scatter += pack(side.regression.penalty[None])
            postpone(state, name)
            look(state, name)


def speak(state: OnlineState, name: str, regression: Regression) -> None:
    """Write the effects of features on the current rows."""
    store, words = state.stores[name], regression.coefficient_blocks
    store.base[:] = state.features[name].together(store.n_rows) @ words.given
    chosen = np.zeros((store.n_rows, 0))
    if words.has_rated:
        voice = state.stores[OTHER[name]].voice
        voice[:] = 0.0
        voice[: words.rated.shape[0]] = words.rated
        indptr, indices, _ = store.history.to_rows()
        shape = (store.n_rows, voice.shape[0])
        chosen = csr_array((np.ones(indices.size), indices, indptr), shape=shape) @ voice
        store.chosen[:] = chosen
    store.shift[:] = words.shift(store.base, chosen, store.count)


# -- the regression ------------------------------------------------------------------------------


def is_due(state: OnlineState, name: str) -> bool:
    """Whether a side's regression is to be fitted again."""
    return name in state.features and state.is_complete and state.clocks.due("regression", name)


def postpone(state: OnlineState, name: str) -> None:
    """Take note that a side's regression has been fitted."""
    state.clocks.schedule("regression", state.seen + AGAIN * max(state.n_ratings, 1), name)


def learn(state: OnlineState, name: str) -> bool:
    """Bring C and the λ_b to their optimum, or nearer to it, after a refresh of all rows.

    Return whether rows have to be updated. If that takes a large factorisation, C and the
    λ_b stay those of the last fit.
    """
    side, store = state.sides[name], state.stores[name]
    if side.regression is None or not state.is_complete or not is_exact(side.regression.design):
        return False
    here = _renewed(state, name)
    information = np.where(here, store.information, 0.0)
    if not learn_features(side, information, move=state.options.evb is not None):
        return False
    keep(state, name)
    store.leverage[:] = side.regression.leverage
    _take(state, name, side.regression)
    return True


def regress(state: OnlineState, name: str) -> None:
    """Bring M to its optimum for the current rows, or nearer to it; update what depends on it."""
    side = state.sides[name]
    if side.regression is None or not state.is_complete:
        return
    here = _renewed(state, name)
    targets = side.factor_means - side.membership.astype(np.float64) @ side.communities.mean
    targets[~here] = 0.0
    exact = is_exact(side.regression.design)
    _take(state, name, (side.regression.fitted if exact else side.regression.moved)(targets))
    postpone(state, name)
    look(state, name)


def _renewed(state: OnlineState, name: str) -> npt.NDArray[np.bool_]:
    """Update a side's regression to the current features; return which rows have any."""
    side, store = state.sides[name], state.stores[name]
    assert side.regression is not None
    here: npt.NDArray[np.bool_] = (store.listed >= 0).any(axis=1)
    side.regression = extended(side.regression, design_now(state, name, here), store.leverage)
    return here


def _take(state: OnlineState, name: str, regression: Regression) -> None:
    """Update rows and communities for another regression."""
    side, store = state.sides[name], state.stores[name]
    keep(state, name)
    keep(state, OTHER[name], only=["voice"])
    side.regression, shift = regression, store.shift.copy()
    speak(state, name, regression)
    move_parts(store, store.shift - shift)
    store.scatter += pack(regression.penalty[None])
    side.statistics = store.statistics


def design_now(state: OnlineState, name: str, here: npt.NDArray[np.bool_]) -> Design:
    """Return the current features of a side's rows; those not ``here`` have none."""
    store = state.stores[name]
    regression = state.sides[name].regression
    assert regression is not None
    design, given = regression.design, state.features[name].together(store.n_rows)
    if not here.all():
        entries = coo_array(given)
        kept = here[entries.row]
        place = entries.row[kept], entries.col[kept]
        given = csr_array(coo_array((entries.data[kept], place), shape=given.shape))
    blocks = {
        called: given[:, design.block(b)]
        for b, called in enumerate(design.names)
        if design.block(b).stop <= given.shape[1]
    }
    if RATED in design.names:
        indptr, indices, _ = store.history.to_rows()
        blocks |= implicit_blocks(indptr, indices, state.stores[OTHER[name]].n_rows)
    return Design.of(blocks, design.values.dtype.type)


def extended(before: Regression, design: Design, leverage: Float64Array) -> Regression:
    """Return the posterior for a design with more columns at the end of blocks, and other rows.

    New columns are at their prior, and new rows hold no information about V. ``leverage`` is that
    of all rows.
    """
    more = design.widths - before.design.widths
    coefficients = np.zeros((design.n_columns, before.coefficients.shape[1]))
    for b, width in enumerate(before.design.widths.tolist()):
        begin = design.block(b).start
        coefficients[begin : begin + width] = before.coefficients[before.design.block(b)]
    covariance = CovarianceSummary(
        trace=before.covariance.trace + more / before.precision,
        log_det=before.covariance.log_det - float(more @ np.log(before.precision)),
        weighted_leverage=before.covariance.weighted_leverage,
    )
    information = np.zeros(design.n_rows)
    information[: before.information.size] = before.information
    return Regression(
        design, coefficients, before.precision, covariance, information, leverage.copy()
    )


def move_parts(store: RowStore, change: Float64Array) -> None:
    """Update the rows' contributions, those of a_i - f_i, to other f_i, and sum them again.

    With y = a - f, q y → q y - q Δ and q yyᵀ → q yyᵀ - q yΔᵀ - q Δyᵀ + q ΔΔᵀ.
    """
    order = store.layout.order
    left, right = lower_triangle(order)
    first, scatter = np.zeros_like(store.first), np.zeros_like(store.scatter)
    for begin in range(0, store.n_rows, CHUNK):
        rows = slice(begin, min(store.n_rows, begin + CHUNK))
        d = change[rows]
        products = d[:, left] * d[:, right]
        for slot in range(store.listed.shape[1]):
            listed, given = store.listed[rows, slot], store.parts[rows, slot]
            there = np.flatnonzero(listed >= 0)
            part, q = given[there].astype(np.float64), given[there, :1].astype(np.float64)
            m, away = part[:, 1 : 1 + order], d[there]
            part[:, 1 + order :] += q * products[there]
            part[:, 1 + order :] -= m[:, left] * away[:, right] + away[:, left] * m[:, right]
            m -= q * away
            given[there] = part
            part = given[there].astype(np.float64)  # as it is stored
            np.add.at(first, listed[there], part[:, 1 : 1 + order])
            if scatter.shape[0] == 1:
                scatter[0] += part[:, 1 + order :].sum(axis=0)
            else:
                np.add.at(scatter, listed[there], part[:, 1 + order :])
    store.first[:], store.scatter[:] = first, scatter


# -- newcomers -----------------------------------------------------------------------------------


def look(state: OnlineState, name: str) -> None:
    """Compute the average effect of features, which is expected of new rows."""
    features, store = state.features[name], state.stores[name]
    here = (store.listed >= 0).any(axis=1)
    rows = here if here.any() else slice(None)
    shift = store.shift[rows]
    features.rests = UnknownFeatures.of(shift), UnknownFeatures.of(shift - store.base[rows])
    state.clocks.done("rests", name)
    state.sides[name].forget_stranger()
    state.point(name)


def look_again(state: OnlineState, name: str) -> None:
    """Call `look` again after as many refreshes as there are rows."""
    if name in state.features and state.clocks.due("rests", name):
        look(state, name)


def expect(state: OnlineState, name: str, first: int) -> None:
    """Take note of new rows, from ``first`` on."""
    features = state.features.get(name)
    if features is not None:
        new = np.arange(first, state.stores[name].n_rows)
        regression = state.sides[name].regression
        assert regression is not None
        state.stores[name].leverage[new] = regression.mean_leverage
        features.waiting = np.concatenate([features.waiting, new])


# ------------------------------------------------------------------------------------------------
# Features given after the fit, of known rows and of newcomers.


More = dict[str, tuple[list[Any], csr_array]]
"""Ids and encoded features of each side that there are any of."""


def read_more(model: FittedModel | None, features: dict[str, Any]) -> More:
    """Encode features as those of the fit were; labels that are new are ignored."""
    more = {}
    for side, table in features.items():
        if table is not None:
            more[side] = given_at_fit(model, side).encoder.encode(table)
    return more


def given_at_fit(model: FittedModel | None, side: str) -> GivenFeatures:
    """Return the features that a side was fitted with; DataError where there were none."""
    given = None if model is None else model.features.get(side)
    if given is None:
        begun = "was fitted" if model is not None else "has to be fitted first, and not"
        raise DataError(
            f"{side}_features: what they mean is learnt by fit, and this model {begun} without "
            f"features of {side}s; call fit with them",
            value=side,
        )
    return given


def visitor_row(model: FittedModel, features: Any) -> csr_array:
    """Encode the features of one visitor; names that a mapping lacks are missing values."""
    encoder = given_at_fit(model, "user").encoder
    tables: list[Any] = []
    for part, row in enumerate(as_parts(features) if encoder.parts > 1 else [features]):
        if isinstance(row, Mapping):
            known = encoder.columns(part)
            if row and known and not {*map(str, row)} & {*known}:
                raise DataError(
                    f"features: none of {', '.join(map(str, row))} is a column that was learnt of; "
                    f"these are {', '.join(known)}",
                    value=[*row],
                )
            row = {**dict.fromkeys(encoder.columns(part)), **row}
        tables.append({"visitor": row})
    return encoder.encode(tables)[1]
