"""Hashes of a model's outputs over starts from empty caches; the next call goes on.

    python docs/benchmarks/bits.py --model FILE:NAME --dims "batch=1,8" --input "x=[batch,64]"
        --starts table=25,max-autotune=5,deterministic=2 --devices cuda:0,cuda:1

A start is a fresh process with weights and inputs from fixed seeds (floats of the inputs are normal
times 2 ** -6 to 6), and answers with the SHA-256 of each bucket's outputs: dtype, shape and bytes.
The kinds are those of `starts.py`; `bundle` is the table with its bundle, `deterministic` default
mode under torch's own switch. Each is started as often as stands behind it on each device,
--side-by-side at once with a share of the cores; times are of starts alone, where there are any.
--join adds results of another host. --chaos starts ranks, which share nothing: 1 is killed, 2
delayed, 3 has another table than the digest that all expect, as in `check`, and ends with 10.
The exit code is 1 where starts from the table or ranks differ from that, 3 where some are missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from driver import HERE, StoppedError, add_options, caches_in, say
from starts import Starts

from warmup.bench.compare import Remote, serve
from warmup.core.files import temporary_folder
from warmup.core.processes import ChildError, in_turn
from warmup.table import store
from warmup.table.codec import digest_of

SERVED, BASELINE = ("table", "bundle"), "max-autotune"  # kinds of start
_SEED, _MOST_EXPONENT = 7, 6  # of the inputs
_KILLED, _DELAYED, _OTHER, _DELAY_S = 1, 2, 3, 20.0  # ranks
_KEPT = "device given seconds call_us benchmarks configs_timed hits misses digest bundle_refused"

Answer = dict[str, Any]
Slot = tuple[str, Sequence[int], dict[str, str]]  # a device, cores, and variables of a process


class Bits(Starts):
    """The starts of one model, with their hashes, and the ranks of its server."""

    def __init__(self, asked: argparse.Namespace) -> None:
        super().__init__(asked)
        self.lock, self.document["failed"] = threading.Lock(), []
        self.file = Path(asked.table).resolve() if asked.table else self.table("")
        self.read = store.read(self.file)
        self.digest = digest_of(self.read)
        if self.document.setdefault("digest", self.digest) != self.digest:
            raise SystemExit(f"{self.path} has starts of another table")

    def slots(self) -> list[Slot]:
        """Return where starts run at once: the slots of every device share the cores."""
        devices, cores = self.asked.devices.split(","), sorted(os.sched_getaffinity(0))
        share = len(cores) // (len(devices) * self.asked.side_by_side)
        threads = self.read.provenance.runtime.device.threads
        own = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(64)))).split(",")
        slots: list[Slot] = []
        for place, device in enumerate(devices * self.asked.side_by_side):
            number = device.partition(":")[2]
            gpu = {"CUDA_VISIBLE_DEVICES": names[int(number)]} if number else {}
            slots.append((device, cores[place * share :][:share] or cores, {**own, **gpu}))
        return slots

    def measure(self) -> None:
        """Make every start that is missing, one at a time in each slot."""
        slots, counts = self.slots(), dict(each.split("=") for each in self.asked.starts.split(","))
        done = Counter((start["on"], start["start"]) for start in self.document["starts"])
        queues: dict[str, list[str]] = {device: [] for device, *_ in slots}
        for number in range(max(map(int, counts.values()))):
            for (device, queue), kind in product(queues.items(), in_turn(list(counts), number)):
                if done[device, kind] <= number < int(counts[kind]):
                    queue.append(kind)
        turns = {device: iter(queue) for device, queue in queues.items()}
        with ThreadPoolExecutor(len(slots)) as pool:
            for work in [pool.submit(self.work, slot, turns[slot[0]]) for slot in slots]:
                work.result()

    def work(self, slot: Slot, kinds: Iterator[str]) -> None:
        """Make the starts of *kinds*, which other slots take from too, in *slot*."""
        for kind in kinds:
            start: Answer = {"start": kind, "on": slot[0], "beside": self.asked.side_by_side}
            start |= self.fresh(slot, kind=kind)
            with self.lock:
                self.document["failed" if "failed" in start else "starts"].append(start)
                self.keep("start", start)

    def fresh(self, slot: Slot, *, kill: bool = False, rank: int = 0, **own: Any) -> Answer:
        """Return the answer of a process with empty caches, or how it ``failed``."""
        bundle = str(self.file.with_suffix(".bundle")) if own["kind"] == "bundle" else None
        words = {**self.case, "table": str(self.file), "bundle": bundle, **own}
        os.sched_setaffinity(0, slot[1])  # of this thread, and of what it starts
        with temporary_folder("warmup-bits-") as caches:
            environment = {**caches_in(str(caches)), **slot[2], "RANK": str(rank)}
            words["spawned"] = time.monotonic()
            with Remote([str(HERE / "bits.py")], caches / "log", environment) as remote:
                remote.send({"do": "start", **words})
                while kill and self.left_s and not (caches / "inductor").exists():
                    time.sleep(0.05)
                if kill:
                    remote.end()
                try:
                    return remote.receive(self.left_s)
                except ChildError as ended:
                    return {"failed": str(ended)}

    def chaos(self) -> bool:
        """Start all ranks at once; return whether each ended as it should."""
        slots, other, ranks = self.slots(), self.folder / "other.json", range(self.asked.chaos)
        store.write(other, replace(self.read, rows=dict(list(self.read.rows.items())[1:])))

        def run(rank: int) -> Answer:
            own: Answer = {"table": str(other)} if rank == _OTHER else {}
            own |= {"kind": "table", "expect": self.digest, "kill": rank == _KILLED, "rank": rank}
            own["delay"] = _DELAY_S if rank == _DELAYED else 0.0
            ended = {"rank": rank, **self.fresh(slots[rank % len(slots)], **own)}
            say(json.dumps(ended))
            return ended

        with ThreadPoolExecutor(len(ranks)) as pool:
            ended = self.document["chaos"] = list(pool.map(run, ranks))
        said = {_KILLED: "was killed by SIGKILL", _OTHER: "ended with exit code 10"}
        alone = [each.get("failed", "").startswith(said.get(each["rank"], "")) for each in ended]
        hashes = {json.dumps(each.get("hashes")) for each in ended if each["rank"] not in said}
        self.keep("chaos", {"ranks": len(ranks), "hashes": len(hashes), "alone": all(alone)})
        return all(alone) and len(hashes - {"null"}) == len(hashes) == 1


def summary_of(starts: Sequence[Answer]) -> Iterator[Answer]:
    """Yield for each bucket and kind how many hashes its starts have, and how long a call takes."""
    others = sorted({start["start"] for start in starts} - {BASELINE})
    for number, bucket in enumerate(starts[0]["hashes"] if starts else ()):
        usual = 0.0
        for kinds in ((BASELINE,), *((kind,) for kind in others), SERVED):
            if not (own := [start for start in starts if start["start"] in kinds]):
                continue
            alone = [start for start in own if start["beside"] == 1] or own
            call_us = statistics.median(start["call_us"][number] for start in alone)
            usual = call_us if kinds == (BASELINE,) else usual
            unsteady = sum(bucket in start["unsteady"] for start in own)
            about = {"bucket": bucket, "start": " or ".join(kinds), "starts": len(own)}
            yield {
                **about,
                **{key: len({each.get(key) for each in own}) for key in ("on", "given", "digest")},
                "hashes": len({start["hashes"][bucket] for start in own}) + unsteady,
                "nonfinite": max(start["nonfinite"][bucket] for start in own),
                "seconds": round(statistics.median(start["seconds"] for start in alone), 1),
                "call_us": call_us,
                "times_max_autotune": usual and round(call_us / usual, 3),
            }


def start(*, seed: int = 0, expect: str = "", delay: float = 0.0, **case: Any) -> Answer:
    """Start a server in this process, whose table must have the digest *expect* if it is given."""
    time.sleep(delay)
    if expect:
        from warmup.serving.check import check

        report = check(case["table"], device=case["device"], expect_digest=expect)
        if code := report.state.exit_code:
            said = "; ".join(map(str, (*report.problems, *report.mismatches)))
            sys.stderr.write(f"rank {os.environ['RANK']}: error: {said}\n")
            sys.exit(code)
    import torch
    from server import Server

    from warmup.bench.variant_process import digest_of as digest_of_tensors
    from warmup.models.outputs import dense_parts, tensors_of

    def widened(drawn: torch.Generator, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        powers = torch.randint(-_MOST_EXPONENT, _MOST_EXPONENT + 1, tensor.shape, generator=drawn)
        return (torch.randn(tensor.shape, generator=drawn) * torch.exp2(powers.float())).to(tensor)

    def hashed(outputs: Any) -> tuple[str, int]:  # the hash, and how many values are not finite
        sha, nonfinite = hashlib.sha256(), 0
        for part in (part for each in tensors_of(outputs) for part in dense_parts(each)):
            bits: Any = part.cpu().contiguous().flatten().view(torch.uint8).numpy()
            sha.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
            sha.update(bits)
            nonfinite += int((~torch.isfinite(part)).sum())
        return sha.hexdigest(), nonfinite

    class Hashed(Server):  # its weights and inputs come from fixed seeds
        def load(self) -> None:
            torch.manual_seed(seed)
            super().load()
            drawn = torch.Generator().manual_seed(_SEED)
            self.made = [each.changed(partial(widened, drawn)) for each in self.made]

        def first_calls(self) -> Any:
            torch._inductor.config.deterministic = self.kind.startswith("deterministic")
            first = super().first_calls()
            self.plain = [*self.calls]  # a replay of a CUDA graph returns nothing
            return first

    torch.set_grad_enabled(False)
    server = Hashed(**case)
    told = server.start()
    plain = dict(zip([str(each.bucket) for each in server.made], server.plain, strict=True))
    found = {bucket: [hashed(call()) for _ in range(2)] for bucket, call in plain.items()}
    given = [dict(server.module.named_parameters()), *(each.leaves() for each in server.made)]
    told |= {"given": digest_of_tensors(given)[:16], **server.end()}
    return {
        **{name: told[name] for name in _KEPT.split() if name in told},
        "hashes": {bucket: first[0] for bucket, (first, _) in found.items()},
        "nonfinite": {bucket: first[1] for bucket, (first, _) in found.items()},
        "unsteady": [bucket for bucket, (first, again) in found.items() if first != again],
    }


def main() -> None:
    """Make what is missing, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser, "model", "table", "limit", "results")
    for name in ("--dims", "--input", "--join"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("--starts", default="table=5,max-autotune=5,deterministic=2")
    parser.add_argument("--devices", default="cpu", help="such as cuda:0,cuda:1")
    parser.add_argument("--side-by-side", type=int, default=1, help="starts at once on a device")
    parser.add_argument("--record", action="store_true", help="time replays of CUDA graphs")
    parser.add_argument("--chaos", type=int, default=0, metavar="RANKS", help="instead of starts")
    asked = parser.parse_args()
    asked.device, asked.layers, asked.inputs = asked.devices.partition(":")[0], "", asked.input
    asked.out, asked.name = asked.results.parent, asked.results.stem
    try:
        bits = Bits(asked)
        if asked.chaos:
            sys.exit(not bits.chaos())
        bits.measure()
    except StoppedError as stopped:
        say(json.dumps({"stopped": str(stopped)}))
        sys.exit(3)
    documents = [bits.document, *(json.loads(Path(each).read_text()) for each in asked.join)]
    summary = [*summary_of([start for each in documents for start in each["starts"]])]
    say(*map(json.dumps, summary), sep="\n")
    several = [
        each for each in summary if each["start"] == " or ".join(SERVED) and each["hashes"] > 1
    ]
    sys.exit(3 if bits.document["failed"] else bool(several))


if __name__ == "__main__":
    child = "".join(sys.argv[1:]).isdigit()
    serve({"start": start}) if child else main()
