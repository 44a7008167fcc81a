"""The kernels that learn online compute what the plain NumPy reference computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf.kernels import online, reference_online
from hemf.kernels.structures import Rows, Rules, Shared
from hemf.model.layout import Layout
from hemf.model.packing import pack
from proofs.problems import any_communities, spd

ALL = -1
ROOM = 40  # ratings that fit into a row's list
LEVELS = 7
SIDES = ("user", "item")


def shared_of(
    rng: np.random.Generator,
    layout: Layout,
    communities: int,
    *,
    tied: bool,
    scales: bool,
    keep: float,
    patience: int,
    dtype: Any,
) -> Shared:
    """Communities of any kind, and statistics that rows have yet to give."""
    posterior = any_communities(rng, communities, layout.order, tied=tied)
    covariances = posterior.precision.shape[0]
    return Shared(
        precision=np.ascontiguousarray(posterior.precision),
        pull=np.ascontiguousarray(posterior.pull),
        log_weight=np.ascontiguousarray(posterior.log_weight),
        size=np.zeros(communities),
        first=np.zeros((communities, layout.order)),
        scatter=np.zeros((covariances, layout.order * (layout.order + 1) // 2)),
        totals=np.zeros(3),
        free=layout.free,
        pinned=layout.pinned,
        prior_shape=float(rng.uniform(2.0, 9.0)) if scales else 0.0,
        error_unit=float(rng.uniform(0.3, 2.0)),
        expected=rng.normal(size=layout.total),
        spread=pack(spd(rng, layout.total)).astype(dtype),
        keep=keep,
        patience=patience,
    )


def rows_of(
    rng: np.random.Generator,
    layout: Layout,
    n: int,
    others: int,
    shared: Shared,
    *,
    window: int,
    parts: int,
    scales: bool,
    dtype: Any,
) -> Rows:
    """Rows with moments and ratings of any kind, which have given nothing yet."""
    mean = rng.normal(size=(n, layout.total))
    root = rng.normal(size=(n, layout.total, layout.total)) / layout.total
    spread = root @ root.transpose(0, 2, 1)
    if layout.pinned >= 0:
        mean[:, layout.pinned] = 1.0
        spread[:, layout.pinned, :] = spread[:, :, layout.pinned] = 0.0
    order, communities = layout.order, shared.log_weight.size
    longest = min(others, ROOM // 2 if window == ALL else window)
    length = rng.integers(0, longest + 1, n)
    other, code = np.full(n * ROOM, -7, np.int32), rng.integers(0, LEVELS, n * ROOM)
    for i in range(n):
        listed = rng.permutation(others)[: length[i]]
        other[i * ROOM : i * ROOM + length[i]] = listed
    sums = window != ALL
    older = rng.integers(0, 9, n) if sums else np.zeros(n, np.int64)
    older[length < max(window, 0)] = 0  # what is summed up has been pushed out of a full list
    second = pack(spread + mean[:, :, None] * mean[:, None, :])
    weight = rng.uniform(0.3, 3.0, n) if scales else np.ones(n)
    return Rows(
        mean=mean.astype(dtype),
        second=second.astype(dtype),
        membership=np.zeros((n, communities), dtype),
        listed=np.full((n, min(parts, communities)), -1, np.int32),
        parts=np.full(
            (n, min(parts, communities), 1 + order + order * (order + 1) // 2), np.nan, dtype
        ),
        weight=weight.astype(dtype),
        shape=np.ones(n),
        rate=np.ones(n),
        error=np.zeros(n),
        entropy=np.zeros(n),
        count=length + older,
        judged=np.zeros(n, np.int64),
        pending=np.zeros(n, np.int64),
        touched=np.zeros(n, np.int64),
        start=np.arange(n) * ROOM,
        length=length,
        other=other,
        code=code.astype(np.uint16),
        gram=(older[:, None] * second).astype(dtype)[:, : layout.packed * sums],
        moment=(older[:, None] * rng.normal(size=mean.shape)).astype(dtype)[
            :, : layout.total * sums
        ],
        square=older * rng.uniform(0.5, 2.0, n),
        settled=older * 1.3,
    )


def case(
    rng: np.random.Generator,
    *,
    n: tuple[int, int] = (9, 7),
    factors: int = 3,
    communities: int = 3,
    tied: bool = False,
    offsets: bool = False,
    scales: bool = False,
    window: int = ALL,
    keep: float = 1.0,
    parts: int = 16,
    least_share: float = 1e-6,
    thorough: bool = True,
    patience: int = 1,
    dtype: Any = np.float64,
) -> dict[str, Any]:
    """Both sides of a table, with what is shared."""
    made: dict[str, Any] = {}
    for own, other, name in ((0, 1, "user"), (1, 0, "item")):
        layout = Layout.of(name, n_factors=factors, offsets=offsets)
        made[f"{name} shared"] = shared = shared_of(
            rng, layout, communities, tied=tied, scales=scales, keep=keep,
            patience=patience if name == "item" else 1, dtype=dtype,
        )  # fmt: skip
        made[name] = rows_of(
            rng, layout, n[own], n[other], shared,
            window=window, parts=parts, scales=scales, dtype=dtype,
        )  # fmt: skip
    levels = rng.normal(size=LEVELS)
    made["rules"] = Rules(
        levels.astype(dtype), float(rng.uniform(0.2, 2.0)), window, least_share, int(thorough)
    )
    return made


def copied(made: dict[str, Any]) -> dict[str, Any]:
    def copy(value: Any) -> Any:
        return value.copy() if isinstance(value, np.ndarray) else value

    return {name: type(group)(*(copy(value) for value in group)) for name, group in made.items()}


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], *, tolerance: float = 1e-9) -> None:
    for name in ("user", "item", "user shared", "item shared"):
        for field in ours[name]._fields:
            left, right = getattr(ours[name], field), getattr(theirs[name], field)
            if field == "parts":  # where nothing is listed, anything may be left
                there = ours[name].listed >= 0
                left, right = left[there], right[there]
            scale = max(1.0, float(np.nan_to_num(np.abs(right)).max())) if np.size(right) else 1.0
            np.testing.assert_allclose(
                left, right, rtol=tolerance, atol=tolerance * scale, err_msg=f"{name} {field}"
            )


def compiled(kernel: str, made: dict[str, Any]) -> Any:
    return getattr(online, kernel).compiled(made["user"].mean.dtype)


def refresh_both_ways(
    made: dict[str, Any], rows: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Refresh users, then items, by the kernel and by the reference."""
    results = []
    for run in (compiled("refresh_all", made), reference_online.refresh_all):
        state = copied(made)
        for name, other in (("user", "item"), ("item", "user")):
            run(rows[name], state[name], state[other], state[f"{name} shared"], state["rules"])
        results.append(state)
    return results[0], results[1]


