"""Time from a Parquet file with text ids to both sparse forms, against polars alone.

polars reads the same file and factorises the two id columns. Runs alternate, and the first of each
kind counts apart, because it includes the loading of libraries. Prints one line of JSON.

    python benchmarks/reading.py [--rows 1000000] [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hemf.data.ratings import Ratings


def write_ratings(path: Path, rows: int, users: int, items: int) -> None:
    """Write ratings with long-tailed items and ids of text, each pair at most a few times."""
    rng = np.random.default_rng(0)
    user = rng.integers(users, size=rows)
    item = (items * rng.random(rows) ** 2).astype(np.int64)
    pairs = np.unique(np.column_stack([user, item]), axis=0)
    rng.shuffle(pairs)
    pl.DataFrame(
        {
            "user": pl.Series(pairs[:, 0]).cast(pl.String).str.pad_start(8, "u"),
            "item": pl.Series(pairs[:, 1]).cast(pl.String).str.pad_start(8, "i"),
            "rating": rng.integers(1, 11, len(pairs)).astype(np.float32) / 2,
        }
    ).write_parquet(path)


def read_with_polars(path: Path) -> pl.DataFrame:
    ids = [pl.col(name).cast(pl.Categorical).to_physical() for name in ("user", "item")]
    return pl.read_parquet(path).with_columns(ids)


def seconds(function: Callable[[Path], Any], path: Path) -> float:
    start = time.perf_counter()
    function(path)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=50_000)
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratings.parquet"
        write_ratings(path, options.rows, options.users, options.items)
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
        polars_times, hemf_times = [], []
        for _ in range(options.runs + 1):
            polars_times.append(seconds(read_with_polars, path))
            hemf_times.append(seconds(Ratings.from_any, path))
    polars_time = statistics.median(polars_times[1:])
    hemf_time = statistics.median(hemf_times[1:])
    report = {
        "rows": rows,
        "polars_seconds": round(polars_time, 4),
        "hemf_seconds": round(hemf_time, 4),
        "ratio": round(hemf_time / polars_time, 2),
        "first_polars_seconds": round(polars_times[0], 4),
        "first_hemf_seconds": round(hemf_times[0], 4),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "bar": 5,
    }
    print(json.dumps(report))
    raise SystemExit(report["ratio"] > report["bar"])


if __name__ == "__main__":
    main()
