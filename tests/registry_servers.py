"""A real registry process, and a proxy before it that cuts connections: for tests of images."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

USER, PASSWORD = "tests", "pass-of-tests"
_HTPASSWD = (
    "$2b$04$/iQfw.rZDSz5nvhMATw.P.A6Uby/WCmRn/hmpHlbcNd0FRpFyyjvm"  # of the password, by bcrypt
)


@dataclass(frozen=True, slots=True)
class RegistryServer:
    """A registry of Debian's package `docker-registry`; its files are below ``folder``."""

    host: str
    folder: Path

    def blob_file(self, digest: str) -> Path:
        """Return the file in which the registry keeps the blob *digest*."""
        name = digest.removeprefix("sha256:")
        blobs = self.folder / "docker/registry/v2/blobs/sha256"
        return blobs / name[:2] / name / "data"


@contextlib.contextmanager
def registry_server(folder: Path, *, has_login: bool = False) -> Iterator[RegistryServer]:
    """Run a registry on this machine; with *has_login* it asks for `USER` and `PASSWORD`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = (
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}}}}}\n"
        f"http: {{addr: '{host}'}}\nlog: {{level: error}}\n"
    )
    if has_login:
        (folder / "users").write_text(f"{USER}:{_HTPASSWD}\n")
        settings += f"auth: {{htpasswd: {{realm: tests, path: {folder}/users}}}}\n"
    (folder / "settings.yml").write_text(settings)
    command = ["docker-registry", "serve", str(folder / "settings.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(host)
            yield RegistryServer(host, folder)
        finally:
            server.terminate()


@contextlib.contextmanager
def cutting_proxy(host: str, most_bytes: int) -> Iterator[str]:
    """Forward to *host*, and cut each connection when *most_bytes* of its answers have passed."""

    class Cut(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            address, _, port = host.partition(":")
            with socket.create_connection((address, int(port))) as upstream:
                forth = threading.Thread(target=_copy, args=(self.request, upstream, None))
                forth.start()
                _copy(upstream, self.request, most_bytes)
                for end in (upstream, self.request):
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
                forth.join()

    class Proxy(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False  # a client may keep its connection

    with Proxy(("127.0.0.1", 0), Cut) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{proxy.server_address[1]}"
        finally:
            proxy.shutdown()
            thread.join()


def _copy(source: socket.socket, target: socket.socket, most: int | None) -> None:
    with contextlib.suppress(OSError):  # the other direction was closed
        while piece := source.recv(65536 if most is None else min(most, 65536)):
            target.sendall(piece)
            most = None if most is None else most - len(piece)
            if most == 0:
                return
        target.shutdown(socket.SHUT_WR)


def _wait_for(host: str) -> None:
    address, _, port = host.partition(":")
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((address, int(port)), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "the registry did not start"
            time.sleep(0.02)
        else:
            return
