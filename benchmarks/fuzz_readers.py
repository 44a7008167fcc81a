"""Feed damaged and unusual files to every reader: no raw error, no hang, no row lost in silence.

Each input begins as a valid file. Some are written in another valid way (line ends, blank lines,
quotes, line breaks in quotes, a byte order mark): these must give the rows that were written. Other
files are damaged (bytes flipped, cut, repeated or inserted): these must give an error of hemf, or
as many rows as an independent count finds. Blocks of a few bytes are parsed as often as large ones.
Prints one line of JSON for each reader, and ends with 1 if anything was wrong.

    python benchmarks/fuzz_readers.py [--count 20000] [--seed 0] [--readers csv,parquet]
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hemf.data import files
from hemf.data.datasets import read_movielens
from hemf.data.features import read_feature_file
from hemf.data.sources import read_columns
from hemf.errors import HemfError
from hemf.evaluation.protocols import load_splits, make_splits, save_splits
from hemf.experiments.data import read_votes
from hemf.experiments.netflix import convert_netflix, read_netflix

LONGEST = 30  # seconds that one input may take
Rng = np.random.Generator
Rows = list[tuple[str, ...]]
IDS = ["ann", "bob", "Zoë", "李", "7", "12", "a b", "x-1", "O'Hara", "say", "007", "🦊", "NaN"]
INTERESTING = [
    b'"', b'""', b"\n", b"\r", b"\r\n", b"\x00", b",", b";", b"\t", b"::", b":", b"|", b"\xff",
    b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\x1f", b"1e999", b"-1e-400", b"nan",
    b"9" * 400, b"99999999999999999999", b"-", b"x" * 3000, b'"' + b"y\n" * 200 + b'"', b" ",
    b"2024-01-01", b"true", b"0x10", b"\xc2\xa0", b"\xe2\x80\xa8", b"\x85", b"\\", b"'", b"#",
]  # fmt: skip


class LostRowsError(Exception):
    """Rows that were written and are neither read nor named in an error."""


class HangError(BaseException):
    """An input that takes too long; no reader catches it."""


@dataclass
class Tally:
    """What became of the inputs of one reader."""

    reader: str
    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


# -- damage -----------------------------------------------------------------------------------


def damaged(content: bytes, rng: Rng) -> bytes:
    """Return content with one to four kinds of damage."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        place = int(rng.integers(len(data) + 1))
        kind = rng.integers(7)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            size = int(rng.integers(1, 60))
            data[place:place] = data[max(0, place - size) : place]
        elif kind == 3:
            del data[place : place + int(rng.integers(1, 30))]
        elif kind == 4:
            data[place:place] = rng.bytes(int(rng.integers(1, 5)))
        else:
            data[place:place] = INTERESTING[rng.integers(len(INTERESTING))]
    return bytes(data)


# -- delimited text ---------------------------------------------------------------------------


def ratings_rows(rng: Rng) -> Rows:
    n = int(rng.integers(1, 40))
    ids = IDS if rng.random() < 0.5 else [str(number) for number in range(30)]
    picked = rng.integers(len(ids), size=(n, 2))
    return [
        (ids[user], ids[item], str(rng.integers(1, 11) / 2), str(rng.integers(10**9)))
        for user, item in picked
    ]


def number_rows(rng: Rng) -> Rows:
    n = int(rng.integers(1, 40))
    return [
        (str(rng.integers(1, 99)), str(rng.integers(1, 99)), str(rng.integers(1, 6)), "881250949")
        for _ in range(n)
    ]


def vote_rows(rng: Rng) -> Rows:
    score = ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    return [
        (str(rng.integers(1, 99)), str(rng.integers(1, 99)), str(rng.choice(score)), "1", "1996")
        for _ in range(rng.integers(1, 40))
    ]


def quoted(field_: str, rng: Rng) -> str:
    return '"' + field_.replace('"', '""') + '"' if rng.random() < 0.3 else field_


def rewritten(
    rows: Rows, names: tuple[str, ...] | None, separator: str, rng: Rng, *, quotes: bool
) -> bytes:
    """Write rows in one of many valid ways."""
    end = str(rng.choice(["\n", "\r\n", "\r"]))
    may_quote = quotes and rng.random() < 0.5
    lines = []
    for row in ([names] if names else []) + rows:
        fields = [quoted(field_, rng) for field_ in row] if may_quote else list(row)
        lines.append(separator.join(fields))
        while rng.random() < 0.05:
            lines.append("")
    content = end.join(lines) + (end if rng.random() < 0.7 else "")
    mark = b"\xef\xbb\xbf" if rng.random() < 0.1 else b""
    return mark + content.encode()


