"""The kernels that learn online compute what the plain NumPy reference computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hemf.kernels import online
from hemf.kernels.reference import online as reference_online
from hemf.kernels.structures import Batch, Rows, Rules, Shared, Stream, outer, scratch
from hemf.model.rows import Layout, pack
from hemf.online.moods import no_sessions
from proofs.problems import any_communities, spd

ALL = -1
ROOM = 100  # ratings that fit into a row's list
LEVELS = 7
SIDES = ("user", "item")
NOWHERE = np.zeros(0, np.int64)
"""Sessions or times of ratings without moods."""


def shared_of(
    rng: np.random.Generator,
    layout: Layout,
    communities: int,
    *,
    tied: bool,
    scales: bool,
    forgetting: float,
    pending_share: float,
    dtype: Any,
    features: str | None = None,
) -> Shared:
    """Communities of any kind, and statistics that rows have yet to give."""
    posterior = any_communities(rng, communities, layout.order, tied=tied)
    covariances = posterior.precision.shape[0]
    return Shared(
        precision=np.ascontiguousarray(posterior.precision),
        natural_mean=np.ascontiguousarray(posterior.natural_mean),
        log_weight=np.ascontiguousarray(posterior.log_weight),
        size=np.zeros(communities),
        first=np.zeros((communities, layout.order)),
        scatter=np.zeros((covariances, layout.order * (layout.order + 1) // 2)),
        totals=np.zeros(4),
        free=layout.free,
        pinned=layout.pinned,
        prior_shape=float(rng.uniform(2.0, 9.0)) if scales else 0.0,
        error_unit=float(rng.uniform(0.3, 2.0)),
        expected=rng.normal(size=layout.total),
        spread=pack(spd(rng, layout.total)).astype(dtype),
        forgetting=forgetting,
        pending_share=pending_share,
        change=10.0 if pending_share > 0.0 else np.inf,
        count_coefficients=rng.normal(size=(2 if features == "implicit" else 0, layout.order)),
        logs=np.array([1.0, rng.choice([0.0, 0.7]), 0.5, 2.0][: 4 * (features == "implicit")]),
    )


def rows_of(
    rng: np.random.Generator,
    layout: Layout,
    n: int,
    shared: Shared,
    *,
    window: int,
    parts: int,
    scales: bool,
    dtype: Any,
    features: str | None = None,
) -> Rows:
    """Rows with moments and ratings of any kind, which have given nothing yet."""
    mean = rng.normal(size=(n, layout.total))
    root = rng.normal(size=(n, layout.total, layout.total)) / layout.total
    spread = root @ root.transpose(0, 2, 1)
    if layout.pinned >= 0:
        mean[:, layout.pinned] = 1.0
        spread[:, layout.pinned, :] = spread[:, :, layout.pinned] = 0.0
    order, communities = layout.order, shared.log_weight.size
    sums = window != ALL
    older = rng.integers(0, 9, n) if sums else np.zeros(n, np.int64)
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
        count=older,
        effective_count=np.zeros(n),
        considered_count=np.zeros(n, np.int64),
        pending=np.zeros(n, np.int64),
        last_refresh=np.zeros(n, np.int64),
        other_refreshes=np.zeros(n, np.int64),
        start=np.arange(n) * ROOM,
        length=np.zeros(n, np.int64),
        other=np.full(n * ROOM, -7, np.int32),
        code=np.zeros(n * ROOM, np.uint16),
        session=np.zeros(0, np.int32),
        gram=(older[:, None] * second).astype(dtype)[:, : layout.packed * sums],
        moment=(older[:, None] * rng.normal(size=mean.shape)).astype(dtype)[
            :, : layout.total * sums
        ],
        square=older * rng.uniform(0.5, 2.0, n),
        summed_weight=older * 1.3,
        shift=np.zeros((n, order * (features is not None))),
        base=rng.normal(size=(n, order * (features is not None))),
        coefficient_sum=rng.normal(size=(n, order * (features == "implicit"))),
        leverage=rng.uniform(0.0, 2.0, n),
        information=np.zeros(n),
        coefficients=rng.normal(size=(n, order * (features == "implicit"))),
    )


def list_ratings(rng: np.random.Generator, users: Rows, items: Rows, window: int) -> None:
    """Give both sides the same lists: what is among the newest of its user or of its item."""
    pairs = [(i, j) for i in range(users.mean.shape[0]) for j in range(items.mean.shape[0])]
    newest = 20 if window == ALL else window
    kept, seen = (
        [],
        {
            name: np.zeros(len(rows.start), int)
            for name, rows in zip(SIDES, (users, items), strict=True)
        },
    )
    for i, j in rng.permutation(pairs)[: rng.integers(len(pairs) + 1)]:  # the newest first
        if seen["user"][i] < newest or seen["item"][j] < newest:
            kept.append((i, j, rng.integers(LEVELS)))
        seen["user"][i] += 1
        seen["item"][j] += 1
    for i, j, code in reversed(kept):
        for rows, own, other in ((users, i, j), (items, j, i)):
            end = rows.start[own] + rows.length[own]
            rows.other[end], rows.code[end] = other, code
            rows.length[own] += 1
            rows.count[own] += 1


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
    repeats: bool = False,
    forgetting: float = 1.0,
    parts: int = 16,
    min_share: float = 1e-6,
    thorough: bool = True,
    pending_share: float = 0.0,
    dtype: Any = np.float64,
    features: str | None = None,
) -> dict[str, Any]:
    """Both sides of a table, with what is shared."""
    made: dict[str, Any] = {}
    for own, name in enumerate(SIDES):
        layout = Layout.of(name, n_factors=factors, offsets=offsets)
        made[f"{name} shared"] = shared = shared_of(
            rng, layout, communities, tied=tied or features is not None, scales=scales,
            forgetting=forgetting,
            pending_share=pending_share if name == "item" else 0.0, dtype=dtype, features=features,
        )  # fmt: skip
        made[name] = rows_of(
            rng, layout, n[own], shared, window=window, parts=parts, scales=scales, dtype=dtype,
            features=features,
        )  # fmt: skip
    if window != 0:
        list_ratings(rng, made["user"], made["item"], window)
    levels = rng.normal(size=LEVELS)
    made["rules"] = rules = Rules(
        levels.astype(dtype), float(rng.uniform(0.2, 2.0)), window, int(repeats), 1.0,
        min_share,
        int(thorough),
        np.zeros(2 * int(window == ALL and forgetting == 1.0)), np.zeros((0, 2), dtype),
    )  # fmt: skip
    reference_online.add_up(made["user"], made["item"], rules)
    return made


def copied(made: dict[str, Any]) -> dict[str, Any]:
    def copy(value: Any) -> Any:
        return value.copy() if isinstance(value, np.ndarray) else value

    return {name: type(group)(*(copy(value) for value in group)) for name, group in made.items()}


def assert_same(
    ours: dict[str, Any],
    theirs: dict[str, Any],
    *,
    tolerance: float = 1e-9,
    refreshes: bool = True,
) -> None:
    """Two states agree; without ``refreshes``, how often rows were refreshed may differ."""
    for name in ("user", "item", "user shared", "item shared", "rules"):
        for field in ours[name]._fields:
            left, right = getattr(ours[name], field), getattr(theirs[name], field)
            if field == "total":  # the reference computes it again, and has no largest change
                left, right = left[:1], right[:1]
            if not refreshes and field in ("last_refresh", "other_refreshes"):
                continue
            if not refreshes and field == "totals":
                left, right = np.delete(left, 2), np.delete(right, 2)
            if field == "parts":  # where nothing is listed, anything may be left
                there = ours[name].listed >= 0
                left, right = left[there], right[there]
            scale = max(1.0, float(np.nan_to_num(np.abs(right)).max())) if np.size(right) else 1.0
            np.testing.assert_allclose(
                left, right, rtol=tolerance, atol=tolerance * scale, err_msg=f"{name} {field}"
            )


def compiled(kernel: str, made: dict[str, Any]) -> Any:
    return getattr(online, kernel).compiled(made["user"].mean.dtype)


def filled(memory: Any) -> Any:
    """The same working memory with something in it, which nobody may look at."""
    for array in memory:
        array.fill(np.nan if array.dtype.kind == "f" else -7)
    return memory


def refresh_both_ways(
    made: dict[str, Any], rows: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Refresh users, then items, by the kernel and by the reference."""
    results = []
    for run in (compiled("refresh_all", made), reference_online.refresh_all):
        state = copied(made)
        for name, other in (("user", "item"), ("item", "user")):
            shared = state[f"{name} shared"]
            memory = filled(scratch(state[name], shared))
            run(rows[name], state[name], state[other], shared, state["rules"], memory)
        results.append(state)
    return results[0], results[1]


