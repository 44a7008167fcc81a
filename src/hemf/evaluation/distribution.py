"""Predictive distributions of ratings, Student-t or normal, and their calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, gammaln, ndtr, ndtri, stdtr, stdtrit

from hemf._checks import check_floats, check_lengths, check_rows, check_value
from hemf._typing import Array, Float64Array
from hemf.errors import DataError, row_error
from hemf.evaluation.metrics import float_columns

MAX_LEVELS = 101  # of a rating scale, such as 0 to 100
_NEARLY_NORMAL = 1e6  # degrees of freedom: density and probability are within 1e-6 of the normal
NORMAL = float("inf")
"""Degrees of freedom of a normal prediction; those of `hemf.HeMF` may have fewer."""
_REPORTED_LEVELS = (0.5, 0.8, 0.9, 0.95)
_BINS = 10
_BIN_EDGES = np.linspace(0.0, 1.0, _BINS + 1)


@dataclass(frozen=True, eq=False)
class Predictive:
    """Predictive distributions, one for each prediction.

    Student-t with ``freedom`` degrees of freedom, one number or one for each prediction, above 2
    so that there is a standard deviation. With infinitely many they are normal.

    >>> normal = Predictive(np.array([3.0]), np.array([1.0]))
    >>> normal.below([3.0]), normal.interval(0.9)[1].round(3)
    (array([0.5]), array([4.645]))
    >>> Predictive(np.array([3.0]), np.array([1.0]), freedom=5.0).interval(0.9)[1].round(3)
    array([4.561])
    """

    mean: Float64Array
    std: Float64Array
    freedom: Float64Array | float = float("inf")

    def __post_init__(self) -> None:
        n = self.mean.size
        if self.std.shape != self.mean.shape or np.shape(self.freedom) not in ((), self.mean.shape):
            raise DataError(
                f"lengths differ: mean {n}, std {self.std.size}, freedom {np.size(self.freedom)}; "
                "give one value for each prediction"
            )
        valid = bool(np.all(np.asarray(self.freedom) > 2))
        check_value("freedom", self.freedom, valid, "above 2: there is no standard deviation else")
        bad = ~(self.std > 0) | ~np.isfinite(self.std) | ~np.isfinite(self.mean)
        if bad.any():
            row = int(bad.argmax())
            raise row_error(
                "std", float(self.std[row]), row,
                f"with mean {self.mean[row]} is no distribution; means must be finite, and "
                "standard deviations above 0",
            )  # fmt: skip

    def below(self, values: ArrayLike) -> Float64Array:
        """Probability of a rating of at most ``values``, one for each prediction."""
        return below(self._standardised(values), self.freedom)

    def log_density(self, values: ArrayLike) -> Float64Array:
        """Log density at ``values``, one for each prediction."""
        return log_density(self._standardised(values), self.freedom) - np.log(self.std)

    def interval(self, level: float) -> tuple[Float64Array, Float64Array]:
        """Lower and upper ends of the central intervals of probability ``level``."""
        half = half_width(level, self.freedom) * self.std
        return self.mean - half, self.mean + half

    def crps(self, values: ArrayLike) -> Float64Array:
        """Continuous ranked probability score, in units of the rating: lower is better.

        ∫ (F(x) - 1[x ≥ r])² dx; the absolute error if the standard deviation is 0.
        """
        z = self._standardised(values)
        score = z * (2.0 * below(z, self.freedom) - 1.0)
        with np.errstate(over="ignore"):
            density = np.exp(log_density(z, self.freedom))
        v, unit = _limited(self.freedom), student_scale(self.freedom)
        log_beta = betaln(0.5, v - 0.5) - 2.0 * betaln(0.5, 0.5 * v)
        near = np.where(density > 0.0, z, 0.0)  # the square of others may be infinite
        score += 2.0 * density * (unit**2 * v + near * near) / (v - 1.0)
        score -= 2.0 * unit * np.sqrt(v) / (v - 1.0) * np.exp(log_beta)
        return np.asarray(self.std * score)

    def between(self, low: ArrayLike, high: ArrayLike) -> Float64Array:
        """Probability of a rating between two values, one pair for each prediction."""
        left, right = self._standardised(low), self._standardised(high)
        # The difference of two numbers near 1 loses digits; that of the upper tails does not.
        flip = left > 0
        left, right = np.where(flip, -right, left), np.where(flip, -left, right)
        return below(right, self.freedom) - below(left, self.freedom)

    def probabilities(self, levels: ArrayLike) -> Float64Array:
        """Probability of each level, (n, levels); rows sum to 1.

        A level has the probability of all ratings that are nearest to it.

        >>> odds = Predictive(np.array([3.0]), np.array([1.0])).probabilities([1, 2, 3, 4, 5])
        >>> odds.round(3)
        array([[0.067, 0.242, 0.383, 0.242, 0.067]])
        """
        chosen = level_values(levels)
        z = (level_edges(chosen)[1:-1] - self.mean[:, None]) / self.std[:, None]
        tail = below(-np.abs(z), np.reshape(self.freedom, (-1, 1)))
        rising, falling = np.where(z <= 0, tail, 1.0 - tail), np.where(z > 0, tail, 1.0 - tail)
        none = np.zeros((self.mean.size, 1))
        # As in `between`: differences of the smaller tails.
        up = np.diff(np.hstack([none, rising, none + 1.0]), axis=1)
        down = -np.diff(np.hstack([none + 1.0, falling, none]), axis=1)
        return np.where(chosen > self.mean[:, None], down, up)

    def _standardised(self, values: ArrayLike) -> Float64Array:
        given = np.asarray(values, np.float64)
        if given.shape not in ((), self.mean.shape):
            raise DataError(
                f"lengths differ: {self.mean.size} predictions, {given.size} values; give one "
                "value for each prediction",
                value=given.size,
            )
        return np.asarray((given - self.mean) / self.std)


def _limited(freedom: ArrayLike) -> Float64Array:
    return np.minimum(np.asarray(freedom, np.float64), _NEARLY_NORMAL)


def student_scale(freedom: ArrayLike) -> Float64Array:
    """Scale of a Student-t with standard deviation 1."""
    v = _limited(freedom)
    scale: Float64Array = np.sqrt((v - 2.0) / v)
    return scale


def below(z: Float64Array, freedom: ArrayLike) -> Float64Array:
    """Probability of at most z, for mean 0 and standard deviation 1."""
    normal = np.isinf(freedom)
    if np.all(normal):
        return np.asarray(ndtr(z))
    student = stdtr(_limited(freedom), z / student_scale(freedom))
    return np.where(normal, ndtr(z), student) if np.any(normal) else np.asarray(student)


def half_width(level: ArrayLike, freedom: ArrayLike) -> Float64Array:
    """Half the width of the central interval of probability ``level``, in standard deviations."""
    inside = np.asarray(level, np.float64)
    check_value("level", level, bool(np.all((inside > 0) & (inside < 1))), "between 0 and 1")
    upper = 0.5 * (1.0 + inside)
    student = student_scale(freedom) * stdtrit(_limited(freedom), upper)
    width: Float64Array = np.where(np.isinf(freedom), ndtri(upper), student)[()]
    return width


def log_density(z: Float64Array, freedom: ArrayLike) -> Float64Array:
    """Log density at z, for mean 0 and standard deviation 1."""
    normal = -0.5 * z * z - 0.5 * np.log(2.0 * np.pi)
    if np.all(np.isinf(freedom)):
        return np.asarray(normal)
    unit = student_scale(freedom)
    student = student_log_density(z / unit, _limited(freedom)) - np.log(unit)
    return np.where(np.isinf(freedom), normal, student)


def student_log_density(z: Float64Array, freedom: Float64Array | float) -> Float64Array:
    """Log density of a Student-t."""
    half = 0.5 * (freedom + 1.0)
    constant = gammaln(half) - gammaln(0.5 * freedom) - 0.5 * np.log(freedom * np.pi)
    return np.asarray(constant - half * np.log1p(z * z / freedom))


def tail_freedom(residuals: Float64Array, *, least: float, most: float) -> float:
    """Maximum likelihood degrees of freedom of a Student-t of unknown scale.

    Between ``least`` and ``most``; infinite if a normal distribution fits as well.

    >>> rng = np.random.default_rng(0)
    >>> tail_freedom(rng.standard_normal(20_000), least=5, most=50)
    inf
    >>> 8 < tail_freedom(rng.standard_t(10, 20_000), least=5, most=50) < 13
    True
    """
    from scipy.optimize import minimize_scalar

    squares = np.square(np.asarray(residuals, np.float64))
    if squares.size < 2 or not squares.any():
        return float("inf")

    def loss(log_freedom: float) -> float:
        v = float(np.exp(log_freedom))
        scale = _fit_student_scale(squares, v)
        z = np.sqrt(squares / scale)
        return float(0.5 * np.log(scale) - np.mean(student_log_density(z, v)))

    bounds = (np.log(least), np.log(most))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    freedom = float(np.clip(np.exp(found.x), least, most))
    normal = 0.5 * np.log(2.0 * np.pi * np.e * float(squares.mean()))
    return freedom if found.fun < normal and freedom < 0.95 * most else float("inf")


def _fit_student_scale(squares: Float64Array, freedom: float) -> float:
    """Square of the maximum likelihood scale, by EM; bounded below if nearly all are zero."""
    scale = float(squares.mean())
    smallest = 1e-12 * scale
    for _ in range(200):
        last = scale
        scale = float(np.mean((freedom + 1.0) * squares / (freedom + squares / scale)))
        scale = max(scale, smallest)
        if abs(scale - last) <= 1e-8 * last:
            break
    return scale


# -- rating scales -------------------------------------------------------------------------------


def level_values(levels: ArrayLike) -> Float64Array:
    """Check the levels of a scale: finite ascending numbers.

    >>> level_values([1, 2, 2])
    Traceback (most recent call last):
    hemf.errors.DataError: level 2.0 at row 2 must be higher than the one before, 2.0
    """
    values = check_floats("levels", levels)
    if not values.size:
        raise DataError("levels must be one number or more", value=levels)
    falling = np.diff(values) <= 0
    if falling.any():
        row = int(falling.argmax()) + 1
        reason = f"must be higher than the one before, {values[row - 1]}"
        raise row_error("level", float(values[row]), row, reason)
    return values


def distinct_levels(values: Array) -> Float64Array:
    """Return the distinct ratings, ascending; float32 values as their shortest decimals.

    >>> distinct_levels(np.array([0.5, 0.1, 0.5], np.float32))
    array([0.1, 0.5])
    """
    return np.unique(values).astype(str).astype(np.float64)


def is_scale(levels: Float64Array) -> bool:
    """Whether there are few enough levels for a rating scale."""
    return 0 < levels.size <= MAX_LEVELS


def level_edges(levels: Float64Array) -> Float64Array:
    """Midpoints of neighbouring levels, between infinities."""
    return np.concatenate([[-np.inf], 0.5 * (levels[1:] + levels[:-1]), [np.inf]])


# -- calibration ---------------------------------------------------------------------------------


def coverage(
    actual: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    level: float = 0.9,
    freedom: ArrayLike = NORMAL,
) -> float:
    """Share of the ratings inside the central interval of probability ``level``.

    Parameters
    ----------
    actual
        Ratings.
    mean, std
        Predicted means and standard deviations.
    level
        Probability of the interval. Calibrated intervals have a coverage equal to it.
    freedom
        Degrees of freedom of the Student-t, as in `Predictive`.

    Returns
    -------
    float

    Examples
    --------
    >>> coverage([3.0, 5.0], mean=[3.5, 3.5], std=[0.5, 0.5])
    0.5

    """
    return float(calibration_curve(actual, mean, std, levels=[level], freedom=freedom).observed[0])


def nlpd(
    actual: ArrayLike, mean: ArrayLike, std: ArrayLike, *, freedom: ArrayLike = NORMAL
) -> float:
    """Mean negative log predictive density: lower is better.

    Parameters are those of :func:`coverage`.

    >>> round(nlpd([0.0], mean=[0.0], std=[1.0]), 4)
    0.9189
    """
    z = _standardised(actual, mean, std)
    scale = np.broadcast_to(np.asarray(std, dtype=np.float64), z.shape)
    check_rows("std", scale, scale == 0, "has no density; give standard deviations above 0")
    return float(np.mean(np.log(scale) - log_density(z, freedom)))


def pit(
    actual: ArrayLike, mean: ArrayLike, std: ArrayLike, *, freedom: ArrayLike = NORMAL
) -> Float64Array:
    """Probability integral transform: the predicted probability of a rating at most the actual.

    Uniform on (0, 1) if predictions are calibrated, humped if the standard deviations are too
    large, U-shaped if they are too small. Parameters are those of :func:`coverage`.

    >>> pit([3.0], mean=[3.0], std=[1.0])
    array([0.5])
    """
    return below(_standardised(actual, mean, std), freedom)


class CalibrationCurve(NamedTuple):
    """Observed coverage of the central intervals of every nominal level."""

    nominal: Float64Array
    observed: Float64Array


def calibration_curve(
    actual: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    levels: ArrayLike | None = None,
    freedom: ArrayLike = NORMAL,
) -> CalibrationCurve:
    """Coverage at many levels: calibrated predictions lie on the diagonal.

    ``levels`` are 0.05, 0.10, …, 0.95 by default. Other parameters are those of :func:`coverage`.

    >>> curve = calibration_curve([0.0, 1.0], mean=[0.0, 0.0], std=[1.0, 1.0], levels=[0.5, 0.9])
    >>> curve.observed
    array([0.5, 1. ])
    """
    nominal = np.arange(1, 20) / 20 if levels is None else np.asarray(levels, dtype=np.float64)
    valid = nominal.ndim == 1 and bool(np.all((nominal > 0) & (nominal < 1)))
    check_value("levels", levels, valid, "between 0 and 1")
    # The level of the smallest central interval that holds each rating.
    smallest = np.sort(np.abs(2.0 * below(_standardised(actual, mean, std), freedom) - 1.0))
    inside = np.searchsorted(smallest, nominal, side="right")
    return CalibrationCurve(nominal, inside / len(smallest))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Result of `judge`."""

    n_ratings: int
    coverage: dict[float, float]
    """Share of the ratings inside the interval of each level."""
    nlpd: float
    """Mean negative log predictive density: lower is better."""
    crps: float
    """Mean continuous ranked probability score, in units of the rating: lower is better."""
    pit: Float64Array
    """Share of the ratings in each tenth of the predicted distribution; ideally 0.1 each."""
    log_score: float | None
    """Mean negative log probability of the levels: lower is better. None without levels."""
    curve: CalibrationCurve
    """Coverage at every twentieth."""

    @property
    def pit_distance(self) -> float:
        """Share of the ratings that would have to be in another tenth: 0 is best, 0.9 worst.

        Chance alone makes it about 1.2/√n for n ratings.
        """
        return float(0.5 * np.abs(self.pit - 1.0 / self.pit.size).sum())

    def to_dict(self) -> dict[str, object]:
        """Return the figures in JSON's types."""
        return {
            **{f"coverage{100 * level:.0f}": share for level, share in self.coverage.items()},
            "nlpd": self.nlpd,
            "crps": self.crps,
            "log_score": self.log_score,
            "pit_distance": self.pit_distance,
            "pit": self.pit.tolist(),
        }


