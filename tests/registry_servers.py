"""A real registry process, and a proxy before it that cuts connections: for tests of images."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

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
def registry_server(
    folder: Path, *, has_login: bool = False, token_url: str | None = None
) -> Iterator[RegistryServer]:
    """Run a registry on this machine; with *has_login* it asks for `USER` and `PASSWORD`.

    With *token_url* it asks for tokens of the `token_server` there.
    """
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
    if token_url is not None:
        facts = f"realm: '{token_url}', service: tests, issuer: tests"
        settings += f"auth: {{token: {{{facts}, rootcertbundle: {folder}/tokens.pem}}}}\n"
    (folder / "settings.yml").write_text(settings)
    command = ["docker-registry", "serve", str(folder / "settings.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(host)
            yield RegistryServer(host, folder)
        finally:
            server.terminate()


@contextlib.contextmanager
def token_server(folder: Path) -> Iterator[str]:
    """Serve tokens to `USER` with `PASSWORD`, for the scope that is asked for; give the URL.

    Its certificate is in *folder*, where `registry_server` finds it.
    """
    import jwt
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encodings = serialization.Encoding
    (folder / "tokens.pem").write_bytes(certificate.public_bytes(encodings.PEM))
    chain = [base64.b64encode(certificate.public_bytes(encodings.DER)).decode()]
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Tokens(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            is_known = self.headers.get("Authorization") == f"Basic {login}"
            self.send_response(200 if is_known else 401)
            self.end_headers()
            if not is_known:
                return
            kind, repository, actions = query["scope"][0].split(":")
            access = [{"type": kind, "name": repository, "actions": actions.split(",")}]
            at = int(now.timestamp())
            claims = {"iss": "tests", "sub": USER, "aud": query["service"][0], "access": access}
            times = {"nbf": at - 60, "iat": at - 60, "exp": at + 600, "jti": "1"}
            token = jwt.encode({**claims, **times}, key, "RS256", {"x5c": chain})
            self.wfile.write(json.dumps({"token": token}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/token"
        finally:
            server.shutdown()
            thread.join()


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
