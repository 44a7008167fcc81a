"""The part of a model file that holds what a model needs to continue learning online."""

from __future__ import annotations

import json
import math
from dataclasses import astuple, fields

import numpy as np
from scipy.sparse import csr_array

from hemf._checks import LARGEST, check_array, is_bounded, is_covariance, is_inside, require
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
from hemf._typing import OTHER, SIDES, AnyArray, Int64Array
from hemf.data.features import FeatureEncoder, LabelBlock, NumberBlock
from hemf.data.sources import downcast
from hemf.data.vocabulary import RatingBook, Vocabulary
from hemf.errors import ParameterError
from hemf.model.moods import MoodPrior
from hemf.model.regression import UnknownFeatures, given_part
from hemf.model.side import Side
from hemf.model.state import GivenFeatures
from hemf.online.clocks import Clocks, Outlier, Watch
from hemf.online.features import RowFeatures
from hemf.online.moods import OnlineMoods
from hemf.online.state import OnlineState, feature_tables
from hemf.online.store import ALL_ARRAYS, History, RowStore, empty_rows

_OF_SIDE = ("mean", "second", "membership", "shape", "rate")
_OWN = tuple(name for name in ALL_ARRAYS if name not in _OF_SIDE)
_LISTS = ("indptr", "indices", "codes")
_STATISTICS = ("size", "first", "scatter", "totals")
_TABLES = ("rotated_means", "mean_covariance")
_FLOATS = ("noise", "centre", "unit", "start_scale", "renewal")
_PLAIN = (*_FLOATS, "sweeps", "changes")
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def describe_online(state: OnlineState, members: Members) -> Form:
    """Return the JSON form of a state that learns online; its sides are described elsewhere."""
    members["online/book.npy"] = downcast(state.book.values, exact=True).copy()
    members["online/recent.npy"] = state.recent
    for side, store in state.stores.items():
        arrays = {name: getattr(store, name) for name in (*_OWN, *_STATISTICS)}
        arrays |= dict(zip(_LISTS, store.history.to_rows(), strict=True))
        if state.moods is not None:
            arrays["sessions"] = store.history.sessions()
        for name, array in arrays.items():
            members[f"online/{side}/{name}.npy"] = np.ascontiguousarray(array)
    tables: dict[str, list[str]] = {name: [] for name in _TABLES}
    for name, sides in tables.items():
        for side, store in state.stores.items():
            table = getattr(store, name)
            if table is not None:
                members[f"online/{side}/{name}.npy"] = table
                sides.append(side)
    _describe_row_features(state, members)
    return {
        "options": described(state.options, "online/options", members),
        "stores": {
            side: {"max_parts": store.max_parts, "sums": store.sums}
            for side, store in state.stores.items()
        },
        "tables": tables,
        "fit": None if state.fit is None else _describe_fit(state.fit),
        "clocks": _describe_clocks(state.clocks),
        "is_buffering": state.is_buffering,
        "total": encoded(state.total.tolist()),
        "watch": encoded(astuple(state.watch)),
        **{name: encoded(getattr(state, name)) for name in _PLAIN},
        "outlier": described(state.outlier, "online/outlier", members),
        "rng": _describe_rng(state.rng),
        "moods": _describe_moods(state.moods, members),
    }


