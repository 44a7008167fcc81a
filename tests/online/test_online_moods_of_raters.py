"""Moods from the door to the file while ratings arrive: learn, predict at a time, save, go on."""

from __future__ import annotations

import numpy as np
import pytest

from hemf import HeMF, evaluation
from hemf.errors import DataError, ModelFileError

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")
SMALL = {"n_factors": 2, "max_user_communities": 1, "max_item_communities": 1, "rng": 0}
HISTORIES = ["full", 16, "none"]
LEVEL, EXTRA, NOISE = 0.5, 0.3, 0.3


@pytest.fixture(scope="module")
def stream():
    """Ratings of one taste for all in the order of time, with moods that last for some sessions."""
    rng = np.random.default_rng(4)
    users, items, sessions, per_session = 80, 60, 12, 5
    offset, quality = rng.normal(scale=0.5, size=users), rng.normal(scale=0.8, size=items)
    rows = []
    for user in range(users):
        level = rng.normal(scale=LEVEL)
        chosen = rng.choice(items, sessions * per_session, replace=False)
        for session in range(sessions):
            mood = level + rng.normal(scale=EXTRA)
            for item in chosen[session * per_session : (session + 1) * per_session]:
                value = 3 + offset[user] + quality[item] + mood + rng.normal(scale=NOISE)
                rows.append((f"u{user}", f"i{item}", round(value, 1), 1000 * session + user))
            level = 0.8 * level + rng.normal(scale=LEVEL * 0.6)
    rows.sort(key=lambda row: row[3])
    return [list(column) for column in zip(*rows, strict=True)]


def part(stream, begin, end, *, timed=True):
    return tuple(column[begin:end] for column in stream[: 4 if timed else 3])


def error(stream, begin, end, expected):
    return evaluation.rmse(np.array(stream[2][begin:end]), expected)


@pytest.fixture(scope="module")
def begun(stream):
    """A model that was fitted to a part, with moods; never to be taught."""
    return HeMF(**SMALL, moods=True).fit(part(stream, 0, 2000))


def taught(model, history, tmp_path):
    """A copy of a model that may learn, with this history."""
    model.save(tmp_path / "begun.hemf")
    return HeMF.load(tmp_path / "begun.hemf").set_params(history=history)


@pytest.mark.parametrize("history", HISTORIES)
def test_a_stream_with_moods_is_predicted_better(stream, begun, history, tmp_path):
    moody = taught(begun, history, tmp_path).predict_then_learn(part(stream, 2000, 4800))
    plain = HeMF(**SMALL, history=history).fit(part(stream, 0, 2000, timed=False))
    without = plain.predict_then_learn(part(stream, 2000, 4800, timed=False))
    assert error(stream, 2000, 4800, moody) < 0.9 * error(stream, 2000, 4800, without)


def test_times_mean_nothing_to_a_model_without_moods(stream):
    models = [HeMF(**SMALL, max_sweeps=3).fit(part(stream, 0, 800)) for _ in range(2)]
    with_times = models[0].predict_then_learn(part(stream, 800, 1200))
    without = models[1].predict_then_learn(part(stream, 800, 1200, timed=False))
    assert with_times.tolist() == without.tolist()


@pytest.mark.parametrize("learn", ["partial_fit", "predict_then_learn"])
def test_moods_take_times(stream, begun, learn, tmp_path):
    for model in (taught(begun, "full", tmp_path), HeMF(**SMALL, moods=True)):
        with pytest.raises(DataError, match="these have no timestamps"):
            getattr(model, learn)(part(stream, 2000, 2010, timed=False))
    assert not hasattr(model, "state_")


@pytest.mark.parametrize("history", HISTORIES)
def test_what_was_learnt_is_predicted_at_its_time(stream, begun, history, tmp_path):
    model = taught(begun, history, tmp_path)
    for begin in range(2000, 4000, 200):
        model.partial_fit(part(stream, begin, begin + 200))
    users, items, actual, times = part(stream, 3900, 4000)
    at_time, sure = model.predict(users, items, timestamps=times, return_std=True)
    any_time, wide = model.predict(users, items, return_std=True)
    assert evaluation.rmse(np.array(actual), at_time) < evaluation.rmse(np.array(actual), any_time)
    assert (sure < wide).all()
    taste = model.predict(users, items, return_std=True, include_noise=False)[1]
    assert (taste < sure).all()
    ahead, less_sure = model.predict(users, items, timestamps=10**9, return_std=True)
    assert (less_sure > sure).mean() > 0.9
    assert np.isfinite(ahead).all()
    assert np.isfinite(model.elbo_)


