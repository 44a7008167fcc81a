"""Models that learn online, in files and in copies: equal to the bit, and they go on alike."""

from __future__ import annotations

import copy
import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from test_partial_fit import (
    MORE,
    SEVERAL,
    STARTS,
    TABLE,
    assert_consistent,
    content,
    everything,
    fitted,
    new,
    planted,
    quietly_fitted,
    started,
    stream,
)

from hemf import HeMF, ModelFileError, ParameterError
from hemf.online.clocks import EVERY
from hemf.persistence.model import MANIFEST

SETTINGS = [
    ("fitted", {}),
    ("from nothing", {}),
    ("fitted", {"forgetting": (0.9, 1.0), "refresh": 0.5, "user_covariances": "tied"}),
    ("from nothing", {"noise_scales": None, "offsets": False, "evb": None}),
    ("from nothing", {"dtype": "float64", "noise_scales": "item", "evb": "gradient"}),
]


def loaded(model: HeMF, folder: Path) -> HeMF:
    model.save(folder / "model")
    return HeMF.load(folder / "model")


def go_on(model: HeMF) -> np.ndarray:
    """Everything that can happen to a model, and what it predicted meanwhile."""
    forecasts = model.predict_then_learn(stream(7, 60, users=20, items=12))
    model.partial_fit([*MORE, ("u1", "i5", 2.0)])
    model.partial_fit(removed=[("eve", "tea", 1.0)])
    return np.append(forecasts, model.predict_then_learn(stream(8, 60, users=30)))


# -- files --------------------------------------------------------------------------------------


@SEVERAL
@pytest.mark.parametrize(("start", "settings"), SETTINGS, ids=str)
def test_a_model_comes_back_in_mid_stream_and_goes_on(history, start, settings, tmp_path):
    model = started(start, history, **settings)
    model.predict_then_learn(stream(0, 70))
    twin = loaded(model, tmp_path)
    assert content(twin, tmp_path) == content(model, tmp_path)
    assert twin.get_params() == model.get_params()
    np.testing.assert_array_equal(everything(twin), everything(model))
    assert twin.elbo_ == model.elbo_
    np.testing.assert_array_equal(go_on(twin), go_on(model))
    assert content(twin, tmp_path) == content(model, tmp_path)
    assert_consistent(twin)


@SEVERAL
def test_saving_at_every_step_changes_nothing(history, tmp_path):
    steady = new(history, duplicates="mean")
    often = new(history, duplicates="mean")
    for begin in range(0, 200, 40):
        part = stream(0, 200, users=30)[begin : begin + 40]
        steady.partial_fit(part)
        often = loaded(often.partial_fit(part), tmp_path)
    assert content(often, tmp_path) == content(steady, tmp_path)


@pytest.mark.parametrize("history", ["full", 5])
def test_a_model_with_several_communities_comes_back(history, tmp_path):
    model = new(history, rating_range=(1, 5))
    model.predict_then_learn(planted(0, 12_000))
    assert model.n_user_communities_ > 1
    twin = loaded(model, tmp_path)
    for one in (model, twin):
        one.predict_then_learn(planted(1, 500))
    assert content(twin, tmp_path) == content(model, tmp_path)


@SEVERAL
def test_a_model_that_holds_ratings_out_comes_back_after_it_has_grown(history, tmp_path):
    model = fitted(history, validation_fraction=0.3).partial_fit(MORE)
    twin = loaded(model, tmp_path)
    assert twin.n_users_ == 13
    assert twin.held_out_.n_ratings == model.held_out_.n_ratings
    assert twin.recommend("u3", 20, exclude_seen=history == "full")[0].tolist() == (
        model.recommend("u3", 20, exclude_seen=history == "full")[0].tolist()
    )


@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_any_generator_goes_on_where_it_was(bits, tmp_path):
    model = HeMF(n_factors=2, rng=np.random.Generator(getattr(np.random, bits)(0)))
    model.partial_fit(TABLE)
    twin = loaded(model, tmp_path)
    assert type(twin.state_.rng.bit_generator).__name__ == bits
    np.testing.assert_array_equal(go_on(twin), go_on(model))


