"""Build a table of layers compiled once, with frozen weights, and serve it in both forms.

    python build_frozen.py FOLDER

The model is that of build_forms.py; nothing of the build is replaced.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from build_forms import MODEL, QUIET, SIZE, built, said, serve

import warmup
from warmup.core.events import logger


def main() -> None:
    table = Path(sys.argv[1]) / "t.json"
    logger.addHandler(said)
    report = warmup.build(MODEL, layers="once", seqlens=str(SIZE), out=table, **QUIET)
    found = {
        "freezing": report.table.policy.options["freezing"],
        "build": built(report),
        "once": serve(table, "once"),
        "whole": serve(table, "whole", strict=False),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
