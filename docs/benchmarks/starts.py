"""Starts of a server, each in a fresh process, interleaved: every repeat runs each kind once.

    python docs/benchmarks/starts.py --model examples/mlp.py:MLP --seqlens 16,64,256 --build
        --starts default,max-autotune-gemm,table --table table.json --results mlp-cpu.json
    python docs/benchmarks/starts.py --together --model examples/llama_block.py:LlamaBlocks
        --seqlens 16,256 --table tables/nvidia-h200/llama-blocks.bf16.json --results parallel.json

Kinds of start: `default`, `default-freezing`, `max-autotune`, `max-autotune-gemm` and `mega-cache`
(which loads what a `max-autotune` start saved) are torch alone; `table` and `table-max-autotune`
are torch.compile under an installed table; `bundle` and `bundle-graphs` have its compiled kernels,
or graphs, as well. A kind with `-warm` after its name, such as `default-warm`, starts twice over
the same caches, empty at first: the first start counts for the kind without `-warm`.

How fast a call is afterwards, `warmup compare` measures.

With --together the kinds are the two ways in which `warmup.compile` makes its buckets: one after
the other, and together by `CompiledModel.warm`. Each way starts with empty caches and once more
over the caches that it left. A pause stands for more to load than the model has: the process sleeps
so long before it compiles, while inductor's workers start.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from driver import add_options, ask_fresh, now, say, write

from warmup.bench.race import Answer
from warmup.core.processes import in_turn

WAYS = ("one after the other", "together")
CACHES = ("empty", "warm")

Case = dict[str, Any]


def run(case: Case, caches: Sequence[str]) -> Iterator[Answer]:
    """Yield one start for each of *caches*, all over the same folder, empty at first."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for state in caches:
            start = ask_fresh("start", folder, **case)
            names = ("seconds", "benchmarks", "configs_timed", "hits", "misses", "kernels_compiled")
            shown = [f"{name} {start[name]}" for name in names if name in start]
            say(f"{case['kind']}, {state} caches:", ", ".join(shown))
            yield {"caches": state, **start}


def interleaved(asked: argparse.Namespace, case: Case, folder: Path) -> Iterator[Answer]:
    """Yield the document of all starts so far, after each start."""
    kinds, once = asked.starts.split(","), asked.once.split(",")
    model = {name: case[name] for name in ("model", "seqlens", "device")}
    build = None
    if asked.build:
        build = dict(ask_fresh("build", **model, out=case["table"]))
        build["failed"] = build.pop("without_time")  # a word that an answer cannot have
    bundles: dict[str, dict[str, Any]] = {}
    for kind in {"bundle", "bundle-graphs"}.intersection(kinds):
        (folder / kind).mkdir()
        copy = shutil.copy(case["table"], folder / kind)
        graphs_for = "default" if kind == "bundle-graphs" else None
        packed = ask_fresh("build", **model, out=copy, bundle=True, bundle_graphs=graphs_for)
        bundles[kind] = packed["bundle"]
    paths = {kind: bundle.pop("path") for kind, bundle in bundles.items()}
    starts: list[Answer] = []
    document = {
        "name": asked.results.stem,
        "model": asked.model,
        "dtype": "own",
        "seqlens": asked.seqlens,
        "machine": ask_fresh("machine", device=asked.device),
        "created": now(),
        "build": build,
        "bundles": bundles,
        "starts": starts,
    }
    for repeat in range(asked.repeats):
        for kind in in_turn(kinds, repeat):
            if not repeat or kind not in once:
                artifacts = str(folder / "mega-cache")
                own = {"kind": kind, "bundle": paths.get(kind), "artifacts": artifacts}
                for start in run(case | own, CACHES if kind.endswith("-warm") else CACHES[:1]):
                    is_first = kind.endswith("-warm") and start["caches"] == CACHES[0]
                    named = {"start": kind.removesuffix("-warm")} if is_first else {}
                    starts.append({"repeat": repeat, **start, **named})
                    yield document


def together(asked: argparse.Namespace, case: Case) -> Iterator[Answer]:
    """Yield the document of all starts by `warmup.compile` so far, after each start."""
    starts: list[Answer] = []
    facts = {**case, "pause": asked.pause, "policy": "exact"}
    for number in range(asked.repeats):
        for way in in_turn(WAYS, number):
            own = {**case, "kind": way, "pause": asked.pause}
            for start in run(own, CACHES[:1] if asked.empty_only else CACHES):
                # The table is installed before: what counts is the time of the buckets alone.
                seconds = {"seconds": start["call_seconds"]}
                starts.append({**start, **seconds, "way": way, "round": number})
                yield {"case": facts, "created": now(), "starts": starts}


def main() -> None:
    """Write the document anew after each start."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser, "model", "seqlens", "table", "device", "results")
    parser.add_argument("--starts", default="default,max-autotune-gemm,table")
    parser.add_argument("--once", default="", help="kinds that run in the first repeat only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--build", action="store_true", help="build or complete the table first")
    parser.add_argument("--together", action="store_true", help="starts by warmup.compile")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds, with --together")
    parser.add_argument("--empty-only", action="store_true", help="no second start of a way")
    asked = parser.parse_args()
    case = {name: getattr(asked, name) for name in ("model", "seqlens", "table", "device")}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case["table"] = asked.table or str(folder / "table.json") if asked.build else asked.table
        documents = together(asked, case) if asked.together else interleaved(asked, case, folder)
        for document in documents:
            write(asked.results, document)


if __name__ == "__main__":
    main()
