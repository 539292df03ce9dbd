"""Builds and races the models of the zoo, as many as a time allows; the next call goes on.

    python docs/benchmarks/zoo.py --out OUT --limit 560 [--models vit,bert-large]

A model is built by `warmup build` in a process of its own with empty caches. Then it is raced by
`zoo_race.py`: eager, default, cold max-autotune, the table, and the table with padded weights.

What was measured of a model is in OUT/zoo-NAME.json, its table and its logs are in OUT/NAME. A
model is done when it was built and raced on one machine, with one source of warmup; what another
machine or source began is begun anew. A build that the end of the limit has ended goes on with the
rows that it has; a race begins anew. A model that failed says why, and is tried again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from driver import HERE, ROOT, StoppedError, add_options, now, run_program, say
from zoo_models.entries import SERVED, TINY, Entry

from warmup.core.files import replace_bytes

PACKAGES = ("torch", "triton", "transformers", "timm")
_LEAST_S = 60.0  # to begin with anything

Document = dict[str, Any]


class Zoo:
    """The models that are measured in *out* until *deadline*, by the clock of `time.monotonic`."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.out = asked, asked.out.resolve()
        self.deadline = time.monotonic() + asked.limit
        self.origin = {
            "machine": machine(),
            "source": source_digest(),
            "packages": {name: _version(name) for name in PACKAGES},
            "python": platform.python_version(),
        }

    def measure(self, entry: Entry) -> Document:
        """Build and race *entry*, or go on with it; return its document, which is on disk."""
        path = self.out / f"zoo-{entry.name}.json"
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if is_done(found) and not self.asked.again:
            return found
        folder = self.out / entry.name
        if {name: found.get(name) for name in self.origin} != self.origin:
            shutil.rmtree(folder, ignore_errors=True)
            found = {}
        folder.mkdir(parents=True, exist_ok=True)
        given = {"name": entry.name, "function": entry.function}
        given |= {"dims": entry.dims, "inputs": entry.inputs}
        document: Document = {"builds": {}, **found, **given, **self.origin, "failure": None}
        try:
            build = document["builds"].setdefault("table", {"seconds": 0.0, "created": now()})
            if "rows" not in build:
                build |= self.build(entry, folder, build["seconds"])
                self.keep(path, document)
            document["race"] = self.race(entry, folder)
        except StoppedError as stopped:
            document["failure"] = str(stopped)
        self.keep(path, document)
        return document

    def keep(self, path: Path, document: Document) -> None:
        """Write *document*, whole or not at all."""
        replace_bytes(path, f"{json.dumps(document, indent=1, sort_keys=True)}\n".encode())

    def build(self, entry: Entry, folder: Path, before_s: float) -> Document:
        """Build the table; return its facts, with the seconds of earlier tries."""
        table, begun = folder / "table.json", time.monotonic()
        words = ["build", "-vv", *entry.words, "--out", str(table), "--json"]
        words += ["--device", self.asked.device]
        text = self.run([sys.executable, "-m", "warmup", *words], folder / "build.log")
        built = json.loads(text)
        judged = [bucket["judgement"] for bucket in built["buckets"]]
        return {
            "seconds": round(before_s + time.monotonic() - begun, 1),
            "stages": built["stages"],
            "rows": built["rows"],
            "digest": built["digest"],
            "problems": len(built["problems"]),
            "known": len(built["known"]),
            "not_tuned": built["not_tuned"],
            "distrusted": built["distrusted"],
            "unstable": built["unstable"],
            "uncovered": [bucket["uncovered"] for bucket in built["buckets"]],
            "judgements": judged,
        }

    def race(self, entry: Entry, folder: Path) -> Document:
        """Race *entry* from its table; return the comparisons by launch, and their doubts."""
        result = folder / "race.json"
        request = {
            "model": entry.model,
            "dims": list(entry.dims),
            "inputs": list(entry.inputs),
            "device": self.asked.device,
            "rounds": self.asked.rounds,
            "variants": self.asked.variants,
            "table": str(folder / "table.json"),
            "out": str(folder),
        }
        words = [sys.executable, str(HERE / "zoo_race.py"), json.dumps(request), str(result)]
        self.run(words, folder / "race.log")
        raced: Document = json.loads(result.read_text(encoding="utf-8"))
        return raced

    def run(self, words: Sequence[str], log: Path) -> str:
        """Return what *words* print, run with empty caches until the deadline.

        Raises:
            StoppedError: the program failed or was ended; *log* has what it said.
        """
        left = self.deadline - time.monotonic()
        if left < _LEAST_S:
            raise StoppedError(f"{max(left, 0):.0f} s are left: not begun")
        return run_program(words, log, left)


def is_done(document: Document) -> bool:
    """Whether the model of *document* was built and raced."""
    return "race" in document and document["failure"] is None


def machine() -> Mapping[str, Any]:
    """Return which machine this is until it starts again: no other has this name and these GPUs."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    gpus = []
    if program := shutil.which("nvidia-smi"):
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False)
        gpus = listed.stdout.splitlines()
    return {
        "boot": boot.read_text(encoding="utf-8").strip() if boot.exists() else platform.node(),
        "gpus": gpus,
        "cores": os.cpu_count(),
    }


def source_digest() -> str:
    """Return a digest of warmup's source files, which a version does not tell apart."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "warmup").rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def line_of(document: Document) -> str:
    """Return one line of the terminal on a model."""
    head = f"{document['name']:18}"
    if not is_done(document):
        return f"{head}{' '.join((document['failure'] or 'nothing').split())[-200:]}"
    build = document["builds"]["table"]
    parts = [f"build {build['seconds']:.0f} s, {build['rows']} rows"]
    for launch, raced in document["race"]["launches"].items():
        for bucket in raced["buckets"]:
            us = {each["name"]: each["median_us"] for each in bucket["variants"]}
            sizes = " ".join(f"{name}={size}" for name, size in bucket["bucket"].items())
            times = ", ".join(f"{name} {value:g}" for name, value in us.items())
            parts.append(f"{launch} {sizes}: {times}")
    return head + "\n  ".join(parts)


def main() -> None:
    """Measure what is asked, in order, and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    add_options(parser, "device", "limit")
    parser.add_argument("--models", help="names of zoo_models/entries.py; default all, in order")
    parser.add_argument("--tiny", action="store_true", help="the same architectures, for a CPU")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--variants", help="as of `warmup compare`; default all")
    parser.add_argument("--again", action="store_true", help="also models that are done")
    asked = parser.parse_args()
    entries = TINY if asked.tiny else SERVED
    names = asked.models.split(",") if asked.models else list(entries)
    zoo, done = Zoo(asked), 0
    for name in names:
        document = zoo.measure(entries[name])
        say(line_of(document))
        done += is_done(document)
    say(f"{done} of {len(names)} models are done")


if __name__ == "__main__":
    main()