SHAPES: dict[str, Any] = {
    "factors": st.integers(1, 6),
    "communities": st.integers(1, 5),
    "tied": st.booleans(),
    "offsets": st.booleans(),
    "scales": st.booleans(),
    "window": st.sampled_from([ALL, 0, 1, 4]),
    "keep": st.sampled_from([1.0, 0.9, 0.3]),
    "parts": st.integers(1, 5),
    "least_share": st.sampled_from([1e-6, 1e-2]),
    "thorough": st.booleans(),
}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), repeats=st.integers(1, 2), **SHAPES)
def test_a_refresh_equals_the_reference(seed: int, repeats: int, **shape: Any) -> None:
    rng = np.random.default_rng(seed)
    made = case(rng, **shape)
    rows = {
        name: np.concatenate([rng.permutation(made[name].count.size) for _ in range(repeats)])
        for name in SIDES
    }
    assert_same(*refresh_both_ways(made, rows))


def test_float32_storage_is_float64_but_for_its_digits(rng: np.random.Generator) -> None:
    made = case(rng, offsets=True, scales=True, window=3, dtype=np.float32)
    rows = {name: np.arange(made[name].count.size) for name in SIDES}
    assert_same(*refresh_both_ways(made, rows), tolerance=1e-4)


def events(rng: np.random.Generator, made: dict[str, Any], n: int) -> tuple[np.ndarray, ...]:
    """Ratings of a table's pairs: new ones, changes, and some that are taken back."""
    pairs = rng.permutation(made["user"].count.size * made["item"].count.size)[:n]
    users, items = np.divmod(pairs, made["item"].count.size)
    codes, before = rng.integers(0, LEVELS, n), np.full(n, -1)
    for k, (i, j) in enumerate(zip(users, items, strict=True)):
        before[k] = reference_online.recall(made["user"], made["item"], i, j)
        if before[k] < 0 and made["user"].gram.shape[1] and rng.random() < 0.3:
            before[k] = rng.integers(LEVELS)  # one that is summed up
        if before[k] >= 0 and rng.random() < 0.3:
            codes[k] = -1
    return users, items, codes, before


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    offsets=st.booleans(),
    scales=st.booleans(),
    window=st.sampled_from([ALL, 0, 1, 4]),
    keep=st.sampled_from([1.0, 0.9]),
)
def test_records_equal_the_reference(seed: int, keep: float, **shape: Any) -> None:
    rng = np.random.default_rng(seed)
    made = case(rng, keep=keep, **shape)
    users, items, codes, before = events(rng, made, 12)
    results = []
    for run in (compiled("record_all", made), reference_online.record_all):
        state, is_new = copied(made), np.full(12, -7)
        run(users, items, codes, before, state["user"], state["item"], state["rules"], keep, is_new)
        results.append((state, is_new))
    (ours, ours_new), (theirs, theirs_new) = results
    assert_same(ours, theirs)
    np.testing.assert_array_equal(ours_new, theirs_new)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), patience=st.integers(1, 4), **SHAPES)
