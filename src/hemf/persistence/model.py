"""Models in files, versioned and free of pickles; the file is an `archive`.

``manifest.json`` holds what is plain in a model (parameters, hyper-parameters, history) and names
the members that hold its arrays. The ratings are kept by user; the table by item and the
standardised ratings follow from them, to the bit, when a model is opened.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pkgutil import resolve_name
from typing import NamedTuple

import numpy as np

from hemf._checks import (
    LARGEST,
    check_array,
    check_definite,
    is_inside,
    require,
    require_positive,
)
from hemf._files import (
    Archive,
    FileArchive,
    FileState,
    Form,
    Json,
    Members,
    MemoryArchive,
    decoded,
    described,
    encoded,
    encoded_ids,
    expand_home,
    library_version,
    restored,
    write_archive,
)
from hemf._typing import OTHER, SIDES, AnyArray, DistinctIds, Int64Array
from hemf.batch.callbacks import SweepReport
from hemf.batch.fit import BatchState
from hemf.data.ratings import Ratings, Sparse, transpose
from hemf.data.vocabulary import CodedIds, Vocabulary
from hemf.engines import ENGINES
from hemf.engines.base import CHOICES, RATINGS, Engine, LoadOptions
from hemf.errors import ModelFileError, ParameterError, file_error
from hemf.model.links import Links
from hemf.model.moods import MoodPosterior, MoodPrior, Moods
from hemf.model.regression import HOW_MANY, RATED, Design, Regression
from hemf.model.relevance import Relevance
from hemf.model.side import Side
from hemf.model.state import Component, FittedModel, GivenFeatures, TrainingRecord
from hemf.online.record import Batch, Fit
from hemf.online.state import Learner, OnlineState
from hemf.persistence.online import (
    describe_given,
    describe_online,
    restore_given,
    restore_mood_prior,
    restore_online,
)

FORMAT = "hemf-model"
VERSION = 1
MANIFEST = "manifest.json"

_PLAIN = ("noise", "unit", "sweeps", "seeded_at", "squared_error")
_SCALE = ("mean", "scale", "rating_range")


def save_model(
    params: Mapping[str, object],
    fit: Fit,
    path: str | os.PathLike[str],
    *,
    expected: FileState | bool = True,
) -> None:
    """Write a fitted model to one file, all of it or nothing.

    The model is checked first as `load_model` does: one that could not be read again replaces
    nothing. ``expected`` is that of `hemf._files.atomic_write`. Equal models give equal files.
    """
    manifest, members = _described(params, fit)
    text = json.dumps(manifest, indent=1, allow_nan=False).encode()
    try:
        _read_parts(MemoryArchive(members), json.loads(text))
    except Exception as error:
        reason = error or type(error).__name__
        raise file_error(
            path,
            f"was left as it was: the model is damaged ({reason}) and could not be read again. "
            "Go on from the last model that was saved",
        ) from error
    write_archive(path, {MANIFEST: text, **members}, expected=expected)


def _described(params: Mapping[str, object], fit: Fit) -> tuple[Form, Members]:
    """Return what is plain in a model, and its arrays by the names of their members."""
    model, learner = fit.model, fit.learner
    state, held_out = model.state, model.held_out
    sides = state.sides if learner is None else learner.state.current_sides()
    # Ratings learnt online are stored in their order, with the online state.
    if learner is None:
        ratings = model.record.ratings
    else:
        ids, nothing = (learner.users, learner.items), np.empty(0, np.int32)
        ratings = Ratings.from_rows(*ids, (nothing, nothing, np.empty(0, np.float32)))
        if held_out is not None:  # users and items may have been added since
            held_out = Ratings.from_any(held_out, users=ids[0], items=ids[1])
    members: Members = {}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "library": library_version(),
        "params": {name: _parameter(name, value) for name, value in params.items()},
        "ids": {
            "user": _describe_ids("user", ratings.users, ratings.by_user, members),
            "item": _describe_ids("item", ratings.items, ratings.by_item, members),
        },
        "ratings": described(ratings.by_user, "ratings", members),
        "held_out": described(held_out and held_out.by_user, "held_out", members),
        "timestamps": described(ratings.timestamps, "ratings/timestamps", members),
        "held_out_timestamps": described(
            held_out and held_out.timestamps, "held_out/timestamps", members
        ),
        "sides": {side: described(sides[side], side, members) for side in SIDES},
        "features": {
            side: describe_given(given, side, members) for side, given in model.features.items()
        },
        "state": {name: encoded(getattr(state, name, None)) for name in _PLAIN},
        # Moods learnt online are stored with the online state.
        "moods": _describe_moods(state.moods, members) if isinstance(state, BatchState) else None,
        "choices": _describe_choices(model, members),
        "online": learner and describe_online(learner.state, members),
        "coupled": model.coupled,
        "fitted": {name: encoded(getattr(model, name)) for name in _SCALE},
        "converged": fit.converged,
        # Not the time they took: equal fits are equal files.
        "history": [
            described(replace(report, seconds=math.nan), "history", members)
            for report in fit.history
        ],
        "batches": [list(batch) for batch in fit.batches],
    }
    return manifest, members


def check_ids(ratings: Ratings) -> None:
    """Raise what `save_model` would of ids that no model file can hold, before a fit is spent.

    >>> import datetime
    >>> check_ids(Ratings.from_any([("ann", datetime.date(2024, 2, 29), 5)]))
    Traceback (most recent call last):
    hemf.errors.DataError: item datetime.date(2024, 2, 29) cannot be saved: ids in a model file ...
    """
    _describe_ids("user", ratings.users, ratings.by_user, {})
    _describe_ids("item", ratings.items, ratings.by_item, {})


def load_model(path: str | os.PathLike[str], known: Collection[str]) -> tuple[Form, Fit]:
    """Read the parameters and the fit that `save_model` wrote; ``known`` are all parameters.

    Raise `ModelFileError` if it is another kind of file, is damaged or has a newer format.
    """
    with _opened(path) as archive:
        manifest = _read_manifest(archive, path)
        archive.check_sums()  # before any of it is used
        params = {name: decoded(form) for name, form in manifest["params"].items()}
        if unknown := params.keys() - known:
            raise ValueError(f"there is no parameter {sorted(unknown)[0]}")
        return params, _fit_of(_read_parts(archive, manifest), archive, manifest)


def read_versions(path: str | os.PathLike[str]) -> Form:
    """Return the version of a model file's format, and that of the library that wrote it."""
    with _opened(path) as archive:
        manifest = _read_manifest(archive, path)
        return {
            "format_version": manifest["version"],
            "library_version": str(manifest.get("library")),
        }


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[FileArchive]:
    """Open a model file; whatever goes wrong with it is a `ModelFileError`."""
    place = expand_home(path)
    if place.exists() and not place.is_file():
        what = "a directory" if place.is_dir() else "a device"
        raise file_error(path, f"is {what}; give a model file")
    try:
        stream = place.open("rb")
    except FileNotFoundError:
        message = f"{path}: no such file; fit a model and save it there first"
        raise ModelFileError(message, value=str(path)) from None
    except OSError as error:
        raise file_error(path, f"cannot be opened: {error.strerror or error}") from error
    with stream:
        try:
            if stream.read(2) != b"PK":
                raise file_error(path, "is not a hemf model; give a file that save wrote")
            yield FileArchive(stream)
        except ModelFileError:
            raise
        except Exception as error:  # zip, NumPy and JSON fail on damaged bytes in many ways
            raise file_error(
                path,
                f"is damaged or incomplete ({error or type(error).__name__}); use another copy of "
                "it, or fit and save the model again",
            ) from error


