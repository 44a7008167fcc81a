"""A few inputs of `benchmarks/sequences.py` and `benchmarks/fuzz_models.py`; more run there."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from proofs.benchmarks import benchmark
from proofs.tearing import answers_ctrl_c

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("number", range(6))
def test_invariants_hold_after_every_operation(number):
    sequences, tally = benchmark("sequences"), Counter()
    wrong, sequence = sequences.run_one(100, number, tally)
    assert wrong is None, sequence.log
    assert sum(tally.values()) == sequences.LENGTH
    assert answers_ctrl_c()


def test_damaged_and_crafted_files_are_refused_or_answer(tmp_path):
    fuzz = benchmark("fuzz_models")
    handler = signal.signal(signal.SIGALRM, fuzz.too_slow)
    results = Counter()
    try:
        for number in range(60):
            what, result, wrong = fuzz.open_one(100, number, tmp_path / "model.hemf")
            assert wrong is None, (number, what, wrong)
            results[result] += 1
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert results["refused"] > 20
    assert results["same"] > 0