def restore_online(form: Form, sides: dict[str, Side], archive: Archive) -> OnlineState:
    """Make a state again of what `describe_online` returned, and of its sides."""
    options, book = _restore_options(form["options"], archive), _restore_book(archive)
    moods = None
    if form["moods"] is not None:
        moods = _restore_moods(form["moods"], sides["user"], archive)
    is_buffering = form["is_buffering"]
    require(isinstance(is_buffering, bool), "whether it is buffering is neither true nor false")
    is_complete = is_buffering or options.window == ALL
    stores = {}
    for name in SIDES:
        stores[name] = _restore_store(form["stores"][name], name, sides, archive)
        stores[name].history = _restore_history(name, sides, len(book), moods, archive)
        fits = stores[name].sums != is_complete
        require(fits, f"{name}: it has no sums of what its history does not keep")
    require(_list_the_same(stores), "its users list other ratings than its items do")
    for name in _TABLES:
        for side in form["tables"][name]:
            setattr(stores[side], name, _restore_table(name, side, sides[side], archive))
    plain = {name: decoded(form[name]) for name in _PLAIN}
    state = OnlineState(
        sides=sides,
        stores=stores,
        book=book,
        options=options,
        clocks=_restore_clocks(form["clocks"], stores),
        rng=_restore_rng(form.get("rng")),
        moods=moods,
        is_buffering=is_buffering,
        fit=None if form["fit"] is None else _restore_fit(form["fit"]),
        outlier=_restore_outlier(form["outlier"]),
        watch=_restore_watch(form["watch"]),
        recent=_restore_recent(sides, len(book), archive),
        total=np.array(decoded(form["total"]), np.float64),
        **plain | {name: float(plain[name]) for name in _FLOATS},
    )
    _require_numbers([getattr(state, name) for name in _PLAIN])
    fits = state.total.shape == ((2,) if state.can_be_exact else (0,))
    require(fits, "the total of its errors is not there")
    require(np.isfinite(state.total).all(), "the total of its errors is no number")
    if state.is_complete:
        state.observed = state.range_on_record()
    state.even_codes()
    state.features = _restore_row_features(state, archive)
    for name in SIDES:
        state.point(name)
    return state


def _require_numbers(numbers: list[Json]) -> None:
    plain = all(isinstance(value, int | float) for value in numbers)
    require(plain and np.isfinite(numbers).all(), "a number is missing or in words")


def _restore_book(archive: Archive) -> RatingBook:
    values, book = archive.array("online/book.npy"), RatingBook()
    is_book = values.dtype in (np.float32, np.float64) and values.ndim == 1
    require(is_book, "the book of ratings is damaged")
    require(np.isfinite(values).all(), "a rating is missing or infinite")
    book.codes(values)
    require(len(book) == values.size, "a rating is in the book twice")
    return book


def _describe_clocks(clocks: Clocks) -> Form:
    by_event = {"last": clocks.last, "due_at": clocks.due_at}
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
    values = decoded(form)
    fits = isinstance(values, tuple) and len(values) == len(fields(Watch))
    require(fits and all(isinstance(value, int | float) for value in values), "its watch is none")
    total, weight, seen, best, has_warned = values
    finite = math.isfinite(total) and math.isfinite(weight) and not math.isnan(best)
    require(finite and min(total, weight, seen, best) >= 0, "the errors of its forecasts are none")
    return Watch(float(total), float(weight), int(seen), float(best), bool(has_warned))


def _list_the_same(stores: dict[str, RowStore]) -> bool:
    """Whether every rating that one side lists is listed by the other too."""
    columns = []
    for name, other in OTHER.items():
        history = stores[name].history
        indptr, others, codes = history.to_rows()
        places = np.arange(codes.size)
        table = csr_array(
            (places, others, indptr), shape=(stores[name].n_rows, stores[other].n_rows)
        ).tocsc()
        if name == "user":
            table = table.tocsr()  # of both sides by user, then by item
        known = [codes, *([history.sessions()] if history.has_sessions else [])]
        columns.append([table.indptr, table.indices, *(column[table.data] for column in known)])
    return all(map(np.array_equal, *columns))


