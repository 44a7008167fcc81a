"""Checks of arguments, memory and threads, and parameters as scikit-learn has them, without it."""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from hemf._typing import SIDES, AnyArray, Array, BoolArray, Float64Array
from hemf.errors import DataError, ParameterError, row_error

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


MAX_FACTORS = 1000  # a row's second moment takes 2 MB then; memory runs out soon after


class Parametrised:
    """Estimator whose parameters are exactly the keyword arguments of its ``__init__``.

    ``get_params``, ``set_params`` and ``repr`` behave as scikit-learn's do, so ``clone``,
    pipelines and searches work.
    """

    _estimator_type = "regressor"  # read by scikit-learn before 1.6

    @classmethod
    @cache
    def _defaults(cls) -> dict[str, object]:
        signature = inspect.signature(cls.__init__)
        return {n: p.default for n, p in signature.parameters.items() if n != "self"}

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return every parameter by name."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **params: object) -> Self:
        """Set parameters by name and return the estimator."""
        known = self._defaults()
        for name in params:
            if name not in known:
                raise ParameterError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}",
                    value=name,
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def _once(self, check: Callable[[], T]) -> T:
        """Return what a check of the parameters returns; it is not repeated while they are same."""
        own = vars(self).copy()  # in one step: other threads may add to it
        given = {name: value for name, value in own.items() if not name.startswith("_")}
        checked: tuple[dict[str, object], T] | None = own.get("_checked")
        if checked is not None and _are_identical(given, checked[0]):
            return checked[1]
        found = check()
        if not any(isinstance(value, list | dict | np.ndarray) for value in given.values()):
            self._checked = given, found  # what cannot be changed in place
        return found

    def __sklearn_tags__(self) -> object:
        """Return the tags of a regressor; only scikit-learn calls this."""
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=False),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(string=True, sparse=True),
        )

    def __repr__(self) -> str:
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, default in self._defaults().items()
            if not _same(getattr(self, name), default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


def _are_identical(one: dict[str, object], other: dict[str, object]) -> bool:
    """Whether two dictionaries hold the very same objects."""
    same = one.keys() == other.keys()
    return same and all(value is other[name] for name, value in one.items())


def _same(left: object, right: object) -> bool:
    return type(left) is type(right) and bool(left == right)


# -- parameters ----------------------------------------------------------------------------------


def check_value(name: str, value: object, valid: bool, expected: str) -> None:
    """Raise a ParameterError unless ``valid``.

    >>> check_value("noise", -1, False, "positive")
    Traceback (most recent call last):
    hemf.errors.ParameterError: noise must be positive, got -1
    """
    if not valid:
        raise ParameterError(f"{name} must be {expected}, got {value!r}", value=value)


def check_int(name: str, value: object, *, low: int, high: int | None = None) -> int:
    """Check an integer with low ≤ value ≤ high.

    >>> check_int("n_factors", 3, low=1)
    3
    """
    try:
        checked = low - 1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        checked = low - 1
    limit = "" if high is None else f" and at most {high}"
    valid = low <= checked and (high is None or checked <= high)
    check_value(name, value, valid, f"a whole number of at least {low}{limit}")
    return checked


def check_number(name: str, value: object, *, low: float, high: float = float("inf")) -> float:
    """Check a finite number with low ≤ value ≤ high."""
    try:
        checked = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        checked = float("nan")
    expected = f"between {low:g} and {high:g}" if high < float("inf") else f"at least {low:g}"
    valid = low <= checked <= high and checked != float("inf")
    check_value(name, value, valid, f"a number {expected}")
    return checked


def check_choice(name: str, value: object, options: Sequence[T]) -> T:
    """Check a word against the ones allowed.

    >>> check_choice("evb", "closed", ("closed", "gradient"))
    'closed'
    """
    for option in options:
        if _same(value, option):
            return option
    raise ParameterError(
        f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}", value=value
    )


def check_bool(name: str, value: object) -> bool:
    """Check a bool, Python's or NumPy's."""
    check_value(name, value, isinstance(value, bool | np.bool_), "True or False")
    return bool(value)


def check_callables(name: str, given: Iterable[F]) -> tuple[F, ...]:
    """Check a sequence of functions."""
    try:
        found = tuple(given)
    except TypeError:
        raise ParameterError(f"{name} must be a list of functions, got {given!r}") from None
    for one in found:
        check_value(name, one, callable(one), "functions")
    return found


