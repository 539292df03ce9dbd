"""Which pad decisions change when the compiled region decides, not inductor's own calls.

    python docs/benchmarks/pad_decisions.py tables TABLE [AFTER]
    python docs/benchmarks/pad_decisions.py model examples/mlp.py:VisionLinear 560,1024,2048 OUT
    python docs/benchmarks/pad_decisions.py shipped OUT [SECONDS [NAMES]]

``tables`` reads, without torch: each pad row of TABLE with the decision of inductor's own calls
(library products with separate pad kernels) and that of the compiled region. With AFTER, a table of
the same model that was built later, TABLE has the first decision and AFTER the second.

``model`` builds a table twice, in two processes: by inductor's own calls, then by regions. Each is
served strictly, without padded weights, and each bucket timed: CUDA graphs, L2 overwritten before
each call. Tables and times are written to the folder OUT.

``shipped`` builds the models of the shipped tables that have pad rows, without padded weights, as
far as SECONDS last (900), and lists what flips: the shipped rows were decided by inductor's own
calls on an H200, so on another GPU the differences are those of the GPU too. Another run goes on.
NAMES are those of the tables to build, with commas between them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warmup.core.ranking import bare_ranked, ranked
from warmup.core.rows import Evidence, Row, Scope
from warmup.table.store import read

USUAL = "16,64,256,560,1024,2048"
SHIPPED = {  # the words of each shipped table that has pad rows
    "mlp.visionlinear": ["examples/mlp.py:VisionLinear", "--seqlens", USUAL],
    "unaligned.gpt2head": [
        *("examples/unaligned.py:Gpt2Head", "--input", "x=[seqlen,768]:bf16"),
        *("--seqlens", "16,1024"),
    ],
    "unaligned.whisperhead": [
        *("examples/unaligned.py:WhisperHead", "--input", "x=[seqlen,1280]:bf16"),
        *("--seqlens", "16,256"),
    ],
    "unaligned.vitpatch": [
        *("examples/unaligned.py:VitPatch", "--input", "x=[seqlen,588]:bf16"),
        *("--seqlens", "1024"),
    ],
    "llama-blocks": ["examples/llama_block.py:LlamaBlocks", "--seqlens", "2,4"],
    "llama-block.qwen": [
        *("examples/llama_block.py:qwen", "--input", "hidden_states=[1,seqlen,3584]:bf16"),
        *("--seqlens", "2,4"),
    ],
    "vision-block.swiglu": ["examples/vision_block.py:SwiGLU", "--seqlens", USUAL],
    "vision-block.swiglu.ranges": [
        *("examples/vision_block.py:SwiGLU", "--seqlens", "16,256,560,1024,2048"),
        *("--policy", "range"),
    ],
}
WAYS = ("own_calls", "regions")
ROUNDS = 24
BAND = 0.03  # the build's near-tie band: within it the GEMM stays as it is


def say(line: str) -> None:
    """Print *line*."""
    sys.stdout.write(f"{line}\n")


def own_decision(evidence: Evidence, winner: str) -> str:
    """Return what inductor's own calls decide; *winner* where the row is theirs."""
    if evidence.scope is not Scope.FUSED:
        return winner
    times = {name: time_us for time_us, name in bare_ranked(evidence)}
    if "padded" not in times or "as_is" not in times:
        return "as_is"
    return "padded" if times["padded"] * (1 + BAND) < times["as_is"] else "as_is"


def both_times(row: Row) -> tuple[tuple[float, str], ...]:
    """Return the time of each way in *row*, also where the ranking was not kept."""
    found = row.evidence
    padded = found.time_us if str(row.winner) == "padded" else found.runner_up_us
    pairs = ((found.library_us, "as_is"), (padded, "padded"))
    return tuple((time_us, name) for time_us, name in pairs if time_us is not None)


def spelled_times(pairs: tuple[tuple[float, str], ...]) -> str:
    """Return both times, as it is first."""
    times = {name: time_us for time_us, name in pairs}
    return " / ".join(f"{times[way]:.1f}" if way in times else "-" for way in ("as_is", "padded"))


def compare(before: dict[str, Row], after: dict[str, Row]) -> Iterator[str]:
    """Yield a line for each pad key of *after*, and the counts."""
    yield "us as it is / padded: own calls, region; decisions before -> after; key"
    flips = total = 0
    for key, row in sorted(after.items()):
        if not key.startswith("pad ") or key not in before:
            continue
        old = before[key]
        first = own_decision(old.evidence, str(old.winner)) if old is row else str(old.winner)
        second = str(row.winner)
        own = bare_ranked(row.evidence) or both_times(old)
        region = ranked(row.evidence) if row.evidence.scope is Scope.FUSED else ()
        flips, total = flips + (first != second), total + 1
        mark = "FLIP " if first != second else "     "
        shown = f"{spelled_times(own):>15} {spelled_times(region):>15}"
        yield f"{mark}{shown}  {first} -> {second}  {key}"
    yield f"{flips} of {total} decisions flip"


