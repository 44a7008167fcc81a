"""Random sequences of operations on models of all kinds, with invariants checked after each.

    python benchmarks/sequences.py 300 --seed 0
    python benchmarks/sequences.py --only 17 --seed 0 --verbose     # one sequence again

Models are fitted, learn online, forget ratings, answer, are saved, loaded, copied and disturbed by
wrong arguments and by exceptions in the middle of a call. After each operation:

- predictions are finite and inside ``rating_range_``, and standard deviations are above 0;
- counts, and with a full history the ratings, are those of a ledger that the script keeps;
- a saved model loads, predicts the same bits, and gives the same file again;
- an error is one of hemf's own, or the one injected, and leaves the model as it was to the bit;
- what only asks changes nothing; no file and no descriptor is left behind.

Each sequence depends on the seed and its number alone. The exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hemf import HeMF
from hemf.errors import HemfError
from hemf.kernels.compile import Kernel
from hemf.online import learner, updates
from proofs import tearing
from proofs.sameness import difference
from proofs.tearing import Struck

USERS, ITEMS = 14, 10
LENGTH = 16  # operations of a sequence
Pair = tuple[Any, Any]
Do = Callable[[HeMF], Any]


class WrongError(Exception):
    """An invariant that does not hold."""


def require(condition: Any, text: str) -> None:
    if not condition:
        raise WrongError(text)


def different(one: HeMF, other: HeMF) -> str | None:
    """Return where two models differ, the times that their fits took aside."""
    if hasattr(one, "state_") and hasattr(other, "state_"):
        for side in ("user", "item"):
            one._model.moments(
                side
            )  # prunes rows that wait for their features, which changes nothing
            other._model.moments(side)
        if len(one.history_) == len(other.history_):
            pairs = zip(one.history_, other.history_)
            if all(replace(a, seconds=0.0) == replace(b, seconds=0.0) for a, b in pairs):
                other.history_[:] = one.history_
    return difference(one, other)


# -- what a model should know --------------------------------------------------------------------


class Ledger:
    """Ratings that a model has been given: kept apart from it, and by simpler rules."""

    def __init__(self, history: Any, *, counts: bool) -> None:
        self.history = history
        self.counts = counts
        """Whether every rating of a pair counts, even where earlier ones are on record."""
        self.given: dict[Pair, list[float]] = {}
        self.users: set[Any] = set()
        self.items: set[Any] = set()
        self.least = self.most = 0
        """Ratings that are counted; where the history is bounded, it says what is a change."""

    def restart(self, rows: list[tuple]) -> None:
        """Begin again with the ratings of a fit."""
        self.__init__(self.history, counts=self.counts)
        for row in rows:
            self.given[row[:2]] = [row[2]]
            self._see(row[:2])
        self.least = self.most = len(self.given)

    @property
    def ratings(self) -> dict[Pair, float]:
        """The latest rating of each pair."""
        return {pair: values[-1] for pair, values in self.given.items()}

    def give(self, pair: Pair, rating: float, *, has_previous: bool) -> None:
        """Add a rating, or change it."""
        before = self.given.setdefault(pair, [])
        is_new = not before
        if not is_new and (has_previous or not self.counts):
            before.pop()
        before.append(rating)
        self._see(pair)
        if is_new or ((self.history == "none" or self.counts) and not has_previous):
            self.least += 1
            self.most += 1
        elif self.history not in ("full", "none") and not has_previous:
            self.most += 1

    def remove(self, pair: Pair) -> None:
        """Take a rating back."""
        values = self.given[pair]
        n = len(values) if self.history == "full" else 1
        del values[len(values) - n :]
        if not values:
            del self.given[pair]
        self.least -= n
        self.most -= n

    def _see(self, pair: Pair) -> None:
        self.users.add(pair[0])
        self.items.add(pair[1])


# -- sequences -----------------------------------------------------------------------------------


class Sequence:
    """A model with random options, and random things that are done to it."""

    def __init__(self, seed: int, number: int, folder: Path) -> None:
        self.rng = np.random.default_rng([seed, number])
        self.folder = folder
        self.log: list[str] = []
        self.clock = 1_000
        self.options = self._options()
        self.model = HeMF(**self.options)
        counts = self.options["duplicates"] == "mean"
        self.ledger = Ledger(self.options["history"], counts=counts)
        self.fitted = False
        self.features = self.rng.random() < 0.2
        self.kind = str(self.rng.choice(["int", "str", "mixed", "tuple"]))
        self.scale = str(self.rng.choice(["stars", "real", "large", "few"]))
        if isinstance(self.options["rating_range"], tuple):
            self.scale = "stars"

    def _options(self) -> dict[str, Any]:
        pick = self._pick
        limits = pick([1, 3], [4, 4]) if self.rng.random() < 0.8 else [1, 1]
        return {
            "n_factors": int(pick(1, 2, 3)),
            "max_user_communities": int(limits[0]),
            "max_item_communities": int(limits[1]),
            "offsets": pick(True, True, True, False),
            "history": pick("full", "full", "none", 8),
            "buffer": int(pick(0, 0, 40, 1000)),
            "duplicates": pick("last", "last", "mean"),
            "dtype": pick("float32", "float64"),
            "noise_scales": pick("both", "both", None, "user", "item"),
            "membership": pick("coupled", "coupled", "mean-field"),
            "moods": pick(False, False, True),
            "implicit_features": pick(False, False, False, True, "user", "item"),
            "user_covariances": pick("own", "own", "tied"),
            "evb": pick("closed", "closed", "gradient", None),
            "rating_range": pick("observed", "observed", None, (1.0, 5.0)),
            "forgetting": pick(1.0, 1.0, 0.97),
            "refresh": pick(0.0, 0.0, 1.0),
            "max_sweeps": int(pick(1, 4, 12)),
            "n_jobs": 1,
            "rng": int(self.rng.integers(1000)),
        }

    def _pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    # -- drawing ---------------------------------------------------------------------------------

    def _id(self, side: str, *, new: float = 0.1) -> Any:
        n = USERS if side == "user" else ITEMS
        at = int(self.rng.integers(n, n + 12) if self.rng.random() < new else self.rng.integers(n))
        return self._named(side, at)

    def _named(self, side: str, at: int) -> Any:
        if self.kind == "int":
            return at + (0 if side == "user" else 1000)
        if self.kind == "tuple":
            return side, at
        if self.kind == "mixed" and at % 3:
            return f"{side}{at}".encode() if at % 3 == 1 else at
        return f"{side}-{at}"

    def _rating(self) -> float:
        draw = self.rng
        if self.scale == "few":
            return float(draw.random() < 0.9) + 1.0
        if self.scale == "large":
            return float(np.round(1e6 + 1e4 * draw.normal(), 1))
        if self.scale == "real":
            return float(draw.normal())
        return float(draw.integers(1, 6))

    def _rows(self, n: int, *, new: float = 0.1) -> list[tuple]:
        """Draw ratings of different pairs."""
        rows: dict[Pair, tuple] = {}
        for _ in range(n):
            pair = self._id("user", new=new), self._id("item", new=new)
            self.clock += int(self.rng.integers(4))
            when = self.clock - int(self.rng.integers(40)) * int(self.rng.random() < 0.2)
            extra = (when,) if self.options["moods"] else ()
            rows[pair] = (*pair, self._rating(), *extra)
        return list(rows.values())

    def _known(self, n: int) -> list[Pair]:
        pairs = list(self.ledger.ratings)
        n = min(n, len(pairs))
        return [pairs[k] for k in self.rng.choice(len(pairs), n, replace=False)] if n else []

    # -- operations: each returns what is done to a model, and what becomes of the ledger ----------

    def _do_fit(self) -> tuple[Do, Callable[[], None]]:
        rows = self._rows(int(self.rng.integers(3, 90)), new=0.0)
        given = self._given() if self.features else {}

        def learnt() -> None:
            self.ledger.restart(rows)

        return lambda model: model.fit(rows, **given), learnt

    def _given(self) -> dict[str, Any]:
        draw = np.random.default_rng(5)
        users = {self._named("user", k): draw.normal(size=2) for k in range(USERS + 3)}
        return {"user_features": users}

    def _do_partial_fit(self) -> tuple[Do, Callable[[], None]]:
        size = int(self._pick(1, 1, 3, 20))
        rows = self._rows(size, new=float(self._pick(0.0, 0.1, 0.6)))
        if self.rng.random() < 0.2:
            return self._learn_repeated(rows)
        return self._learn(rows, with_previous=bool(self.rng.random() < 0.5))

    def _learn_repeated(self, rows: list[tuple]) -> tuple[Do, Callable[[], None]]:
        """Give the first rating of a batch once more at its end."""
        again = (*rows[0][:2], self._rating(), *rows[0][3:])
        first = rows[:1] if self.ledger.counts else []

        def learnt() -> None:
            for row in (*first, *rows[1:], again):
                self.ledger.give(row[:2], row[2], has_previous=False)

        return lambda model: model.partial_fit([*rows, again]), learnt

    def _do_changed(self) -> tuple[Do, Callable[[], None]]:
        extra = (self.clock,) if self.options["moods"] else ()
        rows = [(*pair, self._rating(), *extra) for pair in self._known(int(self._pick(1, 4)))]
        return self._learn(rows, with_previous=bool(self.rng.random() < 0.7))

    def _learn(self, rows: list[tuple], *, with_previous: bool) -> tuple[Do, Callable[[], None]]:
        old = [self.ledger.ratings.get(row[:2], np.nan) for row in rows]
        previous = old if with_previous else None

        def learnt() -> None:
            for row in rows:
                self.ledger.give(row[:2], row[2], has_previous=with_previous)

        return lambda model: model.partial_fit(rows, previous=previous), learnt

    def _do_removed(self) -> tuple[Do, Callable[[], None]]:
        extra = (0,) if self.options["moods"] else ()
        pairs = self._known(int(self._pick(1, 1, 5)))
        gone = [(*pair, self.ledger.ratings[pair], *extra) for pair in pairs]
        rows = [row for row in self._rows(int(self._pick(0, 3))) if row[:2] not in pairs]
        old = [self.ledger.ratings.get(row[:2], np.nan) for row in rows]

        def learnt() -> None:
            for pair in pairs:
                self.ledger.remove(pair)
            for row in rows:
                self.ledger.give(row[:2], row[2], has_previous=True)

        return (
            lambda model: model.partial_fit(
                rows or None, removed=gone or None, previous=old if rows else None
            ),
            learnt,
        )

    def _do_stream(self) -> tuple[Do, Callable[[], None]]:
        size = int(self._pick(1, 10))  # less than a block, so that it is all or nothing
        if self.log[-1] == "stream":
            size = int(self._pick(1, 10, 60))
        rows = self._rows(size)
        if self.rng.random() < 0.3:
            rows += [(*row[:2], self._rating(), *row[3:]) for row in rows[:3]]

        def learnt() -> None:
            for row in rows:
                self.ledger.give(row[:2], row[2], has_previous=False)

        def run(model: HeMF) -> None:
            expected = model.predict_then_learn(rows)
            require(np.isfinite(expected).all(), "a forecast is not finite")
            require(expected.size == len(rows), "forecasts are missing")

        return run, learnt

    def _do_more_features(self) -> tuple[Do, Callable[[], None]]:
        draw = self.rng
        given = {self._id("user", new=0.5): draw.normal(size=2) for _ in range(3)}
        return lambda model: model.partial_fit(user_features=given), lambda: None

    # -- questions ---------------------------------------------------------------------------------

    def _do_recommend(self) -> tuple[Do, None]:
        user, n = self._id("user"), int(self.rng.integers(1, 30))
        strategy = str(self._pick("mean", "ucb", "thompson"))
        rated = {item for one, item in self.ledger.ratings if one == user}
        known = set(self.ledger.items)  # also those whose ratings were all removed

        def run(model: HeMF) -> None:
            items, scores = model.recommend(user, n, strategy=strategy, rng=0)
            items = items.tolist()
            require(len(set(items)) == len(items) == len(scores), "an item twice")
            require(np.isfinite(scores).all(), "a score is not finite")
            require((np.diff(scores) <= 0).all(), "scores do not fall")
            if self.ledger.history == "full":
                require(not rated & set(items), "a rated item is recommended")
                expected = min(n, len(known - rated))
                require(len(items) == expected or self.features, f"{len(items)}, not {expected}")

        return run, None

    def _do_communities(self) -> tuple[Do, None]:
        side = str(self._pick("user", "item"))

        def run(model: HeMF) -> None:
            view = model.communities(side)
            rows = getattr(model, f"n_{side}s_")
            require(len(view.labels) == rows, f"{len(view.labels)} labels of {rows} rows")
            sums = view.probabilities.sum(axis=1)
            require(np.allclose(sums, 1.0, atol=1e-3), "probabilities do not sum to 1")
            json.dumps(view.to_dict(labels=True), allow_nan=False)

        return run, None

    def _do_explain(self) -> tuple[Do, None]:
        user, item = self._id("user"), self._id("item")

        def run(model: HeMF) -> None:
            why = model.explain(user, item)
            mean, std = model.predict([user], [item], return_std=True)
            require(np.isclose(why.mean, mean[0], rtol=1e-4, atol=1e-4), "explain is not predict")
            require(np.isclose(why.std, std[0], rtol=1e-3), "explain has another std")
            parts = why.global_mean + why.user_offset + why.item_offset + why.interaction
            if model.rating_range_ is not None:
                parts = np.clip(parts, *model.rating_range_)
            require(np.isclose(parts, mean[0], rtol=1e-4, atol=1e-3), "parts are not the mean")
            require(np.isclose(sum(why.uncertainty.values()), 1.0), "shares do not sum to 1")

        return run, None

    def _do_fold_in(self) -> tuple[Do, None]:
        given = {self._id("item"): self._rating() for _ in range(int(self._pick(1, 5)))}

        def run(model: HeMF) -> None:
            visitor = model.fold_in(list(given.items()))
            mean, std = visitor.predict([self._named("item", k) for k in range(4)], return_std=True)
            require(np.isfinite(mean).all(), "a visitor's prediction is not finite")
            require((std > 0).all() and np.isfinite(std).all(), "a visitor's std")
            visitor.recommend(3)

        return run, None

    def _do_figures(self) -> tuple[Do, None]:
        def run(model: HeMF) -> None:
            require(np.isfinite(model.elbo_), "the bound is not finite")
            require(model.noise_variance_ > 0, "no noise")
            model.biclusters()
            model.predict_distribution([self._named("user", 1)], [self._named("item", 1)])

        return run, None

    def _do_mistake(self) -> tuple[Do, None]:
        """Wrong arguments; all of them must be refused."""
        rows = self._rows(3)
        user, item = rows[0][:2]
        extra = rows[0][3:]
        wrong: dict[str, Do] = {
            "nan": lambda m: m.partial_fit([*rows, (user, item, np.nan, *extra)]),
            "infinite": lambda m: m.partial_fit([*rows, (user, item, np.inf, *extra)]),
            "text": lambda m: m.partial_fit([(user, item, "bad", *extra)]),
            "no user": lambda m: m.partial_fit([(None, item, 3.0, *extra)]),
            "lengths": lambda m: m.partial_fit(([user], [item, item], [1.0])),
            "previous": lambda m: m.partial_fit(rows, previous=[1.0]),
            "previous of strangers": lambda m: m.partial_fit(
                [("x", "y", 3.0, *extra)], previous=[3.0]
            ),
            "remove strangers": lambda m: m.partial_fit(removed=[("x", "y", 3.0, *extra)]),
            "unknown": lambda m: m.predict("nobody", "nothing", unknown="error"),
            "side": lambda m: m.communities("both"),
            "n": lambda m: m.recommend(user, 0),
            "empty fit": lambda m: m.fit([]),
            "nan fit": lambda m: m.fit([*rows, (user, item, np.nan, *extra)]),
            "stream nan": lambda m: m.predict_then_learn([*rows, (user, item, np.nan, *extra)]),
            "save": lambda m: m.save(self.folder / "no such folder" / "m.hemf"),
            "features": lambda m: m.partial_fit(item_features={item: [1.0]}),
        }
        names = [*wrong]
        name = names[int(self.rng.integers(len(names)))]
        self.log[-1] += f" ({name})"

        def run(model: HeMF) -> None:
            try:
                wrong[name](model)
            except HemfError:
                raise
            raise WrongError(f"{name} is not refused")

        return run, None

    # -- running -----------------------------------------------------------------------------------

    LEARNING: ClassVar = ("fit", "partial_fit", "changed", "removed", "stream", "more_features")
    ASKING: ClassVar = ("recommend", "communities", "explain", "fold_in", "figures", "mistake")
    WEIGHTS: ClassVar = {
        "partial_fit": 5, "changed": 3, "removed": 3, "stream": 3, "mistake": 3, "struck": 5,
        "keep": 2,
    }  # fmt: skip

    def run(self, tally: Counter[str]) -> None:
        """Do everything, and check the model after each operation."""
        for place in range(LENGTH):
            name = self._next(place)
            self.log.append(name)
            self._step(name, tally)
            self.check()

    def _next(self, place: int) -> str:
        if place == 0:
            return str(self._pick("fit", "fit", "partial_fit", "stream", "mistake"))
        names = [*self.LEARNING, *self.ASKING, "keep", "pickle", "clone", "set_params", "struck"]
        if not self.features:
            names.remove("more_features")
        weights = np.array([self.WEIGHTS.get(name, 1) for name in names])
        return str(self.rng.choice(names, p=weights / weights.sum()))

    def _step(self, name: str, tally: Counter[str]) -> None:
        model = self.model
        if name in ("keep", "pickle", "clone", "set_params"):
            getattr(self, f"_do_{name}")()
            tally[name] += 1
            return
        kind = None
        if name == "struck":
            name = str(self._pick("fit", "partial_fit", "changed", "removed", "stream", "explain"))
            kind = str(self._pick(*STRIKES))
            self.log[-1] += f" {kind} {name}"
        do, learnt = getattr(self, f"_do_{name}")()
        before = copy.deepcopy(model)
        if kind is not None:
            self._strike(kind, do, learnt, before, tally)
            return
        try:
            do(model)
        except HemfError as error:
            tally[f"{name}: refused"] += 1
            self.log[-1] += f" -> {type(error).__name__}: {error}"
            require(len(str(error)) > 10, "an error says nothing")
            self._same(before)
            return
        tally[name] += 1
        if learnt is None:
            self._same(before)
        else:
            self.fitted = True
            learnt()

    def _same(self, before: HeMF) -> None:
        found = different(self.model, before)
        require(found is None, f"the model has changed: {found}")

    def _strike(self, kind: str, do: Do, learnt: Any, before: HeMF, tally: Counter[str]) -> None:
        """Let an exception come in the middle: the model must be the old one or the new one."""
        after, refused = copy.deepcopy(before), False
        try:
            do(after)
        except HemfError:
            refused = True
        if refused:
            tally["struck: refused"] += 1
            return
        model = self.model

        def run() -> None:
            try:
                do(model)
            except HemfError as error:
                raise WrongError(f"an injected exception became {error!r}") from error

        STRIKES[kind](run, lambda: do(copy.deepcopy(before)), self.rng)
        hasattr(model, "state_")
        from_old, from_new = different(model, before), different(model, after)
        require(not (from_old and from_new), f"torn: {from_old}; {from_new}")
        is_new = learnt is not None and from_old is not None
        if is_new:
            learnt()
            self.fitted = True
        tally[f"struck by {kind}: {'new' if is_new else 'old'}"] += 1

    # -- keeping -----------------------------------------------------------------------------------

    def _do_keep(self) -> None:
        """Save and load; go on with the one that was loaded, at times."""
        if not self.fitted:
            return
        first, second = self.folder / "first.hemf", self.folder / "second.hemf"
        before = copy.deepcopy(self.model)
        self.model.save(first)
        self._same(before)
        loaded = HeMF.load(first)
        loaded.save(second)
        require(first.read_bytes() == second.read_bytes(), "a loaded model gives another file")
        require(self._answers(loaded) == self._answers(self.model), "a loaded model answers others")
        rows = self._rows(3)
        twin = copy.deepcopy(self.model)
        results = []
        for one in (twin, loaded):
            try:
                results.append(self._answers(one.partial_fit(rows)))
            except HemfError as error:
                results.append(str(error))
        require(results[0] == results[1], "a loaded model learns otherwise")
        if self.rng.random() < 0.5:
            self.model = HeMF.load(first)
        first.unlink()
        second.unlink()

    def _do_pickle(self) -> None:
        other = pickle.loads(pickle.dumps(self.model))
        found = difference(other, self.model)
        require(found is None, f"a pickle differs: {found}")
        self.model = other

    def _do_clone(self) -> None:
        from sklearn.base import clone

        other = clone(self.model)
        require(other.get_params() == self.model.get_params(), "a clone has other parameters")
        require(not hasattr(other, "state_"), "a clone is fitted")

    def _do_set_params(self) -> None:
        name, value = self._pick(
            ("forgetting", 0.99), ("forgetting", 1.0), ("refresh", 0.5), ("refresh", 0.0),
            ("max_online_communities", 2), ("max_online_communities", None), ("tol", 1e-3),
            ("max_sweeps", 3), ("n_jobs", 2), ("n_jobs", 1),
        )  # fmt: skip
        self.log[-1] += f" {name}={value}"
        self.model.set_params(**{name: value})

    # -- invariants --------------------------------------------------------------------------------

    def _asked(self) -> tuple[list[Any], list[Any]]:
        users = [self._named("user", k) for k in (0, 1, 2, USERS, USERS + 5, 900)]
        items = [self._named("item", k) for k in (0, 1, 2, ITEMS, ITEMS + 5, 900)]
        pairs = [(user, item) for user in users for item in items]
        return [user for user, _ in pairs], [item for _, item in pairs]

    def _answers(self, model: HeMF) -> tuple[bytes, ...]:
        times = self.clock + 1 if self.options["moods"] else None
        mean, std = model.predict(*self._asked(), return_std=True, timestamps=times)
        return mean.tobytes(), std.tobytes()

    def check(self) -> None:
        """Raise WrongError if an invariant does not hold."""
        model, ledger = self.model, self.ledger
        left = {path.name for path in self.folder.iterdir()}
        require(not left, f"files are left: {left}")
        if not self.fitted:
            require(not hasattr(model, "state_"), "a model that failed to begin is fitted")
            return
        before = copy.deepcopy(model)
        for times in (None, self.clock) if self.options["moods"] else (None,):
            mean, std = model.predict(*self._asked(), return_std=True, timestamps=times)
            require(np.isfinite(mean).all(), "a prediction is not finite")
            require(np.isfinite(std).all() and (std > 0).all(), f"a std is {std.min()}")
            if model.rating_range_ is not None:
                low, high = model.rating_range_
                require((mean >= low).all() and (mean <= high).all(), "outside rating_range_")
        n = model.n_ratings_
        require(
            ledger.least <= n <= ledger.most, f"{n} ratings, not {ledger.least} to {ledger.most}"
        )
        for side, ids in (("user", ledger.users), ("item", ledger.items)):
            rows = getattr(model, f"n_{side}s_")
            require(rows == len(ids), f"{rows} {side}s, not {len(ids)}")
        if ledger.history == "full":
            for side, place in (("user", 0), ("item", 1)):
                given: Counter[Any] = Counter()
                for pair, values in ledger.given.items():
                    given[pair[place]] += len(values)
                ids = getattr(model.ratings_, f"{side}s").ids.tolist()
                counts = dict(zip(ids, model.state_.counts[side].tolist()))
                counts = {id: count for id, count in counts.items() if count}
                require(counts == given, f"other counts of {side}s")
            table = model.ratings_
            users, items, values = table.triples()
            kind = np.float32 if values.dtype == np.float32 else np.float64
            found = dict(
                zip(
                    zip(table.users.ids[users].tolist(), table.items.ids[items].tolist()),
                    values.tolist(),
                )
            )
            expected = {pair: float(np.mean(kind(each))) for pair, each in ledger.given.items()}
            require(found.keys() == expected.keys(), "other pairs than were given")
            close = all(
                abs(found[pair] - mean) <= 1e-6 * abs(mean) for pair, mean in expected.items()
            )
            require(found == expected or (ledger.counts and close), "other ratings than were given")
            if model.rating_range == "observed" and expected:
                ends = min(expected.values()), max(expected.values())
                low, high = model.rating_range_
                rounding = 1e-6 * max(map(abs, ends))  # of float32
                inside = low <= ends[0] + rounding and ends[1] - rounding <= high
                require(inside, f"the range {low, high} lacks a rating of {ends}")
        self._same(before)


# -- exceptions ----------------------------------------------------------------------------------


def _line(run: Any, again: Any, rng: np.random.Generator) -> None:
    tearing.strike_at_line(run, int(rng.integers(1, tearing.lines(again) + 1)))


def _between(run: Any, again: Any, rng: np.random.Generator) -> None:
    tearing.strike_between(run, int(rng.integers(1, tearing.lines(again) + 1)))


def _signal(number: int, raised: type[BaseException]) -> Callable[..., None]:
    """Return what lets a signal come while a random line is run; its handler raises."""

    def handler(*_: Any) -> None:
        raise raised

    def strike(run: Any, again: Any, rng: np.random.Generator) -> None:
        at, count = int(rng.integers(1, tearing.lines(again) + 1)), 0

        def on_line(_: Any) -> None:
            nonlocal count
            count += 1
            if count == at:
                signal.raise_signal(number)

        before = signal.signal(number, handler)
        try:
            with suppress(raised), tearing.traced(on_line):
                run()
        finally:
            signal.signal(number, before)

    return strike


def _memory(run: Any, again: Any, rng: np.random.Generator) -> None:
    tearing.without_memory(run, int(rng.integers(1, max(2, tearing.without_memory(again, -1)))))


def _kernel(run: Any, again: Any, rng: np.random.Generator) -> None:
    """Let a step of learning, or the loading of a kernel, fail."""
    owner, name = [
        (updates, "apply_batch"), (updates, "refresh"), (learner, "add_new_rows"),
        (updates, "apply_stream"), (Kernel, "trusting"),
    ][int(rng.integers(5))]  # fmt: skip
    function, count, at = getattr(owner, name), 0, int(rng.integers(1, 4))
    after = rng.random() < 0.5

    def fails(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == at and not after:
            raise Struck
        result = function(*arguments, **options)
        if count == at:
            raise Struck
        return result

    with mock.patch.object(owner, name, fails), suppress(Struck):
        run()


STRIKES: dict[str, Callable[..., None]] = {
    "line": _line, "between": _between, "memory": _memory, "kernel": _kernel,
    "alarm": _signal(signal.SIGALRM, Struck), "ctrl-c": _signal(signal.SIGINT, KeyboardInterrupt),
}  # fmt: skip
"""Each strikes at a place that the seed decides, not the clock."""


# -- all of them ---------------------------------------------------------------------------------


def run_one(seed: int, number: int, tally: Counter[str]) -> tuple[str | None, Sequence]:
    """Run a sequence; return what was wrong with it, if anything."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sequence = Sequence(seed, number, folder)
        n_open = _n_open()
        try:
            with ExitStack() as stack:
                if number % 2:  # otherwise tables this small see few jumps
                    tearing.make_rare_steps_frequent(
                        lambda owner, name, value: stack.enter_context(
                            mock.patch.object(owner, name, value)
                        )
                    )
                sequence.run(tally)
            require(_n_open() <= n_open + 1, f"{_n_open() - n_open} descriptors are left open")
        except WrongError as error:
            return str(error), sequence
        except Exception as error:
            return "".join(traceback.format_exception(error)), sequence
    return None, sequence


def _n_open() -> int:
    folder = "/proc/self/fd"
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=300, help="sequences in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of the one sequence to run")
    parser.add_argument("--verbose", action="store_true", help="print what is done")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tally: Counter[str] = Counter()
    numbers = range(options.count) if options.only is None else [options.only]
    n_wrong = 0
    begun = time.perf_counter()
    for number in numbers:
        wrong, sequence = run_one(options.seed, number, tally)
        if wrong is not None or options.verbose:
            print(f"--seed {options.seed} --only {number}: {wrong}")
            print(f"  {sequence.model!r}, {sequence.kind} ids, {sequence.scale} ratings")
            print("  " + "\n  ".join(sequence.log), flush=True)
        n_wrong += wrong is not None
    figures = {"sequences": len(numbers), "seed": options.seed, "wrong": n_wrong}
    figures |= {"seconds": round(time.perf_counter() - begun, 1), **dict(sorted(tally.items()))}
    print(json.dumps(figures, indent=1))
    sys.exit(bool(n_wrong))


if __name__ == "__main__":
    main()
