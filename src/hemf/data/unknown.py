"""Ids that the model does not know: warnings where they are unknown by mistake, and similar ids."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hemf._typing import OTHER, BoolArray, IdsLike
from hemf.data.vocabulary import Vocabulary, factorise
from hemf.errors import UnknownIdWarning, warn_caller

_SAMPLE = 20  # unknown ids of a side that are examined
_SEARCHED = 3  # of these, the number that is compared to all known ids
_MANY = 10  # unknown ids that are worth a warning even without a likely mistake
_MAX_SIMILAR = 3  # more similar ids than these: ids are similar anyway
_DISJOINT_SAMPLE = 100  # ids of the other side that are examined
_DISJOINT_SHARE = 0.1  # of these may be ids of this side too if ids tell the side
_MIN_TYPO_LENGTH = 5  # letters of an id that may contain a typo


class RequestedIds(NamedTuple):
    """Ids of one side in a query, and which of them are unknown."""

    side: str
    ids: IdsLike
    unknown: BoolArray
    own: Vocabulary
    """Known ids of this side."""
    other: Vocabulary
    """Known ids of the other side."""

    def sample(self) -> list[object]:
        """Return some different unknown ids; ids that are known but unrated are left out."""
        decoded = factorise(self.ids).decode()[self.unknown][: 10 * _SAMPLE].tolist()
        return [id for id in list(dict.fromkeys(decoded))[:_SAMPLE] if id not in self.own]


def warn_of_unknown(*requested: RequestedIds, expected: bool = False) -> None:
    """Warn if most ids of a side are unknown and a mistake is likely.

    Without a likely mistake, warn if ten or more different ids are all unknown, unless unknown
    ids are ``expected``.
    """
    suspects = [one for one in requested if one.unknown.size and one.unknown.mean() > 0.5]
    samples = {one.side: one.sample() for one in suspects}
    suspects = [one for one in suspects if samples[one.side]]
    if not suspects:
        return
    if (
        len(suspects) == 2
        and all(_most_in(samples[one.side], one.other) for one in suspects)
        and _are_disjoint(suspects[0].own, suspects[0].other)
    ):
        found = ["user and item look swapped; each is known as the other"]
    else:
        reasons = [_reason(one, samples[one.side]) for one in suspects]
        found = [reason for reason in reasons if reason]
    if not found:
        many = [one for one in suspects if one.unknown.all() and len(samples[one.side]) >= _MANY]
        if expected or not many:
            return
        found = [
            f"its {one.side}s are like {one.own.ids.item(0)!r}"
            if len(one.own)
            else f"it knows no {one.side}s"
            for one in many
        ]
    counts = []
    for one in suspects:
        sample = samples[one.side]
        is_single = len(sample) == 1 and bool(one.unknown.all())
        number = f"{int(one.unknown.sum()):,} of {one.unknown.size:,} {one.side}s"
        counts.append(f"{one.side} {sample[0]!r}" if is_single else number)
    verb = "is" if len(suspects) == 1 and is_single else "are"
    warn_caller(
        f"{' and '.join(counts)} {verb} not known to the model, so the answer is for a newcomer: "
        f"{'; '.join(found)}",
        UnknownIdWarning,
    )


def likely_reason(side: str, id: object, own: Vocabulary, other: Vocabulary) -> str | None:
    """Return what may be wrong with an unknown id, or None.

    >>> likely_reason("user", "196", Vocabulary([196]), Vocabulary([302]))
    "ids of users are numbers here: 196 is known, and '196' is text"
    """
    return _reason(RequestedIds(side, [id], np.array([True]), own, other), [id])


def _reason(requested: RequestedIds, sample: list[object]) -> str | None:
    side, own = requested.side, requested.own
    for convert, kind, given in _CONVERSIONS:
        pairs = [(id, convert(id)) for id in sample]
        known = [(id, value) for id, value in pairs if value is not None and value in own]
        if 2 * len(known) > len(sample):
            id, value = known[0]
            return f"ids of {side}s are {kind} here: {value!r} is known, and {id!r} is {given}"
    if _most_in(sample, requested.other) and _are_disjoint(own, requested.other):
        id = next(id for id in sample if id in requested.other)
        return f"{id!r} is one of the {OTHER[side]}s, not of the {side}s"
    searched = [id for id in sample if isinstance(id, str)][:_SEARCHED]
    similar = [(text, found) for text in searched if (found := close_ids(text, own))]
    if similar and 2 * len(similar) > min(len(sample), _SEARCHED):
        text, found = similar[0]
        of = f" by {text!r}" if len(sample) > 1 else ""
        return f"did you mean {' or '.join(map(repr, found))}{of}?"
    return None


def _most_in(sample: list[object], known: Vocabulary) -> bool:
    return 2 * sum(id in known for id in sample) > len(sample)


def _are_disjoint(own: Vocabulary, other: Vocabulary) -> bool:
    """Whether the sides have different ids; not so if both are numbered from 1."""
    step = max(len(other) // _DISJOINT_SAMPLE, 1)
    some = other.ids[::step][:_DISJOINT_SAMPLE].tolist()
    return sum(id in own for id in some) <= _DISJOINT_SHARE * len(some)


def _as_number(id: object) -> int | None:
    if not isinstance(id, str):
        return None
    try:
        number = float(id)
        return int(id) if id.strip().lstrip("+-").isdecimal() else int(number)
    except (ValueError, OverflowError):
        return None


def _as_text(id: object) -> str | None:
    return str(id) if isinstance(id, int | float) and not isinstance(id, bool) else None


def _decoded(id: object) -> str | None:
    return id.decode(errors="replace") if isinstance(id, bytes) else None


def _encoded(id: object) -> bytes | None:
    return id.encode(errors="replace") if isinstance(id, str) else None


_CONVERSIONS: tuple[tuple[Callable[[object], object], str, str], ...] = (
    (_as_number, "numbers", "text"),
    (_as_text, "text", "a number"),
    (_decoded, "text", "bytes"),
    (_encoded, "bytes", "text"),
)


def close_ids(text: str, known: Vocabulary) -> list[str]:
    """Return known ids that differ in letter case, accents, punctuation or a typo.

    Digits have to be the same: where ids are numbered, another number is not a typo.

    >>> close_ids("zoe 113", Vocabulary(["Zoë 113", "Zoë 114", "Zoë"]))
    ['Zoë 113']
    >>> close_ids("user 12", Vocabulary(["user 1", "user 11"]))
    []
    """
    wanted = _normalised(text)
    if not wanted:
        return []
    max_typos = (len(wanted) >= _MIN_TYPO_LENGTH) + (len(wanted) >= 2 * _MIN_TYPO_LENGTH)
    digits = [letter for letter in wanted if letter.isdigit()]
    best: list[str] = []
    smallest = max_typos + 1
    for candidate in known.similar(text, length_difference=2 + max_typos):
        other = _normalised(candidate)
        if [letter for letter in other if letter.isdigit()] != digits:
            continue
        distance = _edit_distance(wanted, other, smallest)
        if distance < smallest:
            best, smallest = [], distance
        if distance == smallest and distance <= max_typos:
            best.append(candidate)
    return best if len(best) <= _MAX_SIMILAR else []


def _normalised(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(letter for letter in decomposed if letter.isalnum())


def _edit_distance(a: str, b: str, maximum: int) -> int:
    """Return the number of insertions, deletions, replacements and swaps, up to ``maximum`` + 1."""
    if abs(len(a) - len(b)) > maximum:
        return maximum + 1
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        older, before, row = before, row, [i]
        for j, right in enumerate(b, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > maximum:
            return maximum + 1
    return min(row[-1], maximum + 1)