def check_implicit_features(given: bool | str) -> tuple[str, ...]:
    """Check ``implicit_features``, and return the sides that have any."""
    if isinstance(given, str) and given in SIDES:
        return (given,)
    valid = isinstance(given, bool | np.bool_)
    check_value("implicit_features", given, valid, 'True, False, "user" or "item"')
    return SIDES if given else ()


def check_n_jobs(n_jobs: int | None) -> int | None:
    """Check a number of threads."""
    if n_jobs is None:
        return None
    check_value("n_jobs", n_jobs, n_jobs != 0, "None, -1 or a positive number")
    return check_int("n_jobs", n_jobs, low=-1024)


def check_rng(rng: int | np.random.Generator | None) -> np.random.Generator:
    """Return a generator for a seed, or the one given."""
    if isinstance(rng, np.random.Generator):
        return rng
    return np.random.default_rng(None if rng is None else check_int("rng", rng, low=0))


def check_rating_range(
    given: str | tuple[float, float] | None,
) -> str | tuple[float, float] | None:
    """Check ``rating_range``.

    >>> check_rating_range((1, 5))
    (1.0, 5.0)
    """
    if given is None or (isinstance(given, str) and given == "observed"):
        return given
    try:
        low, high = (float(end) for end in given)
    except (TypeError, ValueError):
        low = high = 0.0
    valid = bool(np.isfinite(low) and np.isfinite(high) and low < high)
    check_value("rating_range", given, valid, '"observed", None or (lowest, highest)')
    return low, high


def resolve_rating_range(
    given: str | tuple[float, float] | None, observed: tuple[float, float]
) -> tuple[float, float] | None:
    """Return the ends that predictions are clipped to, or None."""
    checked = check_rating_range(given)
    return observed if isinstance(checked, str) else checked


# -- data ----------------------------------------------------------------------------------------


def check_rows(what: str, values: AnyArray, invalid: BoolArray, reason: str) -> None:
    """Raise a DataError for the first row that is ``invalid``.

    >>> check_rows("std", np.array([1.0, -2.0]), np.array([False, True]), "is negative")
    Traceback (most recent call last):
    hemf.errors.DataError: std -2.0 at row 1 is negative
    """
    if invalid.any():
        row = int(invalid.argmax())
        raise row_error(what, values[row].item(), row, reason)


def check_lengths(**columns: Sequence[object] | AnyArray) -> int:
    """Return the length that all columns have in common; it must not be 0.

    >>> check_lengths(users=[1, 2], items=[7])
    Traceback (most recent call last):
    hemf.errors.DataError: lengths differ: users 2, items 1; give one value for each row
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"lengths differ: {listed}; give one value for each row", value=lengths)
    if 0 in lengths.values():
        raise DataError(f"there are no rows in {', '.join(lengths)}")
    return next(iter(lengths.values()))


def check_floats(name: str, values: object, *, scalar: bool = False) -> AnyArray:
    """Return finite numbers as a one-dimensional float64 array.

    With ``scalar``, a single number is accepted and becomes an array of no dimension.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name} must be numbers, got {values!r}", value=values) from None
    if array.ndim > 1 or (array.ndim == 0 and not scalar):
        raise DataError(f"{name} must have one dimension, got {array.ndim}", value=array.shape)
    flat = np.atleast_1d(array)
    check_rows(name, flat, ~np.isfinite(flat), "is not finite")
    return array


def rating_text(value: float) -> str:
    """Return the shortest text of a rating that tells it from all others.

    Ratings may have been kept in float32, which has a shorter text than the same float64.

    >>> [rating_text(value) for value in (5.0, 0.1, float(np.float32(0.1)), 1e9 + 1)]
    ['5', '0.1', '0.1', '1000000001']
    """
    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    return str(narrow if float(narrow) == value else float(value)).removesuffix(".0")


def check_range(limits: str | tuple[float, float] | None, values: Array) -> None:
    """Raise DataError for ratings outside a range that was declared."""
    if isinstance(limits, tuple):
        outside = (values < limits[0]) | (values > limits[1])
        if outside.any():
            row = int(outside.argmax())
            value = float(values[row])
            raise DataError(
                f"rating {rating_text(value)} at row {row} is outside the rating_range {limits}; "
                "correct it, or choose a wider range",
                value=value,
                row=row,
            )


