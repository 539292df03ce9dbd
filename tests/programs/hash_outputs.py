"""One start of docs/benchmarks/bits.py in this process: ``python hash_outputs.py CASE``, as JSON.

Prints the hash of each bucket's outputs, and what was measured, hit and missed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/benchmarks"))
    from bits import start

    sys.stdout.write(json.dumps(start(spawned=time.monotonic(), **json.loads(sys.argv[1]))) + "\n")


if __name__ == "__main__":
    main()
