"""Statements about images, and who signs and verifies them: the in-toto statement and its seams.

A statement names the files of an image by SHA-256, and says in its predicate where the table was
measured. It is signed in a DSSE envelope inside a sigstore bundle, which is a layer of the image.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, Protocol

from warmup.core.errors import ShippingError, TableFormatError
from warmup.core.json_node import Node
from warmup.core.strict_json import JsonError, parse_json
from warmup.table.codec import digest_of, encode
from warmup.table.oci_image.blob import BlobDescriptor
from warmup.table.oci_image.manifest import BUNDLE_LAYER, TABLE_LAYER
from warmup.table.oci_image.table_image import TableImage
from warmup.table.row_store.row_group import without_rows
from warmup.table.schema import Table

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:inductor-warmup:table-provenance:v1"
_MOST_SUBJECTS: Final = 16
_FILES: Final = {TABLE_LAYER: "table.json", BUNDLE_LAYER: "table.bundle"}


class StatementSigner(Protocol):
    """Signs statements as one identity."""

    @property
    def identity(self) -> str:
        """Who signs."""
        ...

    def sign(self, statement: bytes, location: str) -> bytes:
        """Return a signature of *statement*; *location* is for errors.

        Raises:
            ShippingError: it cannot be signed.
        """
        ...


class SignatureVerifier(Protocol):
    """Verifies signatures of one signer, whom its maker named."""

    def signed_statement(self, signature: bytes, location: str) -> bytes:
        """Return the statement that *signature* signs.

        Raises:
            ShippingError: it is damaged, or not a signature of that signer.
        """
        ...


def statement_of(table: Table, image: TableImage) -> bytes:
    """Return the in-toto statement about *image*, which is that of *table*, to be signed."""
    layers = image.manifest.layers
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": layers[media].digest.removeprefix("sha256:")}}
            for media, name in _FILES.items()
            if media in layers
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "table": digest_of(table),
            "rows": len(table.rows),
            "measured": json.loads(encode(without_rows(table))),
            "assumptions": list(table.provenance.assumptions),
        },
    }
    return json.dumps(document, indent=1).encode()


def check_signed(statement: bytes, wanted: Iterable[BlobDescriptor], location: str) -> None:
    """Check that *statement*, whose signature was verified, is about each blob of *wanted*.

    Raises:
        ShippingError: it is of another kind, or names other files.
    """
    try:
        digests = _subjects(Node(parse_json(statement.decode()), location))
    except (JsonError, UnicodeDecodeError) as error:
        raise signature_error(location, f"its statement is not JSON: {error}") from None
    except TableFormatError as error:
        raise signature_error(location, f"its statement, {error.pointer}: {error.reason}") from None
    for descriptor in wanted:
        if descriptor.digest.removeprefix("sha256:") not in digests:
            raise signature_error(
                location,
                f"it is about other files than {_FILES[descriptor.media_type]} "
                f"({descriptor.digest})",
            )


def signature_error(location: str, reason: str) -> ShippingError:
    """Return the error about a signature that is there and does not hold."""
    return ShippingError(
        location,
        f"the signature is not accepted: {reason}",
        "nothing was written; ask who pushed the image",
    )


def _subjects(root: Node) -> set[str]:
    names = frozenset({"_type", "subject", "predicateType", "predicate"})
    members = root.members(names)
    for name, expected in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if members[name].string() != expected:
            members[name].fail(f"expected {expected}")
    digests: set[str] = set()
    for subject in members["subject"].elements(_MOST_SUBJECTS):
        parts = subject.members(frozenset({"name", "digest"}))
        digest = parts["digest"].members(frozenset({"sha256"}))["sha256"]
        digests.add(digest.string(64))
    return digests
