"""A mix of request sizes, served in several ways; each way in a process of its own, empty caches.

    python docs/benchmarks/mix.py --model examples/llama_block.py:LlamaBlocks
        --buckets 16,256,560,1024,2048 --table TABLE --results OUT.json

Sizes are drawn with a fixed seed, as many small as large ones by ratio. Before anything is timed
each way has served every size once, in the order of the mix: what it compiles or measures then is
counted apart from what it does afterwards, which should be nothing. A request is timed from the
call until the device is done with it. A process starts when the process before it is ready; then
all stay, and the mix is served in rounds, each way once and each round beginning with another way.
A way that is not ready when the *limit* is over, or that ends before the others, is left out, and
the results say why.

On a GPU each round serves the mix once more for what the device alone takes: a wait is launched
before each request, so that all of its kernels are enqueued when the first begins, as they are for
a host that runs ahead.

- `eager`: uncompiled.
- `dynamic-smallest`, `dynamic-largest`: plain torch.compile in mode max-autotune-no-cudagraphs with
  the dim marked dynamic; the first request is the smallest size, or the largest.
- `static`: the same mode with static shapes, every size compiled and tuned for itself.
- `range`, `pad`: `warmup.compile` from the table, with these policies; `pad` from *pad-table*
  where there is one. `pad-graphs`: `pad` in the mode reduce-overhead, with CUDA graphs.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from driver import DAY_S, add_options, ask_fresh, begin, now, numbers, say, write

from warmup.bench.compare import Entrant
from warmup.core.processes import in_turn

WAYS = "eager,dynamic-smallest,dynamic-largest,static,range,pad,pad-graphs"


@dataclass(kw_only=True)
class Way(Entrant):
    """One way to serve, and its process."""

    name: str


def mix_of(largest: int, distinct: int, requests: int, seed: int) -> list[int]:
    """Return the sizes of the requests in order, 1 to *largest*, of so many distinct ones."""
    source = random.Random(seed)  # noqa: S311  the same mix each time is what is wanted
    sizes = {largest}
    while len(sizes) < min(distinct, largest):
        sizes.add(min(largest, max(1, round(math.exp(source.uniform(0, math.log(largest)))))))
    return source.choices(sorted(sizes), k=requests)


def measure(asked: argparse.Namespace, mix: list[int]) -> list[dict[str, Any]]:
    """Serve *mix* in every way and return what each took."""
    until = time.monotonic() + asked.limit
    ways: list[Way] = []
    case = {"mix": mix, "model": asked.model, "buckets": asked.buckets}
    with contextlib.ExitStack() as stack:
        for name in asked.ways.split(","):
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            spawned = time.monotonic()
            remote = stack.enter_context(begin(folder))
            left = max(until - time.monotonic(), 0)
            ways.append(Way(name=name, remote=remote, timeout_s=left, on_failure=say))
            table = asked.pad_table if name.startswith("pad") else asked.table
            case |= {"kind": name, "table": table or asked.table, "spawned": spawned}
            say(f"{name}:", ways[-1].ask("start_mix", **case))
            ways[-1].timeout_s = DAY_S
        for number in range(asked.rounds):
            for way in in_turn([way for way in ways if way.failure is None], number):
                say(f"{way.name}:", way.ask("serve_mix"))
        ends = [(way, way.ask("end_mix")) for way in ways]
    return [{"way": way.name, **(end or {"failed": way.failure})} for way, end in ends]


def main() -> None:
    """Serve in every way in turn, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser, "model", "table", "limit", "results")
    parser.add_argument("--buckets", type=numbers, required=True)
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--pad-table", help="table of the ways that pad, by default --table")
    parser.add_argument("--distinct", type=int, default=24)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    mix = mix_of(max(asked.buckets), asked.distinct, asked.requests, asked.seed)
    machine = ask_fresh("machine", device="auto")
    names = ("model", "buckets", "table", "pad_table", "distinct", "requests", "rounds", "seed")
    document = {
        "runtime": {**machine, "device": machine["device"]["name"]},
        "created": now(),
        "settings": {name: getattr(asked, name) for name in names},
        "mix": mix,
    }
    write(asked.results, {**document, "runs": measure(asked, mix)})


if __name__ == "__main__":
    main()
