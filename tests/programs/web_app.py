"""A small model behind a web server, in a pool or on ranks; it knows nothing of warmup.

    uvicorn web_app:app        gunicorn web_app:wsgi        web_app.py pool|rank EXIT_CODE

The model is compiled and called when this file is imported, as servers do that warm up; with
``WARM=`` at the first request, since a fork has none of its parent's OpenMP threads and would wait
for them. Each answer is the number of the process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "models"))

from plain_script import Net


def warm() -> Callable[..., Any]:
    torch.manual_seed(0)
    served = torch.compile(Net().eval(), dynamic=False)
    if os.environ.get("WARM", "1"):
        with torch.no_grad():
            served(torch.randn(8, 32))
    return served


def pid_of_call(_: int) -> int:
    with torch.no_grad():
        SERVED(torch.randn(8, 32))
    return os.getpid()


async def app(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    if scope["type"] != "http":
        return
    body = str(pid_of_call(0)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def wsgi(environ: Any, start: Callable[..., Any]) -> Iterable[bytes]:
    start("200 OK", [])
    return [str(pid_of_call(0)).encode()]


def main() -> None:
    kind, code = sys.argv[1:]
    if kind == "pool":
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            pool.map(pid_of_call, range(8), chunksize=1)
            pool.close()
            pool.join()
    else:
        pid_of_call(0)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.exit(int(code))


# Neither the process that starts a pool nor that of a launcher compiles.
if __name__ != "__main__" or sys.argv[1] == "rank":
    SERVED = warm()

if __name__ == "__main__":
    main()
