"""Signatures verified by sigstore-python, of a sigstore instance of the tests' own, offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.core.errors import SettingsError, ShippingError
from warmup.table import Table
from warmup.table.oci_image.publication import push
from warmup.table.oci_image.retrieval import ImageDemand
from warmup.table.oci_image.signature import statement_of
from warmup.table.oci_image.table_image import image_of

pytest.importorskip("sigstore", reason="the extra sigstore is not installed")

from sigstore_instance import SigstoreInstance

from warmup.table.oci_image.sigstore_verifier import SigstoreVerifier

ME, ISSUER = "builds@example.com", "https://issuer.example.com"


@pytest.fixture(scope="module")
def instance() -> SigstoreInstance:
    """An instance whose trusted root the verifiers have."""
    return SigstoreInstance()


@pytest.fixture
def verifier(instance: SigstoreInstance, tmp_path: Path) -> SigstoreVerifier:
    """The verifier of ME at that instance."""
    root = tmp_path / "trusted_root.json"
    root.write_text(instance.trusted_root())
    return SigstoreVerifier(ME, ISSUER, root, offline=True)


def test_a_table_that_the_pinned_identity_signed_is_pulled(
    shipping: Any,
    make_table: Callable[..., Table],
    instance: SigstoreInstance,
    verifier: SigstoreVerifier,
) -> None:
    """Signed, pushed, pulled and verified."""
    table = make_table()
    statement = statement_of(table, image_of(table))
    signed = image_of(table, signature=instance.sign(statement, ME, ISSUER))
    push(signed, shipping.place, shipping.reference)
    assert shipping.pull(ImageDemand(verifier=verifier)).table == table


@pytest.mark.parametrize(
    ("identity", "issuer", "reason"),
    [
        ("others@example.com", ISSUER, "do not match builds@example.com"),
        (f"{ME}.evil", ISSUER, "do not match builds@example.com"),
        (ME, "https://issuer.example.org", "OIDCIssuer does not match"),
    ],
)
def test_a_signature_of_somebody_else_is_refused(
    instance: SigstoreInstance,
    verifier: SigstoreVerifier,
    identity: str,
    issuer: str,
    reason: str,
) -> None:
    """Valid at the same instance, and of another identity, or vouched for by another issuer."""
    with pytest.raises(ShippingError, match=reason):
        verifier.signed_statement(instance.sign(b"{}", identity, issuer), "x")


def test_a_signature_of_another_instance_is_refused(verifier: SigstoreVerifier) -> None:
    """The right name, from an authority that nobody trusts."""
    with pytest.raises(ShippingError, match="certificate chain"):
        verifier.signed_statement(SigstoreInstance().sign(b"{}", ME, ISSUER), "x")


@pytest.mark.parametrize("part", ["payload", "sig", "signedEntryTimestamp", "rootHash", "envelope"])
def test_a_changed_signature_is_refused(
    instance: SigstoreInstance, verifier: SigstoreVerifier, part: str
) -> None:
    """One letter of the payload, the signature, or what the log of signatures says."""
    bundle = instance.sign(b'{"a": 1}', ME, ISSUER)
    at = bundle.index(f'"{part}": "'.encode()) + len(part) + 15
    other = b"B" if bundle[at : at + 1] != b"B" else b"C"
    with pytest.raises(ShippingError, match="the signature is not accepted"):
        verifier.signed_statement(bundle[:at] + other + bundle[at + 1 :], "x")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"mediaType": "a/b"}'])
def test_what_is_no_sigstore_bundle_is_refused(verifier: SigstoreVerifier, content: bytes) -> None:
    """With warmup's own error."""
    with pytest.raises(ShippingError, match="the signature is not accepted"):
        verifier.signed_statement(content, "x")


def test_a_signature_on_something_else_is_refused(
    instance: SigstoreInstance, verifier: SigstoreVerifier
) -> None:
    """The envelope says that it has no statement."""
    with pytest.raises(ShippingError, match="it signs text/plain, and no statement"):
        verifier.signed_statement(instance.sign(b"{}", ME, ISSUER, "text/plain"), "x")


def test_the_public_instance_does_not_know_ours(instance: SigstoreInstance) -> None:
    """Without --trusted-root the root is sigstore's own, which is there offline."""
    verifier = SigstoreVerifier(ME, ISSUER, None, offline=True)
    with pytest.raises(ShippingError, match="the signature is not accepted"):
        verifier.signed_statement(instance.sign(b"{}", ME, ISSUER), "x")


@pytest.mark.parametrize("content", [None, "", "{}", "[]", "\N{SNOWMAN}"])
def test_a_trusted_root_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    """Before anything is pulled."""
    path = tmp_path / "root.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match="trusted root"):
        SigstoreVerifier(ME, ISSUER, path, offline=True)
