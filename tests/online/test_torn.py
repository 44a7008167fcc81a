"""Whatever exception strikes, and wherever, a model is the old one or the new one to the bit."""

from __future__ import annotations

import copy
import pickle
import signal
import sys
import threading
import warnings

import numpy as np
import pytest

from hemf import BusyError, HeMF
from hemf.baselines import SGD
from hemf.online import updates
from hemf.online.journal import ModelHolder
from hemf.online.state import back_to, release, savepoint
from proofs import tearing
from proofs.sameness import difference
from proofs.tearing import Struck, Trial

pytestmark = pytest.mark.filterwarnings("ignore")
CASES = pytest.mark.parametrize(
    ("name", "history"), tearing.cases(), ids=[f"{name}, {kept}" for name, kept in tearing.cases()]
)


def strike_at_the_end(patch) -> None:
    """Let everything be done, and an exception come before the model takes it over."""
    function = updates.watch_errors

    def struck(*arguments) -> None:
        function(*arguments)
        raise Struck

    patch.setattr(updates, "watch_errors", struck)


@CASES
def test_what_was_done_to_the_end_is_undone_to_the_bit(name, history, monkeypatch):
    tearing.make_rare_steps_frequent(monkeypatch.setattr)
    trial, undone = Trial(name, history, seed=1), 0
    model = trial.model()
    for _ in range(6):
        operation = trial.operation()
        before, after = copy.deepcopy(model), copy.deepcopy(model)
        operation(after)
        with monkeypatch.context() as patch:
            strike_at_the_end(patch)
            try:
                operation(model)
            except Struck:
                undone += 1
                before.forgetting = model.forgetting  # a parameter, which the operation may set
                assert difference(model, before) is None
                patch.undo()
                operation(model)
        assert difference(model, after) is None
    assert undone >= 3


@pytest.mark.parametrize("history", tearing.HISTORIES)
def test_a_savepoint_is_gone_back_to_within_a_call(history):
    trial = Trial("plain", history, seed=1)
    model = trial.model()
    state = model.state_
    mark = savepoint(state)
    model.partial_fit(trial.drawn(5, new=0.0))  # has a journal of its own
    first = savepoint(state)
    assert (mark, first) == (0, 0)
    before = copy.deepcopy(state)
    rows = np.array([1, 2, 3])
    updates.refresh(state, "user", rows)
    second, between = savepoint(state), copy.deepcopy(state)
    updates.refresh(state, "user", rows)
    updates.refresh(state, "item", rows)
    back_to(state, second)
    assert difference(state, between) is None
    updates.refresh(state, "item", rows)
    back_to(state, first)
    assert difference(state, before) is None
    release(state, first)
    assert not state.journal.is_open


def struck(model: HeMF, operation, kind: str, rng: np.random.Generator) -> None:
    """Let an exception strike somewhere in an operation."""
    n = tearing.lines(lambda: operation(copy.deepcopy(model)))
    at = int(rng.integers(1, n + 1))
    if kind == "line":
        tearing.strike_at_line(lambda: operation(model), at)
    elif kind == "another thread":
        tearing.strike_between(lambda: operation(model), at)
    elif kind == "and while that is undone":
        tearing.strike_between(lambda: operation(model), at, at + int(rng.integers(1, 60)))
    elif kind == "alarm":
        tearing.strike_by_alarm(lambda: operation(model), 2e-3 * rng.random())
    else:
        tearing.without_memory(lambda: operation(model), int(rng.integers(1, 60)))


KINDS = ["line", "another thread", "and while that is undone", "alarm", "memory"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["plain", "fresh moods", "features"])
def test_a_model_is_the_old_one_or_the_new_one(name, kind, tmp_path):
    rng = np.random.default_rng([len(name), len(kind)])
    for history in tearing.HISTORIES:
        trial = Trial(name, history, seed=int(rng.integers(100)))
        model = trial.model()
        for _ in range(2):
            operation = trial.operation()
            before, after = copy.deepcopy(model), copy.deepcopy(model)
            operation(after)
            struck(model, operation, kind, rng)
            if kind != "line":
                assert tearing.is_free(model)
            hasattr(model, "state_")  # whoever asks undoes what was cut short
            before.forgetting = after.forgetting = model.forgetting
            assert None in (difference(model, before), difference(model, after))
            model.save(tmp_path / "model")
            HeMF.load(tmp_path / "model")
            if difference(model, before) is None:
                operation(model)
            assert difference(model, after) is None


def test_exceptions_of_other_threads_come_where_they_can_and_both_of_them():
    model = Trial("plain", "full", seed=1).model()
    for at in range(1, 1 + tearing.lines(lambda: model.n_users_)):
        tearing.strike_between(lambda: model.n_users_, at)
        assert tearing.is_free(model)
    came = []

    def ask() -> None:
        for _ in range(2):
            try:
                for _ in range(20):
                    model.n_users_  # noqa: B018
            except Struck as error:
                came.append(error)

    tearing.strike_between(ask, 5, 100)
    assert len(came) == 2


def abandoned() -> tuple[HeMF, HeMF]:
    """Return a model with a call that was cut short and not undone, and how it was before."""
    trial = Trial("plain", "full", seed=1)
    model = trial.model()
    before = copy.deepcopy(model)
    with pytest.MonkeyPatch.context() as patch:
        strike_at_the_end(patch)
        patch.setattr(ModelHolder, "undo_interrupted", lambda holder: None)
        with pytest.raises(Struck):
            model.partial_fit(trial.drawn(4, new=0.5))
    return model, before


