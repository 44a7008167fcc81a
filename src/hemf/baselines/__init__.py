"""Simple methods that HeMF is compared with.

>>> from hemf.baselines import SGD
>>> SGD(n_factors=5)
SGD(n_factors=5)
"""

from hemf.baselines.base import EpochReport
from hemf.baselines.ease import EASE
from hemf.baselines.sgd import SGD
from hemf.baselines.simple import Bias, Popularity

__all__ = ["EASE", "SGD", "Bias", "EpochReport", "Popularity"]
