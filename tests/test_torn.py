"""Whatever exception strikes, and wherever, a model is the old one or the new one to the bit."""

from __future__ import annotations

import copy

import pytest

from hemf import HeMF
from proofs import tearing
from proofs.sameness import difference
from proofs.tearing import Struck, Trial

pytestmark = pytest.mark.filterwarnings("ignore")
CASES = pytest.mark.parametrize(
    ("name", "history"), tearing.cases(), ids=[f"{name}, {kept}" for name, kept in tearing.cases()]
)


def assert_same(one: HeMF, other: HeMF) -> None:
    assert difference(one, other) is None


@CASES
def test_what_was_done_to_the_end_can_be_undone_to_the_bit(name, history, monkeypatch):
    trial = Trial(name, history, seed=0)
    model = trial.model()
    for _ in range(8):
        operation = trial.operation()
        before, after = copy.deepcopy(model), copy.deepcopy(model)
        model.forgetting = after.forgetting
        operation(after)
        with monkeypatch.context() as patch:
            taken = HeMF._taken

            def strike(self, *arguments, taken=taken):
                if arguments[1].size or not taken:
                    raise Struck
                return taken(self, *arguments)

            patch.setattr(HeMF, "_taken", strike)
            with pytest.raises(Struck):
                operation(model)
        before.forgetting = model.forgetting  # a parameter, which the caller has set
        assert_same(model, before)
        operation(model)
        assert_same(model, after)
