"""Which column of the input is the user, the item, the rating and the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hemf.errors import DataError, ParameterError

ROLES = ("user", "item", "rating", "timestamp")

# In order of preference, letter case and punctuation aside: ids before the names of things.
_ALIASES = {
    "user": (
        "user", "userid", "uid", "users", "username", "customerid", "customer", "reviewerid",
        "visitorid",
    ),
    "item": (
        "item", "itemid", "iid", "items", "movieid", "movie", "productid", "product", "asin",
        "parentasin", "bookid", "book", "isbn", "trackid", "songid", "artistid", "jokeid",
    ),
    "rating": ("rating", "ratings", "score", "stars", "overall", "value"),
    "timestamp": (
        "timestamp", "timestamps", "ts", "time", "unixtime", "unixreviewtime", "datetime", "date",
    ),
}  # fmt: skip

ColumnChoice = Sequence[str | int] | Mapping[str, str | int] | None


def locate(
    names: Sequence[Any] | None,
    width: int,
    columns: ColumnChoice,
    *,
    rated: bool,
    where: str,
    timed: bool = False,
) -> dict[str, int]:
    """Position of each role's column.

    ``names`` is None where the columns have none; then they stand in the order of ``ROLES``.
    ``columns`` overrides: names or positions in that order, or a mapping from role to name.
    ``rated`` says whether ratings are wanted (pairs to predict have none), and ``timed`` whether
    times are where ratings are not.

    >>> locate(["movieId", "userId", "rating"], 3, None, rated=True, where="frame")
    {'user': 1, 'item': 0, 'rating': 2}
    >>> locate(["client", "service", "latency"], 3, ("client", "service", "latency"),
    ...        rated=True, where="frame")
    {'user': 0, 'item': 1, 'rating': 2}
    >>> locate(None, 4, None, rated=True, where="array")
    {'user': 0, 'item': 1, 'rating': 2, 'timestamp': 3}
    """
    required = ROLES[:3] if rated else ROLES[:2]
    wanted = (*required, "timestamp") if rated or timed else required
    chosen = _chosen(columns, required)
    if names is None and columns is None and width > len(ROLES):
        raise DataError(
            f"{where}: expected the columns {', '.join(wanted)} in this order, found {width}; "
            f"choose with columns={tuple(range(len(required)))}",
            value=width,
        )
    positions: dict[str, int] = {}
    missing: list[str] = []
    for role in wanted:
        if role in chosen:
            positions[role] = _position(chosen[role], names, width, where)
            continue
        if columns is not None and not isinstance(columns, Mapping):
            continue  # a sequence without a timestamp: none is wanted
        position = _by_alias(role, names) if names is not None else ROLES.index(role)
        if position is not None and position < width:
            if names is not None:
                position = _position(names[position], names, width, where)  # only one is called so
            positions[role] = position
        elif role in required:
            missing.append(role)
    if missing:
        raise DataError(
            f"{where}: no column for {', '.join(missing)}; found {_listed(names, width)}"
            f"{_advice(len(required), width, rated=rated)}",
            value=list(names) if names is not None else width,
        )
    _reject_shared(positions, names, where)
    return positions


def is_header(fields: Sequence[str], columns: ColumnChoice, *, rated: bool) -> bool:
    """Whether the first line of a text file holds names rather than data.

    It does if columns are chosen by name, if it has the usual names, or if it has no number in it.
    Where pairs of text ids are chosen by position that last sign means nothing.

    >>> is_header(["client", "service", "latency"], None, rated=True)
    True
    >>> is_header(["ann", "matrix", "4.5"], None, rated=True)
    False
    >>> is_header(["ann", "matrix"], (0, 1), rated=False)
    False
    """
    required = ROLES[:3] if rated else ROLES[:2]
    if any(isinstance(choice, str) for choice in _chosen(columns, required).values()):
        return True
    if all(_by_alias(role, fields) is not None for role in required):
        return True
    if columns is not None and not rated:
        return False
    return not any(map(is_number, fields))


def is_number(field: str) -> bool:
    """Whether a field of text is a number, so that it names no column."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def _chosen(columns: ColumnChoice, required: Sequence[str]) -> dict[str, str | int]:
    if columns is None:
        return {}
    if isinstance(columns, Mapping):
        unknown = [key for key in columns if key not in ROLES]
        if unknown:
            raise ParameterError(
                f"columns: unknown role {unknown[0]!r}; the roles are {', '.join(ROLES)}",
                value=unknown[0],
            )
        return dict(columns)
    if isinstance(columns, str) or not len(required) <= len(columns) <= len(ROLES):
        raise ParameterError(
            f"columns: expected {len(required)} to {len(ROLES)} names in the order "
            f"{', '.join(ROLES)}, or a mapping from these; got {columns!r}",
            value=columns,
        )
    return dict(zip(ROLES, columns, strict=False))


def _position(choice: Any, names: Sequence[Any] | None, width: int, where: str) -> int:
    matches = [place for place, name in enumerate(names or ()) if name == choice]
    if len(matches) == 1:
        return matches[0]
    if len(matches) > 1:
        raise DataError(
            f"{where}: {len(matches)} columns are called {choice!r}; rename all but one, or "
            "choose columns by position",
            value=choice,
        )
    if isinstance(choice, int) and 0 <= choice < width:
        return choice
    without = "" if names is not None else " (they have no names: choose by position)"
    raise DataError(
        f"{where}: no column {choice!r}; found {_listed(names, width)}{without}", value=choice
    )


def id_column(names: Sequence[Any], side: str) -> int | None:
    """Position of the column that holds the ids of users or of items, by its name.

    >>> id_column(["age", "userId"], "user"), id_column(["age"], "user")
    (1, None)
    """
    found = _by_alias(side, names)
    if found is not None:
        return found
    simple = [_simplified(name) for name in names]
    return simple.index("id") if "id" in simple else None


def _by_alias(role: str, names: Sequence[Any]) -> int | None:
    simple = [_simplified(name) for name in names]
    for alias in _ALIASES[role]:
        if alias in simple:
            return simple.index(alias)
    return None


def _simplified(name: Any) -> str:
    return "".join(letter for letter in str(name).lower() if letter.isalnum())


def _reject_shared(positions: dict[str, int], names: Sequence[Any] | None, where: str) -> None:
    taken: dict[int, str] = {}
    for role, position in positions.items():
        if position in taken:
            name = names[position] if names is not None else position
            raise DataError(
                f"{where}: column {name!r} cannot be both {taken[position]} and {role}", value=name
            )
        taken[position] = role


def _advice(needed: int, width: int, *, rated: bool) -> str:
    if width < needed:
        return ""  # there is nothing to choose from
    places = range(needed)
    # See `is_header`.
    meaning = "" if rated else "; by position, the first line of a text file is data"
    return (
        f"; choose by name or position, such as columns={tuple(places)} or, on the command line, "
        f"--columns {','.join(map(str, places))}{meaning}"
    )


def _listed(names: Sequence[Any] | None, width: int) -> str:
    if names is None:
        return f"{width} column{'' if width == 1 else 's'}"
    return "the columns " + ", ".join(map(str, names)) if len(names) else "no columns"
