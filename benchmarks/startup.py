"""Time to import hemf and to show help, warm, the best of several runs.

python benchmarks/startup.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

REPEATS = 7


def best(*command: str) -> float:
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    bare = best(sys.executable, "-c", "pass")
    yardstick = best(sys.executable, "-c", "import numpy, scipy.sparse") - bare
    ours = best(sys.executable, "-c", "import hemf") - bare
    shown = best(sys.executable, "-m", "hemf.cli", "--help")
    figures = {
        "import hemf / import numpy, scipy.sparse": round(ours / yardstick, 2),
        "bar for import": 3.0,
        "seconds of hemf --help": round(shown, 2),
        "bar for help": 0.7,
        "met": ours <= 3.0 * yardstick and shown <= 0.7,
    }
    print(json.dumps(figures))
    raise SystemExit(not figures["met"])


if __name__ == "__main__":
    main()
