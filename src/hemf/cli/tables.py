"""Tables of predictions as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hemf.errors import DataError
from hemf.writing import replacing

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")


def check_table_name(path: Path | None) -> None:
    """Complain of a file name that does not say what to write.

    >>> check_table_name(Path("ratings.xls"))
    Traceback (most recent call last):
    hemf.errors.DataError: ratings.xls: the name must end in .csv, .tsv, .parquet or .pq
    """
    if path is not None and path.suffix.lower() not in (*DELIMITERS, *PARQUET):
        raise DataError(
            f"{path}: the name must end in .csv, .tsv, .parquet or .pq", value=str(path)
        )


def write_table(path: Path, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write columns to CSV, TSV or Parquet, by the ending of the name.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two.csv"
    >>> write_table(path, {"user": np.array(["ann", "bob"], object), "mean": np.array([1.5, 2])})
    >>> path.read_text().split()
    ['"user","mean"', '"ann",1.5', '"bob",2']
    """
    import pyarrow as pa

    table = pa.table({name: _arrow(values) for name, values in columns.items()})
    with replacing(path) as fresh:
        if path.suffix.lower() in PARQUET:
            import pyarrow.parquet as pq

            pq.write_table(table, fresh)
        else:
            from pyarrow import csv

            options = csv.WriteOptions(delimiter=DELIMITERS[path.suffix.lower()])
            csv.write_csv(table, fresh, options)


def _arrow(values: np.ndarray[Any, Any]) -> Any:
    """Ids of one type keep it; ids of several become text, as a column has one type."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array([str(value) for value in values])
