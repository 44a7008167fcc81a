"""Given features in model files: how they are encoded, and what is known of newcomers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from hemf.archive import Archive, Members, decoded, described, encoded_ids, read_array, restored
from hemf.features.encoder import FeatureEncoder, LabelBlock, NumberBlock
from hemf.sideinfo import Given
from hemf.vocabulary import Vocabulary


def describe_given(given: Given, side: str, members: Members) -> dict[str, Any]:
    """Return the JSON form of given features; arrays become members."""
    at, encoder, rows = f"{side}/features", given.encoder, given.features
    newcomers = given.newcomers.ids.tolist()
    members[f"{at}/newcomers.json"] = encoded_ids(newcomers, f"{side} with features")
    for name in ("data", "indices", "indptr"):
        members[f"{at}/newcomers-{name}.npy"] = getattr(rows, name)
    return {
        "parts": encoder.parts,
        "numbers": [
            described(block, f"{at}/numbers-{k}", members)
            for k, block in enumerate(encoder.of_numbers)
        ],
        "labels": [
            described(block, f"{at}/labels-{k}", members)
            for k, block in enumerate(encoder.of_labels)
        ],
    }


def restore_given(form: dict[str, Any], side: str, archive: Archive) -> Given:
    """Make given features again of what `describe_given` returned."""
    at = f"{side}/features"
    encoder = FeatureEncoder(
        side=side,
        parts=int(form["parts"]),
        of_numbers=tuple(restored(NumberBlock, part, archive) for part in form["numbers"]),
        of_labels=tuple(restored(LabelBlock, part, archive) for part in form["labels"]),
    )
    ids = [decoded(part) for part in json.loads(archive.read(f"{at}/newcomers.json"))]
    data, indices, indptr = (
        read_array(archive, f"{at}/newcomers-{name}.npy") for name in ("data", "indices", "indptr")
    )
    shape = (len(ids), sum(encoder.blocks.values()))
    rows = csr_array((data, indices, indptr), shape=shape)
    rows.check_format(full_check=True)
    newcomers = Vocabulary(ids)
    if len(newcomers) != len(ids) or not np.isfinite(data).all():
        raise ValueError(f"{side}: features of newcomers are not what a fit leaves")
    return Given(encoder, newcomers, rows)