SHAPES: dict[str, Any] = {
    "factors": st.integers(1, 6),
    "communities": st.integers(1, 5),
    "tied": st.booleans(),
    "offsets": st.booleans(),
    "scales": st.booleans(),
    "window": st.sampled_from([ALL, 0, 1, 4]),
    "repeats": st.booleans(),
    "forgetting": st.sampled_from([1.0, 0.9, 0.3]),
    "parts": st.integers(1, 5),
    "min_share": st.sampled_from([1e-6, 1e-2]),
    "thorough": st.booleans(),
    "features": st.sampled_from([None, "given", "implicit"]),
}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), times=st.integers(1, 2), **SHAPES)
def test_a_refresh_equals_the_reference(seed: int, times: int, **shape: Any) -> None:
    rng = np.random.default_rng(seed)
    made = case(rng, **shape)
    rows = {
        name: np.concatenate([rng.permutation(made[name].count.size) for _ in range(times)])
        for name in SIDES
    }
    assert_same(*refresh_both_ways(made, rows))


def test_float32_storage_is_float64_but_for_its_digits(rng: np.random.Generator) -> None:
    made = case(rng, offsets=True, scales=True, window=3, dtype=np.float32)
    rows = {name: np.arange(made[name].count.size) for name in SIDES}
    assert_same(*refresh_both_ways(made, rows), tolerance=1e-4)


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("thorough", [False, True])
def test_a_row_is_refreshed_several_times_over(
    times: int, thorough: bool, rng: np.random.Generator
) -> None:
    made = case(rng, n=(1, 30), offsets=True, scales=True, thorough=thorough, min_share=0.05)
    ours, theirs = copied(made), copied(made)
    arguments = [ours[name] for name in ("user", "item", "user shared", "rules")]
    memory = filled(scratch(ours["user"], ours["user shared"]))
    compiled("refresh_all", made)(np.zeros(times, np.int64), *arguments, memory)
    for _ in range(times):
        reference_online.refresh(
            theirs["user"], theirs["item"], theirs["user shared"], theirs["rules"], 0
        )
    reference_online.add_up(theirs["user"], theirs["item"], theirs["rules"])
    assert ours["user shared"].totals[2] == times
    assert_same(ours, theirs)


