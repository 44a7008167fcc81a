"""Machine code on disk: damaged, of another version, shared, read-only, or not there at all."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import hemf
from hemf.errors import CacheWarning
from hemf.kernels import compile as compiling
from hemf.kernels.structures import Vector

PACKAGE = Path(hemf.__file__).parent


def tripled(x: Vector, y: Vector) -> None:
    for k in range(x.size):
        y[k] = 3.0 * x[k]


def squared(x: Vector, y: Vector) -> None:
    for k in range(x.size):
        y[k] = x[k] * x[k]


def run(function: Any, *, factor: Any = lambda x: 3.0 * x) -> int:
    """Compile or load a function, check what it computes, and say how often it was loaded."""
    kernel = compiling.kernel(function)
    x = np.arange(5.0)
    y = np.empty(5)
    code = kernel.compiled(np.float64)
    code(x, y)
    assert y.tolist() == factor(x).tolist()
    return int(sum(code.stats.cache_hits.values()))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path / "hemf"


@pytest.fixture
def file(folder: Path) -> Path:
    assert run(tripled) == 0
    (path,) = folder.iterdir()
    assert run(tripled) == 1
    return path


def restored(file: Path, contents: bytes) -> None:
    assert run(tripled) == 0  # what is damaged is compiled …
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_bytes() != contents
    assert run(tripled) == 1  # … and written again


def damages(rng: np.random.Generator, whole: bytes) -> Iterator[bytes]:
    """Endless ways in which a file is not what was written."""
    while True:
        at = int(rng.integers(len(whole)))
        noise = rng.bytes(int(rng.integers(1, 200)))
        yield whole[:at]
        yield rng.bytes(int(rng.integers(len(whole))))
        yield whole[:at] + noise + whole[at + len(noise) :]
        yield whole[:at] + noise
        yield whole[:at] + bytes([whole[at] ^ (1 << int(rng.integers(8)))]) + whole[at + 1 :]
        yield whole + noise
        yield whole[:at] + bytes(len(whole) - at)  # what a crash leaves of a file


@pytest.mark.parametrize(
    "contents",
    [b"", b"\0", b"random", compiling.MAGIC, compiling.MAGIC + bytes(32), b"\x80\x05."],
    ids=repr,
)
def test_a_damaged_file_is_compiled_and_written_again(file: Path, contents: bytes) -> None:
    file.write_bytes(contents)
    restored(file, contents)


@pytest.mark.parametrize("count", [14, pytest.param(300, marks=pytest.mark.slow)])
def test_no_damage_is_loaded(file: Path, count: int) -> None:
    whole = file.read_bytes()
    for _, contents in zip(
        range(count), damages(np.random.default_rng(count), whole), strict=False
    ):
        if contents != whole:
            file.write_bytes(contents)
            restored(file, contents)


def test_a_damaged_file_is_logged_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_bytes(b"")
    with caplog.at_level("INFO", logger="hemf"):
        run(tripled)
        run(tripled)
    (record,) = caplog.records
    assert str(file) in record.getMessage()


def test_a_file_of_another_function_is_not_loaded(file: Path) -> None:
    """Its checksum is right, and its code would give wrong results."""
    run(squared, factor=np.square)
    (other,) = set(file.parent.iterdir()) - {file}
    shutil.copy(other, file)
    assert run(tripled) == 0
    assert run(tripled) == 1


@pytest.mark.parametrize("version", ["numba", "llvmlite"])
def test_a_file_of_another_version_is_not_loaded(
    file: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getattr(compiling, version), "__version__", "0.1")
    assert run(tripled) == 0
    assert len(list(file.parent.iterdir())) == 2


def test_a_whole_file_that_cannot_be_rebuilt_is_compiled(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise EOFError

    with monkeypatch.context() as patch:
        patch.setattr(compiling.Contents, "rebuild", broken)
        assert run(tripled) == 0
    assert run(tripled) == 1


def test_functions_that_enclose_values_are_not_kept(folder: Path) -> None:
    for factor in (2.0, 4.0):

        def enclosing(x: Vector, y: Vector) -> None:
            for k in range(x.size):
                y[k] = factor * x[k]  # noqa: B023

        assert run(enclosing, factor=lambda x, f=factor: f * x) == 0
    assert not folder.exists()


def test_what_a_killed_process_left_is_removed(file: Path) -> None:
    old = file.with_name(f"{file.name}.0123456789abcdef.tmp")
    young = file.with_name(f"{file.name}.fedcba9876543210.tmp")
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    file.unlink()
    run(tripled)
    assert not old.exists()
    assert young.exists()  # another process may be writing it


def test_an_error_while_writing_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling.os, "replace", full)
    with pytest.raises(KeyboardInterrupt):
        compiling.replace(file, b"new")
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_user_without_a_home_gets_no_folder_named_tilde(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "~/.cache")  # what expanduser leaves
    assert all(folder.is_absolute() for folder in compiling.folders())


# -- in processes of their own ---------------------------------------------------------------------

FIT = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import numpy as np
    from hemf.kernels import gibbs
    code = gibbs.outer_products.compiled("float32")
    hits = sum(code.stats.cache_hits.values())
print(json.dumps({"hits": hits, "warnings": [[w.category.__name__, str(w.message), w.filename]
                                             for w in caught]}))
"""

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