@pytest.mark.parametrize("history", HISTORIES)
def test_a_file_goes_on_to_the_bit(stream, begun, history, tmp_path):
    model = taught(begun, history, tmp_path)
    model.partial_fit(part(stream, 2000, 2600))
    model.predict_then_learn(part(stream, 2600, 3000))
    model.save(tmp_path / "m.hemf")
    again = HeMF.load(tmp_path / "m.hemf")
    users, items, _, times = part(stream, 2000, 3000)
    for one, other in zip(
        model.predict(users, items, timestamps=times, return_std=True),
        again.predict(users, items, timestamps=times, return_std=True),
        strict=True,
    ):
        assert (one == other).all()
    assert again.elbo_ == model.elbo_
    if history == "full":
        kept = again.ratings_
        assert kept.timestamps is not None
        assert sorted(kept.timestamps.tolist()) == sorted(stream[3][:3000])
    ahead = [m.predict_then_learn(part(stream, 3000, 3400)) for m in (model, again)]
    assert (ahead[0] == ahead[1]).all()
    for m in (model, again):
        m.partial_fit(part(stream, 3400, 3600))
    assert (model.predict(users, items) == again.predict(users, items)).all()


@pytest.mark.parametrize("history", HISTORIES)
def test_moods_from_nothing(stream, history):
    settings = {**SMALL, "history": history, "rating_range": (-3.0, 9.0)}
    n = 3000
    moody = HeMF(**settings, moods=True).predict_then_learn(part(stream, 0, n))
    plain = HeMF(**settings).predict_then_learn(part(stream, 0, n, timed=False))
    late = slice(1500, n)
    actual = np.array(stream[2][late])
    assert evaluation.rmse(actual, moody[late]) < 0.97 * evaluation.rmse(actual, plain[late])


@pytest.mark.parametrize("history", HISTORIES)
def test_changed_and_removed_ratings(stream, begun, history, tmp_path):
    model = taught(begun, history, tmp_path)
    users, items, values, times = part(stream, 2000, 2040)
    model.partial_fit((users, items, values, times))
    n = model.n_ratings_
    new = [value + 1.0 for value in values]
    later = [time + 50_000 for time in times]
    before = None if history == "full" else np.array(values)
    model.partial_fit((users[:20], items[:20], new[:20], later[:20]),
                      previous=None if before is None else before[:20])  # fmt: skip
    assert model.n_ratings_ == n
    gone = (users[20:], items[20:], values[20:])
    model.partial_fit(removed=gone)
    assert model.n_ratings_ == n - 20
    model.partial_fit((users[20:], items[20:], values[20:], times[20:]),
                      removed=(users[:20], items[:20], new[:20]))  # fmt: skip
    assert model.n_ratings_ == n - 20
    mean, std = model.predict(users, items, timestamps=later, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_reasons_are_ratings_as_they_were_given_online_too(stream, begun, tmp_path):
    model = taught(begun, "full", tmp_path).partial_fit(part(stream, 2000, 2600))
    given = {(u, i): v for u, i, v in zip(*stream[:3], strict=True)}
    why = model.explain("u3", "i1")
    assert why.reasons
    for reason in why.reasons:
        assert reason.rating == pytest.approx(given["u3", reason.item], abs=1e-3)


def test_a_visitor_is_welcome(stream, begun, tmp_path):
    model = taught(begun, "full", tmp_path).partial_fit(part(stream, 2000, 2600))
    mean, std = model.fold_in([("i1", 4.0), ("i2", 3.0)]).predict(["i3"], return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


@pytest.mark.parametrize(
    ("member", "damage"),
    [
        ("online/moods/links.npy", lambda links: links[::-1].copy()),
        ("online/moods/links.npy", lambda links: links + np.int32(1)),
        ("online/moods/last.npy", lambda last: last + 10**6),
        ("online/moods/moods.npy", lambda moods: moods * np.nan),
        ("online/moods/table.npy", lambda table: table[:-1]),
        ("online/user/sessions.npy", lambda sessions: sessions + np.int32(10**6)),
        ("online/item/sessions.npy", lambda sessions: sessions[::-1].copy()),
    ],
)
def test_a_damaged_file_is_refused(stream, begun, member, damage, tmp_path):
    import io
    import zipfile

    model = taught(begun, "full", tmp_path).partial_fit(part(stream, 2000, 2200))
    model.save(tmp_path / "m.hemf")
    with zipfile.ZipFile(tmp_path / "m.hemf") as whole:
        contents = {name: whole.read(name) for name in whole.namelist()}
    held = io.BytesIO()
    np.save(held, damage(np.load(io.BytesIO(contents[member]))))
    contents[member] = held.getvalue()
    with zipfile.ZipFile(tmp_path / "bad.hemf", "w") as bad:
        for name, content in contents.items():
            bad.writestr(name, content)
    with pytest.raises(ModelFileError):
        HeMF.load(tmp_path / "bad.hemf")
