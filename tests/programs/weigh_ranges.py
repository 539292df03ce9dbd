"""Build a table of ranges of a model whose weights are found to be faster padded.

    python weigh_ranges.py model.py:Head TABLE.json

Prints as JSON the keys of the table, and how many rows each run of a bucket tuned.
"""

from __future__ import annotations

import json
import sys

import warmup
from warmup.tuning import weights as measure


def main() -> None:
    model, table = sys.argv[1:]
    measure._pays = lambda *_: True  # timings decide no test
    report = warmup.build(
        model,
        "8",
        table,
        options=warmup.BuildOptions(
            device="cpu",
            pad_weights=True,
            policy="range",
            fused_top_k=0,  # how a row is measured is not the matter
        ),
    )
    tuned = {bucket.name: bucket.tuned for bucket in report.buckets}
    sys.stdout.write(json.dumps({"keys": sorted(report.table.rows), "tuned": tuned}) + "\n")


if __name__ == "__main__":
    main()