def _read_manifest(archive: FileArchive, path: str | os.PathLike[str]) -> Form:
    problem = "it has no " + MANIFEST
    if MANIFEST in archive.names:
        manifest = json.loads(archive.read(MANIFEST))
        problem = f"its {MANIFEST} is of another format"
        if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
            _check_version(manifest, path)
            return manifest
    raise file_error(path, f"is not a hemf model: {problem}; give a file that save wrote")


def _check_version(manifest: Form, path: str | os.PathLike[str]) -> None:
    version = manifest.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"its version is {version!r}")
    if version > VERSION:
        raise file_error(
            path,
            f"was written by hemf {manifest.get('library')} in format {version}; hemf "
            f"{library_version()} reads up to format {VERSION}. Upgrade hemf to open it",
        )


class _Table(NamedTuple):
    """Ratings by user, and when they were given."""

    table: Sparse
    timestamps: Int64Array | None


class _Moods(NamedTuple):
    """Moods of raters after a batch fit, without their times."""

    prior: MoodPrior
    posterior: MoodPosterior
    divergence: float


class _Choices(NamedTuple):
    """Posterior of choices after a batch fit, and how they are ranked by."""

    sides: dict[str, Side]
    plain: Form
    background: float
    relevance: Relevance
    links: Links | None


