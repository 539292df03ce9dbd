"""Keeps what `zoo.py` measured: ``python docs/benchmarks/ship_zoo.py OUT [NAME...]``.

The table of each model that is done, or of each NAME, becomes tables/DEVICE/zoo.NAME.bf16.json, its
result docs/benchmarks/results/zoo-GPU-NAME.json, where GPU is the device's second word, and the
times of all candidates results/timings/GPU-NAME.jsonl.gz, with the model's name as their source.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from pathlib import Path

from driver import HERE, say
from zoo import is_done

from warmup.table.store import read

TABLES = HERE.parents[1] / "tables"
_FOLDER = re.compile(r'(?<=")/[^"]*/(docs/benchmarks/[^"]*|[^/"]+/table\.json)(?=")')


def shared(text: str) -> str:
    """Return the result *text* without folders and marks of the machine that it was measured on."""
    document = json.loads(_FOLDER.sub(r"\1", text))
    del document["machine"]
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def ship(out: Path, name: str) -> None:
    """Copy the table and the result of *name* into this checkout."""
    found = out / f"zoo-{name}.json"
    if not is_done(json.loads(found.read_text(encoding="utf-8"))):
        say(f"{name}: not done, left out")
        return
    table = out / name / "table.json"
    slug = read(table).provenance.runtime.device.slug
    (TABLES / slug).mkdir(exist_ok=True)
    shutil.copyfile(table, TABLES / slug / f"zoo.{name}.bf16.json")
    result = HERE / "results" / f"zoo-{slug.split('-')[1]}-{name}.json"
    result.write_text(shared(found.read_text(encoding="utf-8")), encoding="utf-8")
    lines = (out / name / "table.jsonl").read_text(encoding="utf-8").splitlines()
    named = "".join(json.dumps({**json.loads(line), "source": name}) + "\n" for line in lines)
    timings = HERE / "results/timings" / f"{slug.split('-')[1]}-{name}.jsonl.gz"
    timings.write_bytes(gzip.compress(named.encode(), mtime=0))
    say(f"{name}: {slug}")


def main() -> None:
    """Ship what is named, or all."""
    out = Path(sys.argv[1])
    names = [path.stem.removeprefix("zoo-") for path in sorted(out.glob("zoo-*.json"))]
    for name in sys.argv[2:] or names:
        ship(out, name)


if __name__ == "__main__":
    main()
