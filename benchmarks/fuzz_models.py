"""Open damaged and crafted model files: each gives hemf's own error, or a model that answers.

    python benchmarks/fuzz_models.py 4000 --seed 0
    python benchmarks/fuzz_models.py --only 17 --seed 0             # one file again

Damaged files have bits flipped, or bytes cut off, overwritten, inserted or repeated. They must be
refused with a `ModelFileError`, or give a model that predicts the same bits. Crafted files have
right checksums and wrong content: members that are missing, there twice, compressed, or huge by
their header; arrays of other types, shapes or numbers; a manifest with other values. They must be
refused too, or give a model whose answers are finite and that learns or says why not.

No file may end the process, raise any other error, or take memory beyond `FACTOR` times its size.
Files are opened in processes of their own, so that a crash is an entry in the result.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hemf import HeMF
from hemf.errors import HemfError, ModelFileError

FACTOR, ALLOWANCE = 12, 4 << 20  # bytes of memory: times the file's size, and beside that
LONGEST = 20  # seconds that a file may take
CHUNK = 50  # files opened by one process
Rng = np.random.Generator
Members = dict[str, bytes]
MANIFEST = "manifest.json"
ASKED = [0, 1, 2, 5, 77], [100, 101, 107, 102, 999]


# -- models --------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "batch": {},
    "online": {"online": True},
    "online, no history": {"online": True, "history": "none"},
    "online, bounded": {"online": True, "history": 3},
    "float64": {"dtype": "float64", "noise_scales": None, "validation_fraction": 0.2},
    "moods": {"moods": True},
    "online moods": {"moods": True, "online": True},
    "features": {"implicit_features": True, "features": True},
    "online features": {"implicit_features": True, "features": True, "online": True},
    "text ids": {"ids": "text"},
    "mixed ids": {"ids": "mixed", "online": True},
}


def named(kind: str, number: int) -> Any:
    ids = KINDS[kind].get("ids")
    if ids is None or (ids == "mixed" and number % 2):
        return number
    return f"id {number}"


def asked(kind: str) -> tuple[list[Any], list[Any]]:
    return [named(kind, k) for k in ASKED[0]], [named(kind, k) for k in ASKED[1]]


def rows_of(kind: str, n: int, seed: int) -> list[tuple]:
    rng = np.random.default_rng(seed)
    rows = {}
    for k in range(n):
        pair = named(kind, int(rng.integers(15))), named(kind, 100 + int(rng.integers(10)))
        rows[pair] = (*pair, float(rng.integers(1, 6)), 1000 + 10 * k)
    timed = "moods" in KINDS[kind]
    return [row if timed else row[:3] for row in rows.values()]


@cache
def original(kind: str) -> bytes:
    """Return the file of a model of this kind."""
    options = dict(KINDS[kind])
    online, features = options.pop("online", False), options.pop("features", False)
    options.pop("ids", None)
    given = {}
    if features:
        rng = np.random.default_rng(1)
        given["user_features"] = {named(kind, k): rng.normal(size=2) for k in range(17)}
    model = HeMF(
        n_factors=2, max_user_communities=3, max_item_communities=2, max_sweeps=6, n_jobs=1, rng=0,
        **options,
    ).fit(rows_of(kind, 80, 0), **given)  # fmt: skip
    if online:
        model.partial_fit(rows_of(kind, 10, 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.hemf"
        model.save(path)
        return path.read_bytes()


@cache
def members_of(kind: str) -> Members:
    with zipfile.ZipFile(io.BytesIO(original(kind))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def answers(model: HeMF, kind: str) -> tuple[np.ndarray, np.ndarray]:
    times = 1500 if "moods" in KINDS[kind] else None
    mean, std = model.predict(*asked(kind), return_std=True, timestamps=times)
    return mean, std


# -- damage --------------------------------------------------------------------------------------


def flipped(content: bytes, rng: Rng) -> bytes:
    data = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 30]))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def flipped_in_directory(content: bytes, rng: Rng) -> bytes:
    """Flip bits where the zip says what it holds."""
    data = bytearray(content)
    begin = content.rfind(b"PK\x01\x02")
    begin = content.find(b"PK\x01\x02") if rng.random() < 0.7 else begin
    for _ in range(int(rng.integers(1, 4))):
        data[int(rng.integers(begin, len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def truncated(content: bytes, rng: Rng) -> bytes:
    return content[: int(rng.integers(len(content)))]


def without_beginning(content: bytes, rng: Rng) -> bytes:
    return content[int(rng.integers(1, len(content))) :]


def with_zeros(content: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(content)))
    return content[:at] + bytes(len(content) - at)


def overwritten(content: bytes, rng: Rng) -> bytes:
    at, noise = int(rng.integers(len(content))), rng.bytes(int(rng.integers(1, 400)))
    return content[:at] + noise + content[at + len(noise) :]


def inserted(content: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(content)))
    return content[:at] + rng.bytes(int(rng.integers(1, 50))) + content[at:]


def cut_out(content: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(content)))
    return content[:at] + content[at + int(rng.integers(1, 300)) :]


def repeated(content: bytes, rng: Rng) -> bytes:
    first, last = np.sort(rng.integers(len(content), size=2)).tolist()
    return content[:last] + content[first:last] + content[last:]


def appended(content: bytes, rng: Rng) -> bytes:
    return content + (content if rng.random() < 0.3 else rng.bytes(int(rng.integers(1, 100))))


def noise(content: bytes, rng: Rng) -> bytes:
    return (b"PK" if rng.random() < 0.5 else b"") + rng.bytes(int(rng.integers(0, 3000)))


DAMAGES = [
    flipped, flipped_in_directory, truncated, without_beginning, with_zeros, overwritten, inserted,
    cut_out, repeated, appended, noise,
]  # fmt: skip


# -- crafted files -------------------------------------------------------------------------------


def zipped(members: list[tuple[str, bytes]], **compressed: int) -> bytes:
    """Return a zip of these members, with right checksums; some of them compressed."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is there twice
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in members:
                kind = compressed.get(name, zipfile.ZIP_STORED)
                archive.writestr(zipfile.ZipInfo(name), content, compress_type=kind)
    return stream.getvalue()