class _Parts(NamedTuple):
    """Checked content of a model file."""

    scale: Form
    """Mean, scale and range of the ratings."""
    ids: dict[str, DistinctIds]
    ratings: _Table
    held_out: _Table | None
    features: dict[str, GivenFeatures]
    sides: dict[str, Side]
    plain: Form
    """Numbers of a batch fit."""
    moods: _Moods | None
    choices: _Choices | None
    online: OnlineState | None
    batches: tuple[Batch, ...]


def _read_parts(archive: Archive, manifest: Form) -> _Parts:
    """Read and check all that a model file holds; ValueError if a fit cannot have left it."""
    scale = {name: decoded(manifest["fitted"][name]) for name in _SCALE}
    _check_scale(**scale)
    ids = {side: _read_ids(side, manifest["ids"][side], archive) for side in SIDES}
    shape = len(ids["user"]), len(ids["item"])
    ratings = _read_table(manifest["ratings"], manifest["timestamps"], archive, shape)
    held_out = None
    if manifest["held_out"] is not None:
        times = manifest["held_out_timestamps"]
        held_out = _read_table(manifest["held_out"], times, archive, shape)
    features = {
        side: restore_given(form, side, archive) for side, form in manifest["features"].items()
    }
    sides = {side: restored(Side, manifest["sides"][side], archive) for side in SIDES}
    is_online = manifest["online"] is not None
    _check_sides(sides, shape, is_online=is_online)
    plain = {name: decoded(form) for name, form in manifest["state"].items()}
    moods = choices = online = None
    if manifest["choices"] is not None:
        choices = _read_choices(manifest["choices"], archive, shape)
    if is_online:
        online = restore_online(manifest["online"], sides, archive)
        require_positive("state", online.noise, online.unit)
    else:
        plain |= {name: float(plain[name]) for name in ("noise", "unit")}
        require_positive("state", plain["noise"], plain["unit"])
        if manifest["moods"] is not None:
            require(ratings.timestamps is not None, "it has moods, and no times")
            moods = _read_moods(manifest["moods"], archive)
    batches = tuple(Batch(*form) for form in manifest["batches"])
    for batch in batches:
        whole = type(batch.id) is type(batch.digest) is str and type(batch.ratings) is int
        require(whole, "the batches that were applied are damaged")
    return _Parts(
        scale, ids, ratings, held_out, features, sides, plain, moods, choices, online, batches
    )


def _fit_of(parts: _Parts, archive: Archive, manifest: Form) -> Fit:
    """Return the fit with this content."""
    users, items = (_vocabulary(parts.ids[side]) for side in SIDES)
    ratings = _ratings_of(parts.ratings, users, items)
    # The saved numbers, so that the sums of another machine do not change the last digit.
    ratings = ratings.with_scale(parts.scale["mean"], parts.scale["scale"])
    learner: Learner | None = None
    components: dict[str, Component] = {}
    state: BatchState | OnlineState
    if parts.online is not None:
        state = parts.online
        learner = Learner(state, users, items)
    else:
        chosen: type[Engine] = resolve_name(ENGINES["threads"])
        options = LoadOptions(
            dtype=parts.sides["user"].moments.mean.dtype.type,
            n_jobs=decoded(manifest["params"]["n_jobs"]),
            sessions=parts.moods is not None,
            background=None if parts.choices is None else parts.choices.background,
        )
        engine = chosen.load(ratings, options)
        state = BatchState(sides=parts.sides, engine=engine, **parts.plain)
        if parts.moods is not None:
            moods = state.ratings.start_moods()
            assert moods is not None
            fits = moods.times.shape == parts.moods.posterior.mean.shape
            require(fits, "it has moods of other sessions")
            state.moods = replace(moods, **parts.moods._asdict())
        if parts.choices is not None:
            sides, plain = parts.choices.sides, parts.choices.plain
            components[CHOICES] = BatchState(sides, engine, **plain, component=CHOICES)
    components[RATINGS] = state
    model = FittedModel(
        components=components,
        record=learner or TrainingRecord(ratings),
        **parts.scale,
        coupled=bool(manifest["coupled"]),
        features=parts.features,
        relevance=parts.choices and parts.choices.relevance,
        links=parts.choices and parts.choices.links,
        held_out=parts.held_out and _ratings_of(parts.held_out, users, items),
    )
    return Fit(
        model,
        history=[restored(SweepReport, form, archive) for form in manifest["history"]],
        converged=bool(decoded(manifest["converged"])),
        batches=parts.batches,
        learner=learner,
    )


