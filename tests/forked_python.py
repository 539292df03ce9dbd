"""`run_forked`: run Python in a process forked from one that has imported torch and inductor.

Importing the two takes half of the CPU time of most processes that the tests start. A server
imports them, compiles nothing, imports nothing of warmup, and forks for every program. A program
therefore begins as one does whose first lines import torch and inductor: in a process of its own,
with its own environment, folder, arguments and caches. Tests about imports, signals, limits or the
start of a process use ``subprocess`` instead.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAX_REQUEST = 2**20
# Read by torch, inductor and triton whenever they need them; any other variable may be read on
# import, so that a program with another value of it gets a process that imports by itself.
_READ_LATE = frozenset({"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PYTHONPATH", "HOME"})
_OF_OTHERS = ("WARMUP_", "PYTEST_", "XDG_")

_of_server: dict[str, str] = {}
Done = subprocess.CompletedProcess[str]


def run_forked(*words: str, env: Mapping[str, str], cwd: Path) -> Done:
    """Run Python with *words* (``-m``, ``-c`` or a path first) in *cwd*, its output captured.

    Of the variables that are read on import, the server has those named in `prepare`; a program
    with other ones runs in a process that is not forked.
    """
    if _read_on_import(env) != _of_server:
        return subprocess.run(
            [sys.executable, *words], env=env, cwd=cwd, capture_output=True, text=True, check=False
        )
    server = _start_server()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        request = json.dumps({"words": words, "env": dict(env), "cwd": str(cwd)}).encode()
        assert len(request) < _MAX_REQUEST
        socket.send_fds(server, [request], [out.fileno(), err.fileno()])
        code = int(server.recv(16))
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def prepare(env: Mapping[str, str]) -> None:
    """Let the server, which the next call of `run_forked` starts, have the variables *env*."""
    _of_server.update(_read_on_import(env))


def _read_on_import(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name not in _READ_LATE and not name.startswith(_OF_OTHERS)
    }


@functools.cache
def _start_server() -> socket.socket:
    """Start the server; return the socket for requests, whose end is that of the server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        env=_of_server,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)  # first
    return ours


def _serve(requests: socket.socket, inductor_config: Any) -> None:
    """Fork for every request; return in the child, or when nobody can send another request."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 2)
        if not message:
            sys.exit()
        child = os.fork()
        if child:
            for descriptor in descriptors:
                os.close(descriptor)
            _, status = os.waitpid(child, 0)
            requests.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        requests.close()
        for descriptor, standard in zip(descriptors, (1, 2), strict=True):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        _run(**json.loads(message), inductor_config=inductor_config)
        return


def _run(words: list[str], env: dict[str, str], cwd: str, inductor_config: Any) -> None:
    """Become the program that Python is asked for with *words*."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    del sys.modules["__mp_main__"]  # multiprocessing's name of the server's main module
    settings = getattr(inductor_config, "xpu", None)
    if hasattr(settings, "cutlass_dir"):
        settings.cutlass_dir = str(Path.cwd())  # on import it was the server's folder
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, cwd)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(module))  # noqa: S102  as Python does
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    import torch._inductor.select_algorithm

    gc.collect()
    gc.freeze()  # what is imported stays: no collection in a child looks at it
    _serve(socket.socket(fileno=int(sys.argv[1])), torch._inductor.config)