def events(rng: np.random.Generator, made: dict[str, Any], n: int) -> tuple[np.ndarray, ...]:
    """Ratings of a table's pairs: new ones, changes, and some that are taken back."""
    pairs = rng.permutation(made["user"].count.size * made["item"].count.size)[:n]
    users, items = np.divmod(pairs, made["item"].count.size)
    codes, before = rng.integers(0, LEVELS, n), np.full(n, -1)
    for k, (i, j) in enumerate(zip(users, items, strict=True)):
        before[k] = reference_online.recall(made["user"], i, j)
        if before[k] < 0 and made["user"].gram.shape[1] and rng.random() < 0.3:
            before[k] = rng.integers(LEVELS)  # one that is summed up
        if before[k] >= 0 and rng.random() < 0.3:
            codes[k] = -1
    return users, items, codes, before


# docs/model.md#new-rating
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    offsets=st.booleans(),
    scales=st.booleans(),
    window=st.sampled_from([ALL, 0, 1, 4]),
    repeats=st.booleans(),
    forgetting=st.sampled_from([1.0, 0.9]),
    features=st.sampled_from([None, "given", "implicit"]),
)
def test_records_equal_the_reference(seed: int, forgetting: float, **shape: Any) -> None:
    rng = np.random.default_rng(seed)
    made = case(rng, forgetting=forgetting, **shape)
    users, items, codes, before = events(rng, made, 12)
    results = []
    for run in (compiled("record_all", made), reference_online.record_all):
        state, is_new = copied(made), np.full(12, -7)
        run(
            Batch(users, items, codes, before, NOWHERE), state["user"], state["item"],
            state["rules"], forgetting, is_new,
            filled(outer(state["user"].mean, state["user"].second)),
        )  # fmt: skip
        results.append((state, is_new))
    (ours, ours_new), (theirs, theirs_new) = results
    assert_same(ours, theirs)
    np.testing.assert_array_equal(ours_new, theirs_new)


