"""A mix of request sizes, served in several ways; each way in a process of its own, empty caches.

    python docs/benchmarks/shapes.py --model examples/llama_block.py:LlamaBlocks
        --axis hidden_states:1:seqlen --buckets 16,256,560,1024,2048 --table TABLE --results OUT

Sizes are drawn with a fixed seed, as many small as large ones by ratio. Before anything is timed
each way has served every size once, in the order of the mix: what it compiles or measures then is
counted apart from what it does afterwards, which should be nothing. A request is timed from the
call until the device is done with it. One process starts when the one before is ready; then all
stay, and the mix is served in rounds: each way once, beginning with another one each time, so that
what the machine does besides meets all of them. A way that is not ready when the *limit* is over,
or that ends before the others, is left out, and the results say why.

On a GPU each round serves the mix once more for what the device alone takes: a wait is launched
before each request, so that all of its kernels are enqueued when the first begins, as they are for
a host that runs ahead.

- `eager`: uncompiled.
- `dynamic-smallest`, `dynamic-largest`: plain torch.compile in mode max-autotune-no-cudagraphs with
  the dim marked dynamic; the first request is the smallest size, or the largest.
- `static`: the same mode with static shapes, every size compiled and tuned for itself.
- `range`, `pad`: `warmup.compile` from the table, with these policies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from served_mix import MARK, mix_of

HERE = Path(__file__).resolve().parent
WAYS = ("eager", "dynamic-smallest", "dynamic-largest", "static", "range", "pad")


class Way:
    """A process that serves in one way, from empty caches."""

    def __init__(self, settings: dict[str, Any], folder: str) -> None:
        self.name: str = settings["way"]
        self._said: queue.Queue[str] = queue.Queue()
        self._complaints = Path(folder, "stderr")
        with self._complaints.open("w") as complaints:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "served_mix.py"), json.dumps(settings)],
                env={
                    **os.environ,
                    "TORCHINDUCTOR_CACHE_DIR": folder,
                    "TRITON_CACHE_DIR": f"{folder}/t",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._said.put(line.removeprefix(MARK))
        self._said.put("")  # it has ended

    def hear(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the next that it says.

        Raises:
            LeftOutError: it has ended, or says nothing in so many *seconds*; it is ended then.
        """
        try:
            said = self._said.get(timeout=seconds)
        except queue.Empty:
            self._process.kill()
            raise LeftOutError("it was not ready when the limit was over") from None
        if not said:
            last = self._complaints.read_text().strip().splitlines()[-1:]
            raise LeftOutError("".join(last)[:300] or "it ended")
        found: dict[str, Any] = json.loads(said)
        return found

    def ask(self) -> dict[str, Any]:
        """Serve the mix once more and return what it took; errors as `hear`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is heard next
            self._process.stdin.write("round\n")
            self._process.stdin.flush()
        return self.hear()

    def end(self) -> dict[str, Any]:
        """Return all that it took and did; errors as `hear`."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.hear()


class LeftOutError(Exception):
    """A way cannot be measured. Argument: why."""


def measure(settings: dict[str, Any], ways: list[str], until: float) -> list[dict[str, Any]]:
    """Serve in every way and return what each took, in the order of *ways*."""
    runs: list[dict[str, Any]] = []
    ready: list[Way] = []

    def hear(way: Way, listen: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return listen()
        except LeftOutError as error:
            runs.append({"way": way.name, "failed": str(error)})
            return None

    with contextlib.ExitStack() as folders:
        for name in ways:
            folder = folders.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            way = Way({**settings, "way": name}, folder)
            said = hear(way, partial(way.hear, max(until - time.monotonic(), 0)))
            sys.stderr.write(f"{name}: {said}\n")
            if said is not None:
                ready.append(way)
        for number in range(settings["rounds"]):
            first = number % max(len(ready), 1)
            for way in [*ready[first:], *ready[:first]]:
                said = hear(way, way.ask)
                sys.stderr.write(f"{way.name}: {said}\n")
                if said is None:
                    ready.remove(way)
        runs += filter(None, [hear(way, way.end) for way in ready])
    return sorted(runs, key=lambda run: ways.index(run["way"]))


def main() -> None:
    """Serve in every way in turn, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model")
    parser.add_argument("--axis")
    parser.add_argument("--buckets")
    parser.add_argument("--table")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--distinct", type=int, default=24)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--limit", type=float, default=24 * 3600, help="seconds until all are ready"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path)
    given = vars(parser.parse_args())
    from warmup.buckets.bucket import parse_sizes
    from warmup.core.runtime import Runtime
    from warmup.inductor import connect

    out: Path = given.pop("results")
    ways = given.pop("ways").split(",")
    until = time.monotonic() + given.pop("limit")
    settings = {**given, "largest": max(parse_sizes(given["buckets"], "--buckets"))}
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    runs = measure(settings, ways, until)
    runtime: Runtime = connect().runtime("auto")
    record = {
        "runtime": {
            "device": runtime.device.name,
            "torch": runtime.torch,
            "triton": runtime.triton,
        },
        "created": created,
        "settings": settings,
        "mix": mix_of(settings["largest"], given["distinct"], given["requests"], given["seed"]),
        "runs": runs,
    }
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for run in runs:
        shown = {k: v for k, v in run.items() if k not in {"us_by_size", "device"}}
        sys.stdout.write(json.dumps(shown) + "\n")


if __name__ == "__main__":
    main()
