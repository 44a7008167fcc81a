"""What HeMF is compared with: learners of other kinds, with the same manners.

>>> from hemf.baselines import SGD
>>> SGD(n_factors=5)
SGD(n_factors=5)
"""

from hemf.baselines.bpmf import BPMF
from hemf.baselines.m3f import M3FTIB, M3FTIF
from hemf.baselines.sgd import SGD, EpochReport
from hemf.sampling.sampler import SampleReport

__all__ = ["BPMF", "M3FTIB", "M3FTIF", "SGD", "EpochReport", "SampleReport"]