# -- streams -------------------------------------------------------------------------------------


def ratings_in_a_row(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """Users who give one to four ratings each before it is the next one's turn."""
    users = np.repeat(rng.integers(0, 9, n), rng.integers(1, 5, n))[:n]
    return users, rng.integers(0, 7, n), rng.integers(0, LEVELS, n)


def streamed(
    run: Any, made: dict[str, Any], ratings: tuple[np.ndarray, ...], *, at_once: int = 1000
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """The state after a stream that comes so many ratings at a time, forecasts and errors."""
    n, state = ratings[0].size, copied(made)
    forecasts, errors, spent = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, np.int64)
    for begin in range(0, n, at_once):
        part = slice(begin, begin + at_once)
        run(
            Stream(
                *(array[part] for array in ratings), NOWHERE,
                forecasts[part], errors[part], spent[part],
            ),
            state["user"], state["item"], state["user shared"], state["item shared"],
            state["rules"],
            *(filled(scratch(state[name], state[f"{name} shared"])) for name in SIDES),
            filled(outer(state["user"].mean, state["user"].second)),
            no_sessions(state["user"].mean.dtype),
        )  # fmt: skip
    return state, forecasts, errors


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), pending_share=st.sampled_from([0.0, 0.15, 0.5]), **SHAPES)
def test_a_stream_equals_the_reference(seed: int, **shape: Any) -> None:
    rng = np.random.default_rng(seed)
    made = case(rng, **shape)
    ratings = ratings_in_a_row(rng, 16)
    ours, *ours_written = streamed(compiled("stream", made), made, ratings)
    theirs, *theirs_written = streamed(reference_online.stream, made, ratings)
    assert_same(ours, theirs, tolerance=1e-8)
    np.testing.assert_allclose(ours_written, theirs_written, rtol=1e-8, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    pending_share=st.sampled_from([0.0, 0.15, 0.5]),
    **{key: value for key, value in SHAPES.items() if key not in ("scales", "thorough")},
)
def test_a_row_that_waits_is_not_missed(seed: int, **shape: Any) -> None:
    """What is published when read equals what is published at every rating.

    Noise scales change whenever a row is published, and are left out.
    """
    rng = np.random.default_rng(seed)
    made = case(rng, scales=False, thorough=True, **shape)
    made["item shared"] = made["item shared"]._replace(change=np.inf)  # refreshes are not counted
    ratings = ratings_in_a_row(rng, 16)
    ours, our_forecasts, _ = streamed(compiled("stream", made), made, ratings)
    theirs, their_forecasts, _ = streamed(reference_online.stream, made, ratings, at_once=1)
    assert_same(ours, theirs, tolerance=1e-8, refreshes=False)
    np.testing.assert_allclose(our_forecasts, their_forecasts, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("window", [ALL, 3])
def test_a_float32_stream_is_a_float64_one_but_for_its_digits(
    window: int, rng: np.random.Generator
) -> None:
    made = case(rng, offsets=True, scales=True, window=window, pending_share=0.3, dtype=np.float32)
    ratings = ratings_in_a_row(rng, 16)
    ours, *ours_written = streamed(compiled("stream", made), made, ratings)
    theirs, *theirs_written = streamed(reference_online.stream, made, ratings)
    assert_same(ours, theirs, tolerance=1e-3)
    np.testing.assert_allclose(ours_written, theirs_written, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scales", [False, True])
def test_a_user_may_go_on_for_longer_than_a_streak(scales: bool, rng: np.random.Generator) -> None:
    made = case(rng, n=(3, 90), scales=scales, pending_share=0.3)
    for field in ("count", "length"):
        getattr(made["user"], field)[1] = 0
    reference_online.add_up(made["user"], made["item"], made["rules"])
    n = online.STREAK + 20
    ratings = np.ones(n, np.int64), rng.permutation(90)[:n], rng.integers(0, LEVELS, n)
    ours, our_forecasts, _ = streamed(compiled("stream", made), made, ratings)
    theirs, their_forecasts, _ = streamed(reference_online.stream, made, ratings)
    assert ours["user"].count[1] == n
    assert_same(ours, theirs, tolerance=1e-8)
    np.testing.assert_allclose(our_forecasts, their_forecasts, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("window", "forgetting"), [(ALL, 1.0), (ALL, 0.9), (0, 1.0), (4, 1.0)])
def test_errors_are_written_where_the_history_does_not_tell_them(
    window: int, forgetting: float, rng: np.random.Generator
) -> None:
    made = case(rng, window=window, forgetting=forgetting)
    _, _, errors = streamed(compiled("stream", made), made, ratings_in_a_row(rng, 12))
    assert (errors > 0.0).all() if window == 0 else np.isnan(errors).all()


def test_an_item_waits_until_a_part_of_its_ratings_is_new(rng: np.random.Generator) -> None:
    made = case(rng, n=(60, 7), pending_share=0.1)
    for field in ("count", "length"):
        getattr(made["item"], field)[0] = 0
    run, refreshed, expected = compiled("stream", made), [], []
    for count in range(1, 51):
        rating = np.array([count]), np.array([0]), np.array([count % LEVELS])
        made, *_ = streamed(run, made, rating)
        if made["item"].pending[0] == 0:
            refreshed.append(count)
        if count - max(expected, default=0) > 0.1 * count:
            expected.append(count)
    assert made["item"].count[0] == 50
    assert refreshed == expected
    assert refreshed[:11] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), pending_share=st.sampled_from([0.0, 0.5]), **SHAPES)