def _ratings_of(read: _Table, users: Vocabulary, items: Vocabulary) -> Ratings:
    by_item = transpose(read.table, len(items))
    return Ratings(users, items, read.table, by_item, read.timestamps)


def _read_table(form: Form, times: Form | None, archive: Archive, shape: tuple[int, int]) -> _Table:
    table = restored(Sparse, form, archive)
    indptr, indices = table.indptr, table.indices
    n_ratings = (table.values.size,)
    check_array("ratings", indptr, np.int64, (shape[0] + 1,))
    check_array("ratings", indices, np.int32, n_ratings)
    single = table.values.dtype == np.float32
    check_array("ratings", table.values, np.float32 if single else np.float64, n_ratings)
    # What is out of range here would be out of bounds in compiled code.
    ordered = indptr[0] == 0 and indptr[-1] == indices.size and (np.diff(indptr) >= 0).all()
    require(ordered, "ratings: rows overlap")
    require(is_inside(indices, shape[1]), "ratings: one is of an item that is not there")
    timestamps = None
    if times is not None:
        timestamps = archive.array(times["array"])
        check_array("ratings", timestamps, np.int64, n_ratings)
    return _Table(table, timestamps)


def _describe_moods(moods: Moods | None, members: Members) -> Form | None:
    if moods is None:
        return None
    return {
        "prior": described(moods.prior, "moods/prior", members),
        "posterior": described(moods.posterior, "moods", members),
        "divergence": encoded(moods.divergence),
    }


def _read_moods(form: Form, archive: Archive) -> _Moods:
    prior = restore_mood_prior(form["prior"], archive)
    posterior = restored(MoodPosterior, form["posterior"], archive)
    for array in vars(posterior).values():
        check_array("moods", array, np.float64, (posterior.mean.size,), largest=LARGEST)
    return _Moods(prior, posterior, float(decoded(form["divergence"])))


def _describe_choices(model: FittedModel, members: Members) -> Form | None:
    state = model.components.get(CHOICES)
    if not isinstance(state, BatchState):
        return None
    return {
        "sides": {side: described(state.sides[side], f"choices/{side}", members) for side in SIDES},
        "state": {name: encoded(getattr(state, name)) for name in _PLAIN},
        "background": encoded(state.ratings.background),
        "relevance": described(model.relevance, "choices/relevance", members),
        "links": described(model.links, "choices/links", members),
    }


def _read_choices(form: Form, archive: Archive, shape: tuple[int, int]) -> _Choices:
    sides = {side: restored(Side, form["sides"][side], archive) for side in SIDES}
    _check_sides(sides, shape, is_online=False)
    plain = {name: decoded(value) for name, value in form["state"].items()}
    plain |= {name: float(plain[name]) for name in ("noise", "unit")}
    background, rule = float(decoded(form["background"])), form["relevance"]
    require_positive("choices", plain["noise"], plain["unit"], background)
    relevance = restored(Relevance, rule, archive)
    is_rule = np.isfinite(relevance.level) and relevance.choice_exponent in (0.0, 1.0)
    require(is_rule and relevance.rating_exponent >= 0.0, "its rule of relevance is damaged")
    links = form["links"] and restored(Links, form["links"], archive)
    if links is not None:
        _check_links(links, shape[1])
    return _Choices(sides, plain, background, relevance, links)


def _check_links(links: Links, n_items: int) -> None:
    check_array("links", links.indptr, np.int64, (n_items + 1,))
    check_array("links", links.indices, np.int32, (links.weights.size,))
    check_array("links", links.weights, np.float32, links.indices.shape, largest=LARGEST)
    links.table.check_format(full_check=True)
    require(0.0 <= links.share <= 1.0, f"the share of links is {links.share}")


