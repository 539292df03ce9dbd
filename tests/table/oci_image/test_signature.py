"""Statements about tables, and which signed statements are accepted; no signature tool is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from warmup.core.errors import ShippingError
from warmup.core.runtime import Runtime
from warmup.table import Table
from warmup.table.bundle_file import needs_of, write_bundle
from warmup.table.codec import digest_of
from warmup.table.oci_image.manifest import SIGNATURE_LAYER, TABLE_LAYER
from warmup.table.oci_image.publication import push
from warmup.table.oci_image.retrieval import ImageDemand
from warmup.table.oci_image.signature import check_signed, signature_error, statement_of
from warmup.table.oci_image.table_image import image_of

MakeTable = Callable[..., Table]


@dataclass(frozen=True, slots=True)
class Signer:
    """A verifier whose signatures are its word in front of a statement."""

    word: bytes = b"mine:"

    def signed_statement(self, signature: bytes, location: str) -> bytes:
        """Return the statement of its own signature."""
        if not signature.startswith(self.word):
            raise signature_error(location, "it is of somebody else")
        return signature.removeprefix(self.word)


def statement(table: Table) -> bytes:
    """Return the statement about *table* without a bundle."""
    return statement_of(table, image_of(table))


def test_a_statement_has_digest_and_provenance(make_table: MakeTable) -> None:
    """The subject is the file of the table; the predicate says where it was measured."""
    table = make_table()
    document = json.loads(statement(table))
    digest = image_of(table).manifest.table.digest
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["subject"] == [
        {"name": "table.json", "digest": {"sha256": digest.removeprefix("sha256:")}}
    ]
    predicate = document["predicate"]
    assert (predicate["table"], predicate["rows"]) == (digest_of(table), 2)
    assert predicate["measured"]["provenance"]["device"]["name"] == "NVIDIA H200"


def test_a_signed_table_is_pulled(shipping: Any, make_table: MakeTable) -> None:
    """The signature of the signer who is asked for, about this table."""
    table = make_table()
    image = image_of(table, signature=b"mine:" + statement(table))
    push(image, shipping.place, shipping.reference)
    pulled = shipping.pull(ImageDemand(verifier=Signer()))
    assert (pulled.table, pulled.is_signed) == (table, True)


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (lambda _: None, "has no signature, and --identity asks for one"),
        (lambda table: b"yours:" + statement(table), "of somebody else"),
        (
            lambda table: b"mine:" + statement(replace(table, rows={})),
            "other files than table.json",
        ),
        (lambda _: b"mine:{}", "missing: _type"),
        (lambda _: b"mine:\xff", "not JSON"),
        (
            lambda table: b"mine:" + statement(table).replace(b"Statement/v1", b"Statement/v9"),
            "expected https://in-toto.io/Statement/v1",
        ),
        (
            lambda table: (
                b"mine:" + statement(table).replace(b"table-provenance", b"another-thing")
            ),
            "expected urn:inductor-warmup:table-provenance:v1",
        ),
    ],
    ids=["none", "somebody else's", "another table's", "empty", "damaged", "type", "predicate"],
)
def test_another_signature_is_refused_before_the_download(
    shipping: Any, make_table: MakeTable, signature: Callable[[Table], bytes | None], reason: str
) -> None:
    """The blob of the table is not in the cache then."""
    table = make_table()
    image = image_of(table, signature=signature(table))
    push(image, shipping.place, shipping.reference)
    with pytest.raises(ShippingError, match=reason):
        shipping.pull(ImageDemand(verifier=Signer()))
    assert not shipping.cache.has_blob(image.manifest.layers[TABLE_LAYER])
    assert (SIGNATURE_LAYER in image.manifest.layers) == (signature(table) is not None)


def test_a_bundle_must_be_signed_too(
    shipping: Any, make_table: MakeTable, here: Runtime, tmp_path: Path
) -> None:
    """A statement about the table alone does not cover a bundle that was put beside it."""
    table, path = make_table(), tmp_path / "t.bundle"
    write_bundle(path, digest_of(table), needs_of(here), {"a": b"code"})
    image = image_of(table, path, b"mine:" + statement(table))
    push(image, shipping.place, shipping.reference)
    assert shipping.pull(ImageDemand(verifier=Signer())).table == table
    with pytest.raises(ShippingError, match=r"other files than table\.bundle"):
        shipping.pull(ImageDemand(verifier=Signer(), wants_bundle=True))


def test_a_statement_with_the_bundle_covers_both(
    make_table: MakeTable, here: Runtime, tmp_path: Path
) -> None:
    """Its subjects are the two files."""
    table, path = make_table(), tmp_path / "t.bundle"
    write_bundle(path, digest_of(table), needs_of(here), {"a": b"code"})
    image = image_of(table, path)
    check_signed(statement_of(table, image), image.manifest.layers.values(), "x")
    assert len(json.loads(statement_of(table, image))["subject"]) == 2
