"""A state whose bound is computed the long way beside its own, block update by block update."""

from __future__ import annotations

import numpy as np

from hemf.batch.fit import BatchState
from hemf.kernels.reference import rows
from hemf.model.side import learn_features, regress
from proofs import slow_bound
from proofs.problems import Setting, update_rows


class Watched:
    """A state, and what its rows believe community by community."""

    def __init__(self, state: BatchState, setting: Setting) -> None:
        self.state, self.setting = state, setting
        self.beliefs: dict[str, slow_bound.Belief] = {}
        self.errors: dict[str, np.ndarray] = {}
        """Σ_j υ_j E(r_ij - a·b)² of every row, at its side's last row update."""
        self.information: dict[str, np.ndarray] = {}
        """What ratings tell of every row of a side with features, by then."""
        self.credited: set[str] = set()
        """Sides that were merged since their last row update."""
        self.among: dict[str, np.ndarray] = {}
        """C of the sides with features, (F, F): the covariance of V among features."""
        for name in ("user", "item"):
            if state.sides[name].regression is not None:
                self.among[name] = slow_bound.covariance_among(state.sides[name])
            self.update_rows(name, hold=True)
        self.update_rows("user", hold=True)  # the first pass saw items that have moved since
        self.value = self.total()

    def total(self) -> float:
        return slow_bound.total(self.state, self.beliefs, self.among)

    def update_rows(self, name: str, *, hold: bool = False) -> float:
        """Update rows; return what leaving out negligible communities may cost at most.

        The best q_i(d) is a softmax, whose value is the log of its normaliser; without the k
        communities whose share is below 1e-6 that is ln(1 - k·1e-6) less at worst.
        """
        used, self.errors[name], self.information[name] = update_rows(
            self.state, name, self.setting, hold=hold
        )
        self.beliefs[name] = slow_bound.belief(self.state, name, self.setting, used)
        self.credited.discard(name)
        left_out = (self.state.sides[name].membership == 0.0).sum(axis=1)
        return float(-np.log1p(-left_out * rows.NEGLIGIBLE).sum())

    def regress(self, name: str) -> None:
        """Regress the factors of a side on its features."""
        regress(self.state.sides[name])

    def learn_features(self, name: str) -> float:
        """Learn C and λ_b of a side, whose rows are fresh, and update these; see `update_rows`."""
        side = self.state.sides[name]
        assert side.regression is not None
        learn_features(side, self.information[name], move=True)
        self.among[name] = slow_bound.covariance_among(side)
        return self.update_rows(name)

    def reorder(self, name: str, order: np.ndarray) -> None:
        """Follow a change of the order of communities."""
        self.beliefs[name] = self.beliefs[name].ordered(order)

    def merge(self, name: str, left: int, right: int) -> None:
        """Follow a merge: rows have one Gaussian where they had two."""
        self.beliefs[name] = self.beliefs[name].merged(left, right)
        self.credited.add(name)

    def assert_bound_is_right(self, block: str) -> float:
        """`BatchState.bound_terms` says what the long way says, term by term; return that."""
        quick = self.state.bound_terms()
        slow = slow_bound.terms(self.state, self.beliefs, self.among)
        assert quick.keys() == slow.keys()
        total = sum(slow.values())
        for term, value in slow.items():
            name = term.split()[0]
            if term == f"{name} entropy" and name in self.credited:
                # A merged row is credited with the entropy of its parts, which is not more.
                assert quick[term] <= value + 1e-9 * abs(total), (block, term)
            else:
                assert abs(quick[term] - value) <= 1e-9 * abs(total), (block, term)
        return total

    def assert_no_lower(self, block: str, cost: float = 0.0) -> None:
        """The bound has not fallen since the last time, but for ``cost``."""
        value = self.assert_bound_is_right(block)
        assert value >= self.value - 1e-9 * abs(self.value) - cost, (block, value - self.value)
        self.value = value
