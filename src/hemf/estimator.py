"""HeMF: the estimator people use. Parameters, life cycle and ids; the mathematics is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hemf._checks import check_bool, check_choice, check_int
from hemf._typing import SIDES
from hemf.online.journal import check_idle
from hemf.queries.predict import Predicting

if TYPE_CHECKING:
    from hemf.batch.callbacks import Callback
    from hemf.queries.communities import Biclusters, CommunityView
    from hemf.queries.explain import Explanation
    from hemf.queries.visitor import Visitor


class HeMF(Predicting):
    """Heterogeneous matrix factorization by variational Bayes.

    Ratings are explained by offsets, factors of users and items, and communities that both sides
    fall into, whose number is found from the data::

        r_ij ~ N(c + o_i + p_j + a_i·b_j, σ²/(τ_i υ_j))
        (o_i, a_i) | community d ~ N(μ_d, Σ_d)          likewise (p_j, b_j)

    Parameters
    ----------
    n_factors
        Length of the factors a_i, b_j.
    max_user_communities, max_item_communities
        How many communities a side is seeded with; fragments are merged, so these are limits.
        With 1 on both sides the model is Bayesian probabilistic matrix factorization.
    offsets
        Whether users and items have offsets of their own beside the factors; ``False`` is the
        paper's plain form.
    user_covariances, item_covariances
        ``"own"``: every community of the side has its covariance. ``"tied"``: they share one.
    membership
        ``"coupled"``: a row's factors and community are inferred together. ``"mean-field"``: one
        after the other, as in the paper.
    noise_scales
        Whose ratings may be noisier than others': ``"both"`` sides', ``"user"``, ``"item"``, or
        nobody's (``None``, the paper's form). A noisy rater then counts less, and intervals are
        as wide as they should be.
    moods
        Whether raters' moods are learnt, in batch and online: an offset that ratings of one
        sitting share, and that lasts for some. Takes ratings with timestamps; see ``timestamps`` of
        `predict`.
    implicit_features
        Whether which items a user has rated at all, and which users an item was rated by, say
        something of their tastes and offsets, whatever the ratings were; ``"user"`` or ``"item"``:
        of that side alone, which may be better where ratings are few. A side with features, of
        this kind or given to `fit`, has ``"tied"`` covariances.
    evb
        How hyper-parameters are learnt: ``"closed"`` forms, the paper's ``"gradient"`` steps for
        α and ι0, or ``None`` to leave them at their start.
    concentration, spread
        Start values of α (how readily communities open) and λ0 (how far apart they lie).
    max_sweeps, tol, patience
        Stop after ``max_sweeps``, or when the bound changed by less than ``tol`` of itself (or,
        where that is more, of the number of ratings) in ``patience`` sweeps running.
    validation_fraction
        Share of the ratings to hold out; then stop when the error on them has not fallen for
        ``patience`` sweeps, and keep the sweep where it was smallest, not counting the first
        ones, where communities and noise scales have not begun.
    rating_range
        Predictions are clipped to it: ``"observed"`` in training, a pair of numbers, or ``None``.
    duplicates
        What to do with a pair rated twice: ``"last"`` wins with a warning, ``"mean"``, ``"error"``.
        With ``"mean"``, `partial_fit` counts every rating of a pair as a measurement of its own.
    history
        What `partial_fit` keeps of the ratings: ``"full"``: all of them, and a touched row is
        refreshed against today's factors of all that it has rated. A number: what is
        among so many newest of its user or of its item, older ones summed up.
        ``"none"``: sums alone, in memory that ratings do not add to.
    buffer
        Number of ratings that are all kept at first, whatever ``history`` is. Only when there are
        more, those that the history does not keep are summed up: by then the factors are good.
    forgetting
        What is left of a rating's weight, online, after each later one of the same row; a pair is
        for users and items. With less than 1, tastes may drift.
    refresh
        Rows of each side, those with the oldest information, that are refreshed for each rating
        that is learnt online.
    max_online_communities
        How many communities a side may grow to online; ``None``: as many as the ratings call for.
        A side with at most one by the limits above keeps to that.
    n_jobs
        Threads; ``None`` or -1 for all cores. The result is the same for any number.
    dtype
        ``"float32"`` storage, or ``"float64"``, in which ratings are kept as they are given.
        Equations are solved in float64 either way.
    rng
        Seed, or NumPy generator, of everything random.

    Examples
    --------
    >>> from hemf import HeMF
    >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
    >>> model = HeMF(n_factors=2, rng=0).fit(ratings)
    >>> mean, std = model.predict(["bob"], ["milk"], return_std=True)
    >>> bool(1 <= mean[0] <= 5 and std[0] > 0)
    True

    """

    def __init__(
        self,
        *,
        n_factors: int = 20,
        max_user_communities: int = 12,
        max_item_communities: int = 12,
        offsets: bool = True,
        user_covariances: str = "own",
        item_covariances: str = "own",
        membership: str = "coupled",
        noise_scales: str | None = "both",
        moods: bool = False,
        implicit_features: bool | str = False,
        evb: str | None = "closed",
        concentration: float = 1.0,
        spread: float = 1.0,
        max_sweeps: int = 300,
        tol: float = 5e-5,
        patience: int = 3,
        validation_fraction: float = 0.0,
        rating_range: str | tuple[float, float] | None = "observed",
        duplicates: str = "last",
        history: str | int | None = "full",
        buffer: int = 100_000,
        forgetting: float | tuple[float, float] = 1.0,
        refresh: float = 0.0,
        max_online_communities: int | None = None,
        n_jobs: int | None = None,
        dtype: str = "float32",
        rng: int | np.random.Generator | None = None,
    ) -> None:
        self.n_factors = n_factors
        self.max_user_communities = max_user_communities
        self.max_item_communities = max_item_communities
        self.offsets = offsets
        self.user_covariances = user_covariances
        self.item_covariances = item_covariances
        self.membership = membership
        self.noise_scales = noise_scales
        self.moods = moods
        self.implicit_features = implicit_features
        self.evb = evb
        self.concentration = concentration
        self.spread = spread
        self.max_sweeps = max_sweeps
        self.tol = tol
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.rating_range = rating_range
        self.duplicates = duplicates
        self.history = history
        self.buffer = buffer
        self.forgetting = forgetting
        self.refresh = refresh
        self.max_online_communities = max_online_communities
        self.n_jobs = n_jobs
        self.dtype = dtype
        self.rng = rng

    # -- learning ------------------------------------------------------------------------------

    def fit(
        self,
        ratings: Any,
        y: Any = None,
        *,
        columns: Any = None,
        user_features: Any = None,
        item_features: Any = None,
        validation: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Learn from ratings; anything `Ratings.from_any` reads.

        ``user_features`` and ``item_features`` are what is known of them beside: a DataFrame with a
        column of ids, a matrix whose row k is about id k, a pair of ids and matrix, a dict from id
        to row, or a list of such; dense or sparse. Numbers are standardised, text and categories
        have a column for each value, and "Action|Comedy" is two labels. Who is missing there, or
        has a value missing, counts as average. Those that have features but no rating are predicted
        from their features.

        With ``y``, ``ratings`` holds the pairs and ``y`` their ratings, as scikit-learn's searches
        pass them. ``callbacks`` are called with a `SweepReport` after every sweep; one that returns
        something true stops the fit. ``validation`` are ratings to report the error on, which
        nothing is learnt from, not even when to stop. A fit that fails leaves the estimator as it
        was.
        """
        from hemf.batch.fitting import fit

        fit(
            self,
            ratings,
            y,
            columns=columns,
            features={"user": user_features, "item": item_features},
            validation=validation,
            callbacks=callbacks,
        )
        return self

    def partial_fit(
        self,
        ratings: Any = None,
        y: Any = None,
        *,
        removed: Any = None,
        previous: Any = None,
        columns: Any = None,
        user_features: Any = None,
        item_features: Any = None,
    ) -> Self:
        """Learn from more ratings, on top of what is known or from nothing.

        New users and items are welcome. A pair that is in the history is a changed rating.
        ``removed`` are pairs whose ratings are taken back. Where the history is not full, the model
        cannot know what a pair was rated: then ``removed`` must hold the ratings too, and
        ``previous`` says, for each of ``ratings``, what it was before (NaN: it is new).
        ``columns`` are those of ``ratings`` and of ``removed``. A model with ``moods`` takes
        ratings with timestamps.

        ``user_features`` and ``item_features``, of the kind that `fit` was given, may come with
        ratings or without: of known ids in place of what they had, and of newcomers.

        All of the batch is learnt at once: the users it touches, then items, then what they share.
        Whatever exception strikes, the model stays as it was, to the bit. Threads take turns.

        >>> model = HeMF(n_factors=2, rng=0).fit([("ann", "tea", 5), ("bob", "tea", 3)])
        >>> model.partial_fit([("eve", "tea", 4), ("eve", "milk", 1)]).n_users_
        3
        """
        from hemf.online.learner import partial_fit

        with self._turn:
            partial_fit(
                self,
                ratings,
                y,
                removed=removed,
                previous=previous,
                columns=columns,
                features={"user": user_features, "item": item_features},
            )
        return self

    def predict_then_learn(
        self, ratings: Any, y: Any = None, *, columns: Any = None, return_seconds: bool = False
    ) -> Any:
        """Learn ratings one at a time, and return what was predicted of each just before.

        They are taken in the order given, `Ratings` by their timestamps. A model with ``moods``
        takes timestamps beside them, and predicts with the mood of that time as far as it is known
        by then. With ``return_seconds`` also how long each took. What users and items share is
        brought up to date after each block of 20 to 1,000 ratings; an exception leaves a model that
        has learnt whole blocks. Very first, 0 is predicted where no ``rating_range`` is given.

        >>> model = HeMF(n_factors=2, rating_range=(1, 5), rng=0)
        >>> model.predict_then_learn([("ann", "tea", 4), ("bob", "tea", 4)]).round(1)[0]
        np.float64(3.0)
        """
        from hemf.online.learner import predict_then_learn

        return_seconds = check_bool("return_seconds", return_seconds)
        expected, seconds = predict_then_learn(self, ratings, y, columns=columns)
        return (expected, seconds) if return_seconds else expected

    def fold_in(
        self, ratings: Any, y: Any = None, *, columns: Any = None, features: Any = None
    ) -> Visitor:
        """Return the posterior of a visitor with these ratings; the model stays as it is.

        ``ratings`` are pairs of item and rating, a mapping of these, or ratings by one user. With
        ``y``, they are items, or pairs of the user and an item, and ``y`` their ratings.
        ``features`` are the visitor's, as a row of those given to `fit`; with these, there need
        be no ratings. See `Visitor`.
        """
        from hemf.queries.visitor import fold_in

        with self._turn:
            return fold_in(self, ratings, y, columns=columns, features=features)

    # -- prediction ----------------------------------------------------------------------------

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
        """Return the expected rating of each pair, on the rating scale.

        ``users`` and ``items`` are ids, one or many; one user goes with many items and the other
        way round. A tuple is one id where ids of its side are tuples, otherwise several; this holds
        for every method. Without ``items``, ``users`` holds pairs: a frame, a file, an (n, 2)
        array. ``timestamps``, one or as many, say when: a model with ``moods`` then expects the
        mood of that time, and without them none in particular. Other models do not look at them.
        Where pairs come with a column of timestamps, it is read unless others are given.

        With ``return_std`` also the standard deviation, of the rating or, without
        ``include_noise``, of the taste alone. With ``return_known`` also whether both are known,
        that is, have a rating in training: strangers get what the model expects of a newcomer, with
        the features that they had in `fit` if any (``unknown="error"``: an error).

        Where most users or items of the call are unknown, be it a single pair, and a mistake is
        likely, an `UnknownIdWarning` says which: numbers given as text, users and items swapped, a
        typo. Without a likely mistake one stranger is no reason for a warning; ten or more are, if
        nobody is known and ``return_known`` is not asked for.
        """
        check_choice("unknown", unknown, ("prior", "error"))
        return_std = check_bool("return_std", return_std)
        include_noise = check_bool("include_noise", include_noise)
        return_known = check_bool("return_known", return_known)
        with self._turn:
            return self._predict(
                users, items, timestamps, return_std, include_noise, return_known, unknown
            )

    def _predict(
        self,
        users: Any,
        items: Any,
        timestamps: Any,
        return_std: bool,
        include_noise: bool,
        return_known: bool,
        unknown: str,
    ) -> Any:
        self._fitted()
        from hemf.model.predictive import pair_moments

        user_ids, item_ids, alone, timestamps = self._pairs(users, items, timestamps)
        user_rows, left_rows = self._known_and_placed("user", user_ids)
        item_rows, right_rows = self._known_and_placed("item", item_ids)
        if unknown == "error":
            self._refuse("user", user_ids, user_rows < 0)
            self._refuse("item", item_ids, item_rows < 0)
        new_users, new_items = bool((user_rows < 0).any()), bool((item_rows < 0).any())
        if new_users or new_items:
            asked = {"user": (user_ids, left_rows), "item": (item_ids, right_rows)}
            self._warn_of_unknown(expected=return_known, **asked)
        left = self._moments("user", with_stranger=new_users)
        right = self._moments("item", with_stranger=new_items)
        mean, variance = pair_moments(left, right, left_rows, right_rows, variance=return_std)
        mood, mood_variance = self._mood(user_rows, timestamps)
        mean += mood
        answer: list[Any] = [self._to_rating(mean)]
        if return_std:
            if include_noise:
                variance = variance + self._noise(user_rows, item_rows) + mood_variance
            answer.append(np.sqrt(variance) * self.rating_scale_)
        if return_known:
            answer.append((user_rows >= 0) & (item_rows >= 0))
        if alone:
            answer = [values[0] for values in answer]
        return answer[0] if len(answer) == 1 else tuple(answer)

    def recommend(
        self,
        user: Any,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        strategy: str = "mean",
        exploration: float = 1.0,
        items: Any = None,
        return_known: bool = False,
        rng: int | np.random.Generator | None = None,
    ) -> tuple[Any, ...]:
        """Return the ids and scores of the n items with the highest score, best first.

        ``strategy``: the expected rating (``"mean"``), plus ``exploration`` standard deviations of
        the taste (``"ucb"``), or one draw from the posterior (``"thompson"``). ``user`` is an id or
        several, as `predict` takes them: with several, the answers are arrays of one row each, None
        and NaN where there are fewer than n items. ``items`` limits the choice to these. With
        ``return_known`` also whether the user, or each of them, has a rating in training: to
        strangers, what suits a newcomer is recommended.
        """
        from hemf.queries.recommend import recommend

        with self._turn:
            return recommend(
                self,
                user,
                n,
                exclude_seen=exclude_seen,
                strategy=strategy,
                exploration=exploration,
                items=items,
                return_known=return_known,
                rng=rng,
            )

    def communities(self, side: str = "user", *, n: int = 5) -> CommunityView:
        """Return the communities of the "user" or "item" side, largest first.

        See `CommunityView`; ``n`` is how many typical and divisive ids are listed.
        """
        from hemf.queries.communities import community_view

        side, n = check_choice("side", side, SIDES), check_int("n", n, low=1)
        with self._turn:
            return community_view(self, side, n)

    def biclusters(self) -> Biclusters:
        """Return size, mean rating and mean prediction of each user × item community.

        They are of the ratings that are kept; where these are not all, a `HistoryWarning` says so.
        """
        from hemf.queries.communities import biclusters

        with self._turn:
            return biclusters(self)

    def explain(self, user: Any, item: Any, *, n: int = 5) -> Explanation:
        """Return what went into a prediction: offsets, communities, rated items, uncertainty.

        Where not all of the user's ratings are kept, a `HistoryWarning` says so.
        """
        from hemf.queries.explain import explain

        n = check_int("n", n, low=0)
        with self._turn:
            return explain(self, user, item, n)

    # -- keeping -------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one file; an existing one is replaced only once all is written."""
        from hemf.persistence.model import save_model

        with self._turn:
            self._fitted()
            check_idle(self)
            save_model(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> HeMF:
        """Read a model that `save` wrote; it predicts to the bit what the saved one did."""
        from hemf.persistence.model import load_model

        return load_model(cls, path)
