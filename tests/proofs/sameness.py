"""Whether two things are the same to the bit, whatever they are made of."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.sparse import issparse

from hemf import HeMF
from hemf.data.vocabulary import RatingBook, Vocabulary
from hemf.model.state import FittedModel
from hemf.online.moods import OnlineMoods
from hemf.online.store import History, RowStore

CALLS = {"journal", "lock", "prepared"}
"""Attributes that are of calls rather than of a model."""
FOUND = {
    "_in_use",
    "_tables",
    "derived",
    "_stranger",
    "folding",
    "_strangers",
    "_derived",
    "_table_of",
    "solver",
}
"""Attributes that are found from others when they are asked for."""


def difference(one: Any, other: Any, path: str = "model", seen: dict | None = None) -> str | None:
    """Return where two things differ first, or None."""
    seen = {} if seen is None else seen
    if one is other or (id(one), id(other)) in seen:
        return None
    seen[id(one), id(other)] = one, other  # alive, so that nothing else can have their ids
    if type(one) is not type(other):
        return f"{path}: {type(one).__name__}, {type(other).__name__}"
    if isinstance(one, np.ndarray):
        return None if _is_same(one, other) else f"{path}: {_where(one, other)}"
    if issparse(one):
        return difference(_csr(one), _csr(other), path, seen)
    if isinstance(one, np.random.Generator):
        states = one.bit_generator.state, other.bit_generator.state
        return difference(*states, path, seen)
    if isinstance(one, dict | MappingProxyType):
        if one.keys() != other.keys():
            return f"{path}: has {set(one) ^ set(other)}"
        return _first(((one[key], other[key], f"{path}[{key!r}]") for key in one), seen)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{path}: {len(one)}, {len(other)} entries"
        pairs = zip(one, other, strict=True)
        return _first(((a, b, f"{path}[{k}]") for k, (a, b) in enumerate(pairs)), seen)
    if isinstance(one, float):
        return None if np.float64(one).tobytes() == np.float64(other).tobytes() else path
    if hasattr(one, "__dict__") and type(one).__module__.startswith("hemf"):
        return difference(_content(one), _content(other), path, seen)
    return None if one == other else f"{path}: {one!r}, {other!r}"


def _first(triples: Any, seen: dict) -> str | None:
    return next((found for triple in triples if (found := difference(*triple, seen))), None)


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == object:
        return one.tolist() == other.tolist()
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def _where(one: np.ndarray, other: np.ndarray) -> str:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype} {one.shape}, {other.dtype} {other.shape}"
    return f"differs at {np.argwhere(one != other)[:3].tolist()} of {one.shape}"


def _csr(matrix: Any) -> tuple:
    return matrix.shape, matrix.indptr, matrix.indices, matrix.data


def _content(thing: Any) -> dict[str, Any]:
    """Return what an object is made of, as far as it is in use."""
    if isinstance(thing, RowStore):
        own = {name: value for name, value in vars(thing).items() if name not in FOUND}
        return {**own, "_arrays": None, "arrays": thing.in_use()}
    if isinstance(thing, History):
        lists = [thing.row(row) for row in range(thing.n_rows)]
        sessions = thing.sessions()
        return {"lists": lists, "sessions": sessions, "codes": thing.code.dtype, "n": thing.n_rows}
    if isinstance(thing, RatingBook):
        return {"values": thing.values, "known": thing.known(thing.values)}
    if isinstance(thing, Vocabulary):
        return {"ids": thing.ids.tolist(), "rows": thing.rows(thing.ids.tolist())}
    own = {name: value for name, value in vars(thing).items() if name not in CALLS | FOUND}
    if isinstance(thing, OnlineMoods):
        n, raters = int(thing.used[0]), thing.n_raters
        for name in ("table", "moods", "time", "links"):
            own[name] = own[name][:n]
        for name in ("last", "smoothed"):
            own[name] = own[name][:raters]
    cached = {
        name
        for kind in type(thing).__mro__
        for name, value in vars(kind).items()
        if isinstance(value, cached_property)
    }
    if is_dataclass(thing) or cached:
        own = {name: value for name, value in own.items() if name not in cached}
    if isinstance(thing, HeMF):
        own.pop("_checked", None)
        held = own.pop("_held", None)  # made when it is first looked for
        own["fit"] = None if held is None else held.content
    if isinstance(thing, FittedModel):
        del own["version"]
    if type(thing).__name__ == "Learner":
        own.pop("_table", None)
    return own