def test_totals_are_sums_over_rows(seed: int, **shape: Any) -> None:
    rng = np.random.default_rng(seed)
    made = case(rng, **shape)
    state, *_ = streamed(compiled("stream", made), made, ratings_in_a_row(rng, 16))
    for name in SIDES:
        own, totals = state[name], state[f"{name} shared"].totals
        expected = own.entropy.sum(), own.weight @ own.error, own.effective_count.sum()
        np.testing.assert_allclose(totals[[0, 1, 3]], expected, rtol=1e-9, atol=1e-9)
        assert totals[2] == own.last_refresh.max()
        assert (own.effective_count[own.last_refresh == 0] == 0.0).all()
        for i in np.flatnonzero((own.last_refresh > 0) & (own.pending == 0)):
            worth = reference_online.effective(own.count[i], shape["forgetting"])
            assert own.effective_count[i] == pytest.approx(worth, rel=1e-12)


@pytest.mark.parametrize("name", SIDES)
def test_what_a_pair_was_rated_is_known_while_it_is_listed(
    name: str, rng: np.random.Generator
) -> None:
    made = case(rng, window=3)
    users, items = (part.ravel() for part in np.indices((9, 7)))
    known = np.full(users.size, -1)
    compiled("recall_all", made)(users, items, made["user"], known)
    for k, (i, j) in enumerate(zip(users, items, strict=True)):
        row, other = (i, j) if name == "user" else (j, i)
        position = reference_online.find(made[name], row, other)
        assert known[k] == (made[name].code[position] if position >= 0 else -1)
    assert known.max() > -1


