"""A page that shows how good predictions were: errors, honesty, ranking.

>>> from hemf.judgement_page import render
>>> "RMSE" in render("a model", "on some ratings", {"rmse": 0.8}, None, None)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hemf import plots
from hemf.report_page import card, page, picture, section, table, tiles

if TYPE_CHECKING:
    from hemf.evaluation import Calibration, RankingMetrics

TILES = {
    "rmse": ("RMSE", "{:.4f}"),
    "mae": ("mean absolute error", "{:.4f}"),
    "train_rmse": ("RMSE, training", "{:.4f}"),
    "coverage90": ("in 90 % intervals", "{:.1%}"),
    "nlpd": ("NLPD (nats)", "{:.4f}"),
    "log_score": ("log score of levels (nats)", "{:.4f}"),
    "sweeps": ("sweeps", "{:,}"),
    "cpu_seconds": ("CPU seconds", "{:,.1f}"),
    "peak_rss_mb": ("MB of memory at most", "{:,.0f}"),
}
RANKED = {
    "ndcg": ("NDCG", "{:.4f}", "gain of relevant items, more the earlier they come; 1 is perfect"),
    "recall": ("recall", "{:.4f}", "share of what is relevant to a user that is recommended"),
    "precision": ("precision", "{:.4f}", "share of what is recommended that is relevant"),
    "average_precision": ("MAP", "{:.4f}", "precision at each relevant item, averaged"),
    "reciprocal_rank": ("MRR", "{:.4f}", "one over the rank of the first relevant item"),
    "hit_rate": ("hit rate", "{:.1%}", "users with a relevant item among those recommended"),
    "coverage": ("catalogue coverage", "{:.1%}", "items that are recommended to anybody"),
    "novelty": ("novelty (bits)", "{:.2f}", "of an item that one user in 2ⁿ has rated, n"),
}


def render(
    title: str,
    subtitle: str,
    figures: Mapping[str, Any],
    found: Calibration | None,
    ranks: RankingMetrics | None,
) -> str:
    """Return the HTML of the page; ``figures`` are those that `hemf evaluate` prints."""
    shown = {
        name: form.format(figures[key])
        for key, (name, form) in TILES.items()
        if figures.get(key) is not None
    }
    body = [tiles(shown), section("How sure", honesty(found, "withheld"))]
    if ranks is not None:
        body.append(section("How it ranks", [_ranking(ranks)]))
    return page(title, subtitle, body)


def honesty(found: Calibration | None, whose: str, caution: str = "") -> list[str]:
    """Return cards on intervals and on where ratings fall in what was predicted of them."""
    if found is None:
        why = "Not shown: this model does not say how sure it is."
        return [card("Calibration of intervals", why, "", wide=True)]
    return [
        card(
            "Calibration of intervals",
            f"An interval that should hold 90 % of the ratings does so, if the model is honest: "
            f"points lie on the diagonal. {caution}The grey band is what chance alone would do. "
            "Above it intervals are too wide, below it too narrow.",
            picture(
                "calibration",
                plots.calibration(found.curve, found.n_ratings),
                f"Observed against nominal coverage on {whose} ratings",
            ),
        ),
        card(
            "Where ratings fall in what was predicted",
            "Each tenth of a prediction should hold a tenth of the ratings (PIT). A hump says that "
            "predictions are too cautious, high ends that they are too sure, a slope that they are "
            f"too low or too high. {100 * found.pit_distance:.1f} % of the ratings are in a tenth "
            "where they should not be.",
            picture(
                "pit",
                plots.pit_histogram(found.pit, found.n_ratings),
                f"Share of {whose} ratings in each tenth of the predictions",
            ),
        ),
        card(
            f"Intervals on {found.n_ratings:,} {whose} ratings",
            "",
            table(
                ["should hold", "holds"],
                ([f"{100 * level:g} %", f"{100 * share:.1f} %"]
                 for level, share in found.coverage.items()),
                numbers=[0, 1],
            ),
        ),
        card(
            "Scores of the distributions",
            "Lower is better; they compare models on the same ratings.",
            table(["", "score"], _scores(found), numbers=[1]),
        ),
    ]  # fmt: skip


def _scores(found: Calibration) -> list[list[str]]:
    rows = [
        ["negative log predictive density (NLPD), nats", f"{found.nlpd:.4f}"],
        ["continuous ranked probability score (CRPS), rating units", f"{found.crps:.4f}"],
    ]
    if found.log_score is not None:
        rows.append(["negative log probability of the level, nats", f"{found.log_score:.4f}"])
    return rows


def _ranking(ranks: RankingMetrics) -> str:
    rows = [
        [name, form.format(getattr(ranks, key)), meaning]
        for key, (name, form, meaning) in RANKED.items()
    ]
    left = f" {ranks.left_out:,} ratings of unknown users or items are left out."
    return card(
        f"The best {ranks.n} for {ranks.users:,} users",
        f"All items not rated in training are ranked; those rated {ranks.relevant:.4g} or more in "
        "test are relevant, all others are not, be they merely not rated."
        f"{left if ranks.left_out else ''}",
        table([f"at {ranks.n}", "", ""], rows, numbers=[1]),
        wide=True,
    )
