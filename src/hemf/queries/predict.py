"""What a model says of a rating beyond its mean: a distribution, odds of levels, tables of scores.

All of it rests on the mean and the standard deviation of `hemf.HeMF.predict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hemf._typing import Float64Array
from hemf.data.ratings import timed_pairs_from_any
from hemf.data.vocabulary import pair_up
from hemf.errors import DataError, HistoryWarning, warn_caller
from hemf.evaluation import distribution
from hemf.queries.fitted import Fitted

if TYPE_CHECKING:
    from hemf.estimator import HeMF


TAIL_SAMPLE = 20_000  # ratings whose tails are looked at
LEAST_FREEDOM = 5.0  # the fourth moment takes more than 4, and centres become too narrow
MOST_FREEDOM = 200.0  # nobody can tell more from a normal distribution


class Predicting(Fitted):
    """A fitted model that is asked for more than means."""

    if TYPE_CHECKING:

        def predict(
            self,
            users: Any,
            items: Any = None,
            *,
            timestamps: Any = None,
            return_std: bool = False,
            include_noise: bool = True,
            return_known: bool = False,
            unknown: str = "prior",
        ) -> Any:
            """See `hemf.HeMF.predict`."""

    def predict_distribution(
        self, users: Any, items: Any = None, *, timestamps: Any = None
    ) -> distribution.Predictive:
        """Return the distribution of the rating of each pair, given as `predict` takes them.

        It has the mean and the standard deviation of `predict`. How noisy a row's ratings are is
        not known for sure, so that tails are heavier than a normal distribution's, the more so
        the fewer ratings a row has; and as heavy as those of the ratings learnt
        (``tail_freedom_``). Always for many pairs, be it one; see `hemf.evaluation.Predictive`.

        >>> from hemf import HeMF
        >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]
        >>> said = HeMF(n_factors=1, rng=0).fit(ratings).predict_distribution("bob", "milk")
        >>> low, high = said.interval(0.9)
        >>> bool(low < said.mean < high)
        True
        """
        with self._turn:
            self._fitted()
            user_ids, item_ids, _, times = self._pairs(users, items, timestamps)
            mean, std = self.predict(user_ids, item_ids, timestamps=times, return_std=True)
            freedom = self._freedom(user_ids, item_ids, std)
            return distribution.Predictive(mean, std, freedom)

    def _pairs(self, users: Any, items: Any, timestamps: Any) -> tuple[Any, Any, bool, Any]:
        """Return ids of users and items, as many of either, and whether it was a single pair.

        Also when: as is said, or as the pairs themselves have it where moods ask for it.
        """
        if items is None:
            known_users, known_items = self._vocabularies()
            users, items, times = timed_pairs_from_any(
                users, timed=self._has_moods, users=known_users, items=known_items
            )
            timestamps = times if timestamps is None else timestamps
        return *pair_up(self._ids("user", users), self._ids("item", items)), timestamps

    def _freedom(self, user_ids: Any, item_ids: Any, std: Float64Array) -> Float64Array:
        """Degrees of freedom of each pair's distribution."""
        from hemf.model.predictive import matched_freedom

        rows = {"user": self._rows("user", user_ids), "item": self._rows("item", item_ids)}
        rows = {side: self._learnt(side, own) for side, own in rows.items()}
        noise = self._noise(rows["user"], rows["item"]) * self.rating_scale_**2
        freedom = self.tail_freedom_
        spread = np.full(std.size, 1.0 if np.isinf(freedom) else (freedom - 2) / (freedom - 4))
        for side, own in rows.items():
            scales = self.state_.sides[side].noise_scales
            if scales is not None:
                spread *= scales.inverse_spread[own]
        return matched_freedom(noise / std**2, spread)

    def predict_proba(
        self, users: Any, items: Any = None, *, timestamps: Any = None, levels: Any = None
    ) -> Float64Array:
        """Return the probability of each level of the scale, a row for each pair.

        Pairs are given as `predict` takes them; a single one is a table of one row. Columns are
        the levels in ``levels_``, those seen in training, or ``levels``, rising. A level has what
        the distribution (`predict_distribution`) holds between the midpoints to its neighbours,
        the first and the last all beyond.

        >>> from hemf import HeMF
        >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]
        >>> model = HeMF(n_factors=1, rng=0).fit(ratings)
        >>> odds = model.predict_proba(["bob", "eve"], ["milk", "tea"])
        >>> odds.shape, model.levels_
        ((2, 3), array([1., 4., 5.]))
        >>> at_least_4 = odds[:, model.levels_ >= 4].sum(axis=1)
        """
        with self._turn:
            self._fitted()
            columns = self._scale() if levels is None else distribution.level_values(levels)
            said = self.predict_distribution(users, items, timestamps=timestamps)
            return said.probabilities(columns)

    def scores(
        self,
        users: Any,
        items: Any,
        *,
        strategy: str = "mean",
        exploration: float = 1.0,
        rng: int | np.random.Generator | None = None,
    ) -> Float64Array:
        """Return the score of each of ``items`` for each of ``users``, as `recommend` ranks by.

        A table with a row for each user and a column for each item: give as many users at a time
        as there is memory for.

        >>> from hemf import HeMF
        >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]
        >>> HeMF(n_factors=1, rng=0).fit(ratings).scores(["ann", "eve"], ["tea"]).shape
        (2, 1)
        """
        from hemf.queries.recommend import scores

        with self._turn:
            return scores(cast("HeMF", self), users, items, strategy, exploration, rng)

    def score(self, ratings: Any, y: Any = None, *, columns: Any = None) -> float:
        """Return R² of the predictions for ratings, given as `fit` takes them, with or without y.

        1 is perfect; 0 is no better than the mean of these ratings.
        """
        from hemf.batch.inputs import explained_share, rated_pairs

        self._fitted()
        users, items, actual, times = rated_pairs(ratings, y, columns, like=self.ratings_)
        return explained_share(actual, self.predict(users, items, timestamps=times))

    @property
    def levels_(self) -> Float64Array:
        """The distinct ratings seen in training, ascending, as far as ratings are kept."""
        with self._turn:
            self._fitted()
            if "levels" not in self._derived:
                seen = [self.ratings_.by_user.values]
                if self.held_out_ is not None:
                    seen.append(self.held_out_.by_user.values)
                self._derived["levels"] = distribution.distinct_levels(np.concatenate(seen))
            known: Float64Array = self._derived["levels"]
            return known.copy()

    @property
    def tail_freedom_(self) -> float:
        """Degrees of freedom of ratings of rows whose noise is known; infinite where it is normal.

        Found on some of the ratings learnt, which it takes as many of as are kept. Their residuals
        are narrower than others', but of the same shape: that of a Student-t of any scale which
        they are likeliest from, with 5 degrees at least.
        """
        with self._turn:
            self._fitted()
            if "freedom" not in self._derived:
                self._derived["freedom"] = self._tails()
            return float(self._derived["freedom"])

    def _tails(self) -> float:
        kept = self.ratings_
        users, items, actual = kept.triples()
        step = max(1, -(-actual.size // TAIL_SAMPLE))
        users, items, actual = users[::step], items[::step], actual[::step]
        if not actual.size:
            return float("inf")
        times = None if kept.timestamps is None else kept.timestamps[::step]
        pairs = kept.users.ids[users], kept.items.ids[items]
        mean, std = self.predict(*pairs, timestamps=times, return_std=True)
        return distribution.tail_freedom(
            (actual - mean) / std, least=LEAST_FREEDOM, most=MOST_FREEDOM
        )

    def _scale(self) -> Float64Array:
        """Return the levels of the scale of the ratings, or say that there is none."""
        found = self.levels_
        if not found.size:
            raise DataError(
                "the model has kept no ratings to see the levels of the scale in; give levels, "
                "such as levels=[1, 2, 3, 4, 5]"
            )
        if not distribution.is_scale(found):
            raise DataError(
                f"the ratings learnt have {found.size:,} different values: they are measured "
                "rather than on a scale; give the levels that you want the probabilities of, such "
                "as levels=[1, 2, 3, 4, 5]",
                value=int(found.size),
            )
        if self._learner is not None and self.ratings_.n_ratings < self.n_ratings_:
            warn_caller(
                f"not all ratings are kept (history is not full): the levels are the {found.size} "
                "of those that are; give levels to be sure",
                HistoryWarning,
            )
        return found