def _describe_ids(side: str, vocabulary: Vocabulary, table: Sparse, members: Members) -> str:
    """Put the ids of a table's rows among the members, and return the way they are kept."""
    ids = vocabulary.ids[: table.indptr.size - 1]
    if ids.dtype == np.int64:
        members[f"{side}/ids.npy"] = ids
        return "integers"
    values = ids.tolist()
    if all(type(value) is str for value in values):
        import pyarrow as pa

        with suppress(UnicodeEncodeError):  # half a surrogate pair is text that UTF-8 lacks
            _, ends, text = pa.array(values, pa.large_string()).buffers()
            ends = np.frombuffer(ends, np.int64, count=len(values) + 1)
            members[f"{side}/ids-ends.npy"] = ends
            members[f"{side}/ids-text.npy"] = np.frombuffer(text or b"", np.uint8)[: ends[-1]]
            return "text"
    members[f"{side}/ids.json"] = encoded_ids(values, side)
    return "values"


def _read_ids(side: str, kept_as: str, archive: Archive) -> DistinctIds:
    distinct: DistinctIds
    if kept_as == "integers":
        distinct = archive.array(f"{side}/ids.npy")
        check_array(side, distinct, np.int64, (distinct.size,))
        n_different = np.unique(distinct).size
    elif kept_as == "text":
        import pyarrow as pa

        ends = archive.array(f"{side}/ids-ends.npy")
        text = archive.array(f"{side}/ids-text.npy")
        check_array(side, ends, np.int64, (max(ends.size, 1),))
        check_array(side, text, np.uint8, (text.size,))
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
        distinct = pa.Array.from_buffers(pa.large_string(), ends.size - 1, buffers)
        distinct.validate(full=True)
        n_different = len(distinct.unique())
    else:
        require(kept_as == "values", f"{side}: ids are kept as {kept_as!r}")
        values = decoded(json.loads(archive.read(f"{side}/ids.json")))
        distinct = np.fromiter(values, object, count=len(values))
        n_different = len(set(values))
    require(n_different == len(distinct), f"{side}: an id is there twice")
    return distinct


def _vocabulary(distinct: DistinctIds) -> Vocabulary:
    vocabulary = Vocabulary()
    vocabulary.add_coded(CodedIds(np.arange(len(distinct), dtype=np.int32), distinct))
    return vocabulary


def _parameter(name: str, value: object) -> Json:
    if isinstance(value, np.random.Generator):
        return None  # its state belongs to the caller
    try:
        return encoded(value.tolist() if isinstance(value, np.ndarray) else value)
    except TypeError as error:
        raise ParameterError(f"{name}={value!r} cannot be saved: {error}", value=value) from None


# -- checks ---------------------------------------------------------------------------------------


_MIN_KAPPA = 1e-12
_MAX_INFORMATION = 1e6  # of a row's information weight, which is about 1 at most


def _check_scale(mean: float, scale: float, rating_range: tuple[float, float] | None) -> None:
    require(np.isfinite(mean), f"the mean of the ratings is {mean}")
    require_positive("scale of the ratings", scale)
    if rating_range is not None:
        ordered = np.isfinite(rating_range).all() and rating_range[0] <= rating_range[1]
        require(ordered, f"the range of the ratings is {rating_range}")


def _check_sides(sides: dict[str, Side], shape: tuple[int, int], *, is_online: bool) -> None:
    """Check every array of both sides. Online, rows may have been added since features were."""
    for (name, other), n_rows in zip(OTHER.items(), shape, strict=True):
        side = sides[name]
        _check_side(side, name, n_rows)
        if side.regression is not None:
            design = side.regression.design
            fits = design.n_rows == n_rows or (is_online and design.n_rows < n_rows)
            require(fits, f"{name}: features of others")
            _check_regression(side.regression, name, side.layout.order)
            if RATED in design.names:
                _check_implicit(design, name, other, sides[other].n_rows, is_online=is_online)
    user, item = sides["user"], sides["item"]
    require(user.layout.total == item.layout.total, "the sides' vectors differ in length")
    require(user.moments.mean.dtype == item.moments.mean.dtype, "the sides differ in their type")


