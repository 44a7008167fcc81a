"""Ctrl-C in the middle, and many threads at once: a model is never torn."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

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
    started,
    stream,
    triples,
)

from hemf import HeMF, ModelFileError
from hemf.online import learner, updates
from hemf.online.journal import uninterrupted
from hemf.online.store import History

# -- Ctrl-C -------------------------------------------------------------------------------------


def ctrl_c_in(monkeypatch, where, name: str, send) -> None:
    """Let Ctrl-C arrive the first time a function is called, before it does its work."""
    function, sent = getattr(where, name), []

    def interrupted(*arguments, **options):
        if not sent:
            sent.append(True)
            send()
        return function(*arguments, **options)

    monkeypatch.setattr(where, name, interrupted)


SENDERS = {
    "raise_signal": lambda: signal.raise_signal(signal.SIGINT),
    "interrupt_main": _thread.interrupt_main,
    "kill": lambda: os.kill(os.getpid(), signal.SIGINT),
}
PLACES = [
    ("fitted", updates, "refresh"),
    ("fitted", learner, "add_new_rows"),
    ("fitted", History, "reserve"),
    ("from nothing", updates, "refresh"),
    ("from nothing", updates, "learn_noise"),
    ("from nothing", updates, "learn_priors"),
]


@SEVERAL
@pytest.mark.parametrize(
    ("start", "where", "name"), PLACES, ids=[f"{start}, {name}" for start, _, name in PLACES]
)
def test_an_interrupted_batch_is_learnt_or_not_at_all(
    history, start, where, name, monkeypatch, tmp_path
):
    before, after = started(start, history), started(start, history).partial_fit(MORE)
    model = started(start, history)
    with monkeypatch.context() as patch:
        ctrl_c_in(patch, where, name, SENDERS["raise_signal"])
        if (history, name) == ("none", "reserve"):
            model.partial_fit(MORE)  # there is nothing to reserve
        else:
            with pytest.raises(KeyboardInterrupt):
                model.partial_fit(MORE)
    assert content(model, tmp_path) in (content(before, tmp_path), content(after, tmp_path))
    model.partial_fit([("u2", "i6", 3.0)])
    assert_consistent(model)
    HeMF.load(tmp_path / "content").partial_fit(MORE)


@pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)
def test_ctrl_c_may_come_in_any_way(send, monkeypatch):
    model = fitted().partial_fit([("u2", "i6", 3.0)])
    with monkeypatch.context() as patch:
        ctrl_c_in(patch, updates, "learn_priors", send)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            model.partial_fit(MORE)
            time.sleep(0.5)
    assert model.n_users_ == 13
    assert_consistent(model)


@pytest.mark.filterwarnings("ignore:not all ratings are kept")  # biclusters of the rest
@SEVERAL
@STARTS
def test_an_interrupted_stream_has_learnt_its_first_part(history, start, monkeypatch, tmp_path):
    model = fitted(history) if start == "fitted" else new(history)
    with monkeypatch.context() as patch:
        ctrl_c_in(patch, updates, "apply_stream", SENDERS["raise_signal"])
        with pytest.raises(KeyboardInterrupt):
            model.predict_then_learn(stream(0, 400, users=40, items=30))
    learnt = model.n_ratings_ - (len(TABLE) if start == "fitted" else 0)
    assert 0 < learnt < 400
    assert_consistent(model)
    assert np.isfinite(model.predict(["u1", "nobody"], "i1", return_std=True)).all()
    assert sum(model.communities("user").sizes) > 0
    assert model.biclusters()
    model.save(tmp_path / "model")
    twin = HeMF.load(tmp_path / "model")
    rest = stream(1, 100, users=60, items=40)
    np.testing.assert_array_equal(twin.predict_then_learn(rest), model.predict_then_learn(rest))
    assert content(twin, tmp_path) == content(model, tmp_path)
    assert_consistent(model)


def test_a_handler_of_ones_own_is_called_and_stays():
    came = []
    before = signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert not came
        assert len(came) == 1
        signal.raise_signal(signal.SIGINT)
        assert len(came) == 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_ignored_interrupts_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_can_be_stopped_while_it_streams(tmp_path):
    program = textwrap.dedent(
        """
        import signal, sys
        import numpy as np
        from hemf import HeMF

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
        model = HeMF(n_factors=2, rating_range=(1, 5), rng=0)
        rng = np.random.default_rng(0)

        def some(n):
            return rng.integers(300, size=n), rng.integers(200, size=n), rng.integers(1, 6, size=n)

        model.predict_then_learn(some(100))
        print("ready", flush=True)
        try:
            while True:
                model.predict_then_learn(some(200_000))
        except KeyboardInterrupt:
            model.save(sys.argv[1])
            print("stopped", model.n_ratings_, flush=True)
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.6)
        process.send_signal(signal.SIGINT)
        answer = process.stdout.readline().split()
        assert process.wait(timeout=60) == 0
    assert answer[0] == "stopped"
    assert int(answer[1]) > 90
    model = HeMF.load(tmp_path / "model")
    assert model.n_ratings_ == int(answer[1])
    assert_consistent(model)
    model.partial_fit(MORE)
    assert_consistent(model)