def test_a_generator_of_an_unknown_kind_is_refused_before_anything_is_written(tmp_path):
    class Homemade(np.random.PCG64):
        @property
        def state(self):
            return {**super().state, "bit_generator": "Homemade"}

    model = HeMF(n_factors=1, rng=np.random.Generator(Homemade(0))).partial_fit(TABLE)
    with pytest.raises(ParameterError, match="Homemade"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@SEVERAL
@pytest.mark.parametrize(
    "streamed", [False, pytest.param(True, marks=pytest.mark.slow(reason="compiles a kernel"))]
)
def test_more_kinds_of_ratings_than_16_bits_tell_apart(streamed, history, tmp_path):
    users, items = np.divmod(np.arange(300 * 225), 225)
    ratings = np.linspace(1, 5, users.size, dtype=np.float32)
    ratings[items >= 220] = 1.0  # what users rate last; items have other ratings among their last
    model = HeMF(n_factors=1, history=history, max_sweeps=1, rng=0)
    model.set_params(max_user_communities=1, max_item_communities=1)
    quietly_fitted(model, (users, items, ratings, np.arange(users.size)))
    model.partial_fit([(400, 2, 3.0), (0, 400, 2.0)])
    twin = loaded(model, tmp_path)
    for one in (model, twin):
        one.partial_fit([(400, 5, 2.0)])
        if streamed:
            one.predict_then_learn([(500, 5, 2.123)])
        else:
            one.partial_fit([(500, 5, 2.123)])
    assert model.n_ratings_ == users.size + 4
    assert twin.predict(400, 2) == model.predict(400, 2)
    assert np.isfinite(model.predict([0, 400, 500], 2)).all()


NEW = ("leverage", "information")


# -- damage -------------------------------------------------------------------------------------


def rewritten(source: Path, target: Path, changes: dict) -> Path:
    """Write an archive again, some members changed, or with None left out; checksums right."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as fresh:
        unknown = set(changes) - set(old.namelist())
        assert not unknown
        for name in old.namelist():
            member = old.read(name)
            change = changes.get(name, lambda same: same)
            if change is None:
                continue
            if name.endswith(".npy") and name in changes:
                member = npy(change(np.load(io.BytesIO(member))))
            else:
                member = change(member)
            fresh.writestr(name, member)
    return target


def npy(array: np.ndarray) -> bytes:
    stream_of_bytes = io.BytesIO()
    np.save(stream_of_bytes, array)
    return stream_of_bytes.getvalue()


def put(place, value):
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[place] = value
        return array

    return change


ARRAYS = (
    "listed", "parts", "weight", "error", "entropy", "count", "considered_count", "pending",
    "last_refresh", "gram", "moment", "square", "size", "first", "scatter", "totals", "indptr",
    "indices",     "codes",
)  # fmt: skip
DAMAGES = {
    "shorter": lambda array: array[:-1],
    "of another type": lambda array: array.astype(np.complex64),
    "of another shape": lambda array: array[..., None],
}
WRONG = {
    "a community that is not there": {"online/user/listed.npy": put((0, 0), 99)},
    "a community below all": {"online/item/listed.npy": put((0, 0), -2)},
    "an item that is not there": {"online/user/indices.npy": put(0, 1000)},
    "an item below all": {"online/user/indices.npy": put(0, -1)},
    "a user that is not there": {"online/item/indices.npy": put(-1, 13)},
    "a rating that is not there": {"online/user/codes.npy": put(0, 60_000)},
    "another rating on one side": {
        "online/item/codes.npy": lambda codes: np.where(
            np.arange(codes.size) == 0, codes == 0, codes
        ).astype(codes.dtype)
    },
    "rows that overlap": {"online/user/indptr.npy": put(2, 0)},
    "rows that end too late": {"online/user/indptr.npy": put(-1, 10_000)},
    "rows that begin too late": {"online/user/indptr.npy": put(0, 1)},
    "NaN in parts": {"online/user/parts.npy": put((0, 0, 0), np.nan)},
    "NaN in statistics": {"online/item/size.npy": put(0, np.nan)},
    "NaN in the book": {"online/book.npy": put(0, np.nan)},
    "a rating twice in the book": {"online/book.npy": lambda book: np.append(book, book[:1])},
    "no ratings in the book": {"online/book.npy": lambda book: book[:0]},
    "a book of whole numbers": {"online/book.npy": lambda book: book.astype(np.int64)},
    "a count below 0": {"online/user/count.npy": put(0, -5)},
    "no book": {"online/book.npy": None},
    "no history": {"online/user/indices.npy": None},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("models")
    models = {}
    for history in ("full", "none", 5):
        models[history] = folder / str(history)
        fitted(history).partial_fit(MORE).save(models[history])
    return models


@pytest.mark.parametrize("history", ["full", 5])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_a_model_file_error(history, wrong, files, tmp_path):
    path = rewritten(files[history], tmp_path / "damaged", wrong)
    with pytest.raises(ModelFileError, match="damaged"):
        HeMF.load(path)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_a_wrong_form_are_a_model_file_error(name, files, tmp_path):
    member = f"online/item/{name}.npy"
    for what, damage in DAMAGES.items():
        path = rewritten(files[5], tmp_path / "damaged", {member: damage})
        try:
            HeMF.load(path)
        except ModelFileError:
            continue
        pytest.fail(f"{member} may be {what}")


def entry(*place, value):
    def change(text: bytes) -> bytes:
        manifest = json.loads(text)
        inside = manifest["online"]
        for key in place[:-1]:
            inside = inside[key]
        assert place[-1] in inside
        inside[place[-1]] = value
        return json.dumps(manifest).encode()

    return change


ENTRIES = {
    "noise of 0": entry("noise", value=0.0),
    "noise in words": entry("noise", value="loud"),
    "infinite noise": entry("noise", value={"float": "inf"}),
    "centre in words": entry("centre", value="middle"),
    "no centre": entry("centre", value=None),
    "unit below 0": entry("unit", value=-1.0),
    "seen in words": entry("clocks", "seen", value="much"),
    "window in words": entry("options", "window", value="wide"),
    "no forgetting": entry("options", "forgetting", value={}),
    "forgetting of users alone": entry("options", "forgetting", value={"user": 1.0}),
    "forgetting everything": entry("options", "forgetting", "user", value=0.0),
    "forgetting in words": entry("options", "forgetting", "item", value="slow"),
    "infinite forgetting": entry("options", "forgetting", "item", value={"float": "nan"}),
    "no limits": entry("options", "max_communities", value=None),
    "half a limit": entry("options", "max_communities", "user", value=0.5),
    "no options": entry("options", value={}),
    "another window": entry("options", "window", value=-1),
    "a window below all": entry("options", "window", value=-2),
    "no parts": entry("options", "max_parts", value=0),
    "evb in a way unheard of": entry("options", "evb", value="guess"),
    "infinite refresh": entry("options", "refresh", value={"float": "inf"}),
    "refreshed in words": entry("clocks", "last", "prior/user", value="often"),
    "no sums": entry("stores", "item", "sums", value=False),
    "no generator": entry("rng", value="{}"),
    "a missing generator": entry("rng", value=None),
    "a broken generator": entry("rng", value="{"),
    "a generator unheard of": entry("rng", value='{"bit_generator": "default_rng"}'),
    "a generator without state": entry("rng", value='{"bit_generator": "PCG64"}'),
    "a generator that reads past its end": entry(
        "rng",
        value=json.dumps(
            {"bit_generator": "MT19937", "state": {"key": list(range(624)), "pos": 10_000}}
        ),
    ),
}


@pytest.mark.parametrize("wrong", ENTRIES.values(), ids=ENTRIES)
def test_entries_that_cannot_be_are_a_model_file_error(wrong, files, tmp_path):
    path = rewritten(files[5], tmp_path / "damaged", {MANIFEST: wrong})
    with pytest.raises(ModelFileError, match="damaged"):
        HeMF.load(path)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("options", "forgetting"), "lack forgetting"),
        (("options", "window"), "lack window"),
        (("rng",), "state of the random generator is not there"),
    ],
)
def test_what_is_missing_is_named(place, message, files, tmp_path):
    def without(text: bytes) -> bytes:
        manifest = json.loads(text)
        inside = manifest["online"]
        for key in place[:-1]:
            inside = inside[key]
        del inside[place[-1]]
        return json.dumps(manifest).encode()

    path = rewritten(files["full"], tmp_path / "damaged", {MANIFEST: without})
    with pytest.raises(ModelFileError, match=message):
        HeMF.load(path)


@pytest.mark.parametrize("history", ["full", "none", 5])
def test_half_a_file_is_a_model_file_error(history, files, tmp_path):
    whole = files[history].read_bytes()
    for share in (0.1, 0.5, 0.9, 0.999):
        (tmp_path / "half").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ModelFileError):
            HeMF.load(tmp_path / "half")


# -- copies -------------------------------------------------------------------------------------

COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@SEVERAL
@STARTS
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_is_a_model_of_its_own(history, start, copied, tmp_path):
    model = started(start, history).partial_fit(MORE)
    before, kept = everything(model), content(model, tmp_path)
    twin = copied(model)
    np.testing.assert_array_equal(everything(twin), before)
    assert content(twin, tmp_path) == kept
    predicted = go_on(twin)
    assert content(model, tmp_path) == kept
    np.testing.assert_array_equal(everything(model), before)
    np.testing.assert_array_equal(go_on(model), predicted)
    np.testing.assert_array_equal(everything(twin), everything(model))
    assert content(twin, tmp_path) == content(model, tmp_path)
    assert_consistent(twin)


@SEVERAL
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_predicts_what_it_has_learnt(history, copied):
    twin = copied(fitted(history).partial_fit(MORE))
    before = twin.predict("u4", "i1")
    twin.partial_fit([("u4", "i0", 5.0), ("eve", "i6", 5.0)])  # no row is new
    assert twin.predict("u4", "i1") > before


@pytest.mark.parametrize("history", ["none", 2])
def test_a_loaded_model_gives_the_same_file_again(history, tmp_path, monkeypatch):
    """Also where the sides' tables came into being in another order than they are read in."""
    monkeypatch.setitem(EVERY, "rotation", 0.3)
    model = new(history)
    for k in range(6):
        model.partial_fit([(f"u{j}", f"i{(j + k) % 3}", 1.0 + (j * k) % 5) for j in range(9)])
        model.save(tmp_path / "first")
        HeMF.load(tmp_path / "first").save(tmp_path / "second")
        assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


@pytest.mark.parametrize("name", ["totals", "first", "scatter", "parts", "mean"])
def test_sums_that_are_too_large_to_compute_with_are_refused(name, tmp_path):
    started("from nothing").save(tmp_path / "model")
    member = f"user/moments/{name}.npy" if name == "mean" else f"online/user/{name}.npy"
    with zipfile.ZipFile(tmp_path / "model") as archive:
        members = {one: archive.read(one) for one in archive.namelist()}
    array, stream = np.load(io.BytesIO(members[member])), io.BytesIO()
    np.save(stream, np.full_like(array, 1e30))
    with zipfile.ZipFile(tmp_path / "spoilt", "w") as archive:
        for one, content in {**members, member: stream.getvalue()}.items():
            archive.writestr(one, content)
    with pytest.raises(ModelFileError, match="too large"):
        HeMF.load(tmp_path / "spoilt")


@pytest.fixture(scope="module")
def with_features(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("features") / "model"
    ages = {user: [float(place)] for place, user in enumerate(sorted({row[0] for row in TABLE}))}
    model = HeMF(n_factors=2, tol=0.1, rng=0).fit(TABLE, user_features=ages)
    model.partial_fit(MORE).save(path)
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("online/user/features-average-0", -1e158),
        ("online/user/features-spread-1", 1e158),
        ("online/user/features-data", 1e30),
        ("user/regression/leverage", 1e160),
    ],
)
def test_features_too_large_to_compute_with_are_refused(name, value, with_features, tmp_path):
    changes = {f"{name}.npy": lambda array: np.full_like(array, value)}
    path = rewritten(with_features, tmp_path / "damaged", changes)
    with pytest.raises(ModelFileError, match="damaged"):
        HeMF.load(path)


def test_a_spread_of_features_that_is_no_covariance_is_refused(with_features, tmp_path):
    changes = {"online/user/features-spread-0.npy": lambda spread: -spread - np.eye(len(spread))}
    path = rewritten(with_features, tmp_path / "damaged", changes)
    with pytest.raises(ModelFileError, match="damaged"):
        HeMF.load(path)


@pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
@pytest.mark.parametrize("unit", [1, 1_000_000, 1_000_000_000])
def test_moods_at_times_in_any_unit_come_back(unit, tmp_path):
    now = 1_700_000_000
    rows = [(k % 12, k % 7, 1.0 + k % 5, (now + 3600 * (k % 12)) * unit) for k in range(84)]
    model = HeMF(n_factors=1, max_sweeps=12, moods=True, rng=0).fit(rows)
    model.partial_fit([(99, 3, 4.0, (now + 86_400) * unit)])
    model.save(tmp_path / "m.hemf")
    asked = {"users": [0, 99], "items": [1, 1], "timestamps": (now + 86_400) * unit}
    expected = model.predict(**asked)
    np.testing.assert_array_equal(HeMF.load(tmp_path / "m.hemf").predict(**asked), expected)
