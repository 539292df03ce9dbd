"""Starts of a server, each in a fresh process with empty caches; the next call goes on.

    python docs/benchmarks/starts.py --model FILE:NAME --dims "batch=1,8" --input "x=[batch,64]"
        --out results/starts --limit 560

The kinds of start, each until every bucket was served once:

- `default`, `max-autotune`: torch.compile alone, the second without CUDA graphs of its own.
- `mega-cache` loads what a `max-autotune` start saved by torch.compiler.save_cache_artifacts.
- `table`: torch.compile under an installed table, `bundle-graphs`: with the table's bundle too.
- With `-layers` behind it, such as `table-layers`: each module in --layers is compiled for itself,
  and the rest of the model is not; table and bundle are made from a program that does so.
- With `-warm` behind it: the kind, and once more over the caches that its start left.

With --record each call is recorded in a CUDA graph after the first, as engines do, and replayed.

A line of JSON is printed for each table and each start as they come. OUT/NAME.json has them all,
OUT/NAME has the tables and the logs of the builds. What is there is not made again. How fast a call
is afterwards is ``call_us`` here, and `warmup compare` measures with more care.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from driver import HERE, StoppedError, add_options, ask_fresh, now, run_program, say, write

from warmup.core.files import temporary_folder
from warmup.core.processes import in_turn

LAYERS = "-layers"
WARM = "-warm"
_LEAST_S = 20.0  # to begin with anything


class Starts:
    """The starts of one model, and the tables that some of them need, until a deadline."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.deadline = asked, time.monotonic() + asked.limit
        self.folder = asked.out.resolve() / asked.name
        self.folder.mkdir(parents=True, exist_ok=True)
        names = ("model", "dims", "inputs", "device", "layers", "record")
        case = {name: getattr(asked, name) for name in names}
        self.path = self.folder.parent / f"{asked.name}.json"  # a name may have a dot
        if self.path.exists():
            self.document: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            if self.document["case"] != case:
                raise SystemExit(f"{self.path} has starts of another case")
        else:
            machine = ask_fresh("machine", device=asked.device)
            self.document = {"name": asked.name, "case": case, "machine": machine}
            self.document |= {"created": now(), "builds": {}, "starts": []}
        self.case = {**case, "records": case["record"]}
        del self.case["record"]

    @property
    def left_s(self) -> float:
        left = self.deadline - time.monotonic()
        if left < _LEAST_S:
            raise StoppedError("the limit is over")
        return left

    def keep(self, what: str, found: dict[str, Any]) -> None:
        write(self.path, self.document)
        say(json.dumps({what: found}))

    def measure(self) -> None:
        """Start each kind as often as it is asked for."""
        kinds, once = self.asked.starts.split(","), self.asked.once.split(",")
        for repeat in range(self.asked.repeats):
            for kind in in_turn(kinds, repeat):
                done = sum(start["start"] == kind for start in self.document["starts"])
                if done <= repeat and not (repeat and kind in once):
                    self.start(kind)

    def start(self, kind: str) -> None:
        """Start *kind* once; make its table and its bundle before, where there is none."""
        own: dict[str, Any] = {"artifacts": str(self.folder / "mega-cache")}
        if kind.startswith(("table", "bundle")):
            own["table"] = str(self.table(LAYERS if LAYERS in kind else ""))
        if kind.startswith("bundle"):
            own["bundle"] = str(Path(own["table"]).with_suffix(".bundle"))
        plain = kind.removesuffix(WARM)
        with temporary_folder("warmup-starts-") as caches:
            for name in (plain, kind) if kind != plain else (kind,):
                words = {**self.case, **own, "kind": plain, "left_s": self.left_s}
                start = {**ask_fresh("start", str(caches), **words), "start": name}
                self.document["starts"].append(start)
                self.keep("start", start)

    def table(self, form: str) -> Path:
        """Return the table of the whole model, or of its compiled layers, beside its bundle."""
        path = self.folder / f"table{form}.json"
        if self.asked.table and not form and not path.exists():
            shutil.copy(self.asked.table, path)
            shutil.copy(Path(self.asked.table).with_suffix(".bundle"), path.with_suffix(".bundle"))
        if f"table{form}" in self.document["builds"] or (self.asked.table and not form):
            return path
        begun, log = time.monotonic(), self.folder / f"build{form}.log"
        words = [sys.executable, "-m", "warmup", "build", "--json", "--out", str(path)]
        words += ["--device", self.asked.device]
        if form:
            case = json.dumps({**self.case, "kind": f"default{form}"})
            words += ["--freezing", "--", sys.executable, str(HERE / "server.py"), case]
        else:
            words += ["--model", self.asked.model, "--bundle", "--set", "bundle_graphs=default"]
            words += [word for text in self.asked.dims for word in ("--dims", text)]
            words += [word for text in self.asked.inputs for word in ("--input", text)]
        built = json.loads(run_program(words, log, self.left_s))
        seconds = round(time.monotonic() - begun, 1)
        if form:
            own = {"kind": f"table{form}", "table": str(path), "left_s": self.left_s}
            ask_fresh("pack", **{**self.case, **own})
        table = json.loads(path.read_text(encoding="utf-8"))
        found = {"seconds": seconds, "stages": built.get("stages")}
        found["digest"] = table["provenance"]["digest"]
        found["rows"] = sum(map(len, table["rows"].values()))
        found["bundle_bytes"] = path.with_suffix(".bundle").stat().st_size
        self.document["builds"][f"table{form}"] = found
        self.keep("build", {f"table{form}": found})
        return path


def main() -> None:
    """Measure until all is there, or the limit is over; exit with 3 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser, "model", "table", "device", "limit")
    parser.add_argument("--dims", action="append", default=[], help="as for warmup build")
    parser.add_argument("--input", action="append", default=[], dest="inputs")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder")
    parser.add_argument("--name", help="by default starts- and that of the model")
    parser.add_argument("--starts", default="default,table,bundle-graphs,max-autotune")
    parser.add_argument("--once", default="max-autotune", help="kinds of the first repeat only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", default="", help="path of the repeated modules in the model")
    parser.add_argument("--record", action="store_true", help="record each call in a CUDA graph")
    asked = parser.parse_args()
    file, _, name = asked.model.partition(":")
    asked.name = asked.name or f"starts-{name.partition('{')[0] or Path(file).stem}"
    try:
        Starts(asked).measure()
    except StoppedError as stopped:
        say(json.dumps({"stopped": str(stopped)}))
        sys.exit(3)


if __name__ == "__main__":
    main()
