"""The part of a model file that holds what a model needs to continue learning online."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import astuple, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hemf._checks import LARGEST, check_array, is_bounded, is_covariance, require
from hemf._files import (
    Archive,
    Form,
    Json,
    Members,
    decoded,
    described,
    encoded,
    encoded_ids,
    restored,
)
from hemf._options import ALL, FitOptions, OnlineOptions
from hemf._typing import AnyArray
from hemf.data.features import FeatureEncoder, LabelBlock, NumberBlock
from hemf.data.sources import downcast
from hemf.data.vocabulary import Vocabulary
from hemf.errors import ParameterError
from hemf.model.regression import UnknownFeatures, given_part
from hemf.model.side import Side
from hemf.model.state import GivenFeatures
from hemf.online.clocks import Clocks, Outlier, Watch
from hemf.online.moods import OnlineMoods
from hemf.online.state import OnlineState, RowFeatures, feature_tables
from hemf.online.store import History, RatingBook, RowArrays, RowStore

if TYPE_CHECKING:
    from hemf.model.moods import MoodPrior


_SIDES = ("user", "item")
# What a side holds anyway.
_SHARED = ("mean", "second", "membership", "shape", "rate")
_PLAIN = ("noise", "centre", "unit", "start_scale", "renewal", "sweeps", "changes")
_TABLES = ("rotated_means", "mean_covariance")
_STATISTICS = ("size", "first", "scatter", "totals")
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def describe_online(state: OnlineState, members: Members) -> Form:
    """Return the JSON form of a state that learns online; its sides are described elsewhere."""
    members["online/book.npy"] = downcast(state.book.values, exact=True).copy()
    members["online/recent.npy"] = state.recent
    stores: Form = {}
    for side, store in state.stores.items():
        at = f"online/{side}"
        arrays = {name: getattr(store, name) for name in _own_arrays()}
        arrays |= {name: getattr(store, name) for name in _STATISTICS}
        lists = store.history.to_rows()
        arrays |= dict(zip(("indptr", "indices", "codes"), lists, strict=True))
        if state.moods is not None:
            arrays["sittings"] = store.history.sittings()
        for name, array in arrays.items():
            members[f"{at}/{name}.npy"] = np.ascontiguousarray(array)
        stores[side] = {"most_parts": store.most_parts, "sums": store.sums}
    tables: dict[str, list[str]] = {name: [] for name in _TABLES}
    for name, sides in tables.items():
        for side in _SIDES:
            table = getattr(state.stores[side], name)
            if table is not None:
                members[f"online/{side}/{name}.npy"] = table
                sides.append(side)
    describe_row_features(state, members)
    return {
        "options": described(state.options, "online/options", members),
        "stores": stores,
        "tables": tables,
        "fit": None if state.fit is None else _describe_fit(state.fit),
        "clocks": _describe_clocks(state.clocks),
        "is_buffering": state.is_buffering,
        "total": encoded(state.total.tolist()),
        "watch": encoded(astuple(state.watch)),
        **{name: encoded(getattr(state, name)) for name in _PLAIN},
        "outlier": _describe_outlier(state.outlier),
        "rng": _describe_rng(state.rng),
        "moods": describe_online_moods(state.moods, members),
    }


def restore_online(form: Form, sides: dict[str, Side], archive: Archive) -> OnlineState:
    """Make a state again of what `describe_online` returned, and of its sides."""
    options = _restore_options(form["options"])
    book = RatingBook()
    values = archive.array("online/book.npy")
    is_book = values.dtype in (np.float32, np.float64) and values.ndim == 1
    require(is_book, "the book of ratings is damaged")
    require(bool(np.isfinite(values).all()), "a rating is missing or infinite")
    book.codes(values)
    require(len(book) == values.size, "a rating is in the book twice")
    moods = None
    if form["moods"] is not None:
        moods = restore_online_moods(form["moods"], sides["user"], archive)
    is_buffering = form["is_buffering"]
    require(isinstance(is_buffering, bool), "whether it is buffering is neither true nor false")
    complete = is_buffering or options.window == ALL
    stores = {}
    for name in _SIDES:
        stores[name] = _restore_store(form["stores"][name], name, sides, book, archive)
        if moods is not None:
            restore_sittings(stores[name].history, moods, name, archive)
        fits = stores[name].sums != complete
        require(fits, f"{name}: it has no sums of what its history does not keep")
    require(_list_the_same(stores), "its users list other ratings than its items do")
    plain: Form = {name: decoded(form[name]) for name in _PLAIN}
    plain |= {
        name: float(plain[name]) for name in ("noise", "centre", "unit", "start_scale", "renewal")
    }
    for name in _TABLES:
        for side in form["tables"][name]:
            setattr(stores[side], name, _restore_table(name, side, sides[side], archive))
    plain["fit"] = None if form["fit"] is None else _restore_fit(form["fit"])
    plain["is_buffering"] = is_buffering
    plain["watch"] = _restore_watch(form)
    plain["recent"] = _restore_recent(sides, book, archive)
    state = OnlineState(
        sides=sides,
        stores=stores,
        book=book,
        options=options,
        clocks=_restore_clocks(form["clocks"], stores),
        rng=_restore_rng(form.get("rng")),
        moods=moods,
        **plain,
    )
    if state.is_complete:
        state.observed = state.range_on_record()
    state.outlier = _restore_outlier(form["outlier"])
    state.even_codes()
    state.features = restore_row_features(state, archive)
    for name in _SIDES:
        state.point(name)
    total = np.array(decoded(form["total"]), np.float64)
    fits = total.shape == ((2,) if state.can_be_exact else (0,))
    require(fits, "the total of its errors is not there")
    require(bool(np.isfinite(total).all()), "the total of its errors is no number")
    state.total = total
    _require_numbers([state.noise, state.centre, state.unit, state.start_scale, state.changes])
    return state


def _require_numbers(numbers: list[Json]) -> None:
    plain = all(isinstance(value, int | float) for value in numbers)
    require(plain and bool(np.isfinite(numbers).all()), "a number is missing or in words")


def _describe_clocks(clocks: Clocks) -> Form:
    by_event = {name: getattr(clocks, name) for name in ("last", "due_at")}
    return {
        "seen": clocks.seen,
        "ratings": clocks.ratings,
        **{
            name: {"/".join(key): encoded(value) for key, value in sorted(times.items())}
            for name, times in by_event.items()
        },
    }


def _restore_clocks(form: Form, stores: dict[str, RowStore]) -> Clocks:
    last, due_at = (
        {tuple(key.split("/")): decoded(value) for key, value in form[name].items()}
        for name in ("last", "due_at")
    )
    _require_numbers([form["seen"], *form["ratings"].values(), *last.values(), *due_at.values()])
    return Clocks(stores, form["seen"], last, due_at, form["ratings"])


def _restore_watch(form: Form) -> Watch:
    """Return what was known of forecasts."""
    values = decoded(form["watch"])
    fits = isinstance(values, tuple) and len(values) == len(fields(Watch))
    require(fits and all(isinstance(value, int | float) for value in values), "its watch is none")
    total, weight, seen, best, has_warned = values
    finite = math.isfinite(total) and math.isfinite(weight) and not math.isnan(best)
    require(finite and min(total, weight, seen, best) >= 0, "the errors of its forecasts are none")
    return Watch(float(total), float(weight), int(seen), float(best), bool(has_warned))


def _list_the_same(stores: dict[str, RowStore]) -> bool:
    """Whether every rating that one side lists is listed by the other too."""
    columns = []
    for name, other in zip(_SIDES, reversed(_SIDES), strict=True):
        history = stores[name].history
        indptr, others, codes = history.to_rows()
        places = np.arange(codes.size)
        table = csr_array(
            (places, others, indptr), shape=(stores[name].n_rows, stores[other].n_rows)
        ).tocsc()
        if name == "user":
            table = table.tocsr()  # of both sides by user, then by item
        known = [codes, *([history.sittings()] if history.has_sittings else [])]
        columns.append([table.indptr, table.indices, *(column[table.data] for column in known)])
    return all(map(np.array_equal, *columns))


def _restore_store(
    form: Form,
    name: str,
    sides: dict[str, Side],
    book: RatingBook,
    archive: Archive,
) -> RowStore:
    side, n_other = sides[name], sides["item" if name == "user" else "user"].n_rows
    tables = feature_tables(sides, name)

    def read(what: str) -> AnyArray:
        return archive.array(f"online/{name}/{what}.npy")

    store = RowStore(
        side.layout,
        side.moments.mean.dtype,
        sums=bool(form["sums"]),
        communities=side.n_communities,
        most=int(form["most_parts"]),
        tables=tables,
    )
    n, scales = side.n_rows, side.noise_scales
    taken = {what: read(what) for what in _own_arrays()}
    taken |= {"mean": side.moments.mean, "second": side.moments.second}
    taken["membership"] = side.membership
    taken["shape"] = np.zeros(n) if scales is None else scales.shape
    taken["rate"] = np.zeros(n) if scales is None else scales.rate
    parts = taken["listed"].shape[1] if taken["listed"].ndim == 2 else 0
    require(parts >= 1, f"{name}: its parts are damaged")
    expected = RowArrays.empty(
        side.layout, side.moments.mean.dtype, parts=parts, sums=bool(form["sums"]), tables=tables
    )
    for what, array in taken.items():
        shape = getattr(expected, what).shape[1:]
        if what == "membership":
            shape = (side.n_communities,)
        require(
            array.dtype == getattr(expected, what).dtype and array.shape == (n, *shape),
            f"{name}: its {what} is {array.dtype} {array.shape}",
        )
        check_array(name, array, array.dtype, array.shape, largest=_largest(array))
    listed = taken["listed"]
    inside = not n or (int(listed.min()) >= -1 and int(listed.max()) < side.n_communities)
    require(inside, f"{name}: a row belongs to a community that is not there")
    for what in ("count", "judged", "pending", "touched", "settled"):
        require(not n or float(taken[what].min()) >= 0.0, f"{name}: its {what} is below 0")
    store.take_rows(taken)
    for what in _STATISTICS:
        array, wanted = read(what), getattr(store, what)
        shape = side.statistics.scatter.shape[:1] + wanted.shape[1:]
        shape = shape if what == "scatter" else wanted.shape
        check_array(f"{name}: its {what}", array, np.float64, shape, largest=LARGEST)
        setattr(store, what, array)
    store.history = _restore_history(read, name, n, n_other, len(book))
    return store


def _largest(array: AnyArray) -> float:
    """Return the largest number that an array of a row store may hold."""
    return LARGEST if array.dtype.kind == "f" else float(2**63)


def _restore_history(
    read: Callable[[str], AnyArray], name: str, n: int, n_other: int, n_codes: int
) -> History:
    indptr, indices, codes = read("indptr"), read("indices"), read("codes")
    ordered = (
        indptr.dtype == np.int64
        and indptr.shape == (n + 1,)
        and indices.dtype == np.int32
        and indices.ndim == codes.ndim == 1
        and codes.dtype in (np.uint16, np.uint32)
        and indptr[0] == 0
        and indptr[-1] == indices.size == codes.size
        and bool((np.diff(indptr) >= 0).all())
    )
    require(ordered, f"{name}: its history is damaged")
    if indices.size:
        # What is out of range here would be out of bounds in compiled code.
        inside = int(indices.min()) >= 0 and int(indices.max()) < n_other
        require(inside, f"{name}: its history has a row that is not there")
        coded = codes.dtype.kind == "u" and int(codes.max()) < n_codes
        require(coded, f"{name}: its history has a rating that is not there")
    return History.from_rows(indptr, indices, codes)


def _restore_recent(
    sides: dict[str, Side], book: RatingBook, archive: Archive
) -> NDArray[np.int64]:
    recent = archive.array("online/recent.npy")
    require(
        recent.dtype == np.int64 and recent.ndim == 2 and recent.shape[1] == 3,
        f"its recent ratings are {recent.dtype} {recent.shape}",
    )
    ends = [sides["user"].n_rows, sides["item"].n_rows, len(book)]
    inside = not recent.size or bool((recent.min(axis=0) >= 0).all())
    inside = inside and (not recent.size or bool((recent.max(axis=0) < ends).all()))
    require(inside, "a recent rating is of a row, or has a value, that is not there")
    return recent


def _restore_table(name: str, side: str, of: Side, archive: Archive) -> AnyArray:
    table = archive.array(f"online/{side}/{name}.npy")
    if name == "rotated_means":
        right = table.ndim == 2 and table.shape[0] <= of.n_rows
        right = right and table.shape[1] == of.layout.total and table.dtype == np.float64
    else:
        right = table.shape == (of.layout.packed,) and table.dtype == of.moments.mean.dtype
    require(right and is_bounded(table), f"{side}: its {name} are damaged")
    return table


def _describe_fit(fit: FitOptions) -> Form:
    plain = {
        field.name: getattr(fit, field.name)
        for field in fields(fit)
        if field.name not in ("schedule", "dtype")
    }
    return {**plain, "dtype": np.dtype(fit.dtype).name}


def _restore_fit(form: Form) -> FitOptions:
    single = form["dtype"] == "float32"
    limits = form["rating_range"]
    values = {
        **form,
        "dtype": np.float32 if single else np.float64,
        "implicit_features": tuple(form["implicit_features"]),
        "rating_range": tuple(limits) if isinstance(limits, list) else limits,
    }
    return FitOptions(**values)


def _restore_options(form: Form) -> OnlineOptions:
    missing = [field.name for field in fields(OnlineOptions) if field.name not in form]
    require(not missing, f"the options of online learning lack {', '.join(missing)}")
    by_side = ("forgetting", "max_communities")
    for name in by_side:
        require(
            isinstance(form[name], dict) and set(form[name]) == set(_SIDES),
            f"{name} of users and items is not there",
        )
    values: Form = {
        name: {side: decoded(part) for side, part in value.items()}
        if name in by_side
        else decoded(value)
        for name, value in form.items()
    }
    options = OnlineOptions(**values)
    limits = [limit for limit in options.max_communities.values() if limit is not None]
    wholes = options.window, options.most_parts, options.buffer, *limits
    whole = all(type(value) is int for value in wholes)
    require(whole, "an option of online learning is not a whole number")
    repeats = isinstance(options.counts_repeats, bool)
    require(repeats, "whether repeats count is neither true nor false")
    # Compiled code does not check them.
    require(options.window >= ALL and options.most_parts >= 1, "a history is too short")
    require(options.evb in ("closed", "gradient", None), f"evb is {options.evb!r}")
    numbers = [*options.forgetting.values(), options.least_share, options.refresh]
    require(
        all(isinstance(value, int | float) for value in numbers)
        and all(0.0 < keep <= 1.0 for keep in options.forgetting.values())
        and 0.0 <= options.refresh < math.inf
        and 0.0 <= options.least_share < 1.0,
        "an option of online learning is out of its range",
    )
    return options


def _describe_outlier(outlier: Outlier | None) -> Form | None:
    if outlier is None:
        return None
    refreshes = {side: encoded(outlier.refreshes[side]) for side in _SIDES}
    return {"others": encoded(list(outlier.others)), "refreshes": refreshes}


def _restore_outlier(form: Form | None) -> Outlier | None:
    if form is None:
        return None
    low, high = (float(end) for end in decoded(form["others"]))
    refreshes = {side: float(decoded(form["refreshes"][side])) for side in _SIDES}
    finite = np.isfinite([low, high, *refreshes.values()]).all()
    require(bool(finite), "the record of an outlier is damaged")
    return Outlier((low, high), refreshes)


def _describe_rng(rng: np.random.Generator) -> str:
    state = rng.bit_generator.state
    kind = state.get("bit_generator")
    if kind not in _GENERATORS:
        raise ParameterError(
            f"rng: a model file can hold the state of NumPy's own generators, not of {kind}; "
            "let the model learn with a seed, or with one of them",
            value=kind,
        )
    return json.dumps(state, default=lambda array: array.tolist())


def _restore_rng(text: str | None) -> np.random.Generator:
    state = json.loads(text or "{}")
    kind = state.get("bit_generator")
    require(kind in _GENERATORS, "the state of the random generator is not there")
    # Compiled code reads from these places on.
    for place, last in ((state["state"].get("pos", 0), 624), (state.get("buffer_pos", 0), 4)):
        require(type(place) is int and 0 <= place <= last, "the random generator is damaged")
    bits = getattr(np.random, kind)(0)
    bits.state = state
    return np.random.Generator(bits)


def _own_arrays() -> list[str]:
    return [field.name for field in fields(RowArrays) if field.name not in _SHARED]


# ------------------------------------------------------------------------------------------------
# The part of a model file that holds the features of rows that learn online.


_PARTS = ("data", "indices", "indptr")


def describe_row_features(state: OnlineState, members: Members) -> None:
    """Add what is kept of each side with features to the members."""
    for side, features in state.features.items():
        at, given = f"online/{side}/features", features.joined(state.stores[side].n_rows)
        for name in _PARTS:
            members[f"{at}-{name}.npy"] = getattr(given, name)
        assert features.rests is not None
        for number, rest in enumerate(features.rests):
            members[f"{at}-average-{number}.npy"] = rest.mean
            members[f"{at}-spread-{number}.npy"] = rest.covariance


def _table(parts: tuple[AnyArray, ...], shape: tuple[int, int]) -> csr_array:
    """Return a table of features, or raise an error if these are no data, indices and indptr."""
    kinds = [part.dtype for part in parts]
    if kinds[0] not in (np.float32, np.float64) or not {*kinds[1:]} <= {*map(np.dtype, "il")}:
        raise ValueError(f"a table of features has arrays of {', '.join(map(str, kinds))}")
    table = csr_array(parts, shape=shape)
    table.check_format(full_check=True)
    return table


def restore_row_features(state: OnlineState, archive: Archive) -> dict[str, RowFeatures]:
    """Make this again of what `describe_row_features` added."""
    features = {}
    for side, own in state.sides.items():
        if own.regression is None:
            continue
        at, order, store = f"online/{side}/features", own.layout.order, state.stores[side]
        parts = tuple(archive.array(f"{at}-{name}.npy") for name in _PARTS)
        width = given_part(own.regression.design).shape[1]
        given = _table(parts, (own.n_rows, width))
        if not is_bounded(given.data):
            raise ValueError(f"{side}: a feature is missing, infinite or too large")
        rests = tuple(_restore_rest(at, number, order, archive) for number in range(2))
        waiting = np.flatnonzero((store.listed < 0).all(axis=1))
        features[side] = RowFeatures(given, (rests[0], rests[1]), waiting)
    return features


def _restore_rest(at: str, number: int, order: int, archive: Archive) -> UnknownFeatures:
    average = archive.array(f"{at}-average-{number}.npy")
    spread = archive.array(f"{at}-spread-{number}.npy")
    check_array(at, average, np.float64, (order,), largest=LARGEST)
    check_array(at, spread, np.float64, (order, order), largest=LARGEST)
    if not is_covariance(spread):
        raise ValueError("what features say on average is damaged")
    return UnknownFeatures(average, spread)


# ------------------------------------------------------------------------------------------------
# The part of a model file that holds raters' moods.


_SITTINGS = ("table", "moods", "time", "links")
_RATERS = ("last", "smoothed")


def describe_online_moods(moods: OnlineMoods | None, members: Members) -> Form | None:
    """Return the JSON form of moods that are learnt online, if there are any."""
    if moods is None:
        return None
    n, raters = int(moods.used[0]), moods.n_raters
    for name in _SITTINGS:
        members[f"online/moods/{name}.npy"] = getattr(moods, name)[:n].copy()
    for name in _RATERS:
        members[f"online/moods/{name}.npy"] = getattr(moods, name)[:raters].copy()
    return {"prior": described(moods.prior, "online/moods/prior", members)}


def restore_online_moods(form: Form, users: Side, archive: Archive) -> OnlineMoods:
    """Restore the moods that `describe_online_moods` described."""
    from hemf.model.moods import MoodPrior

    prior = restored(MoodPrior, form["prior"], archive)
    check_mood_prior(prior)
    moods = OnlineMoods.none(users.moments.mean.dtype, prior)
    n = archive.array("online/moods/time.npy").size
    for name in (*_SITTINGS, *_RATERS):
        array, like = archive.array(f"online/moods/{name}.npy"), getattr(moods, name)
        shape = (n if name in _SITTINGS else users.n_rows, *like.shape[1:])
        bounded = name == "time" or is_bounded(array)  # in nanoseconds, times are large
        if array.dtype != like.dtype or array.shape != shape or not bounded:
            raise ValueError(
                f"moods: their {name} is {array.dtype} {array.shape}, or not all there"
            )
        setattr(moods, name, np.concatenate([array, like[:1]]))  # there is always room for one
    moods.used[0], moods.n_raters = n, users.n_rows
    moods.check()
    return moods


def restore_sittings(history: History, moods: OnlineMoods, name: str, archive: Archive) -> None:
    """Restore the sessions of the ratings of a history read from a file."""
    sittings, n = archive.array(f"online/{name}/sittings.npy"), int(moods.used[0])
    right = sittings.dtype == np.int32 and sittings.shape == history.other.shape
    # What is out of range here would be out of bounds in compiled code.
    if not right or (sittings.size and not 0 <= int(sittings.min()) <= int(sittings.max()) < n):
        raise ValueError(f"{name}: a rating has a session that does not exist")
    history.sitting, history.has_sittings = sittings.copy(), True


def check_mood_prior(prior: MoodPrior) -> None:
    """Check the hyper-parameters of moods."""
    if not (0.0 <= prior.persistence < 1.0 and prior.variance > 0.0 and prior.extra > 0.0):
        raise ValueError(f"moods: their prior is {prior}")


# ------------------------------------------------------------------------------------------------
# Given features in model files: how they are encoded, and what is known of newcomers.


def describe_given(given: GivenFeatures, side: str, members: Members) -> Form:
    """Return the JSON form of given features; arrays become members."""
    at, encoder, rows = f"{side}/features", given.encoder, given.features
    newcomers = given.newcomers.ids.tolist()
    members[f"{at}/newcomers.json"] = encoded_ids(newcomers, f"{side} with features")
    for name in ("data", "indices", "indptr"):
        members[f"{at}/newcomers-{name}.npy"] = getattr(rows, name)
    return {
        "parts": encoder.parts,
        "numbers": [
            described(block, f"{at}/numbers-{k}", members)
            for k, block in enumerate(encoder.of_numbers)
        ],
        "labels": [
            described(block, f"{at}/labels-{k}", members)
            for k, block in enumerate(encoder.of_labels)
        ],
    }


def restore_given(form: Form, side: str, archive: Archive) -> GivenFeatures:
    """Make given features again of what `describe_given` returned."""
    at = f"{side}/features"
    encoder = FeatureEncoder(
        side=side,
        parts=int(form["parts"]),
        of_numbers=tuple(restored(NumberBlock, part, archive) for part in form["numbers"]),
        of_labels=tuple(restored(LabelBlock, part, archive) for part in form["labels"]),
    )
    ids = [decoded(part) for part in json.loads(archive.read(f"{at}/newcomers.json"))]
    data, indices, indptr = (
        archive.array(f"{at}/newcomers-{name}.npy") for name in ("data", "indices", "indptr")
    )
    shape = (len(ids), sum(encoder.blocks.values()))
    rows = _table((data, indices, indptr), shape)
    newcomers = Vocabulary(ids)
    if len(newcomers) != len(ids) or not is_bounded(data):
        raise ValueError(f"{side}: features of newcomers are not what a fit leaves")
    return GivenFeatures(encoder, newcomers, rows)
