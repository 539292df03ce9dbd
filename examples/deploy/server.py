"""A small HTTP server that does not import warmup: one compiled model, fixed buckets.

It compiles every bucket and then opens its port. `warmup run` installs a table in it unchanged:

    warmup build --model examples/mlp.py:MLP --seqlens 16,64 --out mlp.json
    PYTHONPATH=examples warmup run --table mlp.json --freezing -- python examples/deploy/server.py

    curl -d '[[0.5, 0.25]]' http://127.0.0.1:8000/    # rows of numbers, filled up with zeros
"""

import argparse
import json
import queue
import signal
import sys
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NoReturn

import torch
from mlp import MLP

HIDDEN = 256


class Worker(threading.Thread):
    """The one thread that owns the compiled model."""

    def __init__(self, buckets: list[int]) -> None:
        super().__init__(daemon=True)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.buckets = sorted(buckets)
        self.compiled: Future[None] = Future()
        self.requests: queue.Queue[tuple[torch.Tensor, Future[torch.Tensor]]] = queue.Queue()

    def run(self) -> None:
        """Compile every bucket, then answer requests for the life of the process."""
        model = torch.compile(MLP().eval().to(self.device), dynamic=False)
        with torch.no_grad():
            try:
                for bucket in self.buckets:
                    model(torch.zeros(bucket, HIDDEN, device=self.device))
            except Exception as error:  # noqa: BLE001  the main thread reports it
                self.compiled.set_exception(error)
                return
            self.compiled.set_result(None)
            while True:
                rows, answer = self.requests.get()
                bucket = next(size for size in self.buckets if size >= len(rows))
                padded = torch.zeros(bucket, HIDDEN, device=self.device)
                padded[: rows.shape[0], : rows.shape[1]] = rows
                answer.set_result(model(padded)[: len(rows)].cpu())

    def answer(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the model's output for *rows*."""
        answer: Future[torch.Tensor] = Future()
        self.requests.put((rows, answer))
        return answer.result()


class Handler(BaseHTTPRequestHandler):
    """GET is the readiness probe, POST a request."""

    worker: Worker

    def do_GET(self) -> None:
        self.reply(200, "ready")

    def do_POST(self) -> None:
        try:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            rows = torch.tensor(json.loads(body), dtype=torch.float32)
        except (TypeError, ValueError) as error:
            return self.reply(400, f"not rows of numbers: {error}")
        if rows.dim() != 2 or len(rows) > self.worker.buckets[-1] or rows.shape[1] > HIDDEN:  # noqa: PLR2004
            return self.reply(413, f"at most {self.worker.buckets[-1]} rows of {HIDDEN} numbers")
        return self.reply(200, json.dumps(self.worker.answer(rows).tolist()))

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(f"{text}\n".encode())


def _stop(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Serve an MLP over HTTP.")
    parser.add_argument("--buckets", default="16,64")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()

    # An exit by sys.exit runs Python's exit handlers, and with them the closing audit line.
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    torch.manual_seed(0)
    worker = Worker([int(size) for size in arguments.buckets.split(",")])
    worker.start()
    worker.compiled.result()
    Handler.worker = worker
    with ThreadingHTTPServer((arguments.host, arguments.port), Handler) as server:
        sys.stderr.write(f"serving on {arguments.host}:{arguments.port}\n")
        server.serve_forever()


if __name__ == "__main__":
    main()