def array_names(members: Members) -> list[str]:
    return [name for name in members if name.endswith(".npy")]


def pick(rng: Rng, names: list[Any]) -> Any:
    return names[int(rng.integers(len(names)))]


def npy(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


def with_array(members: Members, name: str, array: np.ndarray) -> bytes:
    return zipped([*{**members, name: npy(array)}.items()])


def loaded(members: Members, name: str) -> np.ndarray:
    return np.load(io.BytesIO(members[name]))


def missing(members: Members, rng: Rng) -> bytes:
    gone = pick(rng, [*members])
    return zipped([(name, part) for name, part in members.items() if name != gone])


def twice(members: Members, rng: Rng) -> bytes:
    name = pick(rng, [*members])
    return zipped([*members.items(), (name, members[pick(rng, [*members])])])


def bomb(members: Members, rng: Rng) -> bytes:
    """Compress a member that is large, or as it is."""
    name = pick(rng, array_names(members))
    huge = npy(np.zeros(6_000_000, np.float32)) if rng.random() < 0.5 else members[name]
    return zipped([*{**members, name: huge}.items()], **{name: zipfile.ZIP_DEFLATED})


def huge_shape(members: Members, rng: Rng) -> bytes:
    """Say in a header that an array is larger than it is."""
    name = pick(rng, array_names(members))
    array = loaded(members, name)
    shape = pick(
        rng,
        [(2**40,), (2**62, 2), (0, 2**40), (2**33, *array.shape[1:]), (-1,), (2**31, 0), (1,) * 40,
         (2**63,), (10**30,)],
    )  # fmt: skip
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
    text = repr(header).ljust(200) + "\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    return zipped([*{**members, name: content + array.tobytes()}.items()])


def wrong_header(members: Members, rng: Rng) -> bytes:
    name = pick(rng, array_names(members))
    text = pick(
        rng,
        ["{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "{}", "[" * 5000, "1/0",
         "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}", "\x00" * 60,
         "{'descr': '<f8', 'fortran_order': 3, 'shape': 'x'}", "{'descr': '|V9', 'shape': (1,)}",
         "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,)}", "(" * 60000],
    )  # fmt: skip
    version = pick(rng, [b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"])
    size = 2 if version == b"\x01\x00" else 4
    content = b"\x93NUMPY" + version + len(text).to_bytes(size, "little") + text.encode() + bytes(8)
    return zipped([*{**members, name: content}.items()])


def wrong_type(members: Members, rng: Rng) -> bytes:
    name = pick(rng, array_names(members))
    kind = pick(rng, ["f2", "f4", "f8", "i1", "i4", "i8", "u2", "u8", "c8", "?", "S3", "U2"])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return with_array(members, name, loaded(members, name).astype(kind))


def wrong_shape(members: Members, rng: Rng) -> bytes:
    name = pick(rng, array_names(members))
    array = loaded(members, name)
    shapes: list[Callable[[], np.ndarray]] = [
        lambda: array[:-1],
        lambda: array[:0],
        lambda: np.concatenate([array, array[:1]]),
        lambda: array[None],
        lambda: array.reshape(-1)[0] if array.size else array,
        lambda: array.reshape(-1),
        lambda: array[..., None],
        lambda: array.T,
        lambda: np.concatenate([array, array]),
        lambda: array[..., :-1],
        lambda: array[::-1],
        lambda: np.zeros((0, 0, 3), array.dtype),
    ]
    return with_array(members, name, np.asarray(pick(rng, shapes)()))


def wrong_number(members: Members, rng: Rng) -> bytes:
    name = pick(rng, array_names(members))
    array = loaded(members, name).copy()
    if not array.size:
        return with_array(members, name, array)
    which = slice(None) if rng.random() < 0.2 else int(rng.integers(array.size))
    if array.dtype.kind == "f":
        number = pick(rng, [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e30, -1e30, 1e-30, 1e300, 3.5])
    else:
        limits = np.iinfo(array.dtype)
        number = pick(rng, [limits.min, limits.max, 0, 1, 2, 17, 1000, limits.max // 2, -1])
        number = min(max(number, limits.min), limits.max)
    with np.errstate(all="ignore"):
        array.reshape(-1)[which] = number
    return with_array(members, name, array)


def other_numbers(members: Members, rng: Rng) -> bytes:
    name = pick(rng, array_names(members))
    array = loaded(members, name)
    drawn = np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
    return with_array(members, name, drawn if rng.random() < 0.5 else rng.permuted(array))


def swapped(members: Members, rng: Rng) -> bytes:
    one, other = pick(rng, [*members]), pick(rng, [*members])
    return zipped([*{**members, one: members[other], other: members[one]}.items()])


def other_order(members: Members, rng: Rng) -> bytes:
    """Store an array in another byte order, or by columns."""
    name = pick(rng, array_names(members))
    array = loaded(members, name)
    if rng.random() < 0.5:
        return with_array(members, name, array.astype(array.dtype.newbyteorder(">")))
    return with_array(members, name, np.asfortranarray(array))


def places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """Yield the way to every value in a JSON document."""
    yield at
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*at, name))
    if isinstance(value, list):
        for place in range(len(value)):
            yield from places(value[place], (*at, place))


STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 10**6, 2**31, 2**63, 10**30, -(2**63), 0.5, -0.5, 1e308,
    1e-308, "", "text", "user/ids.npy", "manifest.json", "../../etc/passwd", [], {}, [[]], [1, 2],
    {"float": "nan"}, {"float": "inf"}, {"float": "x"}, {"int": "0x" + "f" * 400}, {"bytes": "zz"},
    {"tuple": [1, 2]}, {"tuple": 3}, {"array": "nothing.npy"}, {"array": "manifest.json"},
    {"array": 3}, {"uuid": "1"}, {"a": 1, "b": 2}, {"unknown": 1}, "x" * 10_000,
]  # fmt: skip


def manifest(members: Members, rng: Rng) -> bytes:
    """Change, remove or add something in the manifest."""
    document = json.loads(members[MANIFEST])
    found = [at for at in places(document) if at]
    for _ in range(int(rng.choice([1, 1, 1, 3]))):
        at = pick(rng, found)
        holder = document
        try:
            for step in at[:-1]:
                holder = holder[step]
            if rng.random() < 0.15:
                del holder[at[-1]]
            elif rng.random() < 0.1 and isinstance(holder, dict):
                holder["unexpected"] = pick(rng, STRANGE)
            else:
                holder[at[-1]] = pick(rng, STRANGE)
        except (KeyError, IndexError, TypeError):
            continue  # what an earlier change has taken away
    return zipped([*{**members, MANIFEST: json.dumps(document).encode()}.items()])


def manifest_text(members: Members, rng: Rng) -> bytes:
    text = pick(
        rng,
        [b"", b"null", b"[]", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 6000, b"\xff\xfe",
         members[MANIFEST][:-5], members[MANIFEST].replace(b"4", b"99"), b"NaN", b"\xef\xbb\xbf{}",
         members[MANIFEST].replace(b"0", b"-1"), members[MANIFEST].replace(b"true", b"NaN")],
    )  # fmt: skip
    return zipped([*{**members, MANIFEST: text}.items()])


def lying_directory(members: Members, rng: Rng) -> bytes:
    """Say in the zip's directory that a member is of another size, or elsewhere."""
    data = bytearray(zipped([*members.items()]))
    found, at = [], data.find(b"PK\x01\x02")
    while at >= 0:
        found.append(at)
        at = data.find(b"PK\x01\x02", at + 4)
    at = pick(rng, found)
    size = pick(rng, [0, 1, 2**31, 2**32 - 2, len(data), 10**6]).to_bytes(4, "little")
    for field in pick(rng, [(20, 24), (24,), (20,), (42,)]):
        data[at + field : at + field + 4] = size
    return bytes(data)


CRAFTS = [
    missing, twice, bomb, huge_shape, wrong_header, wrong_type, wrong_shape, wrong_number,
    wrong_number, wrong_number, other_numbers, swapped, other_order, manifest, manifest, manifest,
    manifest_text, lying_directory,
]  # fmt: skip


def file_of(seed: int, number: int) -> tuple[str, str, bytes, bool]:
    """Return the kind of a model, the name of what is done to its file, and the file."""
    rng = np.random.default_rng([seed, number])
    kind = pick(rng, [*KINDS])
    if rng.random() < 0.4:
        damage = pick(rng, DAMAGES)
        return kind, damage.__name__, damage(original(kind), rng), True
    craft = pick(rng, CRAFTS)
    return kind, craft.__name__, craft(members_of(kind), rng), False


# -- opening -------------------------------------------------------------------------------------


class SlowError(BaseException):
    """A file that takes too long."""


def too_slow(*_: Any) -> None:
    raise SlowError


def open_one(seed: int, number: int, path: Path) -> tuple[str, str, str | None]:
    """Open a file; return what was done to it, what came of it, and what is wrong."""
    kind, name, content, is_damage = file_of(seed, number)
    expected = _expected(kind)
    path.write_bytes(content)
    what = f"{kind}: {name}"
    stage = "load"
    signal.alarm(LONGEST)
    try:
        tracemalloc.start()
        try:
            model = HeMF.load(path)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        if peak > FACTOR * len(content) + ALLOWANCE:
            return what, "accepted", f"{peak:,} bytes of memory for a file of {len(content):,}"
        stage = "predict"
        mean, std = answers(model, kind)
        same = all(a.tobytes() == b.tobytes() for a, b in zip((mean, std), expected))
        if is_damage or name == "other_order":
            return what, "same", None if same else "it predicts otherwise"
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
            return what, "accepted", f"its answers are {mean}, {std}"
        for name, later in LATER.items():
            stage = name
            with suppress(HemfError):
                later(model, kind)
        return what, "same" if same else "another model", None
    except ModelFileError as error:
        if peak > FACTOR * len(content) + ALLOWANCE:
            return what, "refused", f"{peak:,} bytes of memory for a file of {len(content):,}"
        wrong = None if stage == "load" and str(path) in str(error) else f"{stage}: {error}"
        return what, "refused", wrong
    except HemfError as error:
        wrong = f"load: {type(error).__name__}: {error}" if stage == "load" else None
        return what, f"refused by {stage}", wrong
    except SlowError:
        return what, "slow", f"{stage}: more than {LONGEST} s"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{stage}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        return what, "raw", message
    finally:
        signal.alarm(0)


LATER: dict[str, Callable[[HeMF, str], Any]] = {
    "recommend": lambda model, kind: model.recommend(asked(kind)[0][1], 3),
    "communities": lambda model, kind: model.communities("item"),
    "explain": lambda model, kind: model.explain(asked(kind)[0][1], asked(kind)[1][1]),
    "learn": lambda model, kind: model.partial_fit(rows_of(kind, 4, 3)),
}


@cache
def _expected(kind: str) -> tuple[np.ndarray, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.hemf"
        path.write_bytes(original(kind))
        model = HeMF.load(path)
        found = answers(model, kind)
        for later in LATER.values():  # so that everything is compiled before files are opened
            later(model, kind)
        return found


def open_some(seed: int, numbers: list[int], folder: Path) -> Iterator[tuple[int, list[Any]]]:
    """Open files in a process of its own, and in another one after a crash."""
    while numbers:
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            os.close(reading)
            limit = resource.getrlimit(resource.RLIMIT_AS)[1]
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), limit))
            signal.signal(signal.SIGALRM, too_slow)
            with os.fdopen(writing, "w") as results:
                for number in numbers:
                    found = open_one(seed, number, folder / "model.hemf")
                    results.write(json.dumps([number, *found]) + "\n")
                    results.flush()
            os._exit(0)
        os.close(writing)
        done = 0
        with os.fdopen(reading) as results:
            for line in results:
                number, *found = json.loads(line)
                done += 1
                yield number, found
        _, status = os.waitpid(process, 0)
        if done < len(numbers):
            kind, name, _, _ = file_of(seed, numbers[done])
            yield numbers[done], [f"{kind}: {name}", "crash", f"the process ended with {status}"]
            done += 1
        numbers = numbers[done:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=4000, help="files in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of the one file to open")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for kind in KINDS:
        _expected(kind)
    numbers = [*range(options.count)] if options.only is None else [options.only]
    tally: dict[str, Counter[str]] = {}
    n_wrong, begun = 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for start in range(0, len(numbers), CHUNK):
            for number, (what, result, wrong) in open_some(
                options.seed, numbers[start : start + CHUNK], folder
            ):
                tally.setdefault(what.partition(": ")[2], Counter())[result] += 1
                if wrong is not None:
                    n_wrong += 1
                    print(f"--seed {options.seed} --only {number}: {what}: {wrong}", flush=True)
        left = [path.name for path in folder.iterdir() if path.name != "model.hemf"]
    figures = {
        "files": len(numbers), "seed": options.seed, "wrong": n_wrong, "left": left,
        "seconds": round(time.perf_counter() - begun, 1),
        **{name: dict(sorted(results.items())) for name, results in sorted(tally.items())},
    }  # fmt: skip
    print(json.dumps(figures, indent=1))
    sys.exit(bool(n_wrong or left))


if __name__ == "__main__":
    main()
