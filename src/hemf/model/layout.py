"""Which coordinate of a row's vector means what.

With offsets the model is r = c + o_i + p_j + a_i·b_j, written as one inner product by holding a
coordinate at 1 on the other side:

    user i: (1,   o_i, a_i)         coordinate 0 pinned
    item j: (p_j, 1,   b_j)         coordinate 1 pinned

so each side's posterior covers its own offset and its factors, and users and items share one
algorithm. Without offsets (the paper's plain form) the vectors are just the factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Layout:
    """Coordinates of one side's vectors.

    >>> Layout.of("user", n_factors=3, offsets=True).free.tolist()
    [1, 2, 3, 4]
    >>> Layout.of("item", n_factors=3, offsets=False).total
    3
    """

    total: int
    """Length of a row's vector, pinned coordinate included."""
    pinned: int
    """Coordinate held at 1, or -1."""

    @classmethod
    def of(cls, side: str, *, n_factors: int, offsets: bool) -> Layout:
        """Layout of the "user" or the "item" side."""
        if not offsets:
            return cls(total=n_factors, pinned=-1)
        return cls(total=n_factors + 2, pinned=0 if side == "user" else 1)

    @cached_property
    def free(self) -> npt.NDArray[np.int64]:
        """Coordinates that the posterior covers: the offset first, then the factors."""
        return np.array([t for t in range(self.total) if t != self.pinned], dtype=np.int64)

    @property
    def factors(self) -> npt.NDArray[np.int64]:
        """Coordinates that the two sides' inner product runs over: all but the offsets."""
        return self.free if self.pinned < 0 else self.free[1:]

    @property
    def order(self) -> int:
        """How many coordinates the posterior covers."""
        return self.total - (self.pinned >= 0)

    @property
    def packed(self) -> int:
        """Length of a packed second moment."""
        return self.total * (self.total + 1) // 2
