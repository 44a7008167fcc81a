"""Parameters the scikit-learn way, without importing scikit-learn."""

from __future__ import annotations

import inspect
import operator
from typing import Any, Self

import numpy as np

from hemf._typing import SIDES
from hemf.errors import ParameterError


class Parametrised:
    """Estimator whose parameters are exactly the keyword arguments of its ``__init__``.

    ``get_params``, ``set_params`` and ``repr`` behave as scikit-learn's do, so ``clone``,
    pipelines and searches work.
    """

    _estimator_type = "regressor"  # what scikit-learn before 1.6 asks for

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        signature = inspect.signature(cls.__init__)
        return {n: p.default for n, p in signature.parameters.items() if n != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return every parameter by name."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **params: Any) -> Self:
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

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn, which alone calls this, what kind of estimator this is."""
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


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def whole_number(name: str, value: Any, *, at_least: int, at_most: int | None = None) -> int:
    """Check a count.

    >>> whole_number("n_factors", 3, at_least=1)
    3
    """
    try:
        whole = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = None
    if whole is None or whole < at_least or (at_most is not None and whole > at_most):
        limit = "" if at_most is None else f" and at most {at_most}"
        raise ParameterError(
            f"{name} must be a whole number of at least {at_least}{limit}, got {value!r}",
            value=value,
        )
    return whole


def number(name: str, value: Any, *, low: float, high: float = float("inf")) -> float:
    """Check a finite number with low ≤ value ≤ high.

    >>> number("tol", 1e-5, low=0)
    1e-05
    """
    try:
        checked = float(value)
    except (TypeError, ValueError):
        checked = float("nan")
    if not low <= checked <= high or isinstance(value, bool) or checked == float("inf"):
        wanted = f"between {low:g} and {high:g}" if high < float("inf") else f"at least {low:g}"
        raise ParameterError(f"{name} must be a number {wanted}, got {value!r}", value=value)
    return checked


def choice(name: str, value: Any, options: tuple[Any, ...]) -> Any:
    """Check a word against the ones allowed.

    >>> choice("evb", "closed", ("closed", "gradient"))
    'closed'
    """
    if not any(type(value) is type(option) and value == option for option in options):
        raise ParameterError(
            f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}", value=value
        )
    return value


def switch(name: str, value: Any) -> bool:
    """Check what is either True or False, Python's or NumPy's.

    >>> switch("return_std", True)
    True
    """
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(f"{name} must be True or False, got {value!r}", value=value)
    return bool(value)


def functions(name: str, given: Any) -> tuple[Any, ...]:
    """Check that something is a sequence of functions, and return them.

    >>> functions("callbacks", [print])
    (<built-in function print>,)
    """
    try:
        found = tuple(given)
    except TypeError:
        raise ParameterError(f"{name} must be a list of functions, got {given!r}") from None
    for one in found:
        if not callable(one):
            raise ParameterError(f"{name} must be functions, got {one!r}", value=one)
    return found


def implicit_sides(given: bool | str) -> tuple[str, ...]:
    """Check ``implicit_features``, and return the sides that have any.

    >>> implicit_sides(True), implicit_sides("item")
    (('user', 'item'), ('item',))
    """
    if isinstance(given, str) and given in SIDES:
        return (given,)
    if not isinstance(given, bool | np.bool_):
        raise ParameterError(
            f'implicit_features must be True, False, "user" or "item", got {given!r}', value=given
        )
    return SIDES if given else ()


def checked_jobs(n_jobs: int | None) -> int | None:
    """Check a number of threads.

    >>> checked_jobs(-1)
    -1
    """
    if n_jobs is None:
        return None
    if n_jobs == 0:
        raise ParameterError("n_jobs must be None, -1 or a positive number, got 0", value=0)
    return whole_number("n_jobs", n_jobs, at_least=-1024)


def generator(rng: int | np.random.Generator | None) -> np.random.Generator:
    """Return a generator for a seed, or the one given.

    >>> bool(generator(7).integers(10) == generator(7).integers(10))
    True
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is not None:
        whole_number("rng", rng, at_least=0)
    return np.random.default_rng(rng)


def checked_range(
    given: str | tuple[float, float] | None,
) -> str | tuple[float, float] | None:
    """Check ``rating_range``.

    >>> checked_range((1, 5))
    (1.0, 5.0)
    """
    if given is None or (isinstance(given, str) and given == "observed"):
        return given
    try:
        low, high = (float(end) for end in given)
    except (TypeError, ValueError):
        low = high = 0.0
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise ParameterError(
            f'rating_range must be "observed", None or (lowest, highest), got {given!r}',
            value=given,
        )
    return low, high


def resolved_range(
    given: str | tuple[float, float] | None, observed: tuple[float, float]
) -> tuple[float, float] | None:
    """Return the ends that predictions are clipped to, or None."""
    checked = checked_range(given)
    if isinstance(checked, str):
        return observed
    return checked
