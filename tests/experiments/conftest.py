"""A folder of small data sets, and an experiment that takes a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hemf.data import datasets
from hemf.experiments.catalog import Experiment, Method, Part, Printed


def write_ratings(path: Path, seed: int) -> None:
    drawn = datasets.draw(30, 20, density=0.5, levels=(1.0, 2.0, 3.0, 4.0, 5.0), rng=seed)
    columns = {"user": drawn.users, "item": drawn.items, "rating": drawn.ratings}
    pq.write_table(pa.table({name: np.asarray(part) for name, part in columns.items()}), path)


@pytest.fixture
def write() -> Callable[..., None]:
    """Write a few ratings to a file."""
    return write_ratings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MovieLens 1M and the sample of EachMovie, as far as names go; nothing else is found."""
    monkeypatch.delenv("HEMF_DATA", raising=False)
    monkeypatch.setenv("HEMF_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "data"
    place.mkdir()
    write_ratings(place / "ml-1m.parquet", seed=1)
    write_ratings(place / "eachmovie-ads-sample.parquet", seed=2)
    return place


@pytest.fixture
def small() -> Callable[..., Experiment]:
    """Make an experiment with learners that are done at once."""

    def make(name: str = "small", dataset: str = "ml-1m", **options: object) -> Experiment:
        sampler = {"n_factors": 2, "samples": 3, "burn_in": 1}
        methods = (
            Method("HeMF-bVB", "hemf", {"n_factors": 2, "max_sweeps": 3}),
            Method("BPMF", "bpmf", sampler),
            Method("M³F-TIB(2,1,2)", "m3f-tib", {**sampler, "user_topics": 2, "item_topics": 1}),
        )
        chosen = {
            "protocol": "weak", "methods": methods, "splits": 2, "quick_splits": 2,
            "printed": {"HeMF-bVB": Printed(0.7723, 0.8311)}, **options,
        }  # fmt: skip
        part = Part(dataset=dataset, **chosen)  # type: ignore[arg-type]
        return Experiment(name=name, title=f"A {name} one", claim="Nothing.", parts=(part,))

    return make


@pytest.fixture
def stream(small: Callable[..., Experiment]) -> Experiment:
    """An experiment of learners that are fed with chunks."""
    options = {"n_factors": 2, "passes": 2}
    return small(
        "stream",
        protocol="chunks",
        n_chunks=4,
        printed={},
        methods=(
            Method("HeMF-oVB", "ovb", options),
            Method("HeMF-oVB, no history", "ovb", {**options, "history": "none"}),
            Method("SGD", "sgd", options),
        ),
    )