# -- numbers in files -----------------------------------------------------------------------------


LARGEST = 1e15  # of what is standardised, and of counts: squares and products stay finite


ROUNDING = 1e-8  # of correlations; what a fit leaves is far below


def is_covariance(matrix: Float64Array) -> bool:
    """Whether a matrix is symmetric and nowhere negative, up to rounding."""
    allowed = ROUNDING * float(np.abs(matrix).max(initial=0.0))
    symmetric = bool((np.abs(matrix - matrix.T) <= allowed).all())
    return symmetric and bool((np.linalg.eigvalsh(matrix) >= -allowed).all())


def check_array(
    where: str,
    array: AnyArray,
    dtype: npt.DTypeLike,
    shape: tuple[int, ...],
    *,
    largest: float = np.finfo(np.float64).max,
) -> None:
    """Check type and shape of an array, and that its numbers are finite and not too large."""
    require(
        array.dtype == dtype and array.shape == shape,
        f"{where}: an array is {array.dtype} {array.shape} instead of {np.dtype(dtype)} {shape}",
    )
    inside = not array.size or bool(array.min() >= -largest and array.max() <= largest)
    require(inside, f"{where}: a number is missing, infinite or too large")


def is_bounded(array: AnyArray) -> bool:
    """Whether numbers are finite and not too large to compute with."""
    return not array.size or bool(np.abs(array).max() <= LARGEST)  # false for NaN


def require_positive(where: str, *values: npt.ArrayLike) -> None:
    """Check that numbers are finite and above 0."""
    for value in values:
        positive = bool(np.all(np.isfinite(value)) and np.all(np.greater(value, 0.0)))
        require(positive, f"{where}: a number that must be above 0 is not")


def is_inside(numbers: AnyArray, end: npt.ArrayLike, *, low: int = 0) -> bool:
    """Whether low ≤ number < end; ``end`` may differ from column to column."""
    return not numbers.size or bool(
        np.all(numbers.min(axis=0) >= low) and np.all(numbers.max(axis=0) < end)
    )


def require(condition: bool | np.bool_, otherwise: str) -> None:
    """Raise ValueError with this message if the condition does not hold."""
    if not condition:
        raise ValueError(otherwise)


def check_definite(where: str, matrices: Float64Array) -> None:
    """Check that matrices are symmetric, can be inverted, and are positive up to rounding."""
    roots = np.sqrt(np.diagonal(matrices, axis1=1, axis2=2))
    unit = matrices / roots[:, :, None] / roots[:, None, :]
    symmetric = bool((np.abs(unit - unit.transpose(0, 2, 1)) <= ROUNDING).all())
    positive = symmetric and bool((np.linalg.eigvalsh(unit) >= -ROUNDING).all())
    require(positive, f"{where}: a covariance is not positive definite")
    require(bool(np.isfinite(np.linalg.inv(matrices)).all()), f"{where}: a covariance is singular")


def available_bytes() -> int | None:
    """Return the memory available without swapping, or None if unknown."""
    import psutil

    try:
        return int(psutil.virtual_memory().available)
    except (OSError, NotImplementedError, RuntimeError):
        return None


def format_bytes(size: int) -> str:
    """Return a number of bytes in gigabytes, or in megabytes if it is less than one gigabyte.

    >>> format_bytes(3 * 2**30 // 2), format_bytes(200 * 2**20)
    ('1.5 GB', '200 MB')
    """
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{size / 2**20:,.0f} MB"


def thread_count(n_jobs: int | None) -> int:
    """Threads for ``n_jobs``, scikit-learn's way: None is all cores, -1 too.

    >>> thread_count(3)
    3
    """
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    available = available or 1
    if n_jobs is None:
        return available
    return n_jobs if n_jobs > 0 else max(1, available + 1 + n_jobs)


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # finding the libraries takes milliseconds


def one_blas_thread() -> AbstractContextManager[object]:
    """Limit BLAS to one thread."""
    limits: AbstractContextManager[object] = _blas().limit(limits=1, user_api="blas")
    return limits
