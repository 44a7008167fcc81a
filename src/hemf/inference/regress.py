"""The regression of a side's rows on their features, as one block of a sweep."""

from __future__ import annotations

from dataclasses import replace

from hemf.model.communities import Statistics
from hemf.model.regression import Regression
from hemf.model.side import Side

LEAST_CHANGE = 0.02  # of a precision that is worth a new factorisation


def with_penalty(side: Side, statistics: Statistics) -> Statistics:
    """Count MᵀΛM beside the rows' own statistics, which are those of a_i - f_i."""
    if side.regression is None:
        return statistics
    return replace(statistics, scatter=statistics.scatter + side.regression.penalty)


def regress(side: Side) -> None:
    """Bring q(V) to its optimum for the rows as they are; the statistics follow."""
    before, statistics = side.regression, side.statistics
    if before is None:
        return
    mean, membership = side.factor_means, side.membership.astype(float)
    after = before.fitted(mean - membership @ side.communities.mean)
    left, change = mean - before.shift, after.shift - before.shift
    cross = left.T @ change
    moved = change.T @ change - cross - cross.T + (after.penalty - before.penalty)
    side.regression = after
    side.statistics = replace(
        statistics,
        first=statistics.first - membership.T @ change,
        scatter=statistics.scatter + moved,
    )


def learn_precisions(side: Side) -> None:
    """Bring the precisions λ_b of the features to their optimum, unless they are nearly there."""
    before = side.regression
    if before is None:
        return
    after: Regression = before.learnt(side.communities.precision[0], at_least=LEAST_CHANGE)
    if after is not before:
        scatter = side.statistics.scatter + (after.penalty - before.penalty)
        side.regression, side.statistics = after, replace(side.statistics, scatter=scatter)
