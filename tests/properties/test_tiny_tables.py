"""Whatever a tiny table holds and whatever the options, a fit ends well and nothing is NaN."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proofs.sensible import assert_sensible, fit

PATTERNS = {
    "stars": st.integers(1, 5).map(float),
    "equal": st.just(3.0),
    "two values": st.sampled_from([0.0, 1.0]),
    "reals": st.floats(-10, 10, width=32),
    "any size": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "far off": st.floats(-1, 1).map(lambda x: 1e6 + x),
    "outliers": st.sampled_from([1.0, 1.0, 1.0, 1e6]),
}
choices = st.fixed_dictionaries(
    {
        "n_factors": st.integers(1, 5),
        "max_user_communities": st.integers(1, 5),
        "max_item_communities": st.integers(1, 5),
        "max_sweeps": st.sampled_from([1, 9, 30]),
        "offsets": st.booleans(),
        "membership": st.sampled_from(["coupled", "mean-field"]),
        "user_covariances": st.sampled_from(["own", "tied"]),
        "item_covariances": st.sampled_from(["own", "tied"]),
        "noise_scales": st.sampled_from([None, "user", "item", "both"]),
        "evb": st.sampled_from(["closed", "gradient", None]),
        "dtype": st.sampled_from(["float32", "float64"]),
        "rating_range": st.sampled_from(["observed", None]),
    }
)


@st.composite
def tables(draw):
    """Some or all places of a table of up to 8 × 8, with ratings of one pattern."""
    places = list(product(range(draw(st.integers(1, 8))), range(draw(st.integers(1, 8)))))
    if draw(st.booleans()):
        places = draw(st.lists(st.sampled_from(places), min_size=1, unique=True))
    rating = PATTERNS[draw(st.sampled_from(sorted(PATTERNS)))]
    return [(user, item, draw(rating)) for user, item in places]


@pytest.mark.filterwarnings("ignore::hemf.OutlierWarning")  # the tables drawn may hold one
@given(data=tables(), parameters=choices, seed=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_any_tiny_table_has_a_sensible_model(data, parameters, seed):
    assert_sensible(fit(data, n_jobs=1, **{**parameters, "rng": seed}))


@pytest.mark.filterwarnings("ignore::hemf.OutlierWarning")  # the tables drawn may hold one
@given(data=tables())
@settings(max_examples=5, deadline=None)
def test_any_tiny_table_has_a_sensible_model_by_default(data):
    assert_sensible(fit(data, n_jobs=1))
