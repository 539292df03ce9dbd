"""`warmup push` and `warmup pull` on the command line: text, JSON, files, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.core.rows import Row
from warmup.core.runtime import Runtime
from warmup.table import Table
from warmup.table.bundle_file import needs_of, write_bundle
from warmup.table.codec import digest_of, encode
from warmup.table.store import read

RunMain = Callable[..., subprocess.CompletedProcess[str]]
PULL = ("pull", "images:v1", "--any-device", "--cache", "cache", "--out", "out.json")


@pytest.fixture
def pushed(
    tmp_path: Path,
    make_table: Callable[..., Table],
    make_runtime: Callable[..., Runtime],
    run_main: RunMain,
) -> Path:
    """A folder with t.json and t.bundle, both pushed to the tag v1 of the folder images."""
    (tmp_path / "t.json").write_text(encode(make_table()))
    needs = needs_of(make_runtime())
    write_bundle(tmp_path / "t.bundle", digest_of(make_table()), needs, {"a": b"code"})
    done = run_main("push", "t.json", "images:v1", "--bundle", "t.bundle")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith("images:v1@sha256:")
    assert second.startswith("2 rows for NVIDIA H200 (sm_90, 132 SMs, 140 GiB) with torch 2.13.0")
    return tmp_path


def test_a_table_is_pulled(pushed: Path, run_main: RunMain) -> None:
    """To the file that --out names; its bundle stays where it is."""
    done = run_main(*PULL)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("out.json: 2 rows, digest ")
    assert "\nfrom images:v1@sha256:" in done.stdout
    assert (pushed / "out.json").read_text() == (pushed / "t.json").read_text()
    assert not (pushed / "out.bundle").exists()


def test_a_bundle_is_pulled_where_it_is_asked_for(pushed: Path, run_main: RunMain) -> None:
    """Beside the table, as the file that was pushed."""
    done = run_main(*PULL, "--with-bundle", "--json")
    assert json.loads(done.stdout)["bundle"] == "out.bundle"
    assert (pushed / "out.bundle").read_bytes() == (pushed / "t.bundle").read_bytes()


def test_a_pull_offline_asks_nobody(pushed: Path, run_main: RunMain) -> None:
    """The folder of images is gone, and the cache has all of it."""
    run_main(*PULL)
    (pushed / "images").rename(pushed / "gone")
    document = json.loads(run_main(*PULL, "--offline", "--json").stdout)
    assert (document["rows"], document["bytes_downloaded"]) == (2, 0)
    assert run_main(*PULL[:-1], "other.json").returncode == 3


@pytest.mark.usefixtures("pushed")
def test_a_table_of_another_device_is_refused(run_main: RunMain) -> None:
    """This machine is no H200: one line, and no file."""
    done = run_main("pull", "images:v1", "--cache", "cache", "--out", "out.json", "--device", "cpu")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "device.type: table cuda, here cpu" in done.stderr
    assert "the table was not downloaded" in done.stderr
    assert not Path("out.json").exists()


def test_rows_are_not_lost(
    pushed: Path,
    make_table: Callable[..., Table],
    make_key: Callable[..., str],
    make_row: Callable[..., Row],
    run_main: RunMain,
) -> None:
    """A file at --out with a row that the pulled table lacks stays as it is."""
    own = make_table({make_key(16): make_row()})
    (pushed / "out.json").write_text(encode(own))
    done = run_main(*PULL)
    assert (done.returncode, "out.json has 1 row that images:v1@sha256" in done.stderr) == (3, True)
    assert read(pushed / "out.json") == own


@pytest.mark.usefixtures("pushed")
@pytest.mark.parametrize(
    "words",
    [
        ("--identity", "me@example.com"),
        ("--issuer", "https://issuer.example.com"),
        ("--trusted-root", "root.json"),
        ("--identity", "", "--issuer", ""),
    ],
)
def test_a_signature_of_anybody_is_not_accepted(run_main: RunMain, words: tuple[str, ...]) -> None:
    """Identity and issuer are both named, or nothing is verified and nothing is claimed."""
    done = run_main(*PULL, *words)
    assert (done.returncode, "a signature of anybody proves nothing" in done.stderr) == (3, True)


def test_the_signer_is_pinned_in_the_settings(pushed: Path, run_main: RunMain) -> None:
    """An identity in warmup.toml is asked for by every pull, and half of one is an error."""
    (pushed / "warmup.toml").write_text('[pull]\nidentity = "me@example.com"\n')
    assert "belong together" in run_main(*PULL).stderr


def test_a_bundle_cannot_be_asked_for_in_the_settings(pushed: Path, run_main: RunMain) -> None:
    """It is code, and its switch must be typed."""
    (pushed / "warmup.toml").write_text("[pull]\nwith-bundle = true\n")
    done = run_main(*PULL)
    assert (done.returncode, "is no option of warmup pull" in done.stderr) == (3, True)


def test_a_statement_is_written_and_nothing_pushed(pushed: Path, run_main: RunMain) -> None:
    """What is to be signed names the table and the bundle."""
    words = ("--bundle", "t.bundle", "--statement", "s.json")
    done = run_main("push", "t.json", "elsewhere:v1", *words)
    assert (done.returncode, done.stdout) == (0, "")
    statement = json.loads((pushed / "s.json").read_text())
    assert [one["name"] for one in statement["subject"]] == ["table.json", "table.bundle"]
    assert not (pushed / "elsewhere").exists()


@pytest.mark.usefixtures("pushed")
def test_a_signature_is_not_said_to_be_verified(pushed: Path, run_main: RunMain) -> None:
    """Without --identity a signed table is pulled, and the output says what that means."""
    (pushed / "s.sigstore.json").write_text("{}")
    run_main("push", "t.json", "images:v2", "--signature", "s.sigstore.json")
    words = [word.replace("v1", "v2") for word in PULL]
    assert "signed, not verified" in run_main(*words).stdout
    document = json.loads(run_main(*words, "--json").stdout)
    assert (document["is_signed"], document["verified_identity"]) == (True, None)


@pytest.mark.usefixtures("pushed")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sign",), "--sign finds no token in SIGSTORE_IDENTITY_TOKEN"),
        (("--sign", "--statement", "s.json"), "--sign contradicts --signature and --statement"),
        (("--sign", "--signature", "s.json"), "--sign contradicts --signature and --statement"),
    ],
)
def test_a_signature_needs_a_token(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    """And is made, or given, or left to another tool."""
    monkeypatch.delenv("SIGSTORE_IDENTITY_TOKEN", raising=False)
    done = run_main("push", "t.json", "images:v2", *words)
    assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (3, True, 1)


def test_a_table_of_this_machine_is_pulled(
    tmp_path: Path, make_table: Callable[..., Table], run_main: RunMain
) -> None:
    """Without --any-device: the description agrees with this CPU and its torch."""
    from warmup.inductor.machine import describe_runtime, resolve_device

    table = make_table({}, runtime=describe_runtime(resolve_device("cpu")))
    (tmp_path / "t.json").write_text(encode(table))
    run_main("push", "t.json", "images:v1")
    words = [word for word in PULL if word != "--any-device"]
    assert run_main(*words, "--device", "cpu").returncode == 0
    assert read(tmp_path / "out.json") == table


@pytest.mark.usefixtures("pushed")
@pytest.mark.parametrize("content", [None, b"", b"x" * (256 * 1024 + 1)])
def test_a_signature_file_that_is_none_is_refused(
    pushed: Path, run_main: RunMain, content: bytes | None
) -> None:
    """Missing, empty, too large: before anything is written."""
    if content is not None:
        (pushed / "s").write_bytes(content)
    done = run_main("push", "t.json", "images:v2", "--signature", "s")
    assert (done.returncode, done.stderr.startswith("error: --signature s")) == (3, True)


@pytest.mark.usefixtures("pushed")
@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (("push", "t.json", "oci://h.example/a:v1"), "oras.auth", "oci"),
        ((*PULL, "--identity", "me", "--issuer", "https://i"), "sigstore.errors", "sigstore"),
    ],
)
def test_an_extra_that_is_missing_is_named(
    run_main: RunMain,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    missing: str,
    extra: str,
) -> None:
    """One line with the command that installs it."""
    for name in [name for name in sys.modules if name.startswith("warmup.table.oci_image.")]:
        if name.endswith((".registry", ".registry_connection", ".sigstore_verifier")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    done = run_main(*words)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert f"pip install 'inductor-warmup[{extra}]'" in done.stderr


def test_nothing_of_the_extras_is_imported_without_them(
    pushed: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A push to a folder and a pull from it load neither a client nor torch."""
    code = (
        "import sys\nfrom warmup.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print([name for name in ('oras', 'requests', 'sigstore', 'torch') if name in sys.modules])"
    )
    for words in (("push", "t.json", "images:v3"), PULL):
        done = run_python("-c", code, *words, cwd=pushed)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]")
