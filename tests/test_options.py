"""Every parameter of the estimator: what it may be, and what it does."""

from __future__ import annotations

import math
import warnings
from itertools import product

import numpy as np
import pytest

from hemf import DuplicateWarning, HeMF, ParameterError
from hemf._checks import MAX_FACTORS, check_n_jobs, check_rating_range, check_rng
from hemf._options import fit_options
from hemf.batch.fit import NOISE_START
from hemf.data.datasets import draw

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

DATA = draw(70, 50, density=0.4, n_factors=2, user_communities=2, item_communities=2, rng=1)
COLUMNS = (DATA.users, DATA.items, DATA.ratings)
NAN = float("nan")


def small(**parameters) -> HeMF:
    known = {"n_factors": 3, "max_user_communities": 3, "max_item_communities": 3}
    return HeMF(**{**known, "max_sweeps": 15, "rng": 0, **parameters})


def learnt_numbers(model: HeMF) -> list[np.ndarray]:
    """Everything numeric that a fit leaves behind."""
    found = [np.array([model.elbo_, model.noise_variance_])]
    for side in model.state_.sides.values():
        both, prior = side.communities, side.prior
        found += [side.moments.mean, side.moments.second, side.membership, side.weights]
        found += [both.mean, both.kappa, both.scale, both.dof, prior.centre, prior.scale]
        found += [np.array([prior.concentration, prior.mean_scale, prior.dof])]
    return found


# -- what parameters may be ---------------------------------------------------------------------