def _restore_store(form: Form, name: str, sides: dict[str, Side], archive: Archive) -> RowStore:
    """Return the rows of a side, without their history."""
    side, sums = sides[name], bool(form["sums"])
    tables = feature_tables(side.regression, sides[OTHER[name]].regression)
    n, dtype, scales = side.n_rows, side.moments.mean.dtype, side.noise_scales
    own = {what: archive.array(f"online/{name}/{what}.npy") for what in (*_OWN, *_STATISTICS)}
    statistics = {what: own.pop(what) for what in _STATISTICS}
    listed = own["listed"]
    parts = listed.shape[1] if listed.ndim == 2 else 0
    require(parts >= 1, f"{name}: its parts are damaged")
    expected = empty_rows(side.layout, dtype, parts=parts, sums=sums, tables=tables)
    for what, array in own.items():
        like = expected[what]
        largest = LARGEST if like.dtype.kind == "f" else math.inf
        shape = (n, *like.shape[1:])
        check_array(f"{name}: its {what}", array, like.dtype, shape, largest=largest)
    inside = is_inside(listed, side.n_communities, low=-1)
    require(inside, f"{name}: a row belongs to a community that is not there")
    for what in ("count", "considered_count", "pending", "last_refresh", "summed_weight"):
        require((own[what] >= 0.0).all(), f"{name}: its {what} is below 0")
    store = RowStore(
        side.layout,
        dtype,
        sums=sums,
        communities=side.n_communities,
        most=int(form["max_parts"]),
        tables=tables,
    )
    of_side = {
        "mean": side.moments.mean,
        "second": side.moments.second,
        "membership": side.membership,
        "shape": np.zeros(n) if scales is None else scales.shape,
        "rate": np.zeros(n) if scales is None else scales.rate,
    }
    store.take_rows(own | of_side)
    for what, array in statistics.items():
        shape = getattr(store, what).shape
        if what == "scatter":
            shape = (len(side.statistics.scatter), *shape[1:])
        check_array(f"{name}: its {what}", array, np.float64, shape, largest=LARGEST)
        setattr(store, what, array)
    return store


def _restore_history(
    name: str, sides: dict[str, Side], n_codes: int, moods: OnlineMoods | None, archive: Archive
) -> History:
    indptr, indices, codes = (archive.array(f"online/{name}/{what}.npy") for what in _LISTS)
    ordered = (
        indptr.dtype == np.int64
        and indptr.shape == (sides[name].n_rows + 1,)
        and indices.dtype == np.int32
        and indices.ndim == codes.ndim == 1
        and codes.dtype in (np.uint16, np.uint32)
        and indptr[0] == 0
        and indptr[-1] == indices.size == codes.size
        and (np.diff(indptr) >= 0).all()
    )
    require(ordered, f"{name}: its history is damaged")
    # What is out of range here would be out of bounds in compiled code.
    inside = is_inside(indices, sides[OTHER[name]].n_rows)
    require(inside, f"{name}: its history has a row that is not there")
    require(is_inside(codes, n_codes), f"{name}: its history has a rating that is not there")
    sessions = None
    if moods is not None:
        sessions = archive.array(f"online/{name}/sessions.npy")
        right = sessions.dtype == np.int32 and sessions.shape == indices.shape
        right = right and is_inside(sessions, int(moods.used[0]))
        require(right, f"{name}: a rating has a session that does not exist")
    return History.from_rows(indptr, indices, codes, sessions)


def _restore_recent(sides: dict[str, Side], n_codes: int, archive: Archive) -> Int64Array:
    recent = archive.array("online/recent.npy")
    require(
        recent.dtype == np.int64 and recent.ndim == 2 and recent.shape[1] == 3,
        f"its recent ratings are {recent.dtype} {recent.shape}",
    )
    inside = is_inside(recent, [sides["user"].n_rows, sides["item"].n_rows, n_codes])
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
    plain = {name: value for name, value in vars(fit).items() if name not in ("schedule", "dtype")}
    return {**plain, "dtype": np.dtype(fit.dtype).name}


def _restore_fit(form: Form) -> FitOptions:
    limits = form["rating_range"]
    values = {
        **form,
        "dtype": np.float32 if form["dtype"] == "float32" else np.float64,
        "implicit_features": tuple(form["implicit_features"]),
        "rating_range": tuple(limits) if isinstance(limits, list) else limits,
    }
    return FitOptions(**values)


