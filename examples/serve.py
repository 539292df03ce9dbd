"""A small server: requests of mixed sizes arrive, are padded to a bucket, and are answered.

It installs the table before it compiles anything, and compiles every bucket before it takes
requests. At the end it prints the table's report. The exit code is 0 when there were decisions,
rows answered all of them, those of graphs from cache too, and nothing was measured; 1 otherwise.

    warmup build --model examples/mlp.py --seqlens 16,64 --out mlp.json
    python examples/serve.py --table mlp.json --buckets 16,64 --requests 50
"""

import argparse
import queue
import sys
import threading
import time

import torch
from mlp import MLP

import warmup

HIDDEN = 256


class Server:
    """One worker thread that owns the compiled model, fed by a queue."""

    def __init__(self, model: torch.nn.Module, buckets: list[int]) -> None:
        self.buckets = sorted(buckets)
        self.requests: queue.Queue[tuple[torch.Tensor, queue.Queue[torch.Tensor]] | None] = (
            queue.Queue()
        )
        self.device = next(model.parameters()).device
        # One static artifact per bucket: without dynamic=False the second size would compile a
        # dynamic artifact, which rows for static sizes do not answer.
        self.model = torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False)

    def run(self) -> None:
        """Compile every bucket, then answer requests until None arrives."""
        with torch.no_grad():
            for bucket in self.buckets:
                self.model(torch.zeros(bucket, HIDDEN, device=self.device))
            while (request := self.requests.get()) is not None:
                rows, reply = request
                reply.put(self.answer(rows))

    def answer(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the model's output for *rows*, computed in the smallest bucket that holds them."""
        bucket = next(size for size in self.buckets if size >= len(rows))
        padded = torch.zeros(bucket, HIDDEN, device=self.device)
        padded[: len(rows)] = rows
        return self.model(padded)[: len(rows)].cpu()


def main() -> int:
    """Serve a number of random requests and return the exit code."""
    parser = argparse.ArgumentParser(description="Serve mixed sizes from a table.")
    parser.add_argument("--table", required=True)
    parser.add_argument("--buckets", default="16,64")
    parser.add_argument("--requests", type=int, default=50)
    arguments = parser.parse_args()
    buckets = [int(size) for size in arguments.buckets.split(",")]

    torch.manual_seed(0)
    model = MLP().eval().to("cuda" if torch.cuda.is_available() else "cpu")
    # The weights of this server never change, so a CPU may freeze them. Without freezing=True, the
    # rows of a CPU table's linears are not used.
    with warmup.install(arguments.table, on_miss="fallback", freezing=True) as handle:
        server = Server(model, buckets)
        started = time.perf_counter()
        worker = threading.Thread(target=server.run)
        worker.start()
        for _ in range(arguments.requests):
            rows = torch.randn(int(torch.randint(1, buckets[-1], ())), HIDDEN)
            reply: queue.Queue[torch.Tensor] = queue.Queue()
            server.requests.put((rows, reply))
            while worker.is_alive():
                try:
                    answer = reply.get(timeout=1)
                except queue.Empty:
                    continue
                assert answer.shape == rows.shape
                break
            else:
                return 1
        server.requests.put(None)
        worker.join()
        report = handle.report()
    sys.stdout.write(f"{arguments.requests} requests in {time.perf_counter() - started:.1f} s\n")
    sys.stdout.write(f"{report}\n")
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
