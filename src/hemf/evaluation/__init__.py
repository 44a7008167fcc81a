"""Ways to split ratings and to judge what was predicted.

>>> from hemf import evaluation
>>> train, test = evaluation.random_split(100, 0.1, rng=0)
>>> len(train), len(test)
(90, 10)
"""

from hemf.evaluation.comparison import PairedDifference, Summary, paired_difference, summarise
from hemf.evaluation.metrics import (
    CalibrationCurve,
    adjusted_rand_index,
    calibration_curve,
    coverage,
    mae,
    nlpd,
    pit,
    purity,
    rmse,
)
from hemf.evaluation.prequential import CurvePoint, Prequential, stream_order, warm_start_size
from hemf.evaluation.protocols import PROTOCOLS, Splits, fingerprint, make_splits, passes
from hemf.evaluation.split_files import kept_splits, load_splits, save_splits
from hemf.evaluation.splits import k_fold, random_split, time_ordered, weak_generalisation

__all__ = [
    "PROTOCOLS",
    "CalibrationCurve",
    "CurvePoint",
    "PairedDifference",
    "Prequential",
    "Splits",
    "Summary",
    "adjusted_rand_index",
    "calibration_curve",
    "coverage",
    "fingerprint",
    "k_fold",
    "kept_splits",
    "load_splits",
    "mae",
    "make_splits",
    "nlpd",
    "paired_difference",
    "passes",
    "pit",
    "purity",
    "random_split",
    "rmse",
    "save_splits",
    "stream_order",
    "summarise",
    "time_ordered",
    "warm_start_size",
    "weak_generalisation",
]