def _restore_options(form: Form, archive: Archive) -> OnlineOptions:
    missing = [field.name for field in fields(OnlineOptions) if field.name not in form]
    require(not missing, f"the options of online learning lack {', '.join(missing)}")
    for name in ("forgetting", "max_communities"):
        both = isinstance(form[name], dict) and set(form[name]) == set(SIDES)
        require(both, f"{name} of users and items is not there")
    options = restored(OnlineOptions, form, archive)
    limits = [limit for limit in options.max_communities.values() if limit is not None]
    wholes = options.window, options.max_parts, options.buffer, *limits
    whole = all(type(value) is int for value in wholes)
    require(whole, "an option of online learning is not a whole number")
    repeats = isinstance(options.counts_repeats, bool)
    require(repeats, "whether repeats count is neither true nor false")
    # Compiled code does not check them.
    require(options.window >= ALL and options.max_parts >= 1, "a history is too short")
    require(options.evb in ("closed", "gradient", None), f"evb is {options.evb!r}")
    numbers = [*options.forgetting.values(), options.min_share, options.refresh]
    require(
        all(isinstance(value, int | float) for value in numbers)
        and all(0.0 < keep <= 1.0 for keep in options.forgetting.values())
        and 0.0 <= options.refresh < math.inf
        and 0.0 <= options.min_share < 1.0,
        "an option of online learning is out of its range",
    )
    return options


def _restore_outlier(form: Form | None) -> Outlier | None:
    if form is None:
        return None
    low, high = (float(end) for end in decoded(form["others"]))
    refreshes = {side: float(decoded(form["refreshes"][side])) for side in SIDES}
    finite = np.isfinite([low, high, *refreshes.values()]).all()
    is_first = decoded(form["is_first"])
    require(finite and isinstance(is_first, bool), "the record of an outlier is damaged")
    return Outlier((low, high), refreshes, is_first)


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


# -- features ------------------------------------------------------------------------------------

_CSR = ("data", "indices", "indptr")


def _describe_csr(table: csr_array, at: str, members: Members) -> None:
    for name in _CSR:
        members[f"{at}-{name}.npy"] = getattr(table, name)


def _restore_csr(at: str, shape: tuple[int, int], archive: Archive) -> csr_array:
    parts = tuple(archive.array(f"{at}-{name}.npy") for name in _CSR)
    kinds = [part.dtype for part in parts]
    right = kinds[0] in (np.float32, np.float64) and {*kinds[1:]} <= {*map(np.dtype, "il")}
    require(right, f"a table of features has arrays of {', '.join(map(str, kinds))}")
    table = csr_array(parts, shape=shape)
    table.check_format(full_check=True)
    require(is_bounded(table.data), f"{at}: a feature is missing, infinite or too large")
    return table


def _describe_row_features(state: OnlineState, members: Members) -> None:
    for side, features in state.features.items():
        at = f"online/{side}/features"
        _describe_csr(features.joined(state.stores[side].n_rows), at, members)
        assert features.averages is not None
        for number, rest in enumerate(features.averages):
            members[f"{at}-average-{number}.npy"] = rest.mean
            members[f"{at}-spread-{number}.npy"] = rest.covariance


def _restore_row_features(state: OnlineState, archive: Archive) -> dict[str, RowFeatures]:
    features = {}
    for side, own in state.sides.items():
        if own.regression is None:
            continue
        at, order = f"online/{side}/features", own.layout.order
        given = _restore_csr(at, (own.n_rows, given_part(own.regression.design).shape[1]), archive)
        averages = (
            _restore_rest(at, 0, order, archive),
            _restore_rest(at, 1, order, archive),
        )
        waiting = np.flatnonzero((state.stores[side].listed < 0).all(axis=1))
        features[side] = RowFeatures(given, averages, waiting)
    return features


