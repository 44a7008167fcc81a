"""Draws the README's picture from data made on the spot: ``python docs/figures.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hemf import HeMF
from hemf.data.datasets import demo_ratings
from hemf.evaluation import calibration_curve, random_split

INK, SOFT, ACCENT = "#24292f", "#8c959f", "#0969da"


def main() -> None:
    data = demo_ratings(rng=0)
    users, items = np.array(data.user_ids)[data.users], np.array(data.item_ids)[data.items]
    kept, held = random_split(data.ratings.size, 0.1, rng=0)
    model = HeMF(rng=0).fit((users[kept], items[kept], data.ratings[kept]))
    mean, std = model.predict(users[held], items[held], return_std=True)

    figure = Figure(figsize=(10.5, 3.4), layout="constrained", facecolor="white")
    table, intervals, trust = figure.subplots(1, 3, width_ratios=(1.1, 1.3, 1.0))
    draw_table(table, model)
    draw_intervals(intervals, model)
    draw_calibration(trust, data.ratings[held], mean, std)
    figure.savefig(Path(__file__).parent / "images" / "overview.png", dpi=110)


def draw_table(axes, model) -> None:
    found = model.biclusters()
    image = axes.imshow(found.mean_rating, cmap="RdBu_r", vmin=1, vmax=5, aspect="auto")
    for (row, column), value in np.ndenumerate(found.mean_rating):
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=INK)
    axes.set(
        title="Communities it found", xlabel="film community", ylabel="user community",
        xticks=range(found.mean_rating.shape[1]), yticks=range(found.mean_rating.shape[0]),
    )  # fmt: skip
    axes.figure.colorbar(image, ax=axes, label="mean rating")


def draw_intervals(axes, model) -> None:
    unseen, _ = model.recommend("user-0042", n=model.n_items_)
    films = unseen[:: unseen.size // 8][:8]
    mean, std = model.predict("user-0042", films, return_std=True)
    rows = np.arange(films.size)[::-1]
    axes.errorbar(mean, rows, xerr=1.645 * std, fmt="o", color=ACCENT, ecolor=SOFT, capsize=3)
    axes.set(
        title="What user-0042 would say", xlabel="rating, with 90 % interval", yticks=rows,
        yticklabels=films,
    )  # fmt: skip


def draw_calibration(axes, actual, mean, std) -> None:
    nominal, observed = calibration_curve(actual, mean, std)
    axes.plot([0, 1], [0, 1], color=SOFT, linestyle="--", label="honest")
    axes.plot(nominal, observed, "o-", color=ACCENT, markersize=4, label="held-out ratings")
    axes.set(
        title="Intervals hold what they say", xlabel="nominal coverage",
        ylabel="observed coverage", xlim=(0, 1), ylim=(0, 1),
    )  # fmt: skip
    axes.legend(frameon=False, loc="upper left")


if __name__ == "__main__":
    main()