ASKING = {
    "predict": lambda model: model.predict("u1", "i1"),
    "recommend": lambda model: model.recommend("u1", 2),
    "n_users_": lambda model: model.n_users_,
    "noise_variance_": lambda model: model.noise_variance_,
    "elbo_": lambda model: model.elbo_,
    "ratings_": lambda model: model.ratings_,
    "communities": lambda model: model.communities(),
    "explain": lambda model: model.explain("u1", "i1"),
    "fold_in": lambda model: model.fold_in({"i1": 3.0}),
    "copy": copy.deepcopy,
    "pickle": pickle.dumps,
    "another thread": lambda model: in_a_thread(lambda: model.n_ratings_),
}


def in_a_thread(function) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_whoever_asks_next_undoes_a_call_that_was_cut_short(ask):
    model, before = abandoned()
    assert model._holder.state[1] is not None
    ask(model)
    assert model._holder.state[1] is None
    assert difference(model, before) is None


def test_a_model_is_not_undone_under_a_call_that_is_running(monkeypatch):
    """Where a signal handler asks in the middle of a call, in the same thread."""
    trial = Trial("plain", "full", seed=1)
    model, rows = trial.model(), trial.drawn(4, new=0.5)
    after = copy.deepcopy(model).partial_fit(rows)
    refresh = updates.refresh

    def asking(self, *arguments, **options):
        assert np.isfinite(model.predict("u1", "i1"))
        return refresh(self, *arguments, **options)

    monkeypatch.setattr(updates, "refresh", asking)
    model.partial_fit(rows)
    assert difference(model, after) is None


@pytest.mark.parametrize("name", ["plain", "features"])
def test_to_ask_for_the_bound_or_to_save_changes_nothing(name, tmp_path):
    trial = Trial(name, "full", seed=1)
    model = trial.model()
    before = copy.deepcopy(model)
    assert np.isfinite(model.elbo_)
    model.save(tmp_path / "model")
    assert difference(model, before) is None


def test_a_generator_of_the_callers_own_is_put_back(monkeypatch):
    rng = np.random.default_rng(5)
    model, state = HeMF(n_factors=2, rng=rng), rng.bit_generator.state
    with monkeypatch.context() as patch:
        strike_at_the_end(patch)
        with pytest.raises(Struck):
            model.partial_fit([("ann", "tea", 5), ("bob", "tea", 3)])
    assert rng.bit_generator.state == state
    assert not hasattr(model, "state_")
    assert not hasattr(model, "rating_range_")


def test_ctrl_c_is_answered_after_any_exception():
    trial = Trial("plain", "full", seed=1)
    model, handler = trial.model(), signal.getsignal(signal.SIGINT)
    operation, rng = trial.operation(), np.random.default_rng(0)
    for _ in range(10):
        struck(copy.deepcopy(model), operation, "another thread", rng)
        assert tearing.answers_ctrl_c()
        assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, pickle.dumps, copy.copy], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("kind", [HeMF, SGD])
def test_a_copy_made_while_another_thread_learns_is_of_one_moment(kind, copied):
    rng = np.random.default_rng(3)
    users, items = rng.integers(400, size=(20, 50)), rng.integers(300, size=(20, 50))
    batches = [
        (u + 10 * k, i + 5 * k, rng.integers(1, 6, size=50).astype(float))
        for k, (u, i) in enumerate(zip(users, items, strict=True))
    ]
    asked = np.arange(0, 800, 7), np.arange(0, 800, 7) % 500
    settings = {"max_user_communities": 2} if kind is HeMF else {}

    def answers(model):
        return (model.n_users_, model.n_items_, model.predict(*asked).tobytes())

    begun = kind(n_factors=4, rng=0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun.partial_fit(batches[0])
        reference = copy.deepcopy(begun)
        possible = {answers(reference)}
        for batch in batches[1:]:
            possible.add(answers(reference.partial_fit(batch)))
        model, copies = copy.deepcopy(begun), []

        def learn():
            for batch in batches[1:]:
                model.partial_fit(batch)

        thread = threading.Thread(target=learn)
        before, _ = sys.getswitchinterval(), sys.setswitchinterval(1e-5)
        try:
            thread.start()
            while thread.is_alive():
                copies.append(copied(model))
        finally:
            thread.join()
            sys.setswitchinterval(before)
        found = [pickle.loads(one) if isinstance(one, bytes) else one for one in copies]
        seen = {answers(one) for one in found}
    assert seen
    assert seen <= possible


@pytest.mark.parametrize("ask", ["copy", "pickle", "save"])
def test_a_signal_handler_gets_no_copy_of_a_model_in_the_middle_of_learning(
    ask, monkeypatch, tmp_path
):
    trial = Trial("plain", "full", seed=1)
    model, rows = trial.model(), trial.drawn(4, new=0.5)
    after = copy.deepcopy(model).partial_fit(rows)
    refresh, refused = updates.refresh, []
    asking = {**ASKING, "save": lambda model: model.save(tmp_path / "model.hemf")}[ask]

    def refreshing(self, *arguments, **options):
        with pytest.raises(BusyError, match="let the handler set a flag"):
            asking(model)
        refused.append(True)
        return refresh(self, *arguments, **options)

    monkeypatch.setattr(updates, "refresh", refreshing)
    model.partial_fit(rows)
    assert refused
    assert difference(model, after) is None
    assert not list(tmp_path.iterdir())
