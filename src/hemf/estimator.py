"""HeMF: the estimator. Parameters, documentation and delegation; the mathematics is elsewhere."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Self

import numpy as np

from hemf._checks import (
    Parametrised,
    check_bool,
    check_callables,
    check_choice,
    check_int,
    check_number,
    check_rating_range,
    check_rng,
)
from hemf._files import FileState
from hemf._options import fit_options, online_options
from hemf._typing import SIDES, FeaturesLike, Float64Array, IdsLike, RatingsLike
from hemf.batch.callbacks import Callback, SweepReport, elbo_history
from hemf.batch.fit import fit_batch
from hemf.batch.inputs import r2_score, read_inputs
from hemf.batch.relevance import find_links, learn_relevance
from hemf.data.ratings import Ratings, rated_pairs
from hemf.data.sources import ColumnChoice
from hemf.engines.base import CHOICES, RATINGS
from hemf.errors import NotFittedError
from hemf.evaluation.distribution import Predictive
from hemf.model.state import Component, FittedModel, GivenFeatures, TrainingRecord
from hemf.online.journal import ModelHolder
from hemf.online.learner import Settings, partial_fit, predict_then_learn
from hemf.online.record import Batch, Fit, remember
from hemf.online.start import prepare
from hemf.persistence.model import load_model, save_model
from hemf.queries import predict as predictions
from hemf.queries.communities import Biclusters, CommunityView, biclusters, community_view
from hemf.queries.explain import Explanation, explain
from hemf.queries.recommend import example, recommend, scores
from hemf.queries.scorers import STRATEGIES, Ranking
from hemf.queries.similar import similar
from hemf.queries.visitor import Visitor, fold_in
from hemf.report.model import Example, write_report


@dataclass(kw_only=True, eq=False, repr=False)
class HeMF(Parametrised):
    """Heterogeneous matrix factorization by variational Bayes.

    Ratings are explained by offsets and factors of users and items. Both sides are divided into
    communities, whose number is learnt::

        r_ij ~ N(c + o_i + p_j + a_i·b_j, σ²/(τ_i υ_j))
        (o_i, a_i) | community d ~ N(μ_d, Σ_d)          likewise (p_j, b_j)

    Parameters
    ----------
    n_factors
        Length of the factors a_i, b_j.
    max_user_communities, max_item_communities
        Largest number of communities of a side: so many are seeded, and similar ones merged.
        With 1 on both sides the model is Bayesian probabilistic matrix factorization.
    offsets
        Whether users and items have offsets besides their factors; ``False`` is the paper's form.
    user_covariances, item_covariances
        ``"own"``: every community of the side has its own covariance. ``"tied"``: they share one.
    membership
        ``"coupled"``: a row's factors and community are inferred together. ``"mean-field"``: one
        after the other, as in the paper.
    noise_scales
        Sides whose rows have noise scales: ``"both"``, ``"user"``, ``"item"``, or ``None``, the
        paper's form. Ratings of noisy rows then count less, and have wider intervals.
    moods
        Whether to learn users' moods: offsets that change from session to session. Ratings must
        have timestamps; see ``timestamps`` of `predict`.
    implicit_features
        Whether to learn from which pairs were rated, whatever the ratings are. ``"user"`` or
        ``"item"``: for that side alone, which may be better with few ratings. A side with
        features, implicit or given to `fit`, has ``"tied"`` covariances.
    choices
        Whether to learn which pairs were observed, whatever their ratings are: what users choose.
        Rows with similar choices then have similar ratings.
    n_choice_factors
        Length of the factors of choices.
    n_links
        Number of other items that the choice of an item is expected from, besides the factors; 0
        for none. Catalogues of more than 20,000 items have none.
    evb
        How hyper-parameters are learnt: ``"closed"`` forms, the paper's ``"gradient"`` steps for
        α and ι0, or ``None`` to keep the start values.
    concentration, spread
        Start values of α (larger: more communities) and λ0 (larger: farther apart).
    max_sweeps, tol, patience
        Stop after ``max_sweeps``, or when the bound changed by less than ``tol`` of itself (or,
        where that is more, of the number of ratings) in ``patience`` consecutive sweeps.
    validation_fraction
        Share of the ratings to hold out; then stop when the error on them has not fallen for
        ``patience`` sweeps, and keep the sweep where it was smallest, not counting the first
        ones, before communities and noise scales are learnt.
    rating_range
        Predictions are clipped to it: ``"observed"`` in training, a pair of numbers, or ``None``.
    duplicates
        What to do with a pair rated twice: keep the ``"last"`` with a warning, take the ``"mean"``,
        or raise an ``"error"``. With ``"mean"``, `partial_fit` counts every rating of a pair.
    history
        Ratings that `partial_fit` keeps. ``"full"``: all of them. A number: those among so many
        newest of their user or item; older ones are summed up. ``"none"``: sums alone, in memory
        that does not grow with the ratings.
    buffer
        Number of first ratings that are kept with any ``history``. When there are more, those that
        the history does not keep are summed up.
    forgetting
        Factor of a rating's weight, online, for each later rating of the same row; or a pair of
        factors for users and items. Choose less than 1 if tastes drift.
    refresh
        Number of rows of each side that are refreshed for each rating learnt online, in addition
        to those of the rating; the rows with the oldest information.
    max_online_communities
        Largest number of communities of a side online; ``None``: no limit. A side that is limited
        to one community above keeps one.
    n_jobs
        Threads; ``None`` or -1 for all cores. The result is the same for any number.
    dtype
        Type of storage, ``"float32"`` or ``"float64"``. With ``"float64"`` ratings are not rounded.
        Equations are solved in float64 with either.
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

    n_factors: int = 20
    max_user_communities: int = 12
    max_item_communities: int = 12
    offsets: bool = True
    user_covariances: str = "own"
    item_covariances: str = "own"
    membership: str = "coupled"
    noise_scales: str | None = "both"
    moods: bool = False
    implicit_features: bool | str = False
    choices: bool = False
    n_choice_factors: int = 64
    n_links: int = 50
    evb: str | None = "closed"
    concentration: float = 1.0
    spread: float = 1.0
    max_sweeps: int = 300
    tol: float = 5e-5
    patience: int = 3
    validation_fraction: float = 0.0
    rating_range: str | tuple[float, float] | None = "observed"
    duplicates: str = "last"
    history: str | int | None = "full"
    buffer: int = 100_000
    forgetting: float | tuple[float, float] = 1.0
    refresh: float = 0.0
    max_online_communities: int | None = None
    n_jobs: int | None = None
    dtype: str = "float32"
    rng: int | np.random.Generator | None = None

    # -- learning ------------------------------------------------------------------------------

    def fit(
        self,
        ratings: RatingsLike,
        y: IdsLike = None,
        *,
        columns: ColumnChoice = None,
        user_features: FeaturesLike = None,
        item_features: FeaturesLike = None,
        validation: RatingsLike = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Learn from ratings; anything `Ratings.from_any` reads.

        ``user_features`` and ``item_features`` are a DataFrame with a column of ids, a matrix whose
        row k is of id k, a pair of ids and matrix, a dict from id to row, or a list of these; dense
        or sparse. Numbers are standardised, text and categories have a column for each value, and
        "Action|Comedy" is two labels. Missing rows and values count as average. Ids with features
        and no rating are predicted from their features.

        With ``y``, ``ratings`` holds the pairs and ``y`` their ratings, as scikit-learn's searches
        pass them. ``callbacks`` are called with a `SweepReport` after every sweep; one that returns
        something true stops the fit. ``validation`` are ratings to report the error on, which
        nothing is learnt from, not even when to stop. A failed fit leaves the estimator as it was.
        """
        options, rng = fit_options(self), check_rng(self.rng)
        online = online_options(self, options)  # checked now rather than with the first rating
        watchers = check_callables("callbacks", callbacks)
        features = {"user": user_features, "item": item_features}
        given = read_inputs(ratings, y, columns, features, validation, options, rng)
        train = given.train
        result = fit_batch(
            given.engine,
            train.scale,
            options,
            rng,
            designs=given.designs,
            validate=given.validate,
            watch=given.watch,
            callbacks=watchers,
        )
        components = {RATINGS: result.state}
        prepared = relevance = links = None
        if given.choices is None:
            prepared = prepare(result.state, train, train.mean, online)
        else:
            components[CHOICES] = given.choices
            found = find_links(train, options.n_links)
            relevance, links = learn_relevance(given.choices, result.state, train, found, rng)
        with self._holder.lock:
            before = self._holder.content
            model = FittedModel(
                components=components,
                relevance=relevance,
                links=links,
                record=TrainingRecord(train),
                mean=train.mean,
                scale=train.scale,
                rating_range=given.rating_range,
                coupled=options.coupled,
                features=given.features,
                held_out=given.held_out,
                version=1 if before is None else before.model.version + 1,
            )
            self._holder.replace(Fit(model, result.history, result.converged, prepared=prepared))
        return self

    def partial_fit(
        self,
        ratings: RatingsLike = None,
        y: IdsLike = None,
        *,
        removed: RatingsLike = None,
        previous: IdsLike = None,
        columns: ColumnChoice = None,
        user_features: FeaturesLike = None,
        item_features: FeaturesLike = None,
    ) -> Self:
        """Learn from more ratings, after a fit or from nothing.

        Users and items may be new. A pair that is in the history is a changed rating. ``removed``
        are pairs whose ratings are removed. Unless the history is full, ``removed`` must hold the
        ratings too, and ``previous`` the old value of each of ``ratings`` (NaN: it is new).
        ``columns`` are those of ``ratings`` and of ``removed``. A model with ``moods`` needs
        ratings with timestamps.

        ``user_features`` and ``item_features``, with the columns that `fit` was given, may be
        passed with or without ratings. They replace those of known ids, and add newcomers.

        The batch is learnt at once: its users, its items, then shared parameters. After any
        exception the model is unchanged, to the bit. Calls of other threads wait.

        >>> model = HeMF(n_factors=2, rng=0).fit([("ann", "tea", 5), ("bob", "tea", 3)])
        >>> model.partial_fit([("eve", "tea", 4), ("eve", "milk", 1)]).n_users_
        3
        """
        settings = self._settings()
        with self._holder.lock:
            partial_fit(
                self._holder,
                settings,
                ratings,
                y,
                removed=removed,
                previous=previous,
                columns=columns,
                features={"user": user_features, "item": item_features},
            )
        return self

    def predict_then_learn(
        self,
        ratings: RatingsLike,
        y: IdsLike = None,
        *,
        columns: ColumnChoice = None,
        return_seconds: bool = False,
    ) -> Any:
        """Learn ratings one at a time, and return the prediction of each made just before.

        Ratings are learnt in the order given, `Ratings` by their timestamps. A model with ``moods``
        needs timestamps, and predicts with the mood at that time. With ``return_seconds`` also
        return the time that each took. Communities and other shared parameters are updated after
        each block of 20 to 1,000 ratings; after an exception the model has learnt whole blocks. The
        first prediction is 0 if no ``rating_range`` is given.

        >>> model = HeMF(n_factors=2, rating_range=(1, 5), rng=0)
        >>> model.predict_then_learn([("ann", "tea", 4), ("bob", "tea", 4)]).round(1)[0]
        np.float64(3.0)
        """
        return_seconds = check_bool("return_seconds", return_seconds)
        expected, seconds = predict_then_learn(
            self._holder, self._settings(), ratings, y, columns=columns
        )
        return (expected, seconds) if return_seconds else expected

    def fold_in(
        self,
        ratings: RatingsLike,
        y: IdsLike = None,
        *,
        columns: ColumnChoice = None,
        features: FeaturesLike = None,
    ) -> Visitor:
        """Return the posterior of a visitor with these ratings; the model does not change.

        ``ratings`` are pairs of item and rating, a mapping of these, or ratings by one user. With
        ``y``, they are items, or pairs of the user and an item, and ``y`` their ratings.
        ``features`` are the visitor's, as a row of those given to `fit`; with these, there need
        be no ratings. See `Visitor`.
        """
        declared = check_rating_range(self.rating_range)
        with self._holder.lock:
            return fold_in(
                self._holder,
                self._model,
                ratings,
                y,
                columns=columns,
                features=features,
                declared_range=declared if isinstance(declared, tuple) else None,
            )

    # -- prediction ----------------------------------------------------------------------------

    def predict(
        self,
        users: IdsLike,
        items: IdsLike = None,
        *,
        timestamps: IdsLike = None,
        unknown: str = "prior",
        return_std: bool = False,
        include_noise: bool = True,
        return_known: bool = False,
    ) -> Any:
        """Return the expected rating of each pair, on the rating scale.

        ``users`` and ``items`` are ids, one or many; one user goes with many items and the other
        way round. A tuple is one id where ids of its side are tuples, otherwise several; this holds
        for every method. Without ``items``, ``users`` holds pairs: a frame, a file, an (n, 2)
        array. ``timestamps``, one or as many, are used by models with ``moods``, which predict
        with the mood at that time, and without timestamps with no mood. By default those in the
        pairs' column of timestamps are used, if there is one.

        With ``return_std`` also return the standard deviation of the rating or, without
        ``include_noise``, of its expectation. With ``return_known`` also return whether both ids
        are known, that is, have ratings. Unknown ids are predicted from the features given to
        `fit`, if any, and the prior; with ``unknown="error"`` they are an error.

        If most users or items of the call are unknown and a mistake is likely, an
        `UnknownIdWarning` names it: numbers given as text, users and items swapped, a typo. Without
        a likely mistake there is a warning if ten or more ids are given, none is known and
        ``return_known`` is not set.
        """
        wanted = predictions.Wanted(
            unknown=check_choice("unknown", unknown, ("prior", "error")),
            std=check_bool("return_std", return_std),
            noise=check_bool("include_noise", include_noise),
            known=check_bool("return_known", return_known),
        )
        with self._holder.lock:
            return predictions.predict(self._model, users, items, timestamps, wanted)

    def predict_distribution(
        self, users: IdsLike, items: IdsLike = None, *, timestamps: IdsLike = None
    ) -> Predictive:
        """Return the distribution of the rating of each pair, given as `predict` takes them.

        It has the mean and the standard deviation of `predict`. Its tails are heavier than those of
        a normal distribution: noise scales are uncertain, the more so the fewer ratings a row has,
        and so are the tails of the ratings learnt (``tail_freedom_``). It is an array even for one
        pair; see `hemf.evaluation.Predictive`.

        >>> from hemf import HeMF
        >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]
        >>> predicted = HeMF(n_factors=1, rng=0).fit(ratings).predict_distribution("bob", "milk")
        >>> low, high = predicted.interval(0.9)
        >>> bool(low < predicted.mean < high)
        True
        """
        with self._holder.lock:
            return predictions.predict_distribution(self._model, users, items, timestamps)

    def predict_proba(
        self,
        users: IdsLike,
        items: IdsLike = None,
        *,
        timestamps: IdsLike = None,
        levels: IdsLike = None,
    ) -> Float64Array:
        """Return the probability of each level of the scale, a row for each pair.

        Pairs are given as `predict` takes them; a single one is a table of one row. Columns are
        the levels in ``levels_``, those seen in training, or ``levels``, ascending. The
        probability of a level is that of `predict_distribution` between the midpoints to its
        neighbours; the first and the last interval are unbounded.

        >>> from hemf import HeMF
        >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]
        >>> model = HeMF(n_factors=1, rng=0).fit(ratings)
        >>> odds = model.predict_proba(["bob", "eve"], ["milk", "tea"])
        >>> odds.shape, model.levels_
        ((2, 3), array([1., 4., 5.]))
        >>> at_least_4 = odds[:, model.levels_ >= 4].sum(axis=1)
        """
        with self._holder.lock:
            return predictions.predict_proba(self._model, users, items, timestamps, levels)

    def scores(
        self,
        users: IdsLike,
        items: IdsLike,
        *,
        strategy: str = "relevance",
        exploration: float = 1.0,
        rng: int | np.random.Generator | None = None,
    ) -> Float64Array:
        """Return the score of each of ``items`` for each of ``users``, as `recommend` ranks by.

        The table has a row for each user and a column for each item. If it does not fit in memory,
        pass fewer users at a time.

        >>> from hemf import HeMF
        >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4)]
        >>> HeMF(n_factors=1, rng=0).fit(ratings).scores(["ann", "eve"], ["tea"]).shape
        (2, 1)
        """
        check_choice("strategy", strategy, STRATEGIES)
        ranking = Ranking(
            strategy, check_number("exploration", exploration, low=0.0), check_rng(rng)
        )
        with self._holder.lock:
            return scores(self._model, users, items, ranking)

    def score(
        self, ratings: RatingsLike, y: IdsLike = None, *, columns: ColumnChoice = None
    ) -> float:
        """Return R² of the predictions for ratings, given as `fit` takes them, with or without y.

        1 is perfect; 0 is no better than the mean of these ratings.
        """
        pairs = rated_pairs(ratings, y, columns, like=self.ratings_)
        users, items, actual, times = pairs
        return r2_score(actual, self.predict(users, items, timestamps=times))

    def recommend(
        self,
        user: IdsLike,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        strategy: str = "relevance",
        exploration: float = 1.0,
        items: IdsLike = None,
        diversity: float = 0.0,
        return_known: bool = False,
        rng: int | np.random.Generator | None = None,
    ) -> tuple[Any, ...]:
        """Return the ids and scores of the n items with the highest score, best first.

        ``strategy``: by ``"relevance"``, what a user would choose and would like, where ``choices``
        are learnt, otherwise by the expected rating; by the expected rating (``"mean"``); with
        ``exploration`` standard deviations of the taste added (``"ucb"``), or by one draw from the
        posterior (``"thompson"``), of choices too where they are learnt. ``user`` is an id or
        several, as `predict` takes them: with several, the answers are arrays of one row each, None
        and NaN where there are fewer than n items. ``items`` limits the choice to these. With
        ``return_known`` also return whether the user, or each of them, has ratings. For unknown
        users the items with the highest scores of a newcomer are returned.

        With ``diversity`` δ, 0 to 1, items differ: after the best, each is the one of the 10 n best
        with the highest (1-δ) score - δ similarity: scores scaled to 0 … 1, and the similarity of
        `similar_items` to the closest item above it.

        >>> model = HeMF(n_factors=1, rng=0).fit([("ann", "tea", 5), ("bob", "ale", 2)])
        >>> model.recommend("ann", n=3, diversity=0.5)[0].tolist()
        ['ale']
        """
        check_choice("strategy", strategy, STRATEGIES)
        n, exploration = check_int("n", n, low=1), check_number("exploration", exploration, low=0)
        exclude_seen = check_bool("exclude_seen", exclude_seen)
        diversity = check_number("diversity", diversity, low=0.0, high=1.0)
        return_known = check_bool("return_known", return_known)
        with self._holder.lock:
            return recommend(
                self._model,
                user,
                n,
                exclude_seen=exclude_seen,
                strategy=strategy,
                exploration=exploration,
                items=items,
                diversity=diversity,
                return_known=return_known,
                rng=rng,
            )

    def similar_items(
        self, id: IdsLike, n: int = 10, *, by: str | None = None, return_std: bool = False
    ) -> tuple[Any, ...]:
        """Return the ids of the n items most similar to one, and the similarities, best first.

        The similarity is the correlation, over all users, of the scores expected of two items,
        offsets apart: from -1 to 1, whatever the general level of each. ``by``: scores of
        ``"choices"``, the default where they are learnt, or ``"ratings"``. With ``return_std`` also
        return its standard deviations due to the uncertainty of both items' factors, to second
        order. ``id`` is one or several: with several, the answers are arrays of one row each, as
        those of `recommend`. An id that the model does not know is an error.

        >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("bob", "ale", 2)]
        >>> ids, similarities = HeMF(n_factors=1, rng=0).fit(ratings).similar_items("tea", n=5)
        >>> sorted(ids.tolist())
        ['ale', 'milk']
        """
        with self._holder.lock:
            return similar(self._model, "item", id, n, by, return_std)

    def similar_users(
        self, id: IdsLike, n: int = 10, *, by: str | None = None, return_std: bool = False
    ) -> tuple[Any, ...]:
        """Return the ids of the n users most similar to one, and the similarities, best first.

        The similarity is the correlation, over all items, of the scores expected of two users. See
        `similar_items`.

        >>> ratings = [("ann", "tea", 5), ("ann", "milk", 1), ("bob", "tea", 4), ("eve", "milk", 2)]
        >>> HeMF(n_factors=1, rng=0).fit(ratings).similar_users(["ann", "eve"], n=1)[0].shape
        (2, 1)
        """
        with self._holder.lock:
            return similar(self._model, "user", id, n, by, return_std)

    def communities(self, side: str = "user", *, n: int = 5) -> CommunityView:
        """Return the communities of the "user" or "item" side, largest first.

        See `CommunityView`; ``n`` is how many typical and divisive ids are listed.
        """
        side, n = check_choice("side", side, SIDES), check_int("n", n, low=1)
        with self._holder.lock:
            return community_view(self._model, side, n)

    def biclusters(self) -> Biclusters:
        """Return size, mean rating and mean prediction of each user × item community.

        They are computed from the ratings that are kept, with a `HistoryWarning` if not all are.
        """
        with self._holder.lock:
            return biclusters(self._model)

    def explain(self, user: IdsLike, item: IdsLike, *, n: int = 5) -> Explanation:
        """Return what went into a prediction: offsets, communities, rated items, uncertainty.

        There is a `HistoryWarning` if not all of the user's ratings are kept.
        """
        n = check_int("n", n, low=0)
        with self._holder.lock:
            return explain(self._model, user, item, n)

    def report(
        self,
        path: str | PathLike[str],
        *,
        title: str = "Ratings",
        held_out: Ratings | None = None,
        example_user: Hashable = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Write an HTML report on the model; the file needs nothing but a browser.

        ``held_out`` are ratings to measure errors and intervals on. Recommendations are shown for
        ``example_user``, by default the one with most ratings. ``facts`` are further figures. The
        report names what it cannot show because a model that learns online does not keep it.

        >>> path = getfixture("tmp_path") / "report.html"
        >>> HeMF(n_factors=1, rng=0).fit([("ann", "tea", 5), ("bob", "milk", 1)]).report(path)
        >>> "Best for" in path.read_text("utf-8")
        True
        """
        with self._holder.lock:
            write_report(
                path,
                self._fit,
                repr(self),
                title=title,
                held_out=held_out,
                example=Example(*example(self._model, example_user)),
                facts=facts or {},
            )

    # -- keeping -------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str], *, expected: FileState | bool = True) -> None:
        """Write the model to one file; an existing one is replaced only once all is written.

        With ``expected``, the state of the file as it was read, nothing is written if another
        process has replaced it since.
        """
        with self._holder.lock:
            if self._holder.state[1] is not None:
                self._holder.idle_content()  # raises an error in the middle of a call
            save_model(self.get_params(), self._fit, path, expected=expected)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a model that `save` wrote; it predicts to the bit what the saved one did."""
        params, fit = load_model(path, cls().get_params().keys())
        model = cls(**params)
        vars(model)["_held"] = ModelHolder(fit)
        return model

    def add_batch(self, batch: Batch) -> None:
        """Remember that a batch was applied; `hemf update` applies none twice."""
        with self._holder.lock:
            fit = self._fit
            self._holder.replace(replace(fit, batches=remember(fit.batches, batch)))

    # -- what was learnt -----------------------------------------------------------------------

    @property
    def state_(self) -> Component:
        """State of the batch fit or of online learning."""
        return self._model.state

    @property
    def n_users_(self) -> int:
        """Number of users, including those without a rating."""
        with self._holder.lock:
            return self._model.sides["user"].n_rows

    @property
    def n_items_(self) -> int:
        """Number of items, including those without a rating."""
        with self._holder.lock:
            return self._model.sides["item"].n_rows

    @property
    def n_user_communities_(self) -> int:
        """Number of user communities found."""
        with self._holder.lock:
            return self._model.sides["user"].n_communities

    @property
    def n_item_communities_(self) -> int:
        """Number of item communities found."""
        with self._holder.lock:
            return self._model.sides["item"].n_communities

    @property
    def n_ratings_(self) -> int:
        """Number of ratings that the model has learnt from."""
        with self._holder.lock:
            return self._model.state.n_ratings

    @property
    def ratings_(self) -> Ratings:
        """The ratings that were learnt, as far as they are kept."""
        with self._holder.lock:
            return self._model.ratings

    @property
    def held_out_(self) -> Ratings | None:
        """Ratings held out by ``validation_fraction``."""
        return self._model.held_out

    @property
    def global_mean_(self) -> float:
        """Mean of the ratings, c."""
        return self._model.mean

    @property
    def rating_scale_(self) -> float:
        """Standard deviation of the ratings."""
        return self._model.scale

    @property
    def rating_range_(self) -> tuple[float, float] | None:
        """Range that predictions are clipped to."""
        return self._model.rating_range

    @property
    def noise_variance_(self) -> float:
        """σ², on the scale of the ratings."""
        with self._holder.lock:
            return self._model.state.noise * self._model.scale**2

    @property
    def is_online_(self) -> bool:
        """Whether the model has learnt online since it was fitted."""
        return self._fit.learner is not None

    @property
    def has_moods_(self) -> bool:
        """Whether raters' moods were learnt."""
        return self._model.has_moods

    @property
    def converged_(self) -> bool:
        """Whether the batch fit has converged."""
        return self._fit.converged

    @property
    def n_sweeps_(self) -> int:
        """Number of sweeps done."""
        with self._holder.lock:
            return self._model.state.sweeps

    @property
    def history_(self) -> list[SweepReport]:
        """Reports of the sweeps of the batch fit."""
        return self._fit.history

    @property
    def batches_(self) -> tuple[Batch, ...]:
        """The last batches that ``hemf update`` has applied, oldest first."""
        return self._fit.batches

    @property
    def given_features_(self) -> dict[str, GivenFeatures]:
        """Features given to `fit`, by side: how they are encoded, and those of newcomers."""
        return dict(self._model.features)

    @property
    def elbo_(self) -> float:
        """Lower bound of the ratings' log probability under the current model.

        It may differ from the last one in ``history_`` by a few nats: after the last report, merges
        may have been tried, and communities are sorted by size. With ``validation_fraction`` it is
        that of the sweep that was kept.
        """
        with self._holder.lock:
            return float(sum(self._model.state.bound_terms().values()))

    @property
    def elbo_history_(self) -> dict[str, Float64Array]:
        """Lower bound after every sweep: ``"total"``, and each of its terms by name."""
        return elbo_history(self.history_)

    @property
    def levels_(self) -> Float64Array:
        """The distinct ratings seen in training, ascending, as far as ratings are kept."""
        with self._holder.lock:
            return predictions.levels(self._model)

    @property
    def tail_freedom_(self) -> float:
        """Degrees of freedom of ratings of rows whose noise is known; infinite if it is normal.

        It is estimated from the residuals of the ratings that are kept. These are narrower than
        those of other ratings, but of the same shape: that of the most likely Student-t
        distribution of any scale, with 5 degrees at least.
        """
        with self._holder.lock:
            return predictions.tail_freedom(self._model)

    def __sklearn_is_fitted__(self) -> bool:
        return self._holder.content is not None

    # -- inner workings ------------------------------------------------------------------------

    @property
    def _holder(self) -> ModelHolder[Fit]:
        """Holds what was learnt, and the lock that guards it."""
        held: ModelHolder[Fit] | None = vars(self).get("_held")
        if held is None:
            held = vars(self).setdefault("_held", ModelHolder())
        return held

    @property
    def _fit(self) -> Fit:
        fit, pending = self._holder.state
        if pending is not None:
            fit = self._holder.content
        if fit is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return fit

    @property
    def _model(self) -> FittedModel:
        return self._fit.model

    def _settings(self) -> Settings:
        """Check the parameters of online learning, unless they are those checked last."""
        return self._once(lambda: Settings.of(self))
