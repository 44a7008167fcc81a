"""What must hold of a model in a file, checked before it is written and when it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hemf._typing import SIDES
from hemf.model.features import HOW_MANY, RATED

if TYPE_CHECKING:
    from hemf.model.regression import Regression
    from hemf.model.side import Side

_ROUNDING = 1e-8  # of correlations; what a fit leaves is far below
LARGEST = 1e15  # of what is standardised, and of counts: squares and products stay finite
_MIN_KAPPA = 1e-12
_MAX_INFORMATION = 1e6  # of a row's information weight, which is about 1 at most


def check_scale(mean: Any, scale: Any, ends: Any) -> None:
    """Check mean, scale and range of the ratings."""
    require(np.isfinite(mean), f"the mean of the ratings is {mean}")
    require_positive("scale of the ratings", scale)
    ordered = ends is None or bool(np.isfinite(ends).all() and ends[0] <= ends[1])
    require(ordered, f"the range of the ratings is {ends}")


def check_side(side: Side, name: str, n_rows: int, *, is_online: bool) -> None:
    """Hold every array against the shape and type that `hemf.model` documents."""
    layout, count = side.layout, side.communities.count
    order, covariances = layout.order, side.communities.dof.size
    require(layout.pinned in (-1, SIDES.index(name)), f"{name}: it has a wrong {layout}")
    require(covariances in (1, count), f"{name}: {covariances} covariances for {count}")
    storage = side.moments.mean.dtype
    require(storage in (np.float32, np.float64), f"{name}: its factors are {storage}")
    by_row: list[tuple[NDArray[Any], tuple[int, ...]]] = [
        (side.membership, (n_rows, count)),
        (side.moments.mean, (n_rows, layout.total)),
        (side.moments.second, (n_rows, layout.packed)),
    ]
    for array, shape in by_row:
        check_array(name, array, storage, shape, largest=LARGEST)
        require(array.flags.c_contiguous, f"{name}: an array is transposed")
    shared: list[tuple[NDArray[Any], tuple[int, ...]]] = [
        (side.prior.centre, (order,)),
        (side.prior.scale, (order, order)),
        (side.statistics.size, (count,)),
        (side.statistics.first, (count, order)),
        (side.statistics.scatter, (covariances, order, order)),
        (side.communities.sticks.taken, (count,)),
        (side.communities.sticks.left, (count,)),
        (side.communities.mean, (count, order)),
        (side.communities.kappa, (count,)),
        (side.communities.scale, (covariances, order, order)),
        (side.communities.dof, (covariances,)),
    ]
    if side.noise_scales is not None:
        shared += [(side.noise_scales.shape, (n_rows,)), (side.noise_scales.rate, (n_rows,))]
    if side.regression is not None:
        rows = side.regression.design.n_rows
        require(rows == n_rows or (is_online and rows < n_rows), f"{name}: features of others")
        _check_regression(side.regression, name, rows, order)
    for array, shape in shared:
        check_array(name, array, np.float64, shape, largest=LARGEST)
    _check_numbers(side, name)


def check_rated(sides: dict[str, Side], *, is_online: bool) -> None:
    """Check that implicit features are of the rows of the other side.

    Online, rows may have come since the features' coefficients were learnt.
    """
    for name, other in (SIDES, SIDES[::-1]):
        regression = sides[name].regression
        if regression is None or RATED not in regression.design.names:
            continue
        widths = dict(zip(regression.design.names, regression.design.widths.tolist(), strict=True))
        rows, rated = sides[other].n_rows, widths[RATED]
        fits = rated == rows or (is_online and 0 <= rated <= rows)
        require(fits, f"{name}: its features are of {other}s that are not there")
        require(widths[HOW_MANY] == 2, f"{name}: its features of counts are damaged")
        last = regression.design.names[-2:] == (RATED, HOW_MANY)
        require(last, f"{name}: its features are in another order")


def _check_regression(regression: Regression, name: str, n_rows: int, order: int) -> None:
    design = regression.design
    check_array(name, design.widths, np.int64, (len(design.names),))
    check_array(name, design.indptr, np.int64, (n_rows + 1,))
    check_array(name, design.indices, np.int32, (design.values.size,))
    shape = (design.values.size,)
    check_array(name, design.values, design.values.dtype, shape, largest=LARGEST)
    design.matrix.check_format(full_check=True)
    require(bool((design.widths >= 0).all()), f"{name}: its features have less than no columns")
    form = (design.n_columns, order)
    check_array(name, regression.coefficients, np.float64, form, largest=LARGEST)
    check_array(name, regression.precision, np.float64, design.widths.shape)
    check_array(name, regression.covariance.trace, np.float64, design.widths.shape)
    check_array(name, regression.information, np.float64, (n_rows,), largest=_MAX_INFORMATION)
    check_array(name, regression.leverage, np.float64, (n_rows,), largest=LARGEST**2)
    require(
        bool((regression.information >= 0.0).all()), f"{name}: an information weight is below 0"
    )
    require(bool((regression.leverage >= 0.0).all()), f"{name}: a leverage is below 0")
    require_positive(name, regression.precision)


def _check_numbers(side: Side, name: str) -> None:
    """Refuse what no fit can have ended in."""
    prior, both, scales = side.prior, side.communities, side.noise_scales
    require(bool((side.membership >= 0.0).all()), f"{name}: a probability is below 0")
    require_positive(name, prior.concentration, prior.mean_scale, prior.dof)
    require_positive(name, both.kappa, both.dof, both.sticks.taken, both.sticks.left)
    require(bool((both.kappa >= _MIN_KAPPA).all()), f"{name}: a community has κ of 0")
    for scale in (prior.scale[None], both.scale):
        require_positive(name, np.diagonal(scale, axis1=1, axis2=2))
        _check_definite(name, scale)
    if scales is not None:  # noise has an expectation for shapes above 1 only
        require_positive(name, scales.prior_shape - 1.0, scales.shape - 1.0, scales.rate)


def is_covariance(matrix: NDArray[np.float64]) -> bool:
    """Whether a matrix is symmetric and nowhere negative, up to rounding."""
    allowed = _ROUNDING * float(np.abs(matrix).max(initial=0.0))
    symmetric = bool((np.abs(matrix - matrix.T) <= allowed).all())
    return symmetric and bool((np.linalg.eigvalsh(matrix) >= -allowed).all())


def _check_definite(where: str, matrices: NDArray[np.float64]) -> None:
    """Check that matrices are symmetric, can be inverted, and are positive up to rounding."""
    roots = np.sqrt(np.diagonal(matrices, axis1=1, axis2=2))
    unit = matrices / roots[:, :, None] / roots[:, None, :]
    symmetric = bool((np.abs(unit - unit.transpose(0, 2, 1)) <= _ROUNDING).all())
    positive = symmetric and bool((np.linalg.eigvalsh(unit) >= -_ROUNDING).all())
    require(positive, f"{where}: a covariance is not positive definite")
    require(bool(np.isfinite(np.linalg.inv(matrices)).all()), f"{where}: a covariance is singular")


def check_array(
    where: str,
    array: NDArray[Any],
    dtype: Any,
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


def is_bounded(array: NDArray[Any]) -> bool:
    """Whether numbers are finite and not too large to compute with."""
    return not array.size or bool(np.abs(array).max() <= LARGEST)  # false for NaN


def require_positive(where: str, *values: Any) -> None:
    """Check that numbers are finite and above 0."""
    for value in values:
        positive = bool(np.all(np.isfinite(value)) and np.all(np.greater(value, 0.0)))
        require(positive, f"{where}: a number that must be above 0 is not")


def require(condition: bool, otherwise: str) -> None:
    """Raise ValueError with this message if the condition does not hold."""
    if not condition:
        raise ValueError(otherwise)