def test_a_stream_equals_the_reference(seed: int, **shape: Any) -> None:
    rng = np.random.default_rng(seed)
    made = case(rng, **shape)
    n = 14
    arguments = (rng.integers(0, 9, n), rng.integers(0, 7, n), rng.integers(0, LEVELS, n))
    results = []
    for run in (compiled("stream", made), reference_online.stream):
        state, forecasts, errors = copied(made), np.full(n, np.nan), np.full(n, np.nan)
        run(
            *arguments, state["user"], state["item"], state["user shared"], state["item shared"],
            state["rules"], forecasts, errors, np.zeros(n, np.int64),
        )  # fmt: skip
        results.append((state, forecasts, errors))
    (ours, *ours_written), (theirs, *theirs_written) = results
    assert_same(ours, theirs, tolerance=1e-8)
    np.testing.assert_allclose(ours_written, theirs_written, rtol=1e-8, atol=1e-8)


def test_what_a_pair_was_rated_is_known_while_either_side_lists_it(
    rng: np.random.Generator,
) -> None:
    made = case(rng, window=3)
    users, items = (part.ravel() for part in np.indices((9, 7)))
    known = np.full(users.size, -1)
    compiled("recall_all", made)(users, items, made["user"], made["item"], known)
    for k, (i, j) in enumerate(zip(users, items, strict=True)):
        assert known[k] == reference_online.recall(made["user"], made["item"], i, j)
    by_user = sum(
        reference_online.find(made["user"], i, j) >= 0 for i, j in zip(users, items, strict=True)
    )
    assert (known >= 0).sum() > by_user  # some are in the items' lists alone


# -- forgetting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [ALL, 0, 3])
def test_ratings_fade_by_their_age_wherever_they_are_kept(
    window: int, rng: np.random.Generator
) -> None:
    """G = Σ γᵏ E[b bᵀ], k counting back from the newest; lists and sums together hold the same."""
    keep, rated = 0.8, rng.permutation(7)
    made = case(rng, window=window, keep=keep)
    own, other = made["user"], made["item"]
    products = pack(other.mean[:, :, None] * other.mean[:, None, :])
    other.second[:] = products + made["user shared"].spread  # all as uncertain
    for field in ("count", "length", "gram", "moment", "square", "settled"):
        getattr(own, field)[0] = 0
    codes = rng.integers(0, LEVELS, rated.size)
    compiled("record_all", made)(
        np.zeros_like(rated), rated, codes, np.full(rated.size, -1), own, other, made["rules"],
        keep, np.zeros_like(rated),
    )  # fmt: skip
    weights = keep ** np.arange(rated.size)[::-1]
    G, h, squares = reference_online.data_part(own, other, made["user shared"], made["rules"], 0)
    r = made["rules"].levels[codes]
    np.testing.assert_allclose(pack(G), weights @ other.second[rated], rtol=1e-12)
    np.testing.assert_allclose(h, (weights * r) @ other.mean[rated], rtol=1e-12, atol=1e-12)
    assert squares == pytest.approx(weights @ r**2, rel=1e-12)
    rows = {"user": np.array([0]), "item": np.array([], np.int64)}
    assert_same(*refresh_both_ways(made, rows))


