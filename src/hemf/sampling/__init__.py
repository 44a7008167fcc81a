"""HeMF's factors, features and noise drawn from their posterior instead of approximated."""

from hemf.sampling.estimator import GibbsHeMF

__all__ = ["GibbsHeMF"]
