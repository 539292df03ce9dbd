"""`warmup push` and `warmup pull`: a table and its bundle as an OCI image, to and from a place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from warmup.cli import options
from warmup.cli.output import print_report, say
from warmup.core.counted import counted
from warmup.core.error_text import remedy_for, shown
from warmup.core.errors import SettingsError
from warmup.core.files import open_regular, replace_bytes, write_output
from warmup.table import Table
from warmup.table.bundle_file import BUNDLE_SUFFIX, needs_of
from warmup.table.codec import digest_of
from warmup.table.oci_image.image_files import open_images
from warmup.table.oci_image.layout_folder import LayoutFolder
from warmup.table.oci_image.manifest import MAX_SIGNATURE_BYTES
from warmup.table.oci_image.publication import Publication, signed
from warmup.table.oci_image.publication import push as push_image
from warmup.table.oci_image.reference import parse_reference
from warmup.table.oci_image.retrieval import ImageDemand, Retrieval, bundle_pieces, default_cache
from warmup.table.oci_image.retrieval import pull as pull_image
from warmup.table.oci_image.signature import SignatureVerifier, StatementSigner, statement_of
from warmup.table.oci_image.table_image import image_of
from warmup.table.store import check_writable, read, write

Reference = Annotated[
    str,
    typer.Argument(
        help="oci://HOST/NAME:TAG (with the extra oci) or FOLDER:TAG; @sha256:... names a digest."
    ),
]


@dataclass(frozen=True, slots=True)
class _PulledFiles:
    """The files that a pull wrote, and whose signature was verified, None where nobody's was."""

    retrieval: Retrieval
    out: Path
    bundle: Path | None
    signer: str | None


