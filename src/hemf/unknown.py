"""Why most ids of a call are not known to a model: the likely mistakes, each with a remedy."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hemf.errors import UnknownIdWarning, warn_caller
from hemf.reading.identifiers import factorise
from hemf.vocabulary import Vocabulary

SAMPLE = 20  # unknown ids of a side that are looked at
SEARCHED = 3  # of these, so many are compared to all that are known
MANY = 10  # unknown ids that are worth a warning even if no mistake is found
ALIKE = 3  # more ids as similar as the best one: then ids are similar anyway
APART_SAMPLE = 100  # ids of the other side that are looked at
APART = 0.1  # share of them that may be ids of this side too, or ids do not tell the side
LONG = 5  # letters of an id that may have a typo


class Asked(NamedTuple):
    """Ids of one side that a model was asked about, and which of them are unknown."""

    side: str
    ids: Any
    unknown: npt.NDArray[np.bool_]
    own: Vocabulary
    """Ids that the model knows on this side."""
    other: Vocabulary
    """Ids that it knows on the other side."""


def warn_of_unknown(*asked: Asked, expected: bool = False) -> None:
    """Warn once where most ids of a side are unknown and a mistake is likely.

    Without a likely mistake, warn where ten or more different ids are all unknown, unless unknown
    ids are ``expected``.
    """
    suspects = [one for one in asked if one.unknown.size and one.unknown.mean() > 0.5]
    samples = {one.side: _sample(one) for one in suspects}
    suspects = [one for one in suspects if samples[one.side]]
    if not suspects:
        return
    reason = _swapped(suspects, samples) if len(suspects) == len(asked) else None
    reasons = [reason] if reason else [_reason(one, samples[one.side]) for one in suspects]
    found = [reason for reason in reasons if reason]
    if not found:
        many = [one for one in suspects if one.unknown.all() and len(samples[one.side]) >= MANY]
        if expected or not many:
            return
        found = [_example(one) for one in many]
    what = " and ".join(_counted(one, samples[one.side]) for one in suspects)
    verb = "is" if len(suspects) == 1 and _is_one(suspects[0], samples[suspects[0].side]) else "are"
    warn_caller(
        f"{what} {verb} not known to the model, so the answer is for a newcomer: "
        f"{'; '.join(found)}",
        UnknownIdWarning,
    )


def likely_reason(side: str, id: Any, own: Vocabulary, other: Vocabulary) -> str | None:
    """Return what may be wrong with an unknown id; None where nothing seems to be.

    >>> likely_reason("user", "196", Vocabulary([196]), Vocabulary([302]))
    "ids of users are numbers here: 196 is known, and '196' is text"
    """
    return _reason(Asked(side, [id], np.array([True]), own, other), [id])


def _sample(asked: Asked) -> list[Any]:
    """Return some different ids that are unknown indeed: those known may lack ratings."""
    decoded = factorise(asked.ids).decode()[asked.unknown][: 10 * SAMPLE].tolist()
    ids = list(dict.fromkeys(decoded))[:SAMPLE]
    column = np.empty(len(ids), object)
    column[:] = ids
    return [id for id, row in zip(ids, asked.own.rows(column), strict=True) if row < 0]


def _swapped(suspects: Sequence[Asked], samples: dict[str, list[Any]]) -> str | None:
    if len(suspects) < 2 or not all(_most(samples[one.side], one.other) for one in suspects):
        return None
    if not _are_apart(suspects[0].own, suspects[0].other):
        return None
    return "user and item look swapped; each is known as the other"


def _reason(asked: Asked, sample: list[Any]) -> str | None:
    side, own = asked.side, asked.own
    for convert, kind, given in _CONVERSIONS:
        pairs = [(id, convert(id)) for id in sample]
        known = [(id, value) for id, value in pairs if value is not None and value in own]
        if 2 * len(known) > len(sample):
            id, value = known[0]
            return f"ids of {side}s are {kind} here: {value!r} is known, and {id!r} is {given}"
    if _most(sample, asked.other) and _are_apart(own, asked.other):
        other = "item" if side == "user" else "user"
        id = next(id for id in sample if id in asked.other)
        return f"{id!r} is one of the {other}s, not of the {side}s"
    searched = [id for id in sample if isinstance(id, str)][:SEARCHED]
    similar = [(id, found) for id in searched if (found := close_ids(id, own))]
    if similar and 2 * len(similar) > min(len(sample), SEARCHED):
        id, found = similar[0]
        of = f" by {id!r}" if len(sample) > 1 else ""
        return f"did you mean {' or '.join(map(repr, found))}{of}?"
    return None


def _most(sample: list[Any], known: Vocabulary) -> bool:
    return 2 * sum(id in known for id in sample) > len(sample)


def _are_apart(own: Vocabulary, other: Vocabulary) -> bool:
    """Whether an id tells the side: where both sides are numbered from 1, it does not.

    >>> _are_apart(Vocabulary(range(50)), Vocabulary(range(80)))
    False
    """
    some = other.ids[:: max(len(other) // APART_SAMPLE, 1)][:APART_SAMPLE].tolist()
    return sum(id in own for id in some) <= APART * len(some)


def _as_number(id: Any) -> int | None:
    if not isinstance(id, str):
        return None
    try:
        number = float(id)
        return int(id) if id.strip().lstrip("+-").isdecimal() else int(number)
    except (ValueError, OverflowError):
        return None


def _as_text(id: Any) -> str | None:
    return str(id) if isinstance(id, int | float) and not isinstance(id, bool) else None


def _decoded(id: Any) -> str | None:
    return id.decode(errors="replace") if isinstance(id, bytes) else None


def _encoded(id: Any) -> bytes | None:
    return id.encode(errors="replace") if isinstance(id, str) else None


_CONVERSIONS: tuple[tuple[Callable[[Any], Any], str, str], ...] = (
    (_as_number, "numbers", "text"),
    (_as_text, "text", "a number"),
    (_decoded, "text", "bytes"),
    (_encoded, "bytes", "text"),
)


def _is_one(asked: Asked, sample: list[Any]) -> bool:
    return len(sample) == 1 and bool(asked.unknown.all())


def _counted(asked: Asked, sample: list[Any]) -> str:
    if _is_one(asked, sample):
        return f"{asked.side} {sample[0]!r}"
    count = int(asked.unknown.sum())
    return f"{count:,} of {asked.unknown.size:,} {asked.side}s"


def _example(asked: Asked) -> str:
    if not len(asked.own):
        return f"it knows no {asked.side}s"
    return f"its {asked.side}s are like {asked.own.ids.item(0)!r}"


def close_ids(text: str, known: Vocabulary) -> list[str]:
    """Return known ids that differ from a text by letter case, accents, punctuation or a typo.

    Numbers in them have to be the same: where ids are numbered, the next one is no typo.

    >>> close_ids("zoe 113", Vocabulary(["Zoë 113", "Zoë 114", "Zoë"]))
    ['Zoë 113']
    >>> close_ids("user 12", Vocabulary(["user 1", "user 11"]))
    []
    """
    wanted = _normalised(text)
    if not wanted:
        return []
    typos = (len(wanted) >= LONG) + (len(wanted) >= 2 * LONG)
    digits = [letter for letter in wanted if letter.isdigit()]
    best: list[str] = []
    least = typos + 1
    for candidate in known.similar(text, spread=2 + typos):
        other = _normalised(candidate)
        if [letter for letter in other if letter.isdigit()] != digits:
            continue
        distance = _edits(wanted, other, least)
        if distance < least:
            best, least = [], distance
        if distance == least and distance <= typos:
            best.append(candidate)
    return best if len(best) <= ALIKE else []


def _normalised(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(letter for letter in decomposed if letter.isalnum())


def _edits(a: str, b: str, most: int) -> int:
    """Return how many letters to insert, delete, replace or exchange; at most ``most`` + 1.

    >>> _edits("matrix", "matrx", 2), _edits("matrix", "amtrix", 2), _edits("tea", "milk", 2)
    (1, 1, 3)
    """
    if abs(len(a) - len(b)) > most:
        return most + 1
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        older, before, row = before, row, [i]
        for j, right in enumerate(b, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return min(row[-1], most + 1)
