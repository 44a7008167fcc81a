"""Ways to split ratings and to judge what was predicted.

>>> from hemf import evaluation
>>> train, test = evaluation.random_split(100, 0.1, rng=0)
>>> len(train), len(test)
(90, 10)
"""

from hemf.evaluation.choices import NextChoices
from hemf.evaluation.distribution import (
    Calibration,
    CalibrationCurve,
    Predictive,
    calibration_curve,
    coverage,
    judge,
    nlpd,
    pit,
)
from hemf.evaluation.metrics import (
    CurvePoint,
    PairedDifference,
    Summary,
    adjusted_rand_index,
    mae,
    paired_difference,
    purity,
    rmse,
    summarise,
)
from hemf.evaluation.prequential import Prequential, stream_order, warm_start_size
from hemf.evaluation.protocols import (
    PROTOCOLS,
    Splits,
    fingerprint,
    kept_splits,
    load_splits,
    make_splits,
    passes,
    save_splits,
)
from hemf.evaluation.ranking import RankingMetrics, ranking_metrics
from hemf.evaluation.splits import k_fold, random_split, time_ordered, weak_generalisation

__all__ = [
    "PROTOCOLS",
    "Calibration",
    "CalibrationCurve",
    "CurvePoint",
    "NextChoices",
    "PairedDifference",
    "Predictive",
    "Prequential",
    "RankingMetrics",
    "Splits",
    "Summary",
    "adjusted_rand_index",
    "calibration_curve",
    "coverage",
    "fingerprint",
    "judge",
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
    "ranking_metrics",
    "rmse",
    "save_splits",
    "stream_order",
    "summarise",
    "time_ordered",
    "warm_start_size",
    "weak_generalisation",
]  # fmt: skip