def _check_side(side: Side, name: str, n_rows: int) -> None:
    """Compare every array with the shape and type that `hemf.model` documents."""
    layout, (count, order) = side.layout, side.communities.mean.shape
    covariances, total = side.communities.dof.size, layout.total
    require(order == total - (layout.pinned >= 0), f"{name}: its communities are of other factors")
    require(layout.pinned in (-1, SIDES.index(name)), f"{name}: it has a wrong {layout}")
    require(covariances in (1, count), f"{name}: {covariances} covariances for {count}")
    storage = side.moments.mean.dtype
    require(storage in (np.float32, np.float64), f"{name}: its factors are {storage}")
    by_row: list[tuple[AnyArray, tuple[int, ...]]] = [
        (side.membership, (n_rows, count)),
        (side.moments.mean, (n_rows, total)),
        (side.moments.second, (n_rows, total * (total + 1) // 2)),
    ]
    for array, shape in by_row:
        check_array(name, array, storage, shape, largest=LARGEST)
        require(array.flags.c_contiguous, f"{name}: an array is transposed")
    shared: list[tuple[AnyArray, tuple[int, ...]]] = [
        (side.prior.centre, (order,)),
        (side.prior.scale, (order, order)),
        (side.statistics.size, (count,)),
        (side.statistics.first, (count, order)),
        (side.statistics.scatter, (covariances, order, order)),
        (side.communities.sticks.taken, (count,)),
        (side.communities.sticks.left, (count,)),
        (side.communities.mean, (count, order)),
        (side.communities.kappa, (count,)),
        (side.communities.scale, (covariances, order, order)),
        (side.communities.dof, (covariances,)),
    ]
    if side.noise_scales is not None:
        shared += [(side.noise_scales.shape, (n_rows,)), (side.noise_scales.rate, (n_rows,))]
    for array, shape in shared:
        check_array(name, array, np.float64, shape, largest=LARGEST)
    _check_numbers(side, name)


def _check_implicit(
    design: Design, name: str, other: str, n_other: int, *, is_online: bool
) -> None:
    """Check that implicit features are of the rows of the other side."""
    widths = dict(zip(design.names, design.widths.tolist(), strict=True))
    fits = widths[RATED] == n_other or (is_online and 0 <= widths[RATED] <= n_other)
    require(fits, f"{name}: its features are of {other}s that are not there")
    require(widths[HOW_MANY] == 2, f"{name}: its features of counts are damaged")
    last = design.names[-2:] == (RATED, HOW_MANY)
    require(last, f"{name}: its features are in another order")


def _check_regression(regression: Regression, name: str, order: int) -> None:
    design = regression.design
    n_rows = design.n_rows
    check_array(name, design.widths, np.int64, (len(design.names),))
    check_array(name, design.indptr, np.int64, (n_rows + 1,))
    check_array(name, design.indices, np.int32, (design.values.size,))
    shape = (design.values.size,)
    check_array(name, design.values, design.values.dtype, shape, largest=LARGEST)
    design.matrix.check_format(full_check=True)
    require((design.widths >= 0).all(), f"{name}: its features have less than no columns")
    form = (design.n_columns, order)
    check_array(name, regression.coefficients, np.float64, form, largest=LARGEST)
    check_array(name, regression.precision, np.float64, design.widths.shape)
    check_array(name, regression.covariance.trace, np.float64, design.widths.shape)
    check_array(name, regression.information, np.float64, (n_rows,), largest=_MAX_INFORMATION)
    check_array(name, regression.leverage, np.float64, (n_rows,), largest=LARGEST**2)
    require((regression.information >= 0.0).all(), f"{name}: an information weight is below 0")
    require((regression.leverage >= 0.0).all(), f"{name}: a leverage is below 0")
    require_positive(name, regression.precision)


def _check_numbers(side: Side, name: str) -> None:
    prior, both, scales = side.prior, side.communities, side.noise_scales
    require((side.membership >= 0.0).all(), f"{name}: a probability is below 0")
    require_positive(name, prior.concentration, prior.mean_scale, prior.dof)
    require_positive(name, both.kappa, both.dof, both.sticks.taken, both.sticks.left)
    require((both.kappa >= _MIN_KAPPA).all(), f"{name}: a community has κ of 0")
    for scale in (prior.scale[None], both.scale):
        require_positive(name, np.diagonal(scale, axis1=1, axis2=2))
        check_definite(name, scale)
    if scales is not None:  # noise has an expectation for shapes above 1 only
        require_positive(name, scales.prior_shape - 1.0, scales.shape - 1.0, scales.rate)
