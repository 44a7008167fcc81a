"""A few inputs of `benchmarks/fuzz_readers.py`, which makes as many as are wanted."""

from __future__ import annotations

import pytest

from proofs.benchmarks import benchmark

FUZZ = benchmark("fuzz_readers")


@pytest.mark.parametrize("reader", FUZZ.READERS)
def test_no_input_is_a_raw_error_or_loses_rows(reader):
    tally = FUZZ.fuzz(reader, 60, seed=1)
    assert not tally.failures
    assert tally.accepted
    assert tally.refused
