from __future__ import annotations

import os
from pathlib import Path

# Matrices are small here: threads of BLAS, which spin while they wait, cost more than they save.
# Set before NumPy is loaded, and for the processes that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

from hemf import HeMF

# A small stream never leaves the buffer of its first ratings, and would not show how a model learns
# from sums. Tests have no buffer unless they ask for one.
HeMF.__init__.__kwdefaults__["buffer"] = 0

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240229)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data sets; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("HEMF_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"real data sets are not at {folder} (set HEMF_DATA)")
    return folder
