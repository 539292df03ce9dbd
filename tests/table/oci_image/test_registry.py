"""Images in a real registry (Debian's docker-registry), with faults on the way and in its files."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from warmup.core.errors import ShippingError, TableMismatchError
from warmup.core.rows import Row
from warmup.core.runtime import Runtime
from warmup.table import Table
from warmup.table.bundle_file import needs_of, write_bundle
from warmup.table.codec import digest_of
from warmup.table.oci_image.image_files import open_images
from warmup.table.oci_image.layout_folder import LayoutFolder
from warmup.table.oci_image.publication import Publication, push
from warmup.table.oci_image.reference import ImageReference, parse_reference
from warmup.table.oci_image.retrieval import ImageDemand, Retrieval, pull
from warmup.table.oci_image.table_image import image_of

pytest.importorskip("oras", reason="the extra oci is not installed")
if shutil.which("docker-registry") is None:
    pytest.skip("Debian's package docker-registry is not installed", allow_module_level=True)

from registry_servers import (
    PASSWORD,
    USER,
    RegistryServer,
    cutting_proxy,
    registry_server,
    token_server,
)

MakeTable = Callable[..., Table]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A registry without a login."""
    with registry_server(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home folder without logins, and no proxy of this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


@pytest.fixture
def reference(server: RegistryServer, request: pytest.FixtureRequest) -> ImageReference:
    """The tag v1 of a repository of this test alone."""
    name = request.node.name.partition("[")[0].replace("_", "-")
    return parse_reference(f"oci://{server.host}/tests/{name}:v1")


@pytest.fixture
def cache(tmp_path: Path) -> LayoutFolder:
    """An empty cache."""
    return LayoutFolder(tmp_path / "cache")


def push_to(reference: ImageReference, table: Table, bundle: Path | None = None) -> Publication:
    """Push *table*."""
    return push(image_of(table, bundle), open_images(reference), reference)


def pull_from(
    reference: ImageReference, cache: LayoutFolder, demand: ImageDemand | None = None
) -> Retrieval:
    """Pull what *reference* names."""
    return pull(reference, open_images(reference), cache, demand or ImageDemand())


def through(reference: ImageReference, host: str) -> ImageReference:
    """Return *reference* at *host*, such as a proxy."""
    return replace(reference, place=f"{host}/{reference.repository}", host=host)


def test_a_table_and_its_bundle_come_back(
    reference: ImageReference,
    cache: LayoutFolder,
    make_table: MakeTable,
    here: Runtime,
    tmp_path: Path,
) -> None:
    """Pushed, pulled by its tag, pulled again without the registry."""
    path = tmp_path / "t.bundle"
    write_bundle(path, digest_of(make_table()), needs_of(here), {"a": b"code" * 100_000})
    pushed = push_to(reference, make_table(), path)
    demand = ImageDemand(runtime=here, bundle_facts=needs_of(here), wants_bundle=True)
    pulled = pull_from(reference, cache, demand)
    assert (pulled.table, pulled.reference) == (make_table(), pushed.reference)
    assert pulled.bundle is not None
    assert cache.blob_path(pulled.bundle.digest).read_bytes() == path.read_bytes()
    assert pull(reference, None, cache, demand).table == make_table()


def test_a_second_push_writes_no_blob(reference: ImageReference, make_table: MakeTable) -> None:
    """The registry has them."""
    assert (push_to(reference, make_table()).written, push_to(reference, make_table()).written) == (
        2,
        0,
    )


def test_a_tag_is_never_rewritten_in_a_registry(
    reference: ImageReference,
    cache: LayoutFolder,
    make_table: MakeTable,
    make_key: Callable[..., str],
    make_row: Callable[..., Row],
) -> None:
    """The registry would move it; it is not asked to."""
    push_to(reference, make_table())
    with pytest.raises(ShippingError, match="never rewritten"):
        push_to(reference, make_table({make_key(7): make_row()}))
    assert pull_from(reference, cache).table == make_table()


def test_a_tag_that_another_writer_moves_meanwhile_is_told(
    reference: ImageReference, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pushes at once: the one whose tag was moved before it ended says so."""
    files = open_images(reference)
    write = type(files).write_manifest

    def write_and_lose(self: object, content: bytes, tag: str | None) -> None:
        write(self, content, tag)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(type(files), "write_manifest", write)
            other = image_of(make_table(created="2026-02-02T02:02:02Z"))
            moving = open_images(reference)
            push(other, moving, replace(reference, tag=None))
            moving.write_manifest(_manifest_of(other), tag)

    monkeypatch.setattr(type(files), "write_manifest", write_and_lose)
    with pytest.raises(ShippingError, match="the tag v1 is sha256"):
        push(image_of(make_table()), files, reference)


def _manifest_of(image: object) -> bytes:
    from warmup.table.oci_image.manifest import encode_manifest

    return encode_manifest(image.manifest)  # type: ignore[attr-defined]


def test_another_machines_table_is_not_downloaded_from_a_registry(
    reference: ImageReference,
    cache: LayoutFolder,
    make_table: MakeTable,
    make_runtime: Callable[..., Runtime],
) -> None:
    """The registry is asked for manifest and description alone."""
    pushed = push_to(reference, make_table())
    with pytest.raises(TableMismatchError, match="the table was not downloaded"):
        pull_from(reference, cache, ImageDemand(runtime=make_runtime(sm_count=78)))
    assert not cache.has_blob(pushed.manifest.table)


@pytest.mark.parametrize("most_bytes", [1, 700, 1_500, 2_500])
def test_a_cut_connection_is_one_error(
    reference: ImageReference,
    server: RegistryServer,
    cache: LayoutFolder,
    make_table: MakeTable,
    most_bytes: int,
) -> None:
    """Wherever it is cut: no part of a blob is kept, and the next pull succeeds."""
    pushed = push_to(reference, make_table())
    with cutting_proxy(server.host, most_bytes) as host:
        with pytest.raises(ShippingError, match="cut"):
            pull_from(through(reference, host), cache)
        assert not cache.has_blob(pushed.manifest.table)
    assert pull_from(reference, cache).table == make_table()


def test_a_cut_push_leaves_no_image(
    reference: ImageReference, server: RegistryServer, cache: LayoutFolder, make_table: MakeTable
) -> None:
    """The tag is not there, and the push can be repeated."""
    with (
        cutting_proxy(server.host, 250) as host,
        pytest.raises(ShippingError, match="cut"),
    ):
        push_to(through(reference, host), make_table())
    with pytest.raises(ShippingError, match="no such image is there"):
        pull_from(reference, cache)
    assert push_to(reference, make_table()).reference.digest is not None


@pytest.mark.parametrize(
    "damaged",
    [
        (lambda content: content[:-100], r"ends after [0-9]+ of [0-9]+ bytes"),
        (lambda content: content + b" ", "longer than its manifest says"),
        (lambda content: content.replace(b"0.03", b"0.04"), "other content than its digest"),
    ],
    ids=["truncated", "longer", "changed"],
)
def test_a_blob_that_is_damaged_in_the_registry_is_refused(
    reference: ImageReference,
    server: RegistryServer,
    cache: LayoutFolder,
    make_table: MakeTable,
    damaged: tuple[Callable[[bytes], bytes], str],
) -> None:
    """The file of the blob was changed on the registry's disk, and the registry serves it."""
    damage, reason = damaged
    table = make_table(created="2026-01-02T03:04:06Z")  # a blob that no other test has
    pushed = push_to(replace(reference, tag=None), table)
    path = server.blob_file(pushed.manifest.table.digest)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    try:
        with pytest.raises(ShippingError, match=reason):
            pull_from(pushed.reference, cache)
    finally:
        path.write_bytes(whole)
    assert not cache.has_blob(pushed.manifest.table)
    assert pull_from(pushed.reference, cache).table == table


def test_a_wrong_digest_is_not_there(
    reference: ImageReference, cache: LayoutFolder, make_table: MakeTable
) -> None:
    """A digest that nobody pushed."""
    push_to(reference, make_table())
    wrong = replace(reference, tag=None, digest=f"sha256:{'0' * 64}")
    with pytest.raises(ShippingError, match="no such image is there"):
        pull_from(wrong, cache)


def test_a_registry_that_is_not_there_is_one_error(cache: LayoutFolder) -> None:
    """At once: nothing is tried again."""
    nowhere = parse_reference("oci://127.0.0.1:1/tests/x:v1")
    with pytest.raises(ShippingError, match="refused or cut"):
        pull_from(nowhere, cache)


def check_login(
    reference: ImageReference, cache: LayoutFolder, table: Table, *, is_right: bool
) -> None:
    """Check that a table goes there and back with the right login, and that no error has another.

    The wrong password is ``wrong-pass``.
    """
    if is_right:
        push_to(reference, table)
        assert pull_from(reference, cache).table == table
        return
    with pytest.raises(ShippingError, match="docker login") as caught:
        push_to(reference, table)
    assert "wrong-pass" not in str(caught.value)


@pytest.mark.parametrize("password", [PASSWORD, "wrong-pass", None])
def test_a_login_is_that_of_docker(
    nobody: Path, cache: LayoutFolder, make_table: MakeTable, password: str | None
) -> None:
    """With the right one the registry answers; no error has a password in it."""
    (nobody / "data").mkdir()
    with registry_server(nobody / "data", has_login=True) as running:
        if password is not None:
            log_in(nobody, running.host, password)
        reference = parse_reference(f"oci://{running.host}/tests/x:v1")
        check_login(reference, cache, make_table(), is_right=password == PASSWORD)


@pytest.mark.parametrize("password", [PASSWORD, None])
def test_docker_config_names_the_folder_of_the_login(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, make_table: MakeTable, password: str | None
) -> None:
    """In place of the home folder: a wrong login there is not used, and a right one neither."""
    (nobody / "data").mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(nobody / "elsewhere" / ".docker"))
    with registry_server(nobody / "data", has_login=True) as running:
        log_in(nobody, running.host, PASSWORD if password is None else "wrong-pass")
        reference = parse_reference(f"oci://{running.host}/tests/x:v1")
        if password is not None:
            log_in(nobody / "elsewhere", running.host, password)
            push_to(reference, make_table())
            return
        with pytest.raises(ShippingError, match="docker login"):
            push_to(reference, make_table())


@pytest.mark.parametrize("text", ["{", "[]", '{"auths": 3}'])
def test_settings_of_docker_that_are_none_are_one_error(
    nobody: Path, monkeypatch: pytest.MonkeyPatch, make_table: MakeTable, text: str
) -> None:
    """A config.json of another form, in the folder that DOCKER_CONFIG names."""
    (nobody / "data").mkdir()
    (nobody / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(nobody))
    with registry_server(nobody / "data", has_login=True) as running:
        reference = parse_reference(f"oci://{running.host}/tests/x:v1")
        with pytest.raises(ShippingError, match="unknown form"):
            push_to(reference, make_table())


def log_in(home: Path, host: str, password: str) -> None:
    """Write the login of USER as `docker login` does."""
    login = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (home / ".docker").mkdir(parents=True)
    settings = {"auths": {host: {"auth": login}}}
    (home / ".docker" / "config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("password", [PASSWORD, "wrong-pass"])
def test_a_token_is_asked_for_each_scope(
    nobody: Path, cache: LayoutFolder, make_table: MakeTable, password: str
) -> None:
    """The registry wants a token for reading first, and then one for writing too."""
    pytest.importorskip("jwt", reason="tokens are made by PyJWT, which sigstore brings")
    (nobody / "data").mkdir()
    with (
        token_server(nobody / "data") as url,
        registry_server(nobody / "data", token_url=url) as running,
    ):
        log_in(nobody, running.host, password)
        reference = parse_reference(f"oci://{running.host}/tests/x:v1")
        check_login(reference, cache, make_table(), is_right=password == PASSWORD)


class Hostile(BaseHTTPRequestHandler):
    """Answers as its server's ``answers`` say, by the start of the path."""

    def do_GET(self) -> None:
        """Send the status, the headers and the body for the path."""
        for start, (status, headers, body) in self.server.answers.items():  # type: ignore[attr-defined]
            if self.path.startswith(start):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                return

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hostile() -> Iterator[ThreadingHTTPServer]:
    """A server that is no registry, at a port of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


BIG = b"x" * 400_000


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"/v2": (302, {"Location": "https://127.0.0.1:1/"}, b"")}, "redirects to another scheme"),
        ({"/v2": (302, {"Location": "file:///etc/passwd"}, b"")}, "redirects to another scheme"),
        ({"/v2": (302, {"Location": "/v2/again"}, b"")}, "redirects without end"),
        ({"/v2": (302, {"Location": "/v2/again"}, BIG)}, "sent too much"),
        ({"/v2": (200, {}, BIG)}, "more than 65536 bytes"),
        ({"/v2": (200, {"Content-Length": "9"}, b"x")}, "cut"),
        ({"/v2": (200, {}, b'{"schemaVersion": 2}')}, "cannot be used"),
        ({"/v2": (500, {}, BIG)}, "status 500"),
        ({"/v2": (429, {}, b'{"errors":[{"code":"TOOMANYREQUESTS"}]}')}, "429, TOOMANYREQUESTS"),
        ({"/v2": (404, {}, b"")}, "no such image is there"),
        ({"/v2": (401, {}, b"")}, "status 401"),
        ({"/v2": (401, {"Www-Authenticate": "Bearer"}, b"")}, "login in an unknown form"),
        ({"/v2": (401, {"Www-Authenticate": "Basic realm=a"}, b"")}, "docker login"),
        (
            {
                "/v2": (401, {"Www-Authenticate": 'Bearer realm="http://HOST/token"'}, b""),
                "/token": (200, {}, BIG),
            },
            "sent too much",
        ),
        (
            {
                "/v2": (401, {"Www-Authenticate": 'Bearer realm="https://127.0.0.1:1/"'}, b""),
            },
            "redirects to another scheme",
        ),
        (
            {
                "/v2": (401, {"Www-Authenticate": 'Bearer realm="http://HOST/token"'}, b""),
                "/token": (200, {}, b'{"token": "secret-token"}'),
            },
            "status 401",
        ),
        (
            {
                "/v2": (401, {"Www-Authenticate": 'Bearer realm="http://HOST/token"'}, b""),
                "/token": (200, {}, b'["secret-token"'),
            },
            "token is not JSON",
        ),
    ],
)
def test_a_hostile_answer_is_one_error(
    hostile: ThreadingHTTPServer,
    cache: LayoutFolder,
    answers: dict[str, tuple[int, dict[str, str], bytes]],
    reason: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Within the limits of size, without another scheme, and with no token in it."""
    host = f"127.0.0.1:{hostile.server_address[1]}"
    hostile.answers = {  # type: ignore[attr-defined]
        start: (
            status,
            {name: value.replace("HOST", host) for name, value in headers.items()},
            body,
        )
        for start, (status, headers, body) in answers.items()
    }
    with pytest.raises(ShippingError, match=reason) as caught:
        pull_from(parse_reference(f"oci://{host}/tests/x:v1"), cache)
    assert "secret" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
