"""Peak memory of fitting 10M ratings, 100,000 x 20,000, 20 factors; bar: 1.5 GB.

python benchmarks/memory.py
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

BAR_MB = 1500


def draw(path: Path, n_ratings: int) -> None:
    """Write the ratings, block by block, so that the fitting process starts with none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from hemf.data.datasets import draw_blocks

    schema = pa.schema([("user", pa.int32()), ("item", pa.int32()), ("rating", pa.float32())])
    with pq.ParquetWriter(path, schema) as writer:
        for block in draw_blocks(100_000, 20_000, n_ratings=n_ratings, n_factors=8, rng=0):
            writer.write_table(pa.table(list(block), schema=schema))


def fit(path: Path, sweeps: int) -> None:
    from hemf import HeMF

    warnings.simplefilter("ignore")
    model = HeMF(n_factors=20, max_sweeps=sweeps, rng=0).fit(path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {
        "ratings": model.ratings_.n_ratings,
        "sweeps": model.n_sweeps_,
        "peak_rss_mb": round(peak),
        "bar_mb": BAR_MB,
        "met": peak <= BAR_MB,
    }
    print(json.dumps(figures))
    raise SystemExit(not figures["met"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", type=int, default=10_000_000)
    parser.add_argument("--sweeps", type=int, default=16, help="past the seeding of communities")
    parser.add_argument("--fit", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        fit(arguments.fit, arguments.sweeps)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratings.parquet"
        draw(path, arguments.ratings)
        command = [sys.executable, __file__, "--fit", str(path), "--sweeps", str(arguments.sweeps)]
        raise SystemExit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
