"""What a prediction says of a rating: a Student-t, or a normal distribution, about its mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, gammaln, ndtr, ndtri, stdtr, stdtrit

from hemf.errors import DataError, ParameterError

Vector = NDArray[np.float64]
Table = NDArray[np.float64]

MOST_LEVELS = 101  # of a scale: 0 to 100 is one, and what has more is no scale but a measurement


@dataclass(frozen=True, eq=False)
class Predictive:
    """Distributions of ratings, one for each prediction.

    They have the shape of a Student-t with ``freedom`` degrees of freedom, one number or one for
    each, above 2, so that there is a standard deviation; with infinitely many they are normal.

    >>> normal = Predictive(np.array([3.0]), np.array([1.0]))
    >>> normal.below([3.0]), normal.interval(0.9)[1].round(3)
    (array([0.5]), array([4.645]))
    >>> Predictive(np.array([3.0]), np.array([1.0]), freedom=5.0).interval(0.9)[1].round(3)
    array([4.561])
    """

    mean: Vector
    std: Vector
    freedom: Vector | float = float("inf")

    def __post_init__(self) -> None:
        if self.std.shape != self.mean.shape or np.shape(self.freedom) not in (
            (),
            self.mean.shape,
        ):
            raise DataError(
                f"lengths differ: mean {self.mean.size}, std {self.std.size}, freedom "
                f"{np.size(self.freedom)}; give one value a prediction"
            )
        if not np.all(np.asarray(self.freedom) > 2):
            raise ParameterError(
                f"freedom is {self.freedom!r}; with 2 degrees or fewer there is no standard "
                "deviation",
                value=self.freedom,
            )
        bad = np.flatnonzero(~(self.std > 0) | ~np.isfinite(self.std) | ~np.isfinite(self.mean))
        if bad.size:
            row = int(bad[0])
            raise DataError(
                f"mean {self.mean[row]} and std {self.std[row]} at position {row} are no "
                "distribution; means must be finite, and standard deviations above 0",
                value=float(self.std[row]),
                row=row,
            )

    def below(self, values: ArrayLike) -> Vector:
        """Probability of a rating of at most ``values``, one of each distribution."""
        return below(self._standardised(values), self.freedom)

    def log_density(self, values: ArrayLike) -> Vector:
        """Log density at ``values``, one of each distribution."""
        return log_density(self._standardised(values), self.freedom) - np.log(self.std)

    def interval(self, level: float) -> tuple[Vector, Vector]:
        """Lower and upper ends of the central intervals that hold ``level`` of the probability."""
        width = reach(level, self.freedom) * self.std
        return self.mean - width, self.mean + width

    def crps(self, values: ArrayLike) -> Vector:
        """Continuous ranked probability score, in units of the rating: lower is better.

        ∫ (F(x) - 1[x ≥ r])² dx, which is the absolute error where a prediction is sure.
        """
        z = self._standardised(values)
        score = z * (2.0 * below(z, self.freedom) - 1.0)
        with np.errstate(over="ignore"):
            density = np.exp(log_density(z, self.freedom))
        v, unit = _limited(self.freedom), stretch(self.freedom)
        log_spread = betaln(0.5, v - 0.5) - 2.0 * betaln(0.5, 0.5 * v)
        near = np.where(density > 0.0, z, 0.0)  # beyond, its square may be infinite
        score += 2.0 * density * (unit**2 * v + near * near) / (v - 1.0)
        score -= 2.0 * unit * np.sqrt(v) / (v - 1.0) * np.exp(log_spread)
        return np.asarray(self.std * score)

    def between(self, low: ArrayLike, high: ArrayLike) -> Vector:
        """Probability of a rating between two values, one pair of each distribution."""
        left, right = self._standardised(low), self._standardised(high)
        # Of two numbers near 1, the difference loses its digits; that of the tails above does not.
        flip = left > 0
        left, right = np.where(flip, -right, left), np.where(flip, -left, right)
        return below(right, self.freedom) - below(left, self.freedom)

    def probabilities(self, levels: ArrayLike) -> Table:
        """Probability of each level, (n, levels); rows have a sum of 1.

        A level has what is nearer to it than to any other, the first and last all beyond them.

        >>> odds = Predictive(np.array([3.0]), np.array([1.0])).probabilities([1, 2, 3, 4, 5])
        >>> odds.round(3)
        array([[0.067, 0.242, 0.383, 0.242, 0.067]])
        """
        chosen = level_values(levels)
        z = (level_edges(chosen)[1:-1] - self.mean[:, None]) / self.std[:, None]
        tail = below(-np.abs(z), np.reshape(self.freedom, (-1, 1)))
        rising, falling = np.where(z <= 0, tail, 1.0 - tail), np.where(z > 0, tail, 1.0 - tail)
        none = np.zeros((self.mean.size, 1))
        # Of two numbers near 1, the difference loses its digits; that of the tails above does not.
        up = np.diff(np.hstack([none, rising, none + 1.0]), axis=1)
        down = -np.diff(np.hstack([none + 1.0, falling, none]), axis=1)
        return np.where(chosen > self.mean[:, None], down, up)

    def _standardised(self, values: ArrayLike) -> Vector:
        given = np.asarray(values, np.float64)
        if given.shape not in ((), self.mean.shape):
            raise DataError(
                f"lengths differ: {self.mean.size} predictions, {given.size} values; give one "
                "value a prediction",
                value=given.size,
            )
        return np.asarray((given - self.mean) / self.std)


def _limited(freedom: ArrayLike) -> Vector:
    """Return degrees of freedom that can be computed with; so many are as good as infinitely many.

    At a million, density and probability are within a millionth of the normal ones.
    """
    return np.minimum(np.asarray(freedom, np.float64), 1e6)


def stretch(freedom: ArrayLike) -> Vector:
    """Scale of a Student-t with a standard deviation of 1.

    >>> stretch(4.0).round(3), stretch(float("inf")).round(3)
    (np.float64(0.707), np.float64(1.0))
    """
    v = _limited(freedom)
    unit: Vector = np.sqrt((v - 2.0) / v)
    return unit


def below(z: Table, freedom: ArrayLike) -> Table:
    """Probability of at most z, where the mean is 0 and the standard deviation 1.

    >>> below(np.array([-1.0, 0.0]), float("inf")).round(3)
    array([0.159, 0.5  ])
    """
    normal = np.isinf(freedom)
    if np.all(normal):
        return np.asarray(ndtr(z))
    student = stdtr(_limited(freedom), z / stretch(freedom))
    return np.where(normal, ndtr(z), student) if np.any(normal) else np.asarray(student)


def reach(level: ArrayLike, freedom: ArrayLike) -> Vector:
    """Half the width of the central interval that holds ``level``, in standard deviations.

    >>> reach(0.9, float("inf")).round(3)
    np.float64(1.645)
    """
    inside = np.asarray(level, np.float64)
    if not np.all((inside > 0) & (inside < 1)):
        raise ParameterError(f"level is {level!r}; it must be between 0 and 1", value=level)
    upper = 0.5 * (1.0 + inside)
    student = stretch(freedom) * stdtrit(_limited(freedom), upper)
    width: Vector = np.where(np.isinf(freedom), ndtri(upper), student)[()]
    return width


def log_density(z: Vector, freedom: ArrayLike) -> Vector:
    """Log density at z, where the mean is 0 and the standard deviation 1.

    >>> log_density(np.array([0.0]), float("inf")).round(4)
    array([-0.9189])
    """
    normal = -0.5 * z * z - 0.5 * np.log(2.0 * np.pi)
    if np.all(np.isinf(freedom)):
        return np.asarray(normal)
    unit = stretch(freedom)
    student = student_log_density(z / unit, _limited(freedom)) - np.log(unit)
    return np.where(np.isinf(freedom), normal, student)


def student_log_density(z: Vector, freedom: Vector | float) -> Vector:
    """Log density of a Student-t.

    >>> student_log_density(np.array([0.0]), 1.0).round(4)  # Cauchy: 1/π
    array([-1.1447])
    """
    half = 0.5 * (freedom + 1.0)
    constant = gammaln(half) - gammaln(0.5 * freedom) - 0.5 * np.log(freedom * np.pi)
    return np.asarray(constant - half * np.log1p(z * z / freedom))


def level_values(levels: ArrayLike) -> Vector:
    """Check the levels of a scale: finite numbers that rise.

    >>> level_values([1, 2, 2])
    Traceback (most recent call last):
    hemf.errors.DataError: levels must rise: 2 is followed by 2
    """
    try:
        values = np.asarray(levels, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"levels must be numbers, got {levels!r}", value=levels) from None
    if values.ndim != 1 or not values.size:
        raise DataError("levels must be a list of one number or more", value=levels)
    if (bad := np.flatnonzero(~np.isfinite(values))).size:
        row = int(bad[0])
        raise DataError(f"level {row} is {values[row]}", value=float(values[row]), row=row)
    if (still := np.flatnonzero(np.diff(values) <= 0)).size:
        row = int(still[0])
        raise DataError(
            f"levels must rise: {values[row]:g} is followed by {values[row + 1]:g}",
            value=float(values[row + 1]),
            row=row + 1,
        )
    return values


def distinct_levels(values: NDArray[np.floating]) -> Vector:
    """Return the different ratings there are, ascending.

    In float32 0.1 is 0.10000000149; what is meant is the shortest number that reads so.

    >>> distinct_levels(np.array([0.5, 0.1, 0.5], np.float32))
    array([0.1, 0.5])
    """
    return np.unique(values).astype(str).astype(np.float64)


def is_scale(levels: Vector) -> bool:
    """Whether these are few enough to be the levels of a scale.

    >>> is_scale(np.arange(1.0, 6.0)), is_scale(np.linspace(0, 1, 500))
    (True, False)
    """
    return 0 < levels.size <= MOST_LEVELS


def level_edges(levels: Vector) -> Vector:
    """Midpoints of neighbouring levels, between infinities: where each begins and ends.

    >>> level_edges(np.array([1.0, 2.0, 4.0]))
    array([-inf,  1.5,  3. ,  inf])
    """
    return np.concatenate([[-np.inf], 0.5 * (levels[1:] + levels[:-1]), [np.inf]])


def tail_freedom(residuals: Vector, *, least: float, most: float) -> float:
    """Degrees of freedom of a Student-t that residuals of unknown scale are likeliest from.

    Between ``least`` and ``most``; infinitely many where even those are too few: light tails.

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
        scale = _student_scale(squares, v)
        z = np.sqrt(squares / scale)
        return float(0.5 * np.log(scale) - np.mean(student_log_density(z, v)))

    bounds = (np.log(least), np.log(most))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    freedom = float(np.clip(np.exp(found.x), least, most))
    variance = float(squares.mean())
    normal = 0.5 * np.log(2.0 * np.pi * np.e * variance)
    return freedom if found.fun < normal and freedom < 0.95 * most else float("inf")


def _student_scale(squares: Vector, freedom: float) -> float:
    """Square of the scale that these squares are likeliest from (an EM fixed point).

    Where nearly all are zero there is none; it is then a small part of what it was at first.
    """
    scale = float(squares.mean())
    least = 1e-12 * scale
    for _ in range(200):
        last = scale
        scale = float(np.mean((freedom + 1.0) * squares / (freedom + squares / scale)))
        scale = max(scale, least)
        if abs(scale - last) <= 1e-8 * last:
            break
    return scale
