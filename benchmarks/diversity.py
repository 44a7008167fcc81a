"""What lists gain and lose by diversity, and how long similar items take, on MovieLens 1M.

    python benchmarks/diversity.py
    python benchmarks/diversity.py --n-links 0 --diversity 0 0.3 1

Lists of ten, of the classic split; a test rating of 4 or more is relevant. Distances within a list
are means over its pairs, of 1 - the similarity of `similar_items` and of 1 - the share of genres
that two films have in common. CPU seconds are those of the lists of all users.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import pyarrow.parquet as pq

from _data import FOLDER
from hemf import ConvergenceWarning, HeMF, Ratings
from hemf.evaluation.ranking import Catalogue

N, LEVEL = 10, 4.0
PAIRS = np.triu_indices(N, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--diversity", type=float, nargs="+", default=[0, 0.1, 0.2, 0.3, 0.5, 0.7])
    parser.add_argument("--n-links", type=int, default=HeMF().n_links)
    arguments = parser.parse_args()
    train, test = (
        Ratings.from_any(pq.read_table(FOLDER / f"ml-1m-classic-{part}.parquet"))
        for part in ("train", "test")
    )
    warnings.simplefilter("ignore", ConvergenceWarning)
    model = HeMF(choices=True, n_links=arguments.n_links, max_sweeps=8, n_jobs=1, rng=0).fit(train)
    distances = {"distance": 1.0 - similarities(model), "genres": 1.0 - common_genres(train)}
    wanted, _ = Catalogue.of(train).relevant(test, LEVEL)
    judged = np.flatnonzero(np.diff(wanted.indptr))
    for diversity in arguments.diversity:
        start = time.process_time()
        found, _ = model.recommend(train.users.ids[judged], N, diversity=diversity)
        seconds = time.process_time() - start
        rows = train.items.rows(found.ravel()).reshape(found.shape)
        figures = judge(train, rows, wanted[judged].toarray())
        for name, table in distances.items():
            figures[name] = float(np.mean([table[np.ix_(row, row)][PAIRS].mean() for row in rows]))
        print(f"diversity {diversity:g}:", *(f"{k} {v:.3f}" for k, v in figures.items()), end=" ")
        print(f"CPU seconds {seconds:.2f}", flush=True)
    item = train.items.ids[0]
    for std in (False, True):
        print(f"similar_items, return_std={std}: {milliseconds(model, item, std):.2f} ms")


def judge(train: Ratings, rows: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Return NDCG, coverage and novelty of lists of items."""
    catalogue = Catalogue.of(train)
    columns = catalogue.column[rows]
    discount = 1.0 / np.log2(np.arange(N) + 2.0)
    best = np.append(0.0, np.cumsum(discount))[np.minimum(wanted.sum(axis=1), N)]
    ndcg = np.take_along_axis(wanted, columns, axis=1) @ discount / best
    return {"NDCG": float(ndcg.mean()), **catalogue.variety(columns)}


def similarities(model: HeMF) -> np.ndarray:
    """Return the similarity of all items, by rows."""
    ids = model.ratings_.items.ids
    found = np.eye(ids.size)
    for row, id in enumerate(ids.tolist()):
        others, similarity = model.similar_items(id, ids.size)
        found[row, model.ratings_.items.rows(others)] = similarity
    return found


def common_genres(train: Ratings) -> np.ndarray:
    """Return the share of the genres of two films that both have."""
    films = pq.read_table(FOLDER / "ml-1m-movies.parquet").to_pydict()
    genres = {i: set(g.split("|")) for i, g in zip(films["item"], films["genres"], strict=True)}
    names = sorted(set.union(*genres.values()))
    has = np.array([[name in genres[id] for name in names] for id in train.items.ids], float)
    both, number = has @ has.T, has.sum(axis=1)
    return np.asarray(both / np.maximum(number[:, None] + number - both, 1.0))


def milliseconds(model: HeMF, item: object, std: bool) -> float:
    """Return the median time of a question."""
    seconds = []
    for _ in range(30):
        start = time.perf_counter()
        model.similar_items(item, return_std=std)
        seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.median(seconds))


if __name__ == "__main__":
    main()
