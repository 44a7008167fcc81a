"""All benchmarks of speed and memory, one after the other, with their bars.

    python benchmarks/run.py

Accuracy has a command of its own: ``python benchmarks/accuracy.py``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = ("startup.py", "reading.py", "sweep.py", "memory.py")


def main() -> None:
    failed = []
    for part in PARTS:
        print(f"== {part}", flush=True)
        if subprocess.run([sys.executable, str(Path(__file__).with_name(part))]).returncode:
            failed.append(part)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
