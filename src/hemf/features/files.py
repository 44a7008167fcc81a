"""Features of users or items in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hemf.errors import DataError
from hemf.features.tables import Table, table_of
from hemf.reading.columns import id_column, is_number
from hemf.reading.files import Source, open_file
from hemf.reading.identifiers import factorise
from hemf.reading.readers import settle_text

if TYPE_CHECKING:
    from hemf.vocabulary import Vocabulary

MANY_ROWS = 50
"""Of so many, a text of its own for each is a name that tells nothing of others."""


def read_feature_file(
    path: str | Path,
    side: str,
    *,
    known: Vocabulary | None = None,
    column: str | int | None = None,
) -> Table:
    r"""Read what is known of users or items from CSV, TSV, Parquet or MovieLens files.

    Ids are in the column called ``column``, which is what the ratings have them in; else in one of
    the usual names for them (``userId``, ``movie``, …, ``id``); else in the first. Text files begin
    with names, unless a number stands in the first line. Ids there have no type: those ``known``
    show whether ``12`` means the number or the text.

    >>> path = getfixture("tmp_path") / "people.csv"
    >>> _ = path.write_text("age,who,city\n31,ann,Rome\n45,bob,")
    >>> table = read_feature_file(path, "user", column="who")
    >>> table.ids.tolist(), table.numbers.tolist(), table.labels
    (['ann', 'bob'], [[31.0], [45.0]], {'city': ['Rome', '']})
    """
    path = Path(path).expanduser()

    def names_in(fields: Sequence[str]) -> bool:
        return _id_place(fields, side, column) is not None or not any(map(is_number, fields))

    source = open_file(path, names_in=names_in, n_ids=1)
    try:
        return _read(source, side, known, column)
    except DataError as error:
        if str(error).startswith(source.where):
            raise
        raise DataError(f"{source.where}: {error}", value=error.value, row=error.row) from None


def _read(source: Source, side: str, known: Vocabulary | None, column: str | int | None) -> Table:
    import pyarrow as pa

    names = _names(source)
    if len(names) < 2:
        raise DataError(
            f"expected a column of {side} ids and others beside it, found {', '.join(names)} alone",
            value=names,
        )
    found = _id_place(names, side, column)
    place = 0 if found is None else found
    others = [position for position in range(len(names)) if position != place]
    ids, *values = source.read([place, *others])
    if not len(ids):
        raise DataError("there are no rows")
    try:
        coded = factorise(ids, side)
        coded = settle_text(coded, known, side) if source.is_text else coded
    except DataError as error:
        where = f"column {names[place]!r}: {error}"
        raise DataError(where, value=error.value, row=error.row) from None
    frame = pa.table(values, names=[names[position] for position in others])
    return table_of(coded.decode(), frame, side)


def _names(source: Source) -> list[str]:
    if source.names is None:
        return [f"column {place}" for place in range(source.width)]
    names = [str(name) for name in source.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{names.count(twice)} columns are called {twice!r}", value=twice)
    return names


def _id_place(names: Sequence[str], side: str, column: str | int | None) -> int | None:
    stripped = [name.strip() for name in names]
    if isinstance(column, str) and column in stripped:
        return stripped.index(column)
    return id_column(stripped, side)


def without_names(table: Table) -> tuple[Table, list[str]]:
    """Leave out columns of text that is another in every row, such as titles; return which.

    They tell one row from the others and nothing that rows have in common. A few rows may well
    differ in everything.

    >>> import numpy as np
    >>> films = [f"film {k}" for k in range(60)]
    >>> table = Table(np.arange(60), (), np.empty((60, 0)), {"title": films, "kind": ["a"] * 60})
    >>> rest, left_out = without_names(table)
    >>> list(rest.labels), left_out
    (['kind'], ['title'])
    """
    left_out = [name for name, values in table.labels.items() if _all_differ(values)]
    labels = {name: values for name, values in table.labels.items() if name not in left_out}
    return Table(table.ids, table.names, table.numbers, labels), left_out


def _all_differ(values: list[Any]) -> bool:
    texts = [value for value in values if value is not None and value != ""]
    if len(texts) < MANY_ROWS or not all(isinstance(text, str) for text in texts):
        return False
    return len(set(texts)) == len(texts)
