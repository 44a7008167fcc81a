"""All benchmarks of speed and memory, one after the other, with their bars.

    python benchmarks/run.py

Accuracy has commands of its own: ``python benchmarks/accuracy.py`` for all data sets,
``python benchmarks/communities.py`` for what communities are worth.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = ("startup.py", "reading.py", "sweep.py", "memory.py")


def main() -> None:
    missed = []
    for part in PARTS:
        print(f"== {part}", flush=True)
        if subprocess.run([sys.executable, str(Path(__file__).with_name(part))]).returncode:
            missed.append(part)
    if missed:
        raise SystemExit(f"a bar was missed in {', '.join(missed)}")


if __name__ == "__main__":
    main()
