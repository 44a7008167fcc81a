"""The row kernels compute what the plain NumPy reference computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf.kernels import blocks, rows
from hemf.kernels.reference import rows as reference
from hemf.kernels.structures import (
    Features,
    OtherRows,
    Posterior,
    Prior,
    Ratings,
    RowUpdate,
    Statistics,
    sweep_memory,
)
from hemf.model.rows import Layout, pack
from proofs.problems import any_communities, sparse_rows

FORMS = ["coupled_rows", "mean_field_rows"]
STATISTICS = [f"statistics.{name}" for name in Statistics._fields]
OUTPUTS = [
    "posterior.mean", "posterior.second", "posterior.membership", "posterior.errors",
    "features.information", *STATISTICS,
]  # fmt: skip
TUPLES = {
    "ratings": Ratings, "other": OtherRows, "prior": Prior, "posterior": Posterior,
    "features": Features, "statistics": Statistics,
}  # fmt: skip


def arguments(
    rng: np.random.Generator,
    *,
    n_rows: int = 40,
    others: int = 9,
    factors: int = 3,
    communities: int = 3,
    tied: bool = False,
    offsets: bool = False,
    side: str = "user",
    hold: bool = False,
    density: float = 0.5,
    chunks: int = 1,
    dtype: Any = np.float64,
    shifted: bool = False,
    weighted: bool = False,
    background: float = 0.0,
) -> dict[str, Any]:
    """Arguments of a row kernel by name; outputs hold rubbish that must be overwritten.

    With a ``background`` entries are choices, which have no values.
    """
    layout = Layout.of(side, n_factors=factors, offsets=offsets)
    other = Layout.of("item" if side == "user" else "user", n_factors=factors, offsets=offsets)
    data = sparse_rows(rng, n_rows, others, density, dtype)
    other_mean = rng.normal(size=(others, layout.total))
    root = rng.normal(size=(others, layout.total, layout.total)) / layout.total
    spread = root @ root.transpose(0, 2, 1)
    if other.pinned >= 0:
        other_mean[:, other.pinned] = 1.0
        spread[:, other.pinned, :] = spread[:, :, other.pinned] = 0.0
    second = spread + other_mean[:, :, None] * other_mean[:, None, :]
    weight = rng.uniform(0.3, 3.0, others).astype(dtype)
    posterior = any_communities(rng, communities, layout.order, tied=tied or shifted)
    covariances = posterior.precision.shape[0]
    triangle = layout.order * (layout.order + 1) // 2
    inner_cuts = np.sort(rng.integers(0, n_rows + 1, chunks - 1))
    cuts = np.concatenate([[0], inner_cuts, [n_rows]])
    return {
        "begin": 0,
        "end": cuts.size - 1,
        "cuts": cuts,
        "ratings.indptr": data.indptr,
        "ratings.indices": data.indices,
        "ratings.values": data.values[: 0 if background else None],
        "ratings.weights": rng.uniform(0.0, 4.0, data.nnz if weighted else 0).astype(dtype),
        "other.mean": other_mean.astype(dtype),
        "other.second": pack(second).astype(dtype),
        "other.weight": weight,
        "other.excess": (weight - background).astype(dtype),
        "other.base": (background * pack(second).sum(axis=0)).astype(dtype),
        "prior.free": layout.free,
        "prior.pinned": layout.pinned,
        "posterior.noise": rng.uniform(0.1, 2.0, n_rows),
        "prior.precision": pack(posterior.precision),
        "prior.natural_mean": np.ascontiguousarray(posterior.natural_mean),
        "prior.log_weight": posterior.log_weight,
        "posterior.hold": hold,
        "features.shift": rng.normal(size=(n_rows if shifted else 0, layout.order)),
        "features.leverage": rng.uniform(0.0, 2.0, n_rows if shifted else 0),
        "features.root": np.linalg.cholesky(posterior.precision[0])[
            : layout.order if shifted else 0
        ],
        "posterior.mean": np.full((n_rows, layout.total), np.nan, dtype),
        "posterior.second": np.full((n_rows, layout.packed), np.nan, dtype),
        "posterior.membership": rng.dirichlet(np.full(communities, 0.5), size=n_rows).astype(dtype),
        "posterior.errors": np.full(n_rows, np.nan),
        "features.information": np.full(n_rows if shifted else 0, np.nan),
        "statistics.size": rng.random(
            (chunks, communities)
        ),  # statistics are added to, not overwritten
        "statistics.first": rng.random((chunks, communities, layout.order)),
        "statistics.scatter": rng.random((chunks, covariances, triangle)),
        "statistics.entropy": rng.random(chunks),
    }


def passed(given: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments as kernels take them."""
    tuples = {
        name: each(*(given[f"{name}.{field}"] for field in each._fields))
        for name, each in TUPLES.items()
    }
    prior, other, cuts = tuples["prior"], tuples["other"], given["cuts"]
    memory = sweep_memory(
        other, prior.free.size, int(cuts[given["end"]] - cuts[given["begin"]]),
        communities=len(prior.natural_mean), covariances=len(prior.precision),
        has_features=len(given["features.leverage"]) > 0,
    )  # fmt: skip
    return given["begin"], given["end"], RowUpdate(cuts, **tuples), memory


