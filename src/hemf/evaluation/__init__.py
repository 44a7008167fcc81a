"""Ways to split ratings and to judge what was predicted.

>>> from hemf import evaluation
>>> train, test = evaluation.random_split(100, 0.1, rng=0)
>>> len(train), len(test)
(90, 10)
"""

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
from hemf.evaluation.splits import k_fold, random_split, time_ordered, weak_generalisation

__all__ = [
    "CalibrationCurve",
    "CurvePoint",
    "Prequential",
    "adjusted_rand_index",
    "calibration_curve",
    "coverage",
    "k_fold",
    "mae",
    "nlpd",
    "pit",
    "purity",
    "random_split",
    "rmse",
    "stream_order",
    "time_ordered",
    "warm_start_size",
    "weak_generalisation",
]
