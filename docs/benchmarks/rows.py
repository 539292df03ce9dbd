"""Whether the rows of a model's outputs have the same bits in every bucket, and what that costs.

    python docs/benchmarks/rows.py --model FILE:NAME --dims batch=1,7,64
        --starts invariant.json,plain.json,max-autotune

Each start is a fresh process with empty caches: under a table, strictly, or max-autotune without
any. Inputs of all buckets are the heads of those of the largest, along every dim that differs, and
so outputs are compared with the heads of its outputs: along the batch, or along the tokens of a
causal model. Calls are timed as replays of CUDA graphs with --record. A start named
`range:TABLE` is served by warmup.compile from a table of ranges: --buckets has their ends, and
--random 50 adds as many sizes between the smallest and the largest of --seqlens. The exit code is 1
where a value differs under a table that is invariant, 3 where a start failed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from driver import HERE, StoppedError, add_options, caches_in, numbers, say, write

from warmup.bench.compare import Remote, serve
from warmup.core.files import temporary_folder
from warmup.core.processes import ChildError
from warmup.core.trial import geomean
from warmup.table.store import read

Answer = dict[str, Any]
RANGE = "range:"


def ask(asked: argparse.Namespace, name: str, left_s: float) -> Answer:
    """Return the answer of a start called *name*: a table's path, or a kind without a table."""
    is_table, path = name.endswith(".json"), Path(name.removeprefix(RANGE))
    case: Answer = {"model": asked.model, "dims": asked.dims, "inputs": asked.input}
    case |= {"seqlens": asked.seqlens, "buckets": asked.buckets}
    case |= {"device": asked.device, "records": asked.record, "kind": name}
    if is_table:
        kind = "range" if name.startswith(RANGE) else "table"
        case |= {"kind": kind, "table": str(path.resolve())}
    with temporary_folder("warmup-rows-") as caches:
        words = [str(HERE / "rows.py")]
        with Remote(words, caches / "log", caches_in(str(caches))) as remote:
            try:
                told = remote.ask({"do": "start", "spawned": time.monotonic(), **case}, left_s)
            except ChildError as ended:
                log = (caches / "log").read_text(encoding="utf-8", errors="replace")
                raise StoppedError(f"{log[-3000:]}\n{name}: {ended}") from ended
    return {"start": name, "invariant": is_table and read(path).policy.invariant, **told}


def summary_of(starts: Sequence[Answer]) -> Iterator[Answer]:
    """Yield for each start the values that differ, and its times over those of the last table."""
    plain = next((one for one in reversed(starts) if one["start"].endswith(".json")), None)
    for one in starts:
        ratios = (
            []
            if plain is None
            else [own / base for own, base in zip(one["call_us"], plain["call_us"], strict=True)]
        )
        yield {
            "start": one["start"],
            "invariant": one["invariant"],
            "values": sum(one["values"].values()),
            "differing": sum(one["differing"].values()),
            "by_bucket": {name: count for name, count in one["differing"].items() if count},
            "nonfinite": sum(one["nonfinite"].values()),
            "benchmarks": one["benchmarks"],
            "misses": one.get("misses"),
            "uncovered": one["uncovered"],
            "times_last_table": round(geomean(ratios), 3) if ratios else None,
            "worst": round(max(ratios), 3) if ratios else None,
            "call_us": one["call_us"],
        }


def start(**case: Any) -> Answer:
    """Start a server in this process, and compare what its buckets return."""
    import torch
    from server import Server

    from warmup.models.outputs import dense_parts, tensors_of

    def head(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        for dim, size in enumerate(like.shape):
            whole = whole.narrow(dim, 0, size)
        return whole

    class Heads(Server):  # the inputs of each bucket are the heads of the largest one's
        def load(self) -> None:
            torch.manual_seed(0)
            super().load()
            largest = [leaf for leaf in self.made[-1].leaves() if isinstance(leaf, torch.Tensor)]
            heads = []
            for made in self.made:
                whole = iter(largest)
                heads.append(made.changed(lambda own, whole=whole: head(next(whole), own).clone()))
            self.made = heads

        def first_calls(self) -> Any:
            first = super().first_calls()
            self.plain = [*self.calls]  # a replay of a CUDA graph returns nothing
            return first

    def outputs(call: Any) -> list[torch.Tensor]:
        parts = (part for each in tensors_of(call()) for part in dense_parts(each))
        return [part.clone() for part in parts]

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().view(torch.uint8).reshape(*tensor.shape, -1)

    torch.set_grad_enabled(False)
    server = Heads(**case)
    told = server.start()
    names = [str(each.bucket) for each in server.made]
    whole = outputs(server.plain[-1])
    found: Answer = {"values": {}, "differing": {}, "nonfinite": {}}
    for name, call in zip(names, server.plain, strict=True):
        pairs = [(own, head(full, own)) for own, full in zip(outputs(call), whole, strict=True)]
        differs = [(bits(own) != bits(full)).any(-1).sum() for own, full in pairs]
        found["values"][name] = sum(own.numel() for own, _ in pairs)
        found["differing"][name] = int(sum(differs))
        found["nonfinite"][name] = int(sum((~torch.isfinite(own)).sum() for own, _ in pairs))
    handle = server.handle or getattr(server.served, "handle", None)
    uncovered = {} if handle is None else dict(handle.report().uncovered)
    kept = ("call_us", "seconds", "benchmarks", "device", "torch")
    return {name: told[name] for name in kept} | found | {"uncovered": uncovered} | server.end()


def main() -> None:
    """Make every start, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser, "model", "device", "limit", "results")
    for name in ("--dims", "--input"):
        parser.add_argument(name, action="append", default=[])
    for name in ("--seqlens", "--buckets"):
        parser.add_argument(name, type=numbers, default=[], help="of inputs with one dim, seqlen")
    parser.add_argument("--random", type=int, default=0, help="further sizes of --seqlens")
    parser.add_argument("--starts", required=True, help="tables, or kinds of start")
    parser.add_argument("--record", action="store_true", help="time replays of CUDA graphs")
    asked = parser.parse_args()
    if asked.random:
        between = range(min(asked.seqlens) + 1, max(asked.seqlens))
        asked.seqlens += random.Random(0).sample(between, asked.random)  # noqa: S311  sizes
        asked.seqlens.sort()
    begun, starts, failed = time.monotonic(), list[Answer](), False
    for name in asked.starts.split(","):
        try:
            starts.append(ask(asked, name, asked.limit - (time.monotonic() - begun)))
        except StoppedError as stopped:
            failed = True
            say(json.dumps({"start": name, "failed": str(stopped)[-2000:]}))
        case = {name: getattr(asked, name) for name in ("model", "dims", "seqlens", "buckets")}
        write(asked.results, {**case, "starts": starts})
    summary = [*summary_of(starts)]
    say(*map(json.dumps, summary), sep="\n")
    broken = any(each["differing"] for each in summary if each["invariant"])
    sys.exit(3 if failed else broken)


if __name__ == "__main__":
    child = "".join(sys.argv[1:]).isdigit()
    serve({"start": start}) if child else main()