def _restore_rest(at: str, number: int, order: int, archive: Archive) -> UnknownFeatures:
    average = archive.array(f"{at}-average-{number}.npy")
    spread = archive.array(f"{at}-spread-{number}.npy")
    check_array(at, average, np.float64, (order,), largest=LARGEST)
    check_array(at, spread, np.float64, (order, order), largest=LARGEST)
    require(is_covariance(spread), "what features say on average is damaged")
    return UnknownFeatures(average, spread)


def describe_given(given: GivenFeatures, side: str, members: Members) -> Form:
    """Return the JSON form of features that were given to a fit; arrays become members."""
    at, encoder = f"{side}/features", given.encoder
    newcomers = given.newcomers.ids.tolist()
    members[f"{at}/newcomers.json"] = encoded_ids(newcomers, f"{side} with features")
    _describe_csr(given.features, f"{at}/newcomers", members)
    blocks = {"numbers": encoder.of_numbers, "labels": encoder.of_labels}
    return {
        "parts": encoder.parts,
        **{
            kind: [described(block, f"{at}/{kind}-{k}", members) for k, block in enumerate(found)]
            for kind, found in blocks.items()
        },
    }


def restore_given(form: Form, side: str, archive: Archive) -> GivenFeatures:
    """Make given features again of what `describe_given` returned."""
    at = f"{side}/features/newcomers"
    encoder = FeatureEncoder(
        side=side,
        parts=int(form["parts"]),
        of_numbers=tuple(restored(NumberBlock, part, archive) for part in form["numbers"]),
        of_labels=tuple(restored(LabelBlock, part, archive) for part in form["labels"]),
    )
    ids = decoded(json.loads(archive.read(f"{at}.json")))
    rows = _restore_csr(at, (len(ids), sum(encoder.blocks.values())), archive)
    newcomers = Vocabulary(ids)
    fits = len(newcomers) == len(ids)
    require(fits, f"{side}: features of newcomers are not what a fit leaves")
    return GivenFeatures(encoder, newcomers, rows)


# -- moods ---------------------------------------------------------------------------------------

_OF_SESSIONS = ("table", "moods", "time", "links")
_OF_RATERS = ("last", "smoothed")


def _describe_moods(moods: OnlineMoods | None, members: Members) -> Form | None:
    if moods is None:
        return None
    for names, n in ((_OF_SESSIONS, int(moods.used[0])), (_OF_RATERS, moods.n_raters)):
        for name in names:
            members[f"online/moods/{name}.npy"] = getattr(moods, name)[:n].copy()
    return {"prior": described(moods.prior, "online/moods/prior", members)}


def _restore_moods(form: Form, users: Side, archive: Archive) -> OnlineMoods:
    moods = OnlineMoods.none(users.moments.mean.dtype, restore_mood_prior(form["prior"], archive))
    n = archive.array("online/moods/time.npy").size
    for name in (*_OF_SESSIONS, *_OF_RATERS):
        array, like = archive.array(f"online/moods/{name}.npy"), getattr(moods, name)
        shape = (n if name in _OF_SESSIONS else users.n_rows, *like.shape[1:])
        right = array.dtype == like.dtype and array.shape == shape
        right = right and (name == "time" or is_bounded(array))  # in nanoseconds, times are large
        require(right, f"moods: their {name} is {array.dtype} {array.shape}, or not all there")
        setattr(moods, name, np.concatenate([array, like[:1]]))  # there is always room for one
    moods.used[0], moods.n_raters = n, users.n_rows
    moods.check()
    return moods


def restore_mood_prior(form: Form, archive: Archive) -> MoodPrior:
    """Restore and check the hyper-parameters of moods."""
    prior = restored(MoodPrior, form, archive)
    right = 0.0 <= prior.persistence < 1.0 and prior.variance > 0.0 and prior.extra > 0.0
    require(right, f"moods: their prior is {prior}")
    return prior
