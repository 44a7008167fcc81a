"""The regression of a side's rows on their features, as one block of a sweep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hemf.model.bound import factors_term
from hemf.model.communities import Statistics
from hemf.model.packing import Float64
from hemf.model.regression import Regression, regression_term
from hemf.model.side import Side


def with_penalty(side: Side, statistics: Statistics) -> Statistics:
    """Count MᵀΛM beside the rows' own statistics, which are those of a_i - f_i."""
    if side.regression is None:
        return statistics
    return replace(statistics, scatter=statistics.scatter + side.regression.penalty)


def regress(side: Side) -> None:
    """Bring M to its optimum for the rows as they are; the statistics follow."""
    if side.regression is not None:
        side.regression, side.statistics = _followed(side, side.regression.fitted(_targets(side)))


def learn_features(side: Side, told: Float64, *, move: bool) -> bool:
    """Bring C to its optimum for what is told of each row and, to ``move``, learn the λ_b.

    These are tried with the q(V) that goes with them, and kept if the bound is higher. What rows
    believe of V's uncertainty has to follow; return whether there is anything to.
    """
    before = side.regression
    if before is None:
        return False
    wanted = before.wanted(side.communities.precision[0]) if move else before.precision
    if not before.is_stale(wanted, told):
        return False
    known, statistics = before.known(told), side.statistics
    if move:
        now = before.heard(float(told @ before.doubt))
        bold = before.under(wanted, told, known).fitted(_targets(side))
        side.regression, side.statistics = _followed(side, bold)
        if _told(side, bold, side.statistics) >= _told(side, now, statistics):
            return True
    side.regression, side.statistics = before.under(before.precision, told, known), statistics
    return True


def _targets(side: Side) -> Float64:
    """E[a_i] - Σ_d q_i(d) m_d of each row."""
    return np.asarray(side.factor_means - side.membership.astype(float) @ side.communities.mean)


def _followed(side: Side, after: Regression) -> tuple[Regression, Statistics]:
    """Return another regression of a side with the statistics that its rows then have."""
    before, statistics = side.regression, side.statistics
    assert before is not None
    left, change = side.factor_means - before.shift, after.shift - before.shift
    cross = left.T @ change
    moved = change.T @ change - cross - cross.T + (after.penalty - before.penalty)
    return after, replace(
        statistics,
        first=statistics.first - side.membership.astype(float).T @ change,
        scatter=statistics.scatter + moved,
    )


def _told(side: Side, regression: Regression, statistics: Statistics) -> float:
    """Return what there is in the bound of V and of what it leaves of the rows.

    As rows were found for it, what they believe of V's uncertainty is worth nothing by itself.
    """
    return factors_term(statistics, side.communities) + regression_term(regression)
