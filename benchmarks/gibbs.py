"""The Gibbs samplers of the paper's comparison, held to their bars, on MovieLens 1M.

BPMF's noise variance was chosen on a held-out tenth of the classic training part (0.5: 0.8387,
2/3: 0.8336, 0.8: 0.8375, drawn: 0.8356, with 20 factors); nothing is chosen on test parts.

    python benchmarks/gibbs.py                  # all; some 10 minutes on an idle core
    python benchmarks/gibbs.py speed            # an iteration against a sweep, a minute
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from _data import FOLDER
from hemf import HeMF, Ratings
from hemf._checks import one_blas_thread
from hemf.evaluation import rmse, weak_generalisation
from hemf.samplers import BPMF, M3FTIB, M3FTIF
from sweep import prepared

FACTORS = 40
WEAK = {M3FTIB: 0.8478 + 0.005, M3FTIF: 0.8489 + 0.005}  # printed, and how much worse is near
CLASSIC_BAR = 0.8345
SPEED_BAR = 4.0
Columns = tuple[np.ndarray, ...]
Line = dict[str, Any]


def read(part: str) -> Columns:
    table = pq.read_table(FOLDER / f"ml-1m-classic-{part}.parquet")
    return tuple(table[column].to_numpy() for column in ("user", "item", "rating"))


def weak_split(seed: int) -> tuple[Columns, Columns]:
    """Return train and test of the whole set, one rating of every user withheld."""
    whole = tuple(np.concatenate(columns) for columns in zip(read("train"), read("test")))
    kept, held = weak_generalisation(whole[0], whole[1], rng=seed)
    return tuple(column[kept] for column in whole), tuple(column[held] for column in whole)


def judged(name: str, value: float, bar: float, **more: Any) -> Line:
    met = bool(value <= bar)
    return {"name": name, "value": round(value, 4), "bar": f"<= {bar:g}", "met": met, **more}


def error(model: Any, train: Columns, test: Columns) -> tuple[float, Line]:
    """Return the RMSE of the average over all samples, and what else there is to say."""
    model.fit(train, validation=test)
    last = model.history_[-1]
    kept = rmse(test[2], model.predict(test[0], test[1]))
    more = {"of samples kept": round(kept, 4), "seconds": round(last.seconds, 1)}
    return float(last.validation_rmse), {**more, "model": repr(model)}


def classic(samples: int) -> Iterator[Line]:
    model = BPMF(n_factors=20, noise_variance=2 / 3, samples=samples, rng=0)
    value, more = error(model, read("train"), read("test"))
    yield judged("BPMF, classic split", value, CLASSIC_BAR, **more)


def weak(samples: int) -> Iterator[Line]:
    train, test = weak_split(0)
    for kind, bar in WEAK.items():
        model = kind(n_factors=FACTORS, samples=samples, rng=0)
        value, more = error(model, train, test)
        yield judged(f"{kind.__name__}, weak split 0", value, bar, **more)


def speed(samples: int) -> Iterator[Line]:
    """Yield the time of an iteration over that of a bVB sweep, medians, one thread each."""
    train = read("train")
    model = HeMF(n_factors=FACTORS, max_user_communities=1, max_item_communities=1)
    with one_blas_thread():
        _, one_more = prepared(Ratings.from_any(train), model, warm=4)
        for kind in (BPMF, M3FTIB, M3FTIF):
            sweeps: list[float] = []

            def between(report: Any, sweeps: list[float] = sweeps) -> None:
                """Sweep between iterations: the machine's mood hits both."""
                begin = time.perf_counter()
                one_more(1)
                sweeps.append(time.perf_counter() - begin)

            sampler = kind(n_factors=FACTORS, samples=15, burn_in=1, n_jobs=1, rng=0)
            sampler.fit(train, callbacks=[between])
            iteration = np.median(np.diff([report.seconds for report in sampler.history_]))
            sweep = np.median(sweeps[1:])
            yield judged(
                f"{kind.__name__}, iteration / sweep", float(iteration / sweep), SPEED_BAR,
                iteration_seconds=round(float(iteration), 3), sweep_seconds=round(float(sweep), 3),
            )  # fmt: skip


PARTS = {"speed": speed, "classic": classic, "weak": weak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="|".join(PARTS))
    parser.add_argument("--samples", type=int, default=300)
    arguments = parser.parse_args()
    if not Path(FOLDER / "ml-1m-classic-train.parquet").exists():
        raise SystemExit(f"MovieLens 1M is not at {FOLDER}; set HEMF_DATA to where it is")
    warnings.simplefilter("ignore")
    missed = 0
    for part in arguments.parts:
        for line in PARTS[part](arguments.samples):
            print(json.dumps(line), flush=True)
            missed += not line["met"]
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