def compiled(form: str, given: dict[str, Any], dtype: Any) -> Any:
    return getattr(rows, form).compiled(dtype)


def run(function: Any, given_arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a kernel or its twin on copies; return what it wrote."""
    written = {name: given_arguments[name].copy() for name in OUTPUTS}
    function(*passed(given_arguments | written))
    return written


def both(form: str, given_arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    kernel = compiled(form, given_arguments, given_arguments["posterior.mean"].dtype)
    return run(kernel, given_arguments), run(getattr(reference, form), given_arguments)


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], *, tolerance: float) -> None:
    for name in OUTPUTS:
        # Information weights are at most 1.
        largest = 1.0 if name == "features.information" else np.abs(theirs[name]).max()
        np.testing.assert_allclose(
            ours[name], theirs[name], rtol=tolerance, atol=tolerance * largest, err_msg=name
        )


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_rows=st.integers(1, 70),
    others=st.integers(1, 14),
    factors=st.integers(1, 6),
    communities=st.integers(1, 5),
    tied=st.booleans(),
    offsets=st.booleans(),
    side=st.sampled_from(["user", "item"]),
    hold=st.booleans(),
    density=st.floats(0.0, 1.0),
    chunks=st.integers(1, 4),
    shifted=st.booleans(),
    weighted=st.booleans(),
    background=st.sampled_from([0.0, 0.2, 1.5]),
)
# docs/model.md#row-factors
def test_kernels_equal_the_reference(form: str, seed: int, **shape: Any) -> None:
    ours, theirs = both(form, arguments(np.random.default_rng(seed), **shape))
    assert_same(ours, theirs, tolerance=1e-9)


# docs/model.md#row-moments
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_rows", [1, 31, 32, 33, 63, 64, 65, 70])
@pytest.mark.parametrize("hold", [False, True])
def test_blocks_of_lanes_end_anywhere(
    form: str, n_rows: int, hold: bool, rng: np.random.Generator
) -> None:
    given_arguments = arguments(rng, n_rows=n_rows, offsets=True, hold=hold)
    assert_same(*both(form, given_arguments), tolerance=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_range_of_chunks_leaves_the_others_alone(form: str, rng: np.random.Generator) -> None:
    given_arguments = arguments(rng, n_rows=70, chunks=4)
    given_arguments |= {"begin": 1, "end": 3, "cuts": np.array([0, 5, 40, 48, 70])}
    ours, theirs = both(form, given_arguments)
    inside = slice(5, 48)
    for name in ("mean", "second", "membership", "errors"):
        name = f"posterior.{name}"
        np.testing.assert_allclose(ours[name][inside], theirs[name][inside], rtol=1e-9, atol=1e-12)
        for outside in (slice(0, 5), slice(48, 70)):
            np.testing.assert_array_equal(ours[name][outside], given_arguments[name][outside])
    for name in STATISTICS:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-12)
        for chunk in (0, 3):
            np.testing.assert_array_equal(ours[name][chunk], given_arguments[name][chunk])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tied", [False, True])
def test_float32_storage_is_float64_but_for_its_digits(
    form: str, tied: bool, rng: np.random.Generator
) -> None:
    given_arguments = arguments(rng, tied=tied, offsets=True, dtype=np.float32)
    assert_same(*both(form, given_arguments), tolerance=2e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tied", [False, True])
def test_a_row_without_ratings_is_at_its_prior(
    form: str, tied: bool, rng: np.random.Generator
) -> None:
    given_arguments = arguments(rng, n_rows=3, density=0.0, tied=tied, hold=True)
    given_arguments["posterior.membership"] = np.eye(3)
    ours, _ = both(form, given_arguments)
    for d in range(3):
        P = reference.symmetric(given_arguments["prior.precision"][0 if tied else d])
        m = np.linalg.solve(P, given_arguments["prior.natural_mean"][d])
        np.testing.assert_allclose(ours["posterior.mean"][d], m, rtol=1e-9)
        second = reference.triangle(np.linalg.inv(P) + np.outer(m, m))
        np.testing.assert_allclose(ours["posterior.second"][d], second, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_held_memberships_come_back_to_the_bit(form: str, rng: np.random.Generator) -> None:
    given_arguments = arguments(rng, hold=True)
    ours, _ = both(form, given_arguments)
    np.testing.assert_array_equal(
        ours["posterior.membership"], given_arguments["posterior.membership"]
    )


def test_what_is_negligible_is_the_same_here_and_there() -> None:
    assert blocks.NEGLIGIBLE == reference.NEGLIGIBLE == 1e-6


def test_negligible_communities_are_left_out(rng: np.random.Generator) -> None:
    given_arguments = arguments(rng, communities=3)
    given_arguments["prior.log_weight"] = np.array([0.0, 0.5, -60.0])
    ours, theirs = both("coupled_rows", given_arguments)
    assert (theirs["posterior.membership"][:, 2] == 0.0).sum() > 20
    assert_same(ours, theirs, tolerance=1e-9)
    np.testing.assert_allclose(ours["posterior.membership"].sum(axis=1), 1.0, rtol=1e-14)


STRIDED = ["cuts"] + [
    f"{name}.{field}"
    for name, each in TUPLES.items()
    for field in each._fields
    if field not in ("pinned", "hold")
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STRIDED)
def test_a_strided_array_is_a_type_error(form: str, name: str, rng: np.random.Generator) -> None:
    given_arguments = arguments(rng, chunks=2, shifted=True, weighted=True)
    array = given_arguments[name]
    given_arguments[name] = np.repeat(array, 2, axis=-1)[..., ::2]
    np.testing.assert_array_equal(given_arguments[name], array)
    kernel = compiled(form, given_arguments, np.float64)
    with pytest.raises(TypeError):
        kernel(*passed(given_arguments))


@pytest.mark.parametrize("form", FORMS)
def test_a_transposed_array_is_a_type_error(form: str, rng: np.random.Generator) -> None:
    given_arguments = arguments(rng)
    given_arguments["other.second"] = np.asfortranarray(given_arguments["other.second"])
    kernel = compiled(form, given_arguments, np.float64)
    with pytest.raises(TypeError):
        kernel(*passed(given_arguments))


@pytest.mark.parametrize("form", FORMS)
def test_mixed_storage_is_a_type_error(form: str, rng: np.random.Generator) -> None:
    given_arguments = arguments(rng)
    given_arguments["ratings.values"] = given_arguments["ratings.values"].astype(np.float32)
    for storage in (np.float64, np.float32):
        kernel = compiled(form, given_arguments, storage)
        with pytest.raises(TypeError):
            kernel(*passed(given_arguments))