BAD = {
    "n_factors": [-1, 0, 2.5, True, "3", None, NAN, 10**9, MAX_FACTORS + 1],
    "max_user_communities": [0, -2, 1.5, "all", None],
    "max_item_communities": [0, False],
    "offsets": [1, "yes", None],
    "user_covariances": ["full", None],
    "item_covariances": ["diagonal", True],
    "membership": ["soft", None],
    "noise_scales": ["all", True, 0],
    "evb": ["newton", True, "None"],
    "concentration": [0, -1, NAN, math.inf, 1e300, "high", None],
    "spread": [0, -1, NAN, math.inf, 1e300],
    "max_sweeps": [0, -5, 10.0, math.inf],
    "tol": [-1e-9, NAN, math.inf, "small", None],
    "patience": [0, 1.5],
    "validation_fraction": [-0.1, 0.95, 1.0, 1, NAN, True, "a tenth"],
    "rating_range": [(5, 1), (1, 1), (1, math.inf), (1,), 5, "stars", ("a", "b"), (1, 2, 3)],
    "duplicates": ["first", None],
    "implicit_features": [None, "yes", 2],
    "moods": [None, "yes", 2],
    "choices": [None, "yes", 2],
    "n_choice_factors": [0, 2.5, "many", None],
    "n_links": [-1, 2.5, "many", None],
    "history": ["some", 0, -3, 2.5, True],
    "buffer": [-1, 0.5, "many", True, None],
    "forgetting": [0.0, 1.5, "x", (1.0, 2.0), (0.9,)],
    "refresh": [-1.0, "x"],
    "max_online_communities": [0, 2.5],
    "n_jobs": [0, 1.5, "2", True, -5000],
    "dtype": ["float16", np.float32, None],
    "rng": [-1, 0.5, "seed", True],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_fit_names_the_parameter_and_the_value_that_cannot_be(name, value):
    model = small(**{name: value})
    with pytest.raises(ParameterError) as caught:
        model.fit(COLUMNS)
    message = str(caught.value)
    assert message.startswith(f"{name} must be ")
    assert message.endswith(f"got {value!r}")
    assert caught.value.value is value
    assert isinstance(caught.value, ValueError)
    assert not hasattr(model, "state_")


def test_every_parameter_is_checked():
    assert set(BAD) == set(HeMF().get_params())


def test_parameters_are_checked_before_the_data_is_read():
    with pytest.raises(ParameterError):
        HeMF(n_factors=0).fit("no such file.csv")


def test_numbers_may_be_numpys():
    plain = small(n_factors=2, max_sweeps=3, tol=1e-4, rng=5, validation_fraction=0.25)
    numpys = small(
        n_factors=np.int32(2), max_sweeps=np.int64(3), tol=np.float64(1e-4), rng=np.uint8(5),
        validation_fraction=np.float32(0.25),
    )  # fmt: skip
    assert numpys.fit(COLUMNS).elbo_ == plain.fit(COLUMNS).elbo_


def test_a_range_is_two_numbers_in_order():
    assert check_rating_range("observed") == "observed"
    assert check_rating_range(None) is None
    assert check_rating_range([0, 10]) == (0.0, 10.0)
    assert check_rating_range(np.array([-1.5, 1.5])) == (-1.5, 1.5)


def test_threads_are_counted_as_elsewhere():
    assert [check_n_jobs(n) for n in (None, -1, 1, 64)] == [None, -1, 1, 64]


def test_a_generator_is_used_as_it_is_and_a_seed_makes_one():
    ours = np.random.default_rng(0)
    assert check_rng(ours) is ours
    assert check_rng(3).random() == check_rng(3).random()
    assert check_rng(None).random() != check_rng(None).random()


def test_defaults_are_valid_and_reach_the_fit():
    model = HeMF()
    options = fit_options(model)
    assert options.n_factors == model.n_factors
    assert options.tolerance == model.tol
    assert options.tied == {
        "user": model.user_covariances == "tied",
        "item": model.item_covariances == "tied",
    }
    assert options.dtype is np.float32


# -- what they do -------------------------------------------------------------------------------

CHOICES = {
    "membership": ["coupled", "mean-field"],
    "evb": ["closed", "gradient"],
    "user_covariances": ["own", "tied"],
    "item_covariances": ["own", "tied"],
    "offsets": [True, False],
    "noise_scales": [None, "user", "item", "both"],
    "dtype": ["float32", "float64"],
}
# Every value of a parameter meets every value of every other one at least once.
MIXTURES = [
    dict(zip(CHOICES, values, strict=True))
    for number, values in enumerate(product(*CHOICES.values()))
    if number % 11 == 0
]


def test_the_mixtures_have_every_pair_of_values():
    pairs = {
        (one, two)
        for mixture in MIXTURES
        for one, two in product(mixture.items(), mixture.items())
        if one[0] < two[0]
    }
    names = sorted(CHOICES)
    wanted = {
        ((a, x), (b, y))
        for a, b in product(names, names)
        if a < b
        for x, y in product(CHOICES[a], CHOICES[b])
    }
    assert wanted <= pairs


@pytest.mark.parametrize(
    "mixture", MIXTURES, ids=lambda mixture: "-".join(map(str, mixture.values()))
)
def test_any_mixture_of_choices_learns(mixture):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = small(**mixture).fit(COLUMNS)
        mean, std = model.predict(DATA.users, DATA.items, return_std=True)
    assert all(np.isfinite(numbers).all() for numbers in learnt_numbers(model))
    assert np.sqrt(np.mean((mean - DATA.ratings) ** 2)) < 0.5 * DATA.ratings.std()
    assert (std > 0.5 * DATA.noise).all()


@pytest.mark.parametrize("n_jobs", [2, 3, -1, None, 1000])
def test_any_number_of_threads_gives_the_same_model(n_jobs):
    one, other = (small(n_jobs=n).fit(COLUMNS) for n in (1, n_jobs))
    for ours, theirs in zip(learnt_numbers(one), learnt_numbers(other), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_factors_and_offsets_make_up_a_row():
    with_offsets, plain = (small(n_factors=5, offsets=o).fit(COLUMNS) for o in (True, False))
    for side in ("user", "item"):
        assert with_offsets.state_.sides[side].layout.order == 6
        assert plain.state_.sides[side].layout.order == 5


def test_covariances_are_one_for_all_or_one_for_each():
    for user, item in product(["own", "tied"], repeat=2):
        model = small(user_covariances=user, item_covariances=item, max_sweeps=10).fit(COLUMNS)
        for side, kind in (("user", user), ("item", item)):
            both = model.state_.sides[side].communities
            assert both.count > 1
            assert both.scale.shape[0] == (both.count if kind == "own" else 1)


def test_noise_scales_are_learnt_for_the_sides_asked_for():
    for choice, sides in (("both", {"user", "item"}), ("user", {"user"}), (None, set())):
        model = small(noise_scales=choice).fit(COLUMNS)
        with_scales = {n for n, s in model.state_.sides.items() if s.noise_scales is not None}
        assert with_scales == sides
        terms = {name for name in model.elbo_history_ if name.endswith(" noise")}
        assert terms == {f"{side} noise" for side in sides}


def test_a_noisy_rater_is_known_as_one():
    """One user rates by mood; the intervals of this user, and of nobody else, are wide."""
    ratings = DATA.ratings + np.where(
        DATA.users == 7, np.random.default_rng(0).normal(scale=1.5, size=DATA.users.size), 0.0
    )
    model = small(max_sweeps=40, rating_range=None).fit((DATA.users, DATA.items, ratings))
    others = [user for user in range(70) if user != 7]
    wide = model.predict(7, list(range(50)), return_std=True)[1].mean()
    usual = [model.predict(user, list(range(50)), return_std=True)[1].mean() for user in others]
    assert wide > 1.3 * np.max(usual)


def test_storage_has_the_precision_asked_for_and_hardly_matters():
    single, double = (small(dtype=kind).fit(COLUMNS) for kind in ("float32", "float64"))
    for model, kind in ((single, np.float32), (double, np.float64)):
        for side in model.state_.sides.values():
            assert side.moments.mean.dtype == side.moments.second.dtype == kind
            assert side.membership.dtype == kind
        assert model.predict(DATA.users, DATA.items).dtype == np.float64
    means = [model.predict(DATA.users, DATA.items) for model in (single, double)]
    np.testing.assert_allclose(*means, atol=1e-3)


def test_without_evb_hyper_parameters_stay_at_their_start():
    model = small(evb=None, concentration=0.7, spread=1.3).fit(COLUMNS)
    for side in model.state_.sides.values():
        assert (side.prior.concentration, side.prior.mean_scale) == (0.7, pytest.approx(1.3))
    assert model.noise_variance_ == pytest.approx(NOISE_START * model.rating_scale_**2)


def test_evb_learns_hyper_parameters_in_small_steps_or_at_once():
    closed, gradient = (small(evb=evb).fit(COLUMNS) for evb in ("closed", "gradient"))
    for model in (closed, gradient):
        assert model.noise_variance_ < 0.5 * model.rating_scale_**2
    for side in ("user", "item"):
        start, slow, best = (
            m.state_.sides[side].prior.concentration
            for m in (small(evb=None).fit(COLUMNS), gradient, closed)
        )
        assert 0 < abs(slow - start) < 0.1
        assert abs(best - start) > abs(slow - start)


@pytest.mark.parametrize(("user", "item"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_there_are_never_more_communities_than_allowed(user, item):
    model = small(max_user_communities=user, max_item_communities=item).fit(COLUMNS)
    assert max(report.user_communities for report in model.history_) <= user
    assert max(report.item_communities for report in model.history_) <= item


def test_more_communities_than_rows_are_no_trouble():
    model = small(max_user_communities=10**6, max_item_communities=500, max_sweeps=12).fit(COLUMNS)
    assert model.n_user_communities_ <= 70
    assert model.n_item_communities_ <= 50


def test_a_coarser_tolerance_and_less_patience_stop_sooner():
    def sweeps(**parameters):
        return small(max_sweeps=400, **parameters).fit(COLUMNS).n_sweeps_

    assert sweeps(tol=1e-2) < sweeps(tol=1e-4) <= 400
    assert sweeps(tol=1e-3, patience=1) < sweeps(tol=1e-3, patience=8)
    assert small(max_sweeps=2).fit(COLUMNS).n_sweeps_ == 2


def test_repeated_pairs_are_dealt_with_as_asked():
    repeated = [("ann", "tea", 1.0), ("bob", "tea", 3.0), ("ann", "tea", 4.0)]
    with pytest.warns(
        DuplicateWarning, match="user 'ann' and item 'tea' at rows 0 and 2"
    ) as caught:
        last = small(max_sweeps=2).fit(repeated)
    assert caught[0].filename == __file__  # where fit was called
    with warnings.catch_warnings():
        warnings.simplefilter("error", DuplicateWarning)
        mean = small(max_sweeps=2, duplicates="mean").fit(repeated)
    assert last.global_mean_ == 3.5
    assert mean.global_mean_ == 2.75
    with pytest.raises(ValueError, match="user 'ann' and item 'tea' at rows 0 and 2"):
        small(duplicates="error").fit(repeated)
