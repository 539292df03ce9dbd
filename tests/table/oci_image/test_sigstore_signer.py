"""Tables signed by sigstore-python, at services of the tests' own, and verified again."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warmup.core.errors import SettingsError, ShippingError
from warmup.table import Table
from warmup.table.oci_image.publication import push, signed
from warmup.table.oci_image.retrieval import ImageDemand

pytest.importorskip("sigstore", reason="the extra sigstore is not installed")

from sigstore_instance import SigstoreInstance, identity_token, sigstore_services

from warmup.table.oci_image.sigstore_signer import SigstoreSigner
from warmup.table.oci_image.sigstore_verifier import SigstoreVerifier

ME, ISSUER = "builds@example.com", "https://issuer.example.com"
NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of this machine stands before the services."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def instance() -> SigstoreInstance:
    """An instance of today: certificates are valid for a day."""
    return SigstoreInstance(now=NOW)


@pytest.fixture
def trust_config(instance: SigstoreInstance, tmp_path: Path) -> Iterator[Path]:
    """The client trust config of the running instance, whose user is ME."""
    with sigstore_services(instance, ME, ISSUER) as config:
        (tmp_path / "trust.json").write_text(config)
        (tmp_path / "root.json").write_text(json.dumps(json.loads(config)["trustedRoot"]))
        yield tmp_path / "trust.json"


def test_a_table_is_signed_pushed_pulled_and_verified(
    shipping: Any, make_table: Callable[..., Table], trust_config: Path
) -> None:
    """By sigstore-python on both sides: certificate, envelope, both logs, identity."""
    table = make_table()
    signer = SigstoreSigner(identity_token(ME, ISSUER, NOW), trust_config)
    image = signed(table, None, signer, shipping.place, "v1")
    push(image, shipping.place, shipping.reference)
    root = trust_config.with_name("root.json")
    verifier = SigstoreVerifier(ME, ISSUER, root, offline=True)
    assert shipping.pull(ImageDemand(verifier=verifier)).table == table
    assert signer.identity == ME
    with pytest.raises(ShippingError, match="the tag v1 is taken"):
        signed(table, None, signer, shipping.place, "v1")
    other = SigstoreVerifier("others@example.com", ISSUER, root, offline=True)
    with pytest.raises(ShippingError, match=r"do not match others@example\.com"):
        shipping.pull(ImageDemand(verifier=other))


def test_services_that_refuse_are_one_error(instance: SigstoreInstance, tmp_path: Path) -> None:
    """Without the token in it."""
    token = identity_token(ME, ISSUER, NOW)
    with sigstore_services(instance, ME, ISSUER, status=403) as config:
        (tmp_path / "trust.json").write_text(config)
        signer = SigstoreSigner(token, tmp_path / "trust.json")
        with pytest.raises(ShippingError, match="did not sign the table") as caught:
            signer.sign(b'{"_type": "x"}', "x")
    assert token not in str(caught.value)


@pytest.mark.parametrize("made", [NOW - dt.timedelta(days=1), None])
def test_a_token_that_is_none_is_refused(trust_config: Path, made: dt.datetime | None) -> None:
    """Expired, or something else: nothing is sent, and the token is not repeated."""
    token = "secret-word" if made is None else identity_token(ME, ISSUER, made)
    with pytest.raises(SettingsError, match="SIGSTORE_IDENTITY_TOKEN") as caught:
        SigstoreSigner(token, trust_config)
    assert token not in str(caught.value)


@pytest.mark.parametrize("content", [None, "", "{}"])
def test_a_trust_config_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    """Before anything is signed."""
    path = tmp_path / "trust.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match="trust config"):
        SigstoreSigner(identity_token(ME, ISSUER, NOW), path)
