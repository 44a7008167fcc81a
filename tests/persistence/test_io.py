from __future__ import annotations

import contextlib
import io
import json
import pickle
import tracemalloc
import uuid
import warnings
import zipfile
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hemf import (
    ConvergenceWarning,
    DataError,
    DataWarning,
    HeMF,
    ModelFileError,
    NotFittedError,
    ParameterError,
)
from hemf.persistence.model import MANIFEST, VERSION

QUICK = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
IDS = {
    "integers": [3, 10**9, -7, 2**62],
    "text": ["ann", "", "bob", "12"],
    "unicode": ["Ann", "Ånn", "李", "🦊"],
    "half surrogates": ["a\ud800", "b", "c", "d"],
    "mixed": [1, "1", 2.5, ("a", 3, (True, None))],
    "floats": [0.5, 1.5, float("inf"), 2.0],
    "truth": [True, False, "maybe", b"no"],
    "huge integers": [2**64, 2**70, 5, -(2**80)],
    "others": [uuid.UUID(int=1), b"\xff", (), (b"", uuid.UUID(int=2))],
}


def fitted(users, items, ratings, **parameters) -> HeMF:
    parameters = {"n_factors": 2, "n_jobs": 1, "rng": 0, **parameters}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return HeMF(**parameters).fit((list(users), list(items), list(ratings)))


def tiny(ids=("ann", "bob", "eve", "joe"), **parameters) -> HeMF:
    """Four users and items with these ids, and ten ratings."""
    users, items = np.nonzero(np.tri(4))
    parameters = {"max_sweeps": 1, **parameters}
    return fitted(
        [ids[u] for u in users], [ids[i] for i in items], (users * 2 + items) % 5, **parameters
    )


@pytest.fixture(scope="module")
def planted() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    groups, kinds = rng.integers(0, 2, 60), rng.integers(0, 2, 40)
    users, items = np.nonzero(rng.random((60, 40)) < 0.4)
    level = np.where(groups[users] == kinds[items], 4.5, 1.5)
    return {"users": users, "items": items, "ratings": level + rng.normal(0, 0.5, users.size)}