def serve(table: str, spelled: str, rows: list[int]) -> dict[str, Any]:
    """Return the device time of each bucket served strictly from *table*, and the counts."""
    import torch

    import warmup
    from warmup.buckets.bucket import parse_buckets
    from warmup.core.method import L2, Launch
    from warmup.inductor.machine import resolve_device
    from warmup.measuring.clock import batch_of
    from warmup.measuring.rounds import run_rounds
    from warmup.models.inferred_inputs import resolve_inputs
    from warmup.models.loading import load_model, make_inputs

    device = resolve_device("auto")
    loaded = load_model(spelled)
    buckets = parse_buckets(",".join(map(str, rows)), None)
    specs = resolve_inputs(loaded, (), buckets, None).specs
    loaded.module.to(device)
    is_gpu = device.type == "cuda"
    launch, l2 = (Launch.CUDAGRAPH, L2.COLD) if is_gpu else (Launch.EAGER, L2.WARM)
    batches = {}
    with torch.no_grad(), warmup.install(table, on_miss="strict") as handle:
        compiled = torch.compile(loaded.module, dynamic=False)
        for size, bucket in zip(rows, buckets, strict=True):
            inputs = make_inputs(loaded, specs, bucket, device, None)
            compiled(*inputs.args, **inputs.kwargs)

            def call(_number: int, inputs: Any = inputs) -> object:
                return compiled(*inputs.args, **inputs.kwargs)

            batches[size] = batch_of(call, device, launch, l2, 1)
        report = handle.report()
        times = run_rounds(batches, ROUNDS)
    return {
        "us": {size: samples.median for size, samples in times.items()},
        "spread": {size: samples.spread for size, samples in times.items()},
        "misses": dict(report.misses),
        "hits": len(report.hits),
    }


def build_and_serve(way: str, spelled: str, sizes: str, out: Path) -> dict[str, Any]:
    """Build a table of *spelled* by *way*, serve it, and return what was measured."""
    import warmup
    from warmup.inductor.pad_mm import hooks

    if way == WAYS[0]:
        hooks.whole_region_of = lambda _: None
    table = out / f"{way}.json"
    started = time.monotonic()
    warmup.build(spelled, seqlens=sizes, out=table, pad_weights=False)
    seconds = time.monotonic() - started
    served = serve(str(table), spelled, [int(size) for size in sizes.split(",")])
    found = {**served, "build_s": seconds}
    (out / f"{way}-served.json").write_text(json.dumps(found, indent=1))
    return found


def run_model(spelled: str, sizes: str, out: Path) -> None:
    """Run both ways in processes of their own, regions first, and print them beside each other."""
    out.mkdir(parents=True, exist_ok=True)
    for way in reversed(WAYS):
        subprocess.run([sys.executable, __file__, way, spelled, sizes, str(out)], check=True)
    found = {way: json.loads((out / f"{way}-served.json").read_text()) for way in WAYS}
    tables = {way: dict(read(out / f"{way}.json").rows) for way in WAYS}
    for line in compare(tables[WAYS[0]], tables[WAYS[1]]):
        say(line)
    say("served, us      " + "".join(f"{size:>16}" for size in sizes.split(",")))
    for way in WAYS:
        cells = [
            f"{found[way]['us'][size]:.1f} ({found[way]['spread'][size]:.1%})"
            for size in sizes.split(",")
        ]
        said = f"hits {found[way]['hits']}, misses {len(found[way]['misses'])}"
        said += f", build {found[way]['build_s']:.0f} s"
        say(f"{way:<16}" + "".join(f"{cell:>16}" for cell in cells) + f"  {said}")


def run_shipped(out: Path, seconds: float, names: list[str]) -> None:
    """Build what the shipped tables *names* are for, and print which of their decisions flip."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    for name in names:
        words = SHIPPED[name]
        table = out / f"{name}.json"
        command = [sys.executable, "-m", "warmup", "build", "--model", *words]
        timings = ["--timings", str(out / f"{name}.jsonl")]  # layers for `warmup pad fit`
        command += ["--no-pad-weights", "--out", str(table), *timings]
        left = end - time.monotonic()
        if left <= 0:
            say(f"{name}: no time left")
            continue
        try:
            code = subprocess.run(command, check=False, timeout=left, stdout=sys.stderr).returncode
            state = f"code {code}"
        except subprocess.TimeoutExpired:
            state = "not finished"
        say(f"{name}: {state}")
        if table.exists():
            before = dict(read(Path("tables/nvidia-h200") / f"{name}.bf16.json").rows)
            for line in compare(before, dict(read(table).rows)):
                say(line)


def main() -> None:
    """Run the command of the arguments."""
    what, *words = sys.argv[1:]
    if what == "tables":
        before = dict(read(Path(words[0])).rows)
        after = before if len(words) == 1 else dict(read(Path(words[1])).rows)
        for line in compare(before, after):
            say(line)
    elif what == "shipped":
        seconds = float(words[1]) if len(words) > 1 else 900.0
        run_shipped(
            Path(words[0]), seconds, words[2].split(",") if len(words) > 2 else list(SHIPPED)
        )
    elif what == "model":
        run_model(words[0], words[1], Path(words[2]))
    else:
        build_and_serve(what, words[0], words[1], Path(words[2]))


if __name__ == "__main__":
    main()
