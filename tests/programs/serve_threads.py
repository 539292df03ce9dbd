"""Serve batched products from many threads at once, and a backward that another thread compiles.

    python serve_threads.py TABLE

TABLE has one row, for a product with relu; the same winner is given to the product with sigmoid.
Prints hits, misses and benchmarks as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import warmup
from warmup.inductor import connect


def in_thread(work: Callable[[], Any], failed: list[BaseException]) -> threading.Thread:
    """Start *work* in a bare thread; what it raises is appended to *failed*."""

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised again in the main thread
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread


def serve(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    a, b = torch.randn(4, 64, 32), torch.randn(4, 32, 48)
    with torch.no_grad():
        found = torch.compile(lambda a, b: activation(torch.bmm(a, b)), dynamic=False)(a, b)
    torch.testing.assert_close(found, activation(torch.bmm(a, b)))


def main() -> None:
    table = warmup.load(sys.argv[1])
    rows = {key.replace("=relu", name): row for key, row in table.rows.items()
            for name in ("=relu", "=sigmoid")}  # fmt: skip
    failed: list[BaseException] = []
    with connect().count_benchmarks() as sites, warmup.install(replace(table, rows=rows)) as handle:
        threads = [
            in_thread(lambda activation=activation: serve(activation), failed)
            for activation in (torch.relu, torch.sigmoid) * 2
        ]
        for thread in threads:
            thread.join()
        served = handle.report()
        a = torch.randn(4, 64, 32, requires_grad=True)
        b = torch.randn(4, 32, 48, requires_grad=True)
        forward = torch.compile(lambda a, b: torch.relu(torch.bmm(a, b)).sum(), dynamic=False)
        loss = forward(a, b)
        before = handle.report()
        in_thread(loss.backward, failed).join()
        after = handle.report()
    if failed:
        raise failed[0]
    result = {
        "served_hits": dict(served.hits),
        "served_misses": dict(served.misses),
        "backward_misses": {
            key: count - before.misses.get(key, 0)
            for key, count in after.misses.items()
            if count > before.misses.get(key, 0)
        },
        "gradients": [a.grad is not None, b.grad is not None],
        "benchmarks": dict(sites),
    }
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