def judge(
    actual: ArrayLike, predicted: Predictive, *, levels: ArrayLike | None = None
) -> Calibration:
    """Compare ratings with their predicted distributions.

    Parameters
    ----------
    actual
        Ratings.
    predicted
        One distribution for each rating.
    levels
        Levels of the rating scale. Each rating is rounded to the nearest one. The log score is
        that of the levels, and the PIT is the non-randomised one for counts (Czado, Gneiting and
        Held, 2009), because ratings of five stars cannot be uniform otherwise.

    Returns
    -------
    Calibration

    Examples
    --------
    >>> found = judge([3.0, 5.0], Predictive(np.array([3.0, 3.0]), np.array([1.0, 1.0])))
    >>> found.coverage[0.9], round(found.nlpd, 4), found.pit.round(1).tolist()
    (0.5, 1.9189, [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.5])

    """
    true = check_floats("ratings", actual)
    check_lengths(ratings=true, predictions=predicted.mean)
    mean, std, freedom = predicted.mean, predicted.std, predicted.freedom
    reported = calibration_curve(true, mean, std, levels=_REPORTED_LEVELS, freedom=freedom)
    if levels is None:
        bins = np.minimum((predicted.below(true) * _BINS).astype(np.int64), _BINS - 1)
        histogram, log_score = np.bincount(bins, minlength=_BINS) / true.size, None
    else:
        histogram, log_score = _judge_levels(true, predicted, level_values(levels))
    return Calibration(
        n_ratings=true.size,
        coverage=dict(zip(_REPORTED_LEVELS, reported.observed.tolist(), strict=True)),
        nlpd=-float(np.mean(predicted.log_density(true))),
        crps=float(np.mean(predicted.crps(true))),
        pit=histogram,
        log_score=log_score,
        curve=calibration_curve(true, mean, std, freedom=freedom),
    )


