"""Array types, and the names of the two sides."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.floating[Any]]
"""float32 or float64, as the model stores it."""
Storage: TypeAlias = type[np.floating[Any]]
"""The type of such an array: np.float32 or np.float64."""
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
AnyArray: TypeAlias = npt.NDArray[Any]
"""Ids, and arrays of any other type."""

IdsLike: TypeAlias = Any
"""A column of ids: a list, a NumPy or Arrow array, or a pandas or polars series."""
RatingsLike: TypeAlias = Any
"""Whatever `hemf.Ratings.from_any` reads."""
FeaturesLike: TypeAlias = Any
"""Whatever `hemf.data.features.read_table` reads, or a list of such."""
FrameLike: TypeAlias = Any
"""A frame or a series of pandas, polars, Arrow or narwhals."""
ArrowArray: TypeAlias = Any
"""An array, a chunked array or a scalar of Arrow, whose package has no types."""
ArrowTable: TypeAlias = Any
DistinctIds: TypeAlias = Any
"""Different ids: an int64 array, an Arrow array of ``large_string``, or an object array."""

SIDES: Final = ("user", "item")
OTHER: Final = {"user": "item", "item": "user"}
"""The opposite side."""


class Matrix(Protocol):
    """What can be multiplied with arrays: a sparse array of SciPy, or a `LinearOperator`."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def T(self) -> Matrix:  # noqa: N802  (SciPy's name)
        """The transpose."""

    def __matmul__(self, other: Float64Array, /) -> Float64Array:
        """Product with an array."""
