"""Features that come after the fit: of rows that are known, and of those that may come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array, vstack

from hemf.errors import DataError, ParameterError
from hemf.features.tables import parts_of
from hemf.inference import online_features
from hemf.sideinfo import Given
from hemf.vocabulary import Vocabulary

if TYPE_CHECKING:
    from hemf.estimator import HeMF
    from hemf.inference.online_options import OnlineOptions
    from hemf.streaming import Learner

SIDES = ("user", "item")
More = dict[str, tuple[list[Any], csr_array]]
"""Ids and encoded features of each side that there are any of."""


def read_more(model: HeMF, features: dict[str, Any]) -> More:
    """Encode features as those of the fit were; labels that were not there say nothing."""
    more = {}
    for side, table in features.items():
        if table is not None:
            more[side] = given_at_fit(model, side).encoder.encode(table)
    return more


def given_at_fit(model: HeMF, side: str) -> Given:
    """Return the features that a side was fitted with; an error where there were none."""
    given = model._given.get(side)
    if given is None:
        begun = "was fitted" if hasattr(model, "state_") else "has to be fitted first, and not"
        raise DataError(
            f"{side}_features: what they mean is learnt by fit, and this model {begun} without "
            f"features of {side}s; call fit with them",
            value=side,
        )
    return given


def visitor_row(model: HeMF, features: Any) -> csr_array:
    """Encode the features of one visitor; names that a mapping lacks are missing values."""
    encoder = given_at_fit(model, "user").encoder
    tables: list[Any] = []
    for part, row in enumerate(parts_of(features) if encoder.parts > 1 else [features]):
        if isinstance(row, Mapping):
            known = encoder.columns(part)
            if row and known and not {*map(str, row)} & {*known}:
                raise DataError(
                    f"features: none of {', '.join(map(str, row))} is a column that was learnt of; "
                    f"these are {', '.join(known)}",
                    value=[*row],
                )
            row = {**dict.fromkeys(encoder.columns(part)), **row}
        tables.append({"visitor": row})
    return encoder.encode(tables)[1]


def take_more(given: Mapping[str, Given], learner: Learner, more: More) -> dict[str, Given]:
    """Give known rows their features; return those ``given`` with the others among newcomers'."""
    kept = dict(given)
    for side, (ids, encoded) in more.items():
        rows = known(learner, side).rows(ids)
        here = rows >= 0
        if here.any():
            online_features.give(learner.state, side, rows[here], csr_array(encoded[here]))
        new = [id for id, row in zip(ids, rows, strict=True) if row < 0]
        kept[side] = _joined(kept[side], known(learner, side), new, csr_array(encoded[~here]))
    return kept


def introduce(all_given: Mapping[str, Given], learner: Learner, before: dict[str, int]) -> None:
    """Give the rows that were added since there were so many what is known of their ids."""
    for side, given in all_given.items():
        ids = known(learner, side)
        if len(ids) > before[side] and len(given.newcomers):
            places = given.newcomers.rows(ids.ids[before[side] :])
            here = places >= 0
            if here.any():
                rows = before[side] + np.flatnonzero(here)
                encoded = csr_array(given.features[places[here]])
                online_features.give(learner.state, side, rows, encoded)


def known(learner: Learner, side: str) -> Vocabulary:
    """Return the ids of a side's rows."""
    return learner.users if side == "user" else learner.items


def sizes(learner: Learner) -> dict[str, int]:
    """Return how many rows there are of each side."""
    return {side: learner.state.stores[side].n_rows for side in SIDES}


def check_beginning(model: HeMF, options: OnlineOptions) -> None:
    """Refuse to begin from nothing where features could never be learnt of."""
    if model.implicit_features and options.window != -1:
        raise ParameterError(
            f"implicit_features={model.implicit_features!r}: with no fit to begin with, what it "
            "means to have rated something is learnt from all ratings so far; set "
            'history="full", or call fit with some of the ratings first',
            value=model.history,
        )


def _joined(given: Given, rows: Vocabulary, new: list[Any], encoded: csr_array) -> Given:
    """Return newcomers with more of them; those that have become rows since are left out."""
    ids = given.newcomers.ids.tolist()
    again = set(new)
    stay = np.array([id not in again and id not in rows for id in ids], bool)
    features = csr_array(vstack([given.features[stay], encoded]))
    kept = [id for id, stays in zip(ids, stay, strict=True) if stays]
    return Given(given.encoder, Vocabulary([*kept, *new]), features)
