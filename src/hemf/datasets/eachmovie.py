"""Read the votes of EachMovie, a recommendation service that ran from 1996 to 1997.

A line of ``vote.txt`` is person, movie, score, weight and time, divided by tabs::

    1<TAB>3<TAB>0.8<TAB>1<TAB>1996-02-28 00:00:00

The score is one of 0, 0.2, …, 1: none to five stars. The weight says how much a vote counts,
between 0 and 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hemf.datasets.delimited import RatingColumns, first_bad_line, read_delimited
from hemf.errors import DatasetError

_COLUMNS = ["person", "movie", "score", "weight", "time"]
_KINDS = {"person": "int32", "movie": "int32", "score": "float32", "weight": "float32"}
_STEPS = 5  # from the lowest score to the highest
_NEARLY = 1e-3


def read_votes(path: str | Path, *, least_weight: float = 0.0) -> RatingColumns:
    r"""Read votes as ratings of 1 to 6; votes without weight are dropped.

    With ``least_weight`` 1, so are the votes that count less than others. The time is text of no
    fixed form and not read.

    >>> path = getfixture("tmp_path") / "vote.txt"
    >>> _ = path.write_text("1\t3\t0.8\t1\t1996-02-28\n1\t4\t0\t0\t1996-02-28\n")
    >>> read_votes(path).items, read_votes(path).ratings
    (array([3], dtype=int32), array([5.], dtype=float32))
    """
    path = Path(path)
    read = read_delimited(path, "\t", _COLUMNS, _KINDS)
    steps = _STEPS * read["score"]
    whole = np.round(steps)
    weight = read["weight"]
    wrong = (whole < 0) | (whole > _STEPS) | (np.abs(steps - whole) > _NEARLY)
    if (wrong | (weight < 0) | (weight > 1)).any():
        raise first_bad_line(path, "\t", _COLUMNS, _KINDS, rule=_rule)
    kept = (weight > 0) & (weight >= least_weight)
    if not kept.any():
        raise DatasetError(
            f"{path}: none of the {len(kept):,} votes has a weight above 0"
            + (f" and of at least {least_weight:g}" if least_weight > 0 else "")
        )
    return RatingColumns(read["person"][kept], read["movie"][kept], whole[kept] + 1)


def _rule(values: dict[str, Any]) -> str | None:
    steps = _STEPS * values["score"]
    if not (0 <= round(steps) <= _STEPS and abs(steps - round(steps)) <= _NEARLY):
        return "the score is none of 0, 0.2, 0.4, 0.6, 0.8, 1"
    return None if 0 <= values["weight"] <= 1 else "the weight is not between 0 and 1"