@pytest.fixture(scope="module")
def bytes_of_tiny(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "tiny.hemf"
    tiny().save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(bytes_of_tiny, tmp_path_factory) -> HeMF:
    path = tmp_path_factory.mktemp("model") / "whole.hemf"
    path.write_bytes(bytes_of_tiny)
    return HeMF.load(path)


def same(left, right) -> bool:
    """Equal to the bit, types included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        if left.dtype == object:
            return same(left.tolist(), right.tolist())
        alike = left.dtype == right.dtype and left.shape == right.shape
        return alike and left.tobytes() == right.tobytes()
    if is_dataclass(left):
        names = [f.name for f in fields(left) if f.init and f.name != "seconds"]  # not in files
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right or (left != left and right != right)


def same_model(left: HeMF, right: HeMF) -> bool:
    names = ("state_", "history_", "converged_", "rating_range_", "global_mean_", "rating_scale_")
    a, b = left.ratings_, right.ratings_
    return (
        all(same(getattr(left, name), getattr(right, name)) for name in names)
        and same([a.users.ids, a.items.ids], [b.users.ids, b.items.ids])
        and same([a.by_user, a.by_item, a.timestamps], [b.by_user, b.by_item, b.timestamps])
        and same([a.mean, a.scale], [b.mean, b.scale])
        and same(left.elbo_, right.elbo_)
    )


def changed(content: bytes, path: Path, **members) -> Path:
    """Write the archive again with some members put in, or with None left out; checksums right."""
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(path, "w") as new,
    ):
        members = {name.replace("__", "/").replace("DOT", "."): m for name, m in members.items()}
        for name in old.namelist():
            member = members.get(name, old.read(name))
            if callable(member):
                member = member(old.read(name))
            if isinstance(member, np.ndarray):
                stream = io.BytesIO()
                np.save(stream, member)
                member = stream.getvalue()
            if member is not None:
                new.writestr(name, member)
    return path


def manifest_with(**entries):
    return lambda old: json.dumps({**json.loads(old), **entries}).encode()


# -- what is saved comes back ------------------------------------------------------------------


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_a_model_comes_back_to_the_bit_whatever_its_ids(ids, tmp_path):
    model = tiny(ids)
    model.save(tmp_path / "m")
    loaded = HeMF.load(tmp_path / "m")
    assert same_model(model, loaded)
    assert loaded.get_params() == model.get_params()
    for known in ids:
        assert loaded.predict(known, ids[0]) == model.predict(known, ids[0])
    stranger = ("nobody", "nothing")
    assert loaded.predict(*stranger, return_std=True) == model.predict(*stranger, return_std=True)


@settings(QUICK, max_examples=15)
@given(
    st.lists(
        st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False),
        min_size=4,
        max_size=4,
        unique=True,
    )
)
def test_ids_of_any_mixture_come_back(tmp_path, ids):
    model = tiny(ids)
    model.save(tmp_path / "m")
    assert same_model(model, HeMF.load(tmp_path / "m"))


def test_many_text_ids_come_back(tmp_path):
    users = [f"user {n}" for n in range(500)]
    model = fitted(users, range(500), np.arange(500) % 5, max_sweeps=1)
    model.save(tmp_path / "m")
    assert same_model(model, HeMF.load(tmp_path / "m"))


def test_a_vocabulary_that_grew_keeps_the_types_of_its_ids(tmp_path):
    model = tiny()
    grown = [*range(100), 100.5, *range(101, 200)]  # Arrow would take them all for floats
    model = fitted(range(100), range(100), range(100), max_sweeps=1)
    users = model.ratings_.users.copy()
    users.add(grown)
    ratings = type(model.ratings_).from_any(
        (grown, [1] * len(grown), [2.0] * len(grown)), users=users
    )
    with pytest.warns(DataWarning, match="all 200 ratings are 2"):
        model = HeMF(n_factors=1, max_sweeps=1).fit(ratings)
    model.save(tmp_path / "m")
    assert [type(i) for i in HeMF.load(tmp_path / "m").ratings_.users.ids] == [
        type(i) for i in model.ratings_.users.ids
    ]


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"dtype": "float64"},
        {"offsets": False, "noise_scales": None},
        {"noise_scales": "user"},
        {"membership": "mean-field"},
        {"user_covariances": "own", "item_covariances": "tied"},
        {"validation_fraction": 0.2},
        {"max_user_communities": 1, "max_item_communities": 1, "evb": None},
    ],
    ids=str,
)
def test_communities_and_all_that_was_learnt_come_back(parameters, planted, tmp_path):
    model = fitted(**planted, max_sweeps=14, **parameters)
    model.save(tmp_path / "first")
    loaded = HeMF.load(tmp_path / "first")
    assert same_model(model, loaded)
    users, items = planted["users"], planted["items"]
    assert same(
        loaded.predict(users, items, return_std=True), model.predict(users, items, return_std=True)
    )
    assert same(loaded.recommend(3, 5), model.recommend(3, 5))
    assert same(loaded.elbo_history_, model.elbo_history_)
    loaded.save(tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == (tmp_path / "first").read_bytes()


def test_a_loaded_model_can_be_swept_on_with_the_same_result(planted, tmp_path):
    from hemf.batch.fit import update_side

    model = fitted(**planted, max_sweeps=14)
    assert model.n_user_communities_ > 1
    model.save(tmp_path / "m")
    loaded = HeMF.load(tmp_path / "m")
    for side in ("user", "item"):
        update_side(model.state_, side)
        update_side(loaded.state_, side)
    assert same_model(model, loaded)


def test_timestamps_come_back(tmp_path):
    model = HeMF(n_factors=1, max_sweeps=1).fit([("a", "x", 5, 2**40), ("b", "x", 3, -1)])
    model.save(tmp_path / "m")
    loaded = HeMF.load(tmp_path / "m")
    assert same_model(model, loaded)
    assert loaded.ratings_.timestamps.tolist() == [2**40, -1]


def timed(tmp_path) -> tuple[HeMF, Path]:
    rows = [(user, user % 4, float(user % 5), 100 + user) for user in range(20)]
    model = HeMF(n_factors=1, max_sweeps=1, validation_fraction=0.3, rng=0).fit(rows)
    model.save(tmp_path / "m")
    return model, tmp_path / "m"


def test_timestamps_of_the_held_out_part_come_back(tmp_path):
    model, path = timed(tmp_path)
    loaded = HeMF.load(path)
    assert same(loaded.held_out_.timestamps, model.held_out_.timestamps)
    assert loaded.held_out_.timestamps.size == 6


def test_how_memberships_were_inferred_comes_back_whatever_the_parameter_is(tmp_path):
    tiny(membership="mean-field").set_params(membership="coupled").save(tmp_path / "m")
    loaded = HeMF.load(tmp_path / "m")
    assert loaded.membership == "coupled"
    assert not loaded._model.coupled


@pytest.mark.filterwarnings("ignore:all 3 ratings are 2")
def test_one_rating_and_ratings_that_are_all_equal_come_back(tmp_path):
    for ratings in ([("a", "x", 5)], [("a", "x", 2), ("b", "x", 2), ("b", "y", 2)]):
        model = HeMF(n_factors=3, max_sweeps=1).fit(ratings)
        model.save(tmp_path / "m")
        assert same_model(model, HeMF.load(tmp_path / "m"))


def test_parameters_come_back_but_for_a_generator(tmp_path):
    given = {"rating_range": (0, 9.5), "tol": np.float64(1e-4), "n_factors": np.int64(2)}
    tiny(**given, rng=7).save(tmp_path / "seed")
    loaded = HeMF.load(tmp_path / "seed")
    assert loaded.rating_range == (0, 9.5)
    assert (loaded.tol, loaded.n_factors, loaded.rng) == (1e-4, 2, 7)
    for ends in ([0, 9.5], np.array([0, 9.5])):
        tiny(rating_range=ends).save(tmp_path / "list")
        assert HeMF.load(tmp_path / "list").rating_range == [0, 9.5]
    tiny(rng=np.random.default_rng(7)).save(tmp_path / "generator")
    assert HeMF.load(tmp_path / "generator").rng is None


def test_a_subclass_loads_as_itself(tmp_path):
    class Mine(HeMF):
        pass

    tiny().save(tmp_path / "m")
    assert type(Mine.load(tmp_path / "m")) is Mine


def test_saving_over_a_model_replaces_it(tmp_path):
    tiny().save(tmp_path / "m")
    other = tiny(n_factors=3)
    other.save(str(tmp_path / "m"))
    assert same_model(other, HeMF.load(str(tmp_path / "m")))


# -- what cannot be saved ----------------------------------------------------------------------


def test_nothing_learnt_is_nothing_to_save(tmp_path):
    with pytest.raises(NotFittedError):
        HeMF().save(tmp_path / "m")


def test_an_id_that_a_file_cannot_hold_is_named_before_anything_is_written(tmp_path):
    model = tiny(["a", frozenset({1}), "c", "d"])
    with pytest.raises(DataError, match=r"user frozenset\(\{1\}\) cannot be saved") as info:
        model.save(tmp_path / "m")
    assert info.value.value == frozenset({1})
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_that_a_file_cannot_hold_is_named(tmp_path):
    model = tiny().set_params(tol=object())
    with pytest.raises(ParameterError, match="tol="):
        model.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_fits_on_no_disk_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "m"
    tiny().save(path)
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hemf._files.npy.write_array", full)
    with pytest.raises(ModelFileError, match="No space left"):
        tiny(n_factors=3).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# -- what cannot be loaded ---------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"absent\.hemf: no such file"):
        HeMF.load(tmp_path / "absent.hemf")


def test_a_directory_is_no_model(tmp_path):
    with pytest.raises(ModelFileError, match="is a directory"):
        HeMF.load(tmp_path)


def test_a_file_that_may_not_be_read_is_named(bytes_of_tiny, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "m.hemf").write_bytes(bytes_of_tiny)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFileError, match=r"m\.hemf cannot be opened: Permission denied"):
        HeMF.load(tmp_path / "m.hemf")


@pytest.mark.parametrize("content", [b"", b"P", b"user,item,rating\n", b"\x80\x04K\x01."])
def test_a_file_of_another_kind_is_no_model(content, tmp_path):
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ModelFileError, match="is not a hemf model"):
        HeMF.load(tmp_path / "m")


def test_a_zip_of_something_else_is_no_model(tmp_path):
    np.savez(tmp_path / "m.npz", x=np.zeros(3))
    with pytest.raises(ModelFileError, match="it has no manifest"):
        HeMF.load(tmp_path / "m.npz")
    with zipfile.ZipFile(tmp_path / "z", "w") as other:
        other.writestr(MANIFEST, '{"format": "another"}')
    with pytest.raises(ModelFileError, match="of another format"):
        HeMF.load(tmp_path / "z")


def test_a_newer_format_asks_for_an_upgrade(bytes_of_tiny, tmp_path):
    newer = manifest_with(version=VERSION + 1, library="9.1", sides="information otherwise")
    path = changed(bytes_of_tiny, tmp_path / "m", manifestDOTjson=newer)
    with pytest.raises(ModelFileError, match=rf"hemf 9\.1 in format {VERSION + 1}.*Upgrade hemf"):
        HeMF.load(path)


@settings(QUICK, max_examples=60)
@given(st.data())
def test_a_truncated_file_is_damaged(tmp_path, bytes_of_tiny, data):
    length = data.draw(st.integers(0, len(bytes_of_tiny) - 1))
    (tmp_path / "m").write_bytes(bytes_of_tiny[:length])
    with pytest.raises(ModelFileError, match=r"damaged|not a hemf model"):
        HeMF.load(tmp_path / "m")


@settings(QUICK, max_examples=150)
@given(st.data())
def test_a_changed_byte_is_found_or_does_not_matter(tmp_path, bytes_of_tiny, whole, data):
    content = bytearray(bytes_of_tiny)
    # Half of the time near the end, where the zip's directory is and no checksum watches.
    start = data.draw(st.sampled_from([0, len(content) - 3500]))
    at = data.draw(st.integers(start, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    (tmp_path / "m").write_bytes(content)
    with contextlib.suppress(ModelFileError):  # and no other error
        assert same_model(HeMF.load(tmp_path / "m"), whole)


@pytest.mark.parametrize(
    "member",
    ["user/moments/mean.npy", "item/membership.npy", "ratings/values.npy", "user/ids-text.npy"],
)
def test_a_missing_member_is_named(member, bytes_of_tiny, tmp_path):
    key = member.replace("/", "__").replace(".", "DOT")
    path = changed(bytes_of_tiny, tmp_path / "m", **{key: None})
    with pytest.raises(ModelFileError, match=rf"damaged or incomplete.*{member}"):
        HeMF.load(path)


@pytest.mark.parametrize(
    ("member", "array"),
    [
        ("user/moments/mean.npy", np.zeros((3, 4), np.float32)),
        ("user/moments/mean.npy", np.zeros((4, 4), np.float16)),
        ("user/moments/second.npy", np.asfortranarray(np.zeros((4, 10), np.float32))),
        ("user/membership.npy", np.ones((4, 1))),
        ("user/noise_scales/rate.npy", np.ones(3)),
        ("item/prior/scale.npy", np.eye(2)),
        ("item/communities/dof.npy", np.ones(3)),
        ("ratings/indptr.npy", np.array([0, 1, 3, 6, 9])),
        ("ratings/indptr.npy", np.array([0, 3, 1, 6, 10])),
        ("ratings/indices.npy", np.full(10, 4, np.int32)),
        ("ratings/indices.npy", np.full(10, -1, np.int32)),
        ("ratings/values.npy", np.zeros(10, np.int64)),
        ("user/ids-ends.npy", np.array([0, 3, 6, 9, 99])),
        ("user/ids-ends.npy", np.array([0, 3, 6, 6, 6])),
        ("user/ids-text.npy", np.full(12, 255, np.uint8)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype}{value.shape}",
)
def test_an_array_that_does_not_fit_is_refused(member, array, bytes_of_tiny, tmp_path):
    key = member.replace("/", "__").replace(".", "DOT")
    path = changed(bytes_of_tiny, tmp_path / "m", **{key: array})
    with pytest.raises(ModelFileError, match="damaged or incomplete"):
        HeMF.load(path)


@pytest.mark.parametrize(
    ("member", "number"),
    [
        ("user/moments/mean.npy", np.nan),
        ("item/moments/second.npy", np.inf),
        ("user/membership.npy", -0.5),
        ("item/communities/dof.npy", 0.0),
        ("item/communities/scale.npy", -1.0),
        ("user/communities/kappa.npy", -1.0),
        ("user/communities/sticks/left.npy", 0.0),
        ("item/noise_scales/shape.npy", 1.0),
        ("item/noise_scales/rate.npy", 0.0),
        ("ratings/values.npy", np.nan),
        ("user/communities/mean.npy", 1e30),
        ("item/prior/centre.npy", -1e300),
        ("item/moments/mean.npy", 1e30),
        ("item/communities/scale.npy", 1e300),
        ("user/communities/kappa.npy", 1e-160),
    ],
)
def test_numbers_that_no_fit_can_end_in_are_refused(member, number, bytes_of_tiny, tmp_path):
    def nonsense(old: bytes) -> np.ndarray:
        array = np.load(io.BytesIO(old))
        array.flat[0] = number
        return array

    key = member.replace("/", "__").replace(".", "DOT")
    path = changed(bytes_of_tiny, tmp_path / "m", **{key: nonsense})
    with pytest.raises(ModelFileError, match="damaged or incomplete"):
        HeMF.load(path)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize(
    ("member", "spoil"),
    [
        ("regression/design/widths.npy", lambda array: array[::-1]),
        ("regression/design/widths.npy", lambda array: array + np.array([1, -1])),
        ("regression/information.npy", lambda array: 1e30 * array),
        ("regression/design/values.npy", lambda array: -1e30 * array),
        ("regression/coefficients.npy", lambda array: 1e30 * (1.0 + array)),
    ],
)
def test_features_that_cannot_be_are_refused(member, spoil, online, tmp_path):
    model = tiny(implicit_features=True)
    if online:
        model.partial_fit([("new", "joe", 3.0), ("ann", "new", 1.0)])
    model.save(tmp_path / "m")
    for side in ("user", "item"):
        key = f"{side}/{member}".replace("/", "__").replace(".", "DOT")
        changes = {key: lambda old: np.ascontiguousarray(spoil(np.load(io.BytesIO(old))))}
        path = changed((tmp_path / "m").read_bytes(), tmp_path / "spoilt", **changes)
        with pytest.raises(ModelFileError, match="damaged or incomplete"):
            HeMF.load(path)


@pytest.mark.parametrize(
    ("part", "kind"), [("data", "f2"), ("data", "i4"), ("indices", "f4"), ("indptr", "u8")]
)
def test_tables_of_features_of_another_type_are_refused(part, kind, tmp_path):
    triples = [(u, i, float((u * i) % 5)) for u in range(8) for i in range(6)]
    ages = {u: {"age": 20.0 + u} for u in range(9)}
    model = HeMF(n_factors=1, tol=0.1, rng=0).fit(triples, user_features=ages)
    model.save(tmp_path / "m")
    key = f"user__features__newcomers-{part}DOTnpy"
    changes = {key: lambda old: np.load(io.BytesIO(old)).astype(kind)}
    path = changed((tmp_path / "m").read_bytes(), tmp_path / "spoilt", **changes)
    with pytest.raises(ModelFileError, match="damaged or incomplete"):
        HeMF.load(path)


@pytest.mark.parametrize("member", ["item/communities/scale.npy", "user/prior/scale.npy"])
@pytest.mark.parametrize("wrong", ["equal", "huge", "asymmetric", "indefinite"])
def test_covariances_that_cannot_be_are_refused(member, wrong, bytes_of_tiny, tmp_path):
    def nonsense(old: bytes) -> np.ndarray:
        array = np.load(io.BytesIO(old))
        if wrong in ("equal", "huge"):
            return np.full_like(array, 3.5 if wrong == "equal" else 1e300)
        size = np.sqrt(array[..., 0, 0] * array[..., 1, 1])
        array[..., 0, 1] = 2.0 * size
        if wrong == "indefinite":
            array[..., 1, 0] = array[..., 0, 1]
        return array

    key = member.replace("/", "__").replace(".", "DOT")
    path = changed(bytes_of_tiny, tmp_path / "m", **{key: nonsense})
    with pytest.raises(ModelFileError, match="damaged or incomplete"):
        HeMF.load(path)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("state", "noise", 0.0),
        ("state", "noise", -1.0),
        ("state", "noise", {"float": "nan"}),
        ("state", "unit", 0.0),
        ("fitted", "scale", 0.0),
        ("fitted", "mean", {"float": "nan"}),
        ("fitted", "rating_range", {"tuple": [5.0, 1.0]}),
        ("fitted", "rating_range", {"tuple": [1.0, {"float": "nan"}]}),
    ],
)
def test_plain_numbers_that_make_no_sense_are_refused(part, name, value, bytes_of_tiny, tmp_path):
    def nonsense(old: bytes) -> bytes:
        entries = json.loads(old)
        assert name in entries[part]
        entries[part][name] = value
        return json.dumps(entries).encode()

    path = changed(bytes_of_tiny, tmp_path / "m", manifestDOTjson=nonsense)
    with pytest.raises(ModelFileError, match="damaged or incomplete"):
        HeMF.load(path)


def test_a_parameter_that_there_is_not_is_refused(bytes_of_tiny, tmp_path):
    def more(old: bytes) -> bytes:
        entries = json.loads(old)
        entries["params"]["unexpected"] = 1
        return json.dumps(entries).encode()

    path = changed(bytes_of_tiny, tmp_path / "m", manifestDOTjson=more)
    with pytest.raises(ModelFileError, match="there is no parameter unexpected"):
        HeMF.load(path)


def test_an_id_that_is_there_twice_is_refused(tmp_path):
    tiny([1, 2, 3, 4]).save(tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    path = changed(content, tmp_path / "m", user__idsDOTnpy=np.array([1, 2, 3, 3]))
    with pytest.raises(ModelFileError, match="an id is there twice"):
        HeMF.load(path)


@pytest.mark.parametrize("version", [0, "1", None, 1.0, True])
def test_a_version_that_is_none_is_refused(version, bytes_of_tiny, tmp_path):
    path = changed(bytes_of_tiny, tmp_path / "m", manifestDOTjson=manifest_with(version=version))
    with pytest.raises(ModelFileError, match="its version is"):
        HeMF.load(path)


@pytest.mark.parametrize("entry", ["params", "ids", "ratings", "sides", "state", "history"])
def test_a_manifest_that_lacks_something_is_refused(entry, bytes_of_tiny, tmp_path):
    path = changed(bytes_of_tiny, tmp_path / "m", manifestDOTjson=manifest_with(**{entry: None}))
    with pytest.raises(ModelFileError, match="damaged or incomplete"):
        HeMF.load(path)


def test_a_pickle_in_the_place_of_an_array_is_never_opened(bytes_of_tiny, tmp_path):
    opened = tmp_path / "opened"

    class Trap:
        def __reduce__(self):
            return (open, (str(opened), "w"))

    stream = io.BytesIO()
    np.save(stream, np.array([Trap()], dtype=object), allow_pickle=True)
    for content in (stream.getvalue(), pickle.dumps(Trap())):
        path = changed(bytes_of_tiny, tmp_path / "m", user__moments__meanDOTnpy=content)
        with pytest.raises(ModelFileError):
            HeMF.load(path)
    assert not opened.exists()


# -- equal models, equal files -----------------------------------------------------------------


@pytest.mark.parametrize("parameters", [{}, {"implicit_features": True}])
@pytest.mark.parametrize("online", [False, True])
def test_equal_fits_give_equal_files_whatever_is_asked_in_between(parameters, online, tmp_path):
    contents = []
    for asked in (False, True):
        model = tiny(max_sweeps=3, **parameters)
        if online:
            model.partial_fit([("ann", "joe", 3.0), ("new", "ann", 1.0)])
        if asked:
            assert np.isfinite(model.elbo_)
            model.predict(["ann", "zoe"], ["joe", "zoe"], return_std=True)
            model.communities("item")
        model.save(tmp_path / "m.hemf")
        contents.append((tmp_path / "m.hemf").read_bytes())
        HeMF.load(tmp_path / "m.hemf").save(tmp_path / "m.hemf")
        contents.append((tmp_path / "m.hemf").read_bytes())
    assert len(set(contents)) == 1


# -- what cannot be read again is not written ---------------------------------------------------


def spoil_factors(model):
    model.state_.sides["item"].moments.mean[0, 0] = np.nan


def spoil_length(model):
    side = model.state_.sides["user"]
    side.membership = side.membership[:-1]


def spoil_noise(model):
    model.state_.noise = -1.0


def spoil_count(model):
    model.state_.stores["user"].count[0] = -5


def spoil_history(model):
    history = model.state_.stores["user"].history
    history.other[history.start[0]] = 2


SPOILT = [
    (spoil_factors, False),
    (spoil_factors, True),
    (spoil_length, False),
    (spoil_noise, False),
    (spoil_noise, True),
    (spoil_count, True),
    (spoil_history, True),
]


@pytest.mark.parametrize(("spoil", "online"), SPOILT)
def test_a_torn_model_replaces_no_good_file(spoil, online, tmp_path):
    model = tiny()
    if online:
        model.partial_fit([("ann", "joe", 3.0)])
    path = tmp_path / "m.hemf"
    model.save(path)
    good = path.read_bytes()
    spoil(model)
    with pytest.raises(ModelFileError, match=r"m\.hemf was left as it was: the model is damaged"):
        model.save(path)
    assert path.read_bytes() == good
    assert list(tmp_path.iterdir()) == [path]


def test_checking_a_model_does_not_change_it(tmp_path):
    model = tiny().partial_fit([("ann", "joe", 3.0)])
    arrays = {name: array.copy() for name, array in model.state_.stores["user"].in_use().items()}
    model.save(tmp_path / "m.hemf")
    store = model.state_.stores["user"]
    for name, array in arrays.items():
        assert same(getattr(store, name), array)
        assert getattr(store, name).flags.writeable


# -- files that are made to do harm --------------------------------------------------------------


def crafted(content: bytes, path: Path, change, **options) -> Path:
    """The model with ``change`` made to the members: name to bytes."""
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        members = {name: old.read(name) for name in old.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", **options) as new:
        for name, text in members.items():
            new.writestr(name, text)
    return path


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def test_compressed_members_are_refused(bytes_of_tiny, tmp_path):
    def bomb(members):
        members["padding"] = bytes(10**7)

    path = crafted(bytes_of_tiny, tmp_path / "m", bomb, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelFileError, match="is compressed"):
        HeMF.load(path)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("<f8", (10**12,)),
        ("<f8", (2**62, 2)),
        ("<f8", (-1, -1)),
        ("<f4", (0, 10**12)),
        ("|V0", (10**12,)),
        ("|S0", (10**12,)),
        ("|O", (1,)),
    ],
)
def test_arrays_that_are_larger_than_their_member_are_refused(
    dtype, shape, bytes_of_tiny, tmp_path
):
    def claim(members):
        members["user/moments/mean.npy"] = npy_header(dtype, shape)

    path = crafted(bytes_of_tiny, tmp_path / "m", claim)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=r"user/moments/mean\.npy|damaged"):
            HeMF.load(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_members_with_one_name_are_refused(bytes_of_tiny, tmp_path):
    path = tmp_path / "m"
    path.write_bytes(bytes_of_tiny)
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(path, "a") as archive,
    ):
        archive.writestr(MANIFEST, archive.read(MANIFEST))
    with pytest.raises(ModelFileError, match="twice"):
        HeMF.load(path)


def test_members_that_overlap_are_refused(bytes_of_tiny, tmp_path):
    with zipfile.ZipFile(io.BytesIO(bytes_of_tiny)) as archive:
        first, second = archive.infolist()[1:3]
        directory = archive.start_dir
    content = bytearray(bytes_of_tiny)
    at = content.index(second.filename.encode(), directory) - 46
    content[at + 42 : at + 46] = first.header_offset.to_bytes(4, "little")
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ModelFileError, match="overlaps"):
        HeMF.load(tmp_path / "m")


@pytest.mark.parametrize("online", [False, True])
def test_flipped_bits_are_found_or_harmless(online, bytes_of_tiny, tmp_path, rng):
    path = tmp_path / "m"
    model = tiny()
    if online:
        model.partial_fit([("ann", "joe", 3.0)])
    model.save(path)
    content, expected = path.read_bytes(), model.predict("ann", "joe")
    for place in rng.integers(0, 8 * len(content), 150).tolist():
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        with contextlib.suppress(ModelFileError):
            assert HeMF.load(path).predict("ann", "joe") == expected