def with_breaks(rows: Rows, rng: Rng) -> Rows:
    """Put line breaks and quotes into some ids; the separator does not occur in them."""
    changed = []
    for user, *rest in rows:
        if rng.random() < 0.2:
            user = user + str(rng.choice(["\n", '"', "\n\n", '"\n"', "x\ny\n"])) + "z"
        changed.append((user, *rest))
    return changed


def written(rows: Rows, names: tuple[str, ...], separator: str) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\n")
    writer.writerows([names, *rows])
    return out.getvalue().encode()


def counted(content: bytes, separator: str, *, quotes: bool) -> int | None:
    """Count rows with Python's own reader; None where that is not well-defined."""
    try:
        decoded = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    if not quotes:
        lines = decoded.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return sum(bool(line) for line in lines)
    try:
        reader = csv.reader(io.StringIO(decoded, newline=""), delimiter=separator)
        return sum(bool(row) for row in reader)
    except csv.Error:
        return None


def fuzz_text(
    name: str,
    separator: str,
    make: Callable[[Rng], Rows],
    names: tuple[str, ...] | None,
    read: Callable[[Path], list[str]],
    *,
    quotes: bool = True,
    all_rows: bool = True,
) -> Callable[[Path, Rng], None]:
    """Return what makes one file of delimited text, reads it, and compares the number of rows.

    ``quotes`` says whether the reader knows them, ``all_rows`` whether it returns all rows.
    """

    def once(folder: Path, rng: Rng) -> None:
        rows = make(rng)
        if names is not None:
            rows = [row[: len(names)] for row in rows]
        can_break = names is not None and quotes and make is ratings_rows
        if can_break and rng.random() < 0.3:
            rows = with_breaks(rows, rng)
            content = written(rows, names or (), separator)
        else:
            content = rewritten(rows, names, separator, rng, quotes=quotes)
        is_valid = rng.random() < 0.3
        if not is_valid:
            content = damaged(content, rng)
        path = folder / name
        packed = content
        if path.suffix == ".gz":
            packed = gzip.compress(content)
            if not is_valid and rng.random() < 0.5:
                packed = damaged(packed, rng)
        path.write_bytes(packed)
        files.BLOCK = int(rng.choice([40, 200, 1 << 20]))
        ids = read(path)  # an error ends it here
        found = len(ids)
        if is_valid:
            if ids != [row[0] for row in rows]:
                raise LostRowsError(f"{found} of {len(rows)} rows were read, or others")
            return
        begin = separator.join(names) if names else None
        if not all_rows or (begin and not content.startswith(begin.encode() + b"\n")):
            return  # the first row is another one, or is taken for data
        expected = counted(content, separator, quotes=quotes)
        if expected is not None and found != expected - (names is not None):
            raise LostRowsError(
                f"{found} rows were read where {expected - (names is not None)} are counted"
            )

    return once


def as_text(ids: Any) -> list[str]:
    return [str(id) for id in ids.tolist()]


def of_ratings(path: Path) -> list[str]:
    return as_text(read_columns(path).users.decode())


def of_pairs(path: Path) -> list[str]:
    return as_text(read_columns(path, rated=False).users.decode())


def of(read: Callable[[Path], Any]) -> Callable[[Path], list[str]]:
    return lambda path: as_text(read(path).users)


# -- other files ------------------------------------------------------------------------------


def random_column(n: int, rng: Rng) -> Any:
    """Return a column of any of the types that Parquet files have, with extreme values."""
    whole = rng.integers(-(2**63), 2**63 - 1, size=n, dtype=np.int64)
    kinds: list[Callable[[], Any]] = [
        lambda: pa.array(whole),
        lambda: pa.array(rng.integers(0, 9, n)),
        lambda: pa.array(rng.normal(size=n) * 10.0 ** rng.integers(-300, 300)),
        lambda: pa.array([str(rng.choice(IDS)) for _ in range(n)]),
        lambda: pa.array([rng.bytes(3) for _ in range(n)]),
        lambda: pa.array(whole).cast(pa.timestamp(str(rng.choice(["ms", "us", "ns"])))),
        lambda: pa.array(rng.integers(-(2**31), 2**31, n), pa.int32()).cast(pa.date32()),
        lambda: pa.array(whole).cast(pa.duration("s")),
        lambda: pa.array([None if rng.random() < 0.2 else 1 for _ in range(n)], pa.int64()),
        lambda: pa.array([[1]] * n),
        lambda: pa.array([{"a": 1}] * n),
        lambda: pa.nulls(n),
        lambda: pa.array(rng.random(n) < 0.5),
        lambda: pa.array([str(rng.choice(IDS)) for _ in range(n)]).dictionary_encode(),
        lambda: pa.array(rng.integers(0, 2**63, n, dtype=np.uint64) * 2),
        lambda: pa.array(rng.integers(0, 2**40, n)).cast(pa.time64("us"), safe=False),
        lambda: broken_text(n, rng),
    ]
    return kinds[rng.integers(len(kinds))]()