def _judge_levels(
    true: Float64Array, predicted: Predictive, levels: Float64Array
) -> tuple[Float64Array, float]:
    """Return the PIT histogram and the mean log score of the nearest levels."""
    edges = level_edges(levels)
    place = np.searchsorted(edges[1:-1], true)  # the lower level in a tie
    probability = predicted.between(edges[place], edges[place + 1])
    score = -float(np.mean(np.log(np.maximum(probability, np.finfo(np.float64).tiny))))
    begin = predicted.below(edges[place])
    width = np.maximum(probability, 1e-9)  # of a rating next to impossible
    begin = np.minimum(begin, 1.0 - width)
    cumulative = [np.mean(np.clip((edge - begin) / width, 0.0, 1.0)) for edge in _BIN_EDGES]
    return np.diff(cumulative), score


def _standardised(actual: ArrayLike, mean: ArrayLike, std: ArrayLike) -> Float64Array:
    """Distance from the mean in standard deviations; 0 or ±∞ where the deviation is 0."""
    true, centre, scale = float_columns(actual=actual, mean=mean, std=std)
    check_rows("std", scale, scale < 0, "is negative")
    residual = true - centre
    with np.errstate(divide="ignore", invalid="ignore"):
        z: Float64Array = np.where(residual == 0, 0.0, residual / scale)
    return z