def obey_permissions() -> None:
    """Take from root the right to write where permissions forbid it."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")


def compile_in(package: Path, home: Path, **environment: str) -> dict[str, Any]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    result = subprocess.run(
        [sys.executable, "-c", FIT],
        env={**kept, "PYTHONPATH": str(package), "HOME": str(home), **environment},
        preexec_fn=obey_permissions, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    return dict(json.loads(result.stdout))


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A copy of the package and a home, neither of which can be written to."""
    if not sys.platform.startswith("linux"):
        pytest.skip("drops privileges as Linux does it")
    package, home = tmp_path / "site", tmp_path / "home"
    shutil.copytree(PACKAGE, package / "hemf", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "hemf" / "kernels" / "__pycache__").mkdir()
    home.mkdir()
    protect([package, home], 0o555)
    yield package, home
    protect([package, home], 0o755)


def protect(trees: list[Path], mode: int) -> None:
    for tree in trees:
        for path in [tree, *(p for p in tree.rglob("*") if p.is_dir())]:
            path.chmod(mode)


def test_without_a_writable_folder_kernels_compile_and_one_warning_names_the_remedy(
    installed: tuple[Path, Path], tmp_path: Path
) -> None:
    package, home = installed
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    for environment in ({}, {"NUMBA_CACHE_DIR": str(locked)}):
        found = compile_in(package, home, **environment)
        assert found["hits"] == 0
        ((category, message, filename),) = found["warnings"]
        assert category == CacheWarning.__name__
        assert "Set NUMBA_CACHE_DIR to a writable folder" in message
        assert filename == "<string>"  # the line that called, not one of ours


def test_a_cache_that_can_only_be_read_is_used(
    installed: tuple[Path, Path], tmp_path: Path
) -> None:
    package, home = installed
    chosen = tmp_path / "chosen"
    protect([package], 0o755)
    assert compile_in(package, home) == {"hits": 0, "warnings": []}
    protect([package], 0o555)
    assert compile_in(package, home) == {"hits": 1, "warnings": []}  # beside the source
    assert compile_in(package, home, NUMBA_CACHE_DIR=str(chosen)) == {"hits": 1, "warnings": []}
    assert len(list((chosen / "hemf").iterdir())) == 1  # what is loaded is kept there too


def test_a_read_only_cache_dir_is_used(installed: tuple[Path, Path], tmp_path: Path) -> None:
    package, home = installed
    chosen = tmp_path / "chosen"
    assert compile_in(package, home, NUMBA_CACHE_DIR=str(chosen)) == {"hits": 0, "warnings": []}
    protect([chosen], 0o555)
    assert compile_in(package, home, NUMBA_CACHE_DIR=str(chosen)) == {"hits": 1, "warnings": []}
    for file in (chosen / "hemf").iterdir():
        file.write_bytes(b"damaged")  # allowed: the files are not protected
    found = compile_in(package, home, NUMBA_CACHE_DIR=str(chosen))
    assert [category for category, *_ in found["warnings"]] == [CacheWarning.__name__]
    protect([chosen], 0o755)


def test_processes_may_fill_one_cache_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(PACKAGE.parent)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FIT], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert json.loads(out)["warnings"] == []
    files = [path.name for path in (tmp_path / "hemf").iterdir()]
    assert all(name.endswith(".nbc") for name in files)
    assert len(files) == len(set(files))
    last = subprocess.run(
        [sys.executable, "-c", FIT], env=environment, capture_output=True, check=True
    )
    assert json.loads(last.stdout)["hits"] == 1