# -- threads ------------------------------------------------------------------------------------


def at_once(*tasks) -> None:
    """Run tasks in threads that begin together; raise what any of them raises."""
    barrier, raised = threading.Barrier(len(tasks)), []

    def run(task) -> None:
        barrier.wait()
        try:
            task()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=[task]) for task in tasks]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
    if raised:
        raise raised[0]


def part(name: str, n: int) -> list[tuple]:
    """Ratings by users of one thread, of items of all; no pair twice."""
    return [(f"{name}{k % 20}", f"i{k // 20}", float(1 + (k * k + k // 20) % 5)) for k in range(n)]


@SEVERAL
@STARTS
def test_threads_that_learn_take_turns(history, start):
    model = fitted(history) if start == "fitted" else new(history)

    def batches(name):
        rows = part(name, 200)
        return lambda: [model.partial_fit(rows[k : k + 20]) for k in range(0, 200, 20)]

    at_once(
        batches("a"),
        batches("b"),
        lambda: model.predict_then_learn(part("c", 200)),
        lambda: model.predict_then_learn(part("d", 200)),
    )
    before = len(TABLE) if start == "fitted" else 0
    assert model.n_ratings_ == before + 4 * 200
    assert model.n_users_ == (12 if before else 0) + 4 * 20
    assert_consistent(model)
    if history == "full":
        kept = triples(model.ratings_)
        for name in "abcd":
            for user, item, rating in part(name, 200):
                assert kept[user, item] == rating


def test_a_batch_between_the_steps_of_a_stream_is_not_lost(monkeypatch):
    """Whatever moment of a stream's life another thread's batch comes in."""
    model = fitted()
    real, depth, turns = model._holder.lock, [0], []

    class Turn:
        """The model's lock; when it is free for the first time, another thread takes it."""

        def __enter__(self):
            real.acquire()
            depth[0] += 1

        def __exit__(self, *error):
            depth[0] -= 1
            is_free = not depth[0]
            real.release()
            if is_free:
                turns.append(threading.current_thread())
            if is_free and len(turns) == 1:
                other = threading.Thread(target=model.partial_fit, args=[MORE])
                other.start()
                other.join()

    monkeypatch.setattr(model._holder, "lock", Turn())
    model.predict_then_learn([("u2", "i6", 3.0), ("u3", "i1", 2.0)])
    monkeypatch.undo()
    kept = triples(model.ratings_)
    assert all(kept.get((user, item)) == rating for user, item, rating in MORE)
    assert kept["u2", "i6"] == 3.0


@pytest.mark.parametrize("history", ["full", "none"])
def test_everything_may_be_asked_while_a_model_learns(history, tmp_path):
    model, learning = fitted(history), threading.Event()
    learning.set()

    def learn() -> None:
        try:
            for k in range(3):
                model.partial_fit(part(f"new{k}-", 40))
                model.predict_then_learn(part(f"newer{k}-", 40))
        finally:
            learning.clear()

    def ask(question):
        def asking() -> None:
            while learning.is_set():
                question()

        return asking

    def finite(values) -> None:
        assert np.isfinite(values).all()

    at_once(
        learn,
        ask(lambda: finite(model.predict(["u1", "new3-2"], ["i1", "i3"], return_std=True))),
        ask(lambda: finite(model.recommend("u1", 3, exclude_seen=False)[1])),
        ask(lambda: finite(model.fold_in({"i1": 5.0, "i9": 2.0}).predict(["i2", "i3"]))),
        ask(lambda: finite(model.fold_in({"i1": 5.0}).recommend(3)[1])),
        ask(lambda: finite(model.elbo_)),
        ask(lambda: finite(model.noise_variance_)),
        ask(lambda: model.communities("user").sizes),
        ask(lambda: model.save(tmp_path / "while")),
    )
    assert model.n_ratings_ == len(TABLE) + 3 * 80
    assert_consistent(model)
    assert np.isfinite(everything(HeMF.load(tmp_path / "while"))).all()


QUESTIONS = {
    "ratings_": lambda model: model.ratings_.n_ratings,
    "score": lambda model: model.score(TABLE),
    "save": lambda model: model.save(os.devnull + "/nowhere"),
    "biclusters": lambda model: model.biclusters(),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_the_ratings_are_not_read_while_they_change(ask, monkeypatch):
    """Reading the lists takes two steps; were they longer at the second, memory would be torn."""
    model = fitted().partial_fit([("u2", "i6", 3.0)])
    gathered, others = History._gathered, []

    def slow(self, *arguments):
        if not others:
            others.append(threading.Thread(target=model.partial_fit, args=[part("u", 40)]))
            others[0].start()
            others[0].join(timeout=0.3)
            assert others[0].is_alive(), "another thread has learnt in between"
        return gathered(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(History, "_gathered", slow)
        with suppress(ModelFileError):
            ask(model)
        others[0].join()
    assert_consistent(model)
