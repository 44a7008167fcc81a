"""Models whose posterior is sampled: HeMF, BPMF and M3F by Gibbs sampling.

>>> from hemf.samplers import BPMF
>>> BPMF(n_factors=5)
BPMF(n_factors=5)
"""

from hemf.samplers.base import SampleReport
from hemf.samplers.bpmf import BPMF, M3FTIB, M3FTIF
from hemf.samplers.hemf import GibbsHeMF

__all__ = ["BPMF", "M3FTIB", "M3FTIF", "GibbsHeMF", "SampleReport"]
