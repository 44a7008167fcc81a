"""Data for the benchmarks: the real sets where they are, else drawn ones of the same shape."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(os.environ.get("HEMF_DATA") or Path(__file__).parents[2] / "shared" / "data")


def movielens_like(rng: int = 0) -> tuple[Any, str]:
    """Return the classic training part of MovieLens 1M, or ratings drawn in its shape."""
    path = FOLDER / "ml-1m-classic-train.parquet"
    if path.exists():
        return path, "MovieLens 1M, classic training part"
    from hemf.data.datasets import draw

    data = draw(6040, 3697, n_ratings=900_000, popularity=1.0, rng=rng)
    return (data.users, data.items, data.ratings), "drawn, 6040 x 3697, 900,000 ratings"


def drawn(n_users: int, n_items: int, n_ratings: int, rng: int = 0) -> tuple[np.ndarray, ...]:
    """Return users, items and ratings drawn from the model, collected from blocks."""
    from hemf.data.datasets import draw_blocks

    blocks = list(draw_blocks(n_users, n_items, n_ratings=n_ratings, n_factors=8, rng=rng))
    return tuple(np.concatenate(columns) for columns in zip(*blocks, strict=True))


def given_features(name: str) -> dict[str, Any]:
    """Return what is known of the users and films of MovieLens 1M."""
    import pandas as pd

    users = pd.read_parquet(FOLDER / f"{name}-users.parquet").drop(columns="zip")
    films = pd.read_parquet(FOLDER / f"{name}-movies.parquet")
    year = films.pop("title").str.extract(r"\((\d{4})\)")[0].astype(float)
    kinds = {column: users[column].astype(str) for column in ("age", "occupation")}
    return {
        "user_features": users.assign(**kinds),
        "item_features": films.assign(year=year, years=(year // 5).astype(str)),
    }
