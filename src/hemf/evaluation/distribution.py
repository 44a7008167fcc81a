"""Predictive distributions of ratings: Student-t or normal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, gammaln, ndtr, ndtri, stdtr, stdtrit

from hemf._checks import check_floats, check_value
from hemf._typing import Array, Float64Array
from hemf.errors import DataError, row_error

MAX_LEVELS = 101  # of a rating scale, such as 0 to 100
_NEARLY_NORMAL = 1e6  # degrees of freedom: density and probability are within 1e-6 of the normal


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