# -- bounded lists -------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    offsets=st.booleans(),
    scales=st.booleans(),
    window=st.sampled_from([1, 2, 4]),
    forgetting=st.sampled_from([1.0, 0.9]),
)
def test_retiring_equals_the_reference(
    seed: int, forgetting: float, window: int, **shape: Any
) -> None:
    rng = np.random.default_rng(seed)
    made = case(rng, forgetting=forgetting, window=window, **shape)
    narrow = made["rules"]._replace(window=max(window - 1, 1))  # some of what is listed is old
    rows, added = np.arange(9), rng.integers(1, 6, 9)
    results = []
    for run in (compiled("evict_all", made), reference_online.evict_all):
        state = copied(made)
        memory = filled(outer(state["user"].mean, state["user"].second))
        run(rows, added, state["user"], state["item"], narrow, forgetting, forgetting, memory)
        results.append(state)
    assert_same(*results)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), window=st.integers(1, 4))
def test_a_rating_is_listed_while_it_is_among_the_newest_of_either_row(
    seed: int, window: int
) -> None:
    rng = np.random.default_rng(seed)
    made = case(rng, window=window)
    for name in SIDES:
        made[name].length[:] = made[name].count[:] = 0
    pairs = rng.permutation(63)[:40]
    ratings = pairs // 7, pairs % 7, rng.integers(0, LEVELS, 40)
    state, *_ = streamed(compiled("stream", made), made, ratings)
    newer = {
        name: np.array([np.sum(rows[k + 1 :] == rows[k]) for k in range(40)])
        for name, rows in zip(SIDES, ratings[:2], strict=True)
    }
    kept = (newer["user"] < window) | (newer["item"] < window)
    for name, own, other in (("user", 0, 1), ("item", 1, 0)):
        rows = state[name]
        for i in range(len(rows.start)):
            listed = rows.other[rows.start[i] : rows.start[i] + rows.length[i]]
            expected = ratings[other][kept & (ratings[own] == i)]
            np.testing.assert_array_equal(listed, expected)
            assert rows.count[i] == np.sum(ratings[own] == i)


def test_a_rating_is_summed_up_as_if_the_other_row_had_not_known_of_it(
    rng: np.random.Generator,
) -> None:
    """Row j is at its optimum for all that rated it; without i its mean is the one summed up."""
    made = case(rng, factors=3, communities=1, window=3)
    users, items, rules = made["user"], made["item"], made["rules"]
    j = int(np.argmax(items.length))
    users.second[:] = pack(users.mean[:, :, None] * users.mean[:, None, :])  # known for certain
    items.gram[:], items.moment[:], items.square[:], items.summed_weight[:] = 0.0, 0.0, 0.0, 0.0
    common = made["item shared"]
    run, memory = compiled("refresh_all", made), filled(scratch(items, common))
    run(np.array([j]), items, users, common, rules, memory)
    i = int(items.other[items.start[j]])
    code = int(items.code[items.start[j]])
    found = reference_online.mean_without(users, items, rules, i, j, float(rules.levels[code]))
    reference_online.take_out(items, j, int(items.start[j]))
    run(np.array([j]), items, users, common, rules, memory)
    np.testing.assert_allclose(found, items.mean[j], rtol=1e-9, atol=1e-9)


# -- forgetting ----------------------------------------------------------------------------------


