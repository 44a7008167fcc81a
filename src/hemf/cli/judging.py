"""What ``hemf evaluate`` says beyond errors: honesty, ranking, and a page of both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hemf import Ratings
    from hemf.cli.models import Learner
    from hemf.cli.output import Output
    from hemf.evaluation import Calibration, RankingMetrics

UNKNOWN = (
    "coverage50", "coverage80", "coverage90", "coverage95", "nlpd", "crps", "log_score",
    "pit_distance", "pit",
)  # fmt: skip
"""What is null for a model that does not say how sure it is."""


def calibration(
    model: Learner, learnt: Ratings, withheld: Ratings, actual: Any, mean: Any, std: Any
) -> Calibration | None:
    """Say how honest predictions were, or None of a model that does not say how sure it is."""
    from hemf import HeMF
    from hemf.evaluation import Predictive, judge
    from hemf.evaluation.distribution import distinct_levels, is_scale

    if std is None:
        return None
    if isinstance(model, HeMF):
        users, items, _ = withheld.triples()
        pairs = withheld.users.ids[users], withheld.items.ids[items]
        said = model.predict_distribution(*pairs, timestamps=withheld.timestamps)
    else:
        said = Predictive(np.asarray(mean, np.float64), np.maximum(std, np.finfo(float).tiny))
    levels = distinct_levels(learnt.by_user.values)
    return judge(actual, said, levels=levels if is_scale(levels) else None)


def ranking(
    output: Output,
    model: Learner,
    learnt: Ratings,
    withheld: Ratings,
    top: int,
    relevant: float | None,
) -> RankingMetrics:
    """Say how well a model ranks, and meanwhile how far that has come."""
    from hemf.cli.progress import counted
    from hemf.evaluation import ranking_metrics

    with counted(output, "ranking") as progress:
        return ranking_metrics(model, learnt, withheld, top, relevant=relevant, progress=progress)


def with_figures(
    answer: dict[str, Any], found: Calibration | None, ranks: RankingMetrics | None
) -> dict[str, Any]:
    """Add these figures to the answer, whose own keys stay where they are."""
    figures = dict.fromkeys(UNKNOWN) if found is None else found.to_dict()
    return {**answer, **figures, **({} if ranks is None else ranks.to_dict())}


def write_report(
    path: Path,
    title: str,
    subtitle: str,
    answer: dict[str, Any],
    found: Calibration | None,
    ranks: RankingMetrics | None,
) -> None:
    """Write a page with the figures and pictures of an evaluation."""
    from hemf.judgement_page import render
    from hemf.writing import replacing

    html = render(title, subtitle, answer, found, ranks)
    with replacing(path) as fresh:
        fresh.write_text(html, encoding="utf-8")
