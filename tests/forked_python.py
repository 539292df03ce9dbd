"""`run_forked` and `talk_forked`: Python in a process forked from one that has imported torch.

Importing the two takes half of the CPU time of most processes that the tests start. A server
imports them, compiles nothing, imports nothing of warmup, and forks for every program. A program
therefore begins as one does whose first lines import torch and inductor: in a process of its own,
with its own environment, folder, arguments and caches. Tests about imports, signals, limits or the
start of a process use ``subprocess`` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import selectors
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

_MAX_REQUEST = 2**20
# Read by torch, inductor and triton whenever they need them; any other variable may be read on
# import, so that a program with another value of it gets a process that imports by itself.
_READ_LATE = frozenset(
    {
        *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PYTHONPATH", "HOME"),
        "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",  # an address, which a process sets for itself
    }
)
_OF_OTHERS = ("WARMUP_", "PYTEST_", "XDG_")

_of_server: dict[str, str] = {}
Done = subprocess.CompletedProcess[str]


def run_forked(*words: str, env: Mapping[str, str], cwd: Path) -> Done:
    """Run Python with *words* (``-m``, ``-c`` or a path first) in *cwd*, its output captured."""
    # Of the variables that are read on import, the server has those named in `prepare`; a program
    # with other ones runs in a process that is not forked.
    if _read_on_import(env) != _of_server:
        return subprocess.run(
            [sys.executable, *words], env=env, cwd=cwd, capture_output=True, text=True, check=False
        )
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with _request(words, env, cwd, {1: out, 2: err}) as reply:
            code = int(reply.recv(16))
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


@contextlib.contextmanager
def talk_forked(*words: str, env: Mapping[str, str], cwd: Path) -> Iterator[Callable[[str], str]]:
    """Start Python as `run_forked` does; yield what writes a line to it and returns its next."""
    # The program has ended where the returned line is empty, and after the block. Its variables
    # that are read on import are those of `prepare`.
    assert _read_on_import(env) == _of_server
    (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
    with os.fdopen(read_in) as its_in, os.fdopen(write_out, "w") as its_out:
        reply = _request(words, env, cwd, {0: its_in, 1: its_out})
    with reply, os.fdopen(read_out) as said, os.fdopen(write_in, "w") as asked:

        def ask(line: str) -> str:
            asked.write(line + "\n")
            asked.flush()
            return said.readline()

        yield ask
        asked.close()
        reply.recv(16)


def prepare(env: Mapping[str, str]) -> None:
    """Let the server, which the next call of `run_forked` starts, have the variables *env*."""
    _of_server.update(_read_on_import(env))


def _read_on_import(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in env.items()
        if name not in _READ_LATE and not name.startswith(_OF_OTHERS)
    }


def _request(
    words: tuple[str, ...], env: Mapping[str, str], cwd: Path, files: Mapping[int, IO[str]]
) -> socket.socket:
    """Ask for a program with *files* as its descriptors; return what its exit code comes from."""
    ours, theirs = socket.socketpair()
    standard = list(files)
    asked = {"words": words, "env": dict(env), "cwd": str(cwd), "standard": standard}
    request = json.dumps(asked).encode()
    assert len(request) < _MAX_REQUEST
    with theirs:
        descriptors = [theirs.fileno(), *(file.fileno() for file in files.values())]
        socket.send_fds(_start_server(), [request], descriptors)
    return ours


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
    children = selectors.DefaultSelector()
    children.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in children.select():
            if key.data is not None:
                child, reply = key.data
                children.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(child, 0)
                with contextlib.suppress(BrokenPipeError):  # the test has ended
                    reply.send(b"%d" % os.waitstatus_to_exitcode(status))
                reply.close()
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 4)
            if not message:
                sys.exit()
            child = os.fork()
            if child:
                ended = os.pidfd_open(child)
                reply = socket.socket(fileno=descriptors[0])
                children.register(ended, selectors.EVENT_READ, (child, reply))
                for descriptor in descriptors[1:]:
                    os.close(descriptor)
                continue
            for other in [*children.get_map().values()]:
                os.close(other.fd)
                if other.data is not None:
                    other.data[1].close()
            requests.detach()
            children.close()
            request = json.loads(message)
            for descriptor, number in zip(descriptors[1:], request.pop("standard"), strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.close(descriptors[0])
            _run(**request, inductor_config=inductor_config)
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