# docs/model.md#forgetting
@pytest.mark.parametrize("window", [ALL, 0, 3])
def test_ratings_fade_by_their_age_wherever_they_are_kept(
    window: int, rng: np.random.Generator
) -> None:
    """G = Σ γᵏ E[b bᵀ], k counting back from the newest; lists and sums together hold the same."""
    forgetting, rated = 0.8, rng.permutation(7)
    made = case(rng, window=window, forgetting=forgetting)
    own, other = made["user"], made["item"]
    products = pack(other.mean[:, :, None] * other.mean[:, None, :])
    other.second[:] = products + made["user shared"].spread  # all as uncertain
    for field in ("count", "length", "gram", "moment", "square", "summed_weight"):
        getattr(own, field)[0] = 0
    codes = rng.integers(0, LEVELS, rated.size)
    compiled("record_all", made)(
        Batch(np.zeros_like(rated), rated, codes, np.full(rated.size, -1), NOWHERE),
        own, other, made["rules"], forgetting, np.zeros_like(rated), outer(own.mean, own.second),
    )  # fmt: skip
    weights = forgetting ** np.arange(rated.size)[::-1]
    G, h, squares = reference_online.data_part(own, other, made["user shared"], made["rules"], 0)
    r = made["rules"].levels[codes]
    np.testing.assert_allclose(pack(G), weights @ other.second[rated], rtol=1e-12)
    np.testing.assert_allclose(h, (weights * r) @ other.mean[rated], rtol=1e-12, atol=1e-12)
    assert squares == pytest.approx(weights @ r**2, rel=1e-12)
    rows = {"user": np.array([0]), "item": np.array([], np.int64)}
    assert_same(*refresh_both_ways(made, rows))


def test_a_row_knows_how_many_ratings_its_faded_ones_are_worth(rng: np.random.Generator) -> None:
    made = case(rng, forgetting=0.5, scales=True)
    made["user"].count[:] = [0, 1, 2, 3, 10, 60, 60, 60, 60]
    ours, _ = refresh_both_ways(made, {"user": np.arange(9), "item": np.array([], np.int64)})
    worth = 2.0 * (ours["user"].shape - made["user shared"].prior_shape)
    expected = [0, 1, 1.5, 1.75, 2 - 2.0**-9, 2, 2, 2, 2]
    np.testing.assert_allclose(worth, expected, rtol=1e-12, atol=1e-12)


# -- what a refresh leaves out -------------------------------------------------------------------


def test_a_row_keeps_its_likeliest_communities(rng: np.random.Generator) -> None:
    made = case(rng, communities=5, parts=2, min_share=0.0)
    every = case(np.random.default_rng(20240229), communities=5, min_share=0.0)
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
    made = case(rng, thorough=False, min_share=0.9)
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


def with_memory(made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "memory": scratch(made["user"], made["user shared"])}


EXAMPLE = with_memory(case(np.random.default_rng(0), window=3))
GROUPS = ("user", "item", "user shared", "rules", "memory")
ARRAYS = [
    (group, field)
    for group in GROUPS
    for field in EXAMPLE[group]._fields
    if is_array(EXAMPLE, group, field) and getattr(EXAMPLE[group], field).size > 1
]


def strided(array: np.ndarray) -> np.ndarray:
    """The same numbers, with others between them."""
    made: np.ndarray = np.repeat(array, 2, axis=-1)[..., ::2]
    np.testing.assert_array_equal(made, array)
    return made


@pytest.mark.parametrize(("group", "field"), ARRAYS)
def test_a_strided_array_is_a_type_error(group: str, field: str, rng: np.random.Generator) -> None:
    made = with_memory(case(rng, window=3))
    made[group] = made[group]._replace(**{field: strided(getattr(made[group], field))})
    with pytest.raises(TypeError):
        compiled("refresh_all", case(rng))(np.arange(3), *(made[group] for group in GROUPS))


@pytest.mark.parametrize("field", ["vector", "products"])
def test_strided_memory_of_sums_is_a_type_error(field: str, rng: np.random.Generator) -> None:
    made = case(rng, window=3)
    memory = outer(made["user"].mean, made["user"].second)
    memory = memory._replace(**{field: strided(getattr(memory, field))})
    nothing = np.zeros(0, np.int64)
    with pytest.raises(TypeError):
        compiled("sum_up_all", made)(
            Batch(*[nothing] * 5), made["user"], made["item"], made["rules"], 1.0, memory
        )  # fmt: skip


def test_mixed_storage_is_a_type_error(rng: np.random.Generator) -> None:
    made = with_memory(case(rng))
    made["item"] = made["item"]._replace(mean=made["item"].mean.astype(np.float32))
    with pytest.raises(TypeError):
        compiled("refresh_all", made)(np.arange(3), *(made[group] for group in GROUPS))
