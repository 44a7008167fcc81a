"""Online prediction of dyadic data with heterogeneous matrix factorization.

>>> from hemf import HeMF
>>> model = HeMF(n_factors=2, rng=0).fit([("ann", "tea", 5), ("bob", "tea", 3), ("bob", "milk", 1)])
>>> model
HeMF(n_factors=2, rng=0)
"""

import logging
from typing import TYPE_CHECKING, Any

from hemf.data.ratings import Ratings
from hemf.errors import (
    BusyError,
    CacheWarning,
    ConvergenceWarning,
    DataError,
    DatasetError,
    DataWarning,
    DuplicateWarning,
    HemfError,
    HemfWarning,
    HistoryWarning,
    KernelWarnings,
    ModelFileError,
    NotFittedError,
    OutlierWarning,
    ParameterError,
    StreamWarning,
    UnknownIdError,
    UnknownIdWarning,
)
from hemf.estimator import HeMF

if TYPE_CHECKING:
    from hemf.samplers.hemf import GibbsHeMF

logging.getLogger("hemf.kernels").addHandler(KernelWarnings(logging.WARNING))

__version__ = "0.1.0"

__all__ = [
    "BusyError",
    "CacheWarning",
    "ConvergenceWarning",
    "DataError",
    "DataWarning",
    "DatasetError",
    "DuplicateWarning",
    "GibbsHeMF",
    "HeMF",
    "HemfError",
    "HemfWarning",
    "HistoryWarning",
    "ModelFileError",
    "NotFittedError",
    "OutlierWarning",
    "ParameterError",
    "Ratings",
    "StreamWarning",
    "UnknownIdError",
    "UnknownIdWarning",
]


def __getattr__(name: str) -> Any:
    """Import the sampler on first use, to keep ``import hemf`` fast."""
    if name == "GibbsHeMF":
        from hemf.samplers.hemf import GibbsHeMF

        return GibbsHeMF
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
