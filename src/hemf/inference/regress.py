"""The regression of a side's rows on their features, as one block of a sweep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hemf.model.bound import factors_term
from hemf.model.communities import Statistics
from hemf.model.packing import Float64
from hemf.model.regression import Regression, regression_term
from hemf.model.side import Side

LEAST_CHANGE = 0.02  # of a precision that is worth a new factorisation


def with_penalty(side: Side, statistics: Statistics) -> Statistics:
    """Count MᵀΛM beside the rows' own statistics, which are those of a_i - f_i."""
    if side.regression is None:
        return statistics
    return replace(statistics, scatter=statistics.scatter + side.regression.penalty)


def regress(side: Side) -> None:
    """Bring q(V) to its optimum for the rows as they are; the statistics follow."""
    if side.regression is not None:
        side.regression, side.statistics = _followed(side, side.regression.fitted(_targets(side)))


def learn_precisions(side: Side) -> None:
    """Bring the precisions λ_b of the features to their optimum, unless they are nearly there.

    Where that goes too slowly, try larger steps with the q(V) that goes with them.
    """
    before = side.regression
    if before is None:
        return
    precision = side.communities.precision[0]
    after: Regression = before.learnt(precision, at_least=LEAST_CHANGE)
    if after is not before:
        scatter = side.statistics.scatter + (after.penalty - before.penalty)
        side.regression, side.statistics = after, replace(side.statistics, scatter=scatter)
    leap = before.leap(precision, LEAST_CHANGE)
    if leap is not None:
        bold, statistics = _followed(side, before.under(leap, _targets(side)))
        if _told(side, bold, statistics) > _told(side, side.regression, side.statistics):
            side.regression, side.statistics = bold, statistics


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


def _told(side: Side, regression: Regression | None, statistics: Statistics) -> float:
    """Return what there is in the bound of V and of what it leaves of the rows."""
    assert regression is not None
    return factors_term(statistics, side.communities) + regression_term(regression)