def test_a_row_knows_how_many_ratings_its_faded_ones_are_worth(rng: np.random.Generator) -> None:
    made = case(rng, keep=0.5, scales=True)
    made["user"].count[:] = [0, 1, 2, 3, 10, 60, 60, 60, 60]
    ours, _ = refresh_both_ways(made, {"user": np.arange(9), "item": np.array([], np.int64)})
    worth = 2.0 * (ours["user"].shape - made["user shared"].prior_shape)
    expected = [0, 1, 1.5, 1.75, 2 - 2.0**-9, 2, 2, 2, 2]
    np.testing.assert_allclose(worth, expected, rtol=1e-12, atol=1e-12)


# -- what a refresh leaves out -------------------------------------------------------------------


def test_a_row_keeps_its_likeliest_communities(rng: np.random.Generator) -> None:
    made = case(rng, communities=5, parts=2, least_share=0.0)
    every = case(np.random.default_rng(20240229), communities=5, least_share=0.0)
    rows = {"user": np.arange(9), "item": np.array([], np.int64)}
    few, _ = refresh_both_ways(made, rows)
    whole, _ = refresh_both_ways(every, rows)
    for i in range(9):
        best = np.argsort(-whole["user"].membership[i])[:2]
        assert few["user"].listed[i].tolist() == best.tolist()
        shares = whole["user"].membership[i, best]
        np.testing.assert_allclose(
            few["user"].membership[i, best], shares / shares.sum(), rtol=1e-9
        )


def test_a_row_weighs_all_communities_when_its_ratings_have_grown_by_half(
    rng: np.random.Generator,
) -> None:
    made = case(rng, thorough=False, least_share=0.9)
    rows = {"user": np.arange(7), "item": np.array([], np.int64)}
    made["user"].count[:] = 10
    made, _ = refresh_both_ways(made, rows)
    own = made["user"]
    made["user shared"].totals[2] = 1.0  # in every eighth refresh, all are weighed
    before = own.listed[:, 0].copy()
    made["user shared"].log_weight[:] = 0.0
    made["user shared"].log_weight[(before[0] + 1) % 3] = 1e4  # another has become overwhelming
    own.count[:] = 14
    still, _ = refresh_both_ways(made, rows)
    np.testing.assert_array_equal(still["user"].listed[:, 0], before)
    own.count[:] = 15
    moved, _ = refresh_both_ways(made, rows)
    assert (moved["user"].listed[:7, 0] == (before[0] + 1) % 3).all()


# -- arguments -----------------------------------------------------------------------------------


def is_array(made: dict[str, Any], group: str, field: str) -> bool:
    return isinstance(getattr(made[group], field), np.ndarray)


EXAMPLE = case(np.random.default_rng(0), window=3)
ARRAYS = [
    (group, field)
    for group in ("user", "item", "user shared", "rules")
    for field in EXAMPLE[group]._fields
    if is_array(EXAMPLE, group, field)
]


@pytest.mark.parametrize(("group", "field"), ARRAYS)
def test_a_strided_array_is_a_type_error(group: str, field: str, rng: np.random.Generator) -> None:
    made = case(rng, window=3)
    array = getattr(made[group], field)
    strided = np.repeat(array, 2, axis=-1)[..., ::2]
    np.testing.assert_array_equal(strided, array)
    made[group] = made[group]._replace(**{field: strided})
    with pytest.raises(TypeError):
        compiled("refresh_all", case(rng))(
            np.arange(3), made["user"], made["item"], made["user shared"], made["rules"]
        )


def test_mixed_storage_is_a_type_error(rng: np.random.Generator) -> None:
    made = case(rng)
    made["item"] = made["item"]._replace(mean=made["item"].mean.astype(np.float32))
    with pytest.raises(TypeError):
        compiled("refresh_all", made)(
            np.arange(3), made["user"], made["item"], made["user shared"], made["rules"]
        )
