"""The part of a model file that holds the features of rows that learn online."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hemf.archive import Archive, Members, decoded, encoded, read_array
from hemf.inference.online import OnlineState
from hemf.inference.online_features import RowFeatures
from hemf.model.implicit import given_part
from hemf.model.regression import Rest

_PARTS = ("data", "indices", "indptr")


def describe_row_features(state: OnlineState, members: Members) -> dict[str, Any]:
    """Return the JSON form of what is kept of each side with features; arrays become members."""
    form = {}
    for side, features in state.features.items():
        at, given = f"online/{side}/features", features.joined(state.stores[side].n_rows)
        for name in _PARTS:
            members[f"{at}-{name}.npy"] = getattr(given, name)
        assert features.rests is not None
        for number, rest in enumerate(features.rests):
            members[f"{at}-average-{number}.npy"] = rest.average
            members[f"{at}-spread-{number}.npy"] = rest.spread
        form[side] = {
            "due_at": encoded(float(features.due_at)),
            "looked_at": encoded(float(features.looked_at)),
        }
    return form


def restore_row_features(
    form: dict[str, Any], state: OnlineState, archive: Archive
) -> dict[str, RowFeatures]:
    """Make this again of what `describe_row_features` returned."""
    features = {}
    for side, own in state.sides.items():
        if own.regression is None:
            continue
        at, order, store = f"online/{side}/features", own.layout.order, state.stores[side]
        parts = tuple(read_array(archive, f"{at}-{name}.npy") for name in _PARTS)
        width = given_part(own.regression.design).shape[1]
        given = csr_array(parts, shape=(own.n_rows, width))
        given.check_format(full_check=True)
        if not np.isfinite(given.data).all():
            raise ValueError(f"{side}: a feature is missing or infinite")
        rests = tuple(_restore_rest(at, number, order, archive) for number in range(2))
        waiting = np.flatnonzero((store.listed < 0).all(axis=1))
        due, looked = (float(decoded(form[side][name])) for name in ("due_at", "looked_at"))
        if not np.isfinite([due, looked]).all():
            raise ValueError(f"{side}: a number of its features is missing")
        features[side] = RowFeatures(given, due, looked, (rests[0], rests[1]), waiting)
    return features


def _restore_rest(at: str, number: int, order: int, archive: Archive) -> Rest:
    average = read_array(archive, f"{at}-average-{number}.npy")
    spread = read_array(archive, f"{at}-spread-{number}.npy")
    right = average.shape == (order,) and spread.shape == (order, order)
    if not right or not (np.isfinite(average).all() and np.isfinite(spread).all()):
        raise ValueError("what features say on average is damaged")
    return Rest(average, spread)