def broken_text(n: int, rng: Rng) -> Any:
    """Return Arrow text that is no UTF-8."""
    ends = np.arange(n + 1, dtype=np.int32).tobytes()
    letters = bytes(rng.choice([0x61, 0xFF, 0xC3], n).astype(np.uint8))
    return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(ends), pa.py_buffer(letters)])


def fuzz_parquet(read: Callable[[Path], list[str]]) -> Callable[[Path, Rng], None]:
    def once(folder: Path, rng: Rng) -> None:
        n = int(rng.integers(1, 30))
        columns = {
            "user": pa.array([f"{rng.choice(IDS)} {number}" for number in range(n)]),
            "item": pa.array(rng.integers(0, 9, n)),
            "rating": pa.array(rng.integers(1, 11, n) / 2),
            "timestamp": pa.array(rng.integers(0, 2**31, n)),
        }
        is_valid = rng.random() < 0.2
        if not is_valid and rng.random() < 0.6:
            for name in rng.choice(list(columns), rng.integers(1, 3), replace=False):
                columns[str(name)] = random_column(n, rng)
        path = folder / "r.parquet"
        try:
            table = pa.table(columns)
            pq.write_table(table, path, row_group_size=int(rng.integers(1, 40)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError):
            return  # not one that Arrow can write
        content = path.read_bytes()
        harmed = not is_valid and rng.random() < 0.5
        if harmed:
            path.write_bytes(damaged(content, rng))
        found = len(read(path))
        if not harmed and found != n:
            raise LostRowsError(f"{found} of {n} rows were read")

    return once


ODD_JSON = [
    "null", "true", "NaN", "-Infinity", "1e999", "1e-999", "9" * 25, "9" * 5000, "-0", "0.1", '""',
    '" "', '"0x10"', '"1_0"', '"\\ud800"', '"\\u0000"', "[]", "[1, 2]", "[[1], {}]", "{}", "[NaN]",
    '{"a": 1}', "[" * 2000 + "]" * 2000, '"2024-01-01"', '"\u0661"', '"' + "y" * 3000 + '"',
]  # fmt: skip


def fuzz_json_lines(read: Callable[[Path], list[str]]) -> Callable[[Path, Rng], None]:
    """Return what makes one file of JSON lines, reads it, and compares ids or their number."""

    def once(folder: Path, rng: Rng) -> None:
        rows = ratings_rows(rng)
        odd = rng.random() < 0.4
        lines = []
        for user, item, rating, time_ in rows:
            values = {"user": json.dumps(user), "item": json.dumps(item)}
            values |= {"rating": rating, "timestamp": time_}
            if odd and rng.random() < 0.2:
                values[str(rng.choice(NAMES))] = ODD_JSON[rng.integers(len(ODD_JSON))]
            names = rng.permutation(NAMES) if rng.random() < 0.3 else NAMES
            lines.append("{" + ", ".join(f'"{name}": {values[str(name)]}' for name in names) + "}")
            while rng.random() < 0.05:
                lines.append(str(rng.choice(["", "  ", "\t"])))
        end = str(rng.choice(["\n", "\r\n"]))
        content = (end.join(lines) + (end if rng.random() < 0.7 else "")).encode()
        harmed = rng.random() < 0.5
        if harmed:
            content = damaged(content, rng)
        path = folder / str(rng.choice(["r.jsonl", "r.ndjson"]))
        path.write_bytes(content)
        ids = read(path)
        if not (odd or harmed) and ids != [row[0] for row in rows]:
            raise LostRowsError(f"{len(ids)} of {len(rows)} rows were read, or others")
        expected = sum(bool(line.strip()) for line in content.split(b"\n"))
        if len(ids) != expected:
            raise LostRowsError(f"{len(ids)} rows were read where {expected} are counted")

    return once


def of_features(path: Path) -> list[str]:
    return [str(id) for id in read_feature_file(path, "user").ids]


def feature_rows(rng: Rng) -> Rows:
    n = int(rng.integers(1, 30))
    return [
        (f"u{number}", str(rng.integers(90)), str(rng.choice(IDS)), "Action|Comedy")
        for number in range(n)
    ]


def fuzz_splits(folder: Path, rng: Rng) -> None:
    path = folder / "splits.npz"
    data = ([1, 1, 2, 2, 3, 3], [1, 2, 1, 2, 1, 2], [5, 3, 4, 1, 2, 5])
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    save_splits(path, make_splits("weak", data, n_splits=2))
    is_valid = rng.random() < 0.1
    if not is_valid:
        path.write_bytes(damaged(path.read_bytes(), rng))
    load_splits(path, data)


def fuzz_netflix(folder: Path, rng: Rng) -> None:
    path = folder / "combined_data_1.txt"
    target = folder / "netflix.parquet"
    lines, n = [], 0
    for movie in range(1, 4):
        lines.append(f"{movie}:")
        for user in rng.choice(50, 6, replace=False):
            lines.append(f"{user + 1},{rng.integers(1, 6)},2005-0{rng.integers(1, 10)}-11")
            n += 1
    content = ("\n".join(lines) + "\n").encode()
    is_valid = rng.random() < 0.1
    path.write_bytes(content if is_valid else damaged(content, rng))
    with contextlib.suppress(FileNotFoundError):
        target.unlink()
    convert_netflix(path, target)
    found = len(read_netflix(target).users)
    if is_valid and found != n:
        raise LostRowsError(f"{found} of {n} ratings were read")


NAMES = ("user", "item", "rating", "timestamp")
MOVIELENS = ("userId", "movieId", "rating", "timestamp")
READERS: dict[str, Callable[[Path, Rng], None]] = {
    "csv": fuzz_text("r.csv", ",", ratings_rows, NAMES, of_ratings),
    "csv without names": fuzz_text("r.csv", ",", number_rows, None, of_ratings),
    "csv.gz": fuzz_text("r.csv.gz", ",", ratings_rows, NAMES, of_ratings),
    "tsv": fuzz_text("r.tsv", "\t", ratings_rows, NAMES, of_ratings),
    "dat": fuzz_text("r.dat", "::", ratings_rows, NAMES, of_ratings, quotes=False),
    "u.data": fuzz_text("u.data", "\t", number_rows, None, of_ratings),
    "pairs": fuzz_text("p.csv", ",", ratings_rows, NAMES[:2], of_pairs),
    "parquet": fuzz_parquet(of_ratings),
    "features csv": fuzz_text(
        "f.csv", ",", feature_rows, ("user", "age", "city", "genres"), of_features
    ),
    "features parquet": fuzz_parquet(of_features),
    "movielens tabs": fuzz_text(
        "u.data", "\t", number_rows, None, of(read_movielens), quotes=False
    ),
    "movielens ::": fuzz_text(
        "ratings.dat", "::", number_rows, None, of(read_movielens), quotes=False
    ),
    "movielens csv": fuzz_text(
        "ratings.csv", ",", number_rows, MOVIELENS, of(read_movielens), quotes=False
    ),
    "eachmovie": fuzz_text(
        "vote.txt", "\t", vote_rows, None, of(read_votes), quotes=False, all_rows=False
    ),
    "splits": fuzz_splits,
    "netflix": fuzz_netflix,
    "json lines": fuzz_json_lines(of_ratings),
    "json lines of pairs": fuzz_json_lines(of_pairs),
}


def fuzz(reader: str, count: int, seed: int) -> Tally:
    """Feed a reader ``count`` inputs; input k of a seed is the same every time."""
    tally, once = Tally(reader), READERS[reader]
    block = files.BLOCK
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            begin = time.perf_counter()
            try:
                with at_most(LONGEST):
                    once(Path(folder), np.random.default_rng([seed, number]))
                tally.accepted += 1
            except HemfError as error:
                tally.refused += 1
                tally.reasons[type(error).__name__] += 1
                if len(str(error)) > 1000:
                    tally.failures.append(f"input {number}: a message of {len(str(error))}")
            except (HangError, Exception) as error:
                message = f"{type(error).__name__}: {str(error)[:300]}"
                tally.failures.append(f"input {number}: {message}")
            tally.slowest = max(tally.slowest, time.perf_counter() - begin)
    files.BLOCK = block
    return tally


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Interrupt what takes longer."""

    def stop(*_: Any) -> None:
        raise HangError(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", default=",".join(READERS))
    arguments = parser.parse_args()
    failed = False
    for reader in arguments.readers.split(","):
        tally = fuzz(reader, arguments.count, arguments.seed)
        failed |= bool(tally.failures)
        print(
            json.dumps(
                {
                    "reader": reader,
                    "inputs": arguments.count,
                    "accepted": tally.accepted,
                    "refused": dict(tally.reasons),
                    "failures": len(tally.failures),
                    "first": tally.failures[:5],
                    "slowest_seconds": round(tally.slowest, 2),
                }
            ),
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