def push(
    table: options.TableFile,
    reference: Reference,
    *,
    bundle: Annotated[
        Path | None, typer.Option(help="The bundle of the table, to be pushed with it.")
    ] = None,
    signature: Annotated[
        Path | None, typer.Option(help="A sigstore bundle that signs the statement.")
    ] = None,
    sign: Annotated[
        bool,
        typer.Option(
            "--sign", help="Sign it by sigstore, with the token in SIGSTORE_IDENTITY_TOKEN."
        ),
    ] = False,
    trust_config: Annotated[
        Path | None, typer.Option(help="The sigstore instance of --sign; default the public one.")
    ] = None,
    statement: Annotated[
        Path | None,
        typer.Option(help="Write the in-toto statement to be signed, and push nothing."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Push a table and its bundle as an OCI image, to a folder or a registry.

    A tag is never rewritten: pushing another table to it is an error.
    """
    place, tuned = parse_reference(reference), read(table)
    if sign and (signature is not None or statement is not None):
        raise SettingsError("--sign contradicts --signature and --statement", "give one of them")
    if sign:
        signer = _signer(trust_config)
        files = open_images(place)
        image = signed(tuned, bundle, signer, files, place.tag)
        say(f"signed by {signer.identity}")
    else:
        image = image_of(tuned, bundle, None if signature is None else _signature(signature))
    if statement is not None:
        write_output(statement, statement_of(tuned, image), "--statement")
        say(f"{statement}: to be signed; nothing was pushed")
        return
    done = push_image(image, open_images(place), place)
    print_report((done, tuned), spell_pushed, document_of_pushed, as_json=as_json)


def pull(
    reference: Reference,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The table file to write.")],
    with_bundle: Annotated[
        bool,
        typer.Option(
            "--with-bundle", help="Write its bundle beside it too. A bundle is code: trust it."
        ),
    ] = False,
    device: options.DeviceOption = "auto",
    any_device: Annotated[
        bool,
        typer.Option("--any-device", help="Pull it for whatever device and runtime it is."),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Take everything from the cache.")
    ] = False,
    cache: Annotated[
        Path | None, typer.Option(help="The folder of pulled images; default the user's cache.")
    ] = None,
    identity: Annotated[
        str | None, typer.Option(help="Who must have signed: an e-mail address or a workflow.")
    ] = None,
    issuer: Annotated[
        str | None, typer.Option(help="Who vouches for --identity: the URL of an OIDC issuer.")
    ] = None,
    trusted_root: Annotated[
        Path | None, typer.Option(help="sigstore's trusted root; default the public one.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Pull a table by tag or digest, if it is for this device and runtime."""
    place = parse_reference(reference)
    check_writable(out)
    verifier = _verifier(identity, issuer, trusted_root, offline=offline)
    runtime = None
    if not any_device:
        from warmup.inductor.machine import describe_runtime, resolve_device

        runtime = describe_runtime(resolve_device(device))
    demand = ImageDemand(
        runtime=runtime,
        bundle_facts=needs_of(runtime) if runtime is not None else None,
        wants_bundle=with_bundle,
        verifier=verifier,
    )
    kept = LayoutFolder(cache if cache is not None else default_cache())
    retrieval = pull_image(place, None if offline else open_images(place), kept, demand)
    _check_replaces(out, retrieval)
    beside = _write_bundle(out, kept, retrieval)
    write(out, retrieval.table, [retrieval.table])
    done = _PulledFiles(retrieval, out, beside, identity)
    print_report(done, spell_pulled, document_of_pulled, as_json=as_json)


def spell_pushed(pushed: tuple[Publication, Table]) -> Iterator[str]:
    """Yield where the image is, and what was new."""
    done, table = pushed
    yield str(done.reference)
    blobs = f"{counted(done.written, 'blob')} written, {done.bytes_written} bytes"
    yield f"{counted(len(table.rows), 'row')} for {table.provenance.runtime}; {blobs}"


def document_of_pushed(pushed: tuple[Publication, Table]) -> dict[str, Any]:
    """Return what was pushed as JSON values."""
    done, table = pushed
    return {
        "reference": str(done.reference),
        "digest": done.reference.digest,
        "table": digest_of(table),
        "rows": len(table.rows),
        "blobs_written": done.written,
        "bytes_written": done.bytes_written,
    }


def spell_pulled(done: _PulledFiles) -> Iterator[str]:
    """Yield what was written, from which image, and whose signature was verified."""
    table = done.retrieval.table
    beside = f" and {done.bundle}" if done.bundle is not None else ""
    yield f"{done.out}{beside}: {counted(len(table.rows), 'row')}, digest {digest_of(table)[:16]}"
    yield f"from {done.retrieval.reference}, {done.retrieval.downloaded} bytes downloaded"
    if done.signer is not None:
        yield f"signed by {done.signer}"
    elif done.retrieval.is_signed:
        yield "signed, not verified: --identity and --issuer say by whom it must be"


def document_of_pulled(done: _PulledFiles) -> dict[str, Any]:
    """Return what was written as JSON values."""
    found = done.retrieval
    return {
        "reference": str(found.reference),
        "digest": found.reference.digest,
        "table": digest_of(found.table),
        "rows": len(found.table.rows),
        "out": str(done.out),
        "bundle": None if done.bundle is None else str(done.bundle),
        "bytes_downloaded": found.downloaded,
        "is_signed": found.is_signed,
        "verified_identity": done.signer,
    }


def _signer(trust_config: Path | None) -> StatementSigner:
    """Return the signer with the token of the environment.

    Raises:
        SettingsError: there is no token, or it cannot be used.
    """
    token = os.environ.get("SIGSTORE_IDENTITY_TOKEN")
    if not token:
        raise SettingsError(
            "--sign finds no token in SIGSTORE_IDENTITY_TOKEN",
            "put an OIDC token with the audience sigstore there",
        )
    from warmup.table.oci_image.sigstore_signer import SigstoreSigner

    return SigstoreSigner(token, trust_config)


def _verifier(
    identity: str | None, issuer: str | None, trusted_root: Path | None, *, offline: bool
) -> SignatureVerifier | None:
    """Return the verifier of the signer whom the options name, None where they name nobody.

    Raises:
        SettingsError: the identity or the issuer is missing; a signature by anybody proves nothing.
    """
    if identity is None and issuer is None and trusted_root is None:
        return None
    if not identity or not issuer:
        raise SettingsError(
            "--identity and --issuer belong together, and --trusted-root to them",
            "name both: a signature of anybody proves nothing",
        )
    from warmup.table.oci_image.sigstore_verifier import SigstoreVerifier

    return SigstoreVerifier(identity, issuer, trusted_root, offline=offline)


def _signature(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(MAX_SIGNATURE_BYTES + 1)
    except (OSError, ValueError) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or error
        raise SettingsError(
            f"--signature {shown(path)}: cannot be read: {problem}",
            remedy_for(error, "name the file that the signing tool wrote"),
        ) from error
    if not 0 < len(content) <= MAX_SIGNATURE_BYTES:
        raise SettingsError(
            f"--signature {shown(path)} is empty, or has more than {MAX_SIGNATURE_BYTES} bytes",
            "name the file that the signing tool wrote",
        )
    return content


def _check_replaces(out: Path, retrieval: Retrieval) -> None:
    """Check that the file *out* has no row that the pulled table lacks.

    Raises:
        SettingsError: it has.
    """
    if out.is_file() and (lost := read(out).rows.keys() - retrieval.table.rows.keys()):
        raise SettingsError(
            f"--out {shown(out)} has {counted(len(lost), 'row')} that {retrieval.reference} lacks",
            "name another file, or remove this one",
        )


def _write_bundle(out: Path, cache: LayoutFolder, retrieval: Retrieval) -> Path | None:
    """Write the bundle beside *out*, before the table that it belongs to; return its path."""
    if retrieval.bundle is None:
        return None
    path = out.with_suffix(BUNDLE_SUFFIX)
    try:
        replace_bytes(path, bundle_pieces(cache, retrieval.bundle))
    except OSError as error:
        raise SettingsError(
            f"{shown(path)}: cannot be written: {error.strerror}",
            remedy_for(error, "name a file in another folder with --out"),
        ) from error
    return path
