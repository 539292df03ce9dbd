"""`Registry`: images in a registry of the OCI distribution protocol."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from warmup.core.errors import ShippingError
from warmup.core.strict_json import JsonError, parse_json
from warmup.table.oci_image.blob import Blob, BlobDescriptor, image_digest
from warmup.table.oci_image.manifest import MANIFEST_TYPE, MAX_MANIFEST_BYTES
from warmup.table.oci_image.reference import ImageReference
from warmup.table.oci_image.registry_connection import (
    CHECK_NETWORK,
    LOG_IN,
    RegistryConnection,
)

_RECEIVED_PIECE: Final = 64 * 1024
_MAX_PROBLEM_BYTES: Final = 16 * 1024
_ERROR_CODE: Final = re.compile(r"[A-Z_]{1,64}")
_MOST_CODES: Final = 3
_OK, _NOT_FOUND = 200, 404
_SUCCESSES: Final = (_OK, 201, 202)
_ADVICE_OF_STATUS: Final = {
    401: LOG_IN,
    403: "log in to the registry as a user who may do this",
    _NOT_FOUND: "see that the repository is there",
    429: "wait, and run it again",
}


class Registry:
    """The images of the repository that a reference names.

    Raises:
        SettingsError: the extra ``oci`` is not installed.
    """

    def __init__(self, reference: ImageReference) -> None:
        self._connection = RegistryConnection(reference)

    @property
    def location(self) -> str:
        """The repository as the user named it."""
        return self._connection.location

    def manifest(self, name: str) -> bytes | None:
        """Return the manifest with the tag or the digest *name*; None where there is none."""
        what = f"the manifest {name}"
        url = self._connection.url_of(f"manifests/{name}")
        with self._connection.request("GET", url, {"Accept": MANIFEST_TYPE}) as response:
            if response.status_code == _NOT_FOUND:
                return None
            self._check(response, f"{what} cannot be read")
            return self._body(response, MAX_MANIFEST_BYTES, what)

    def has_blob(self, descriptor: BlobDescriptor) -> bool:
        """Return whether the registry says that it has the blob."""
        with self._connection.request("HEAD", self._blob_url(descriptor)) as response:
            return bool(response.status_code == _OK)

    def read_blob(self, descriptor: BlobDescriptor) -> Iterator[bytes]:
        """Yield the content of a blob as it arrives."""
        with self._connection.request("GET", self._blob_url(descriptor)) as response:
            self._check(response, f"the blob {descriptor.digest} cannot be read")
            yield from response.iter_content(_RECEIVED_PIECE)

    def write_blob(self, blob: Blob) -> None:
        """Upload *blob*; the registry checks its digest."""
        what = f"the blob {blob.descriptor.digest} cannot be written"
        start = self._connection.url_of("blobs/uploads/")
        with self._connection.request("POST", start) as response:
            self._check(response, what)
            place = response.headers.get("Location", "")
        if not place:
            raise self._connection.error(f"{what}: the registry names no place", CHECK_NETWORK)
        place = self._connection.url_of(place)
        mark = "&" if urlsplit(place).query else "?"
        place += f"{mark}digest={blob.descriptor.digest.replace(':', '%3A')}"
        headers = {"Content-Type": "application/octet-stream"}
        with (
            blob.open() as file,
            self._connection.request("PUT", place, headers, file) as response,
        ):
            self._check(response, what)

    def write_manifest(self, content: bytes, tag: str | None) -> None:
        """Write the manifest *content*, and give it *tag* where given."""
        name = tag if tag is not None else image_digest(content)
        url = self._connection.url_of(f"manifests/{name}")
        headers = {"Content-Type": MANIFEST_TYPE}
        with self._connection.request("PUT", url, headers, content) as response:
            self._check(response, f"the manifest {name} cannot be written")

    def _blob_url(self, descriptor: BlobDescriptor) -> str:
        return self._connection.url_of(f"blobs/{descriptor.digest}")

    def _body(self, response: Any, limit: int, what: str) -> bytes:
        content = bytearray()
        for piece in response.iter_content(_RECEIVED_PIECE):
            content += piece
            if len(content) > limit:
                raise self._connection.error(
                    f"{what} has more than {limit} bytes", "do not use this place"
                )
        return bytes(content)

    def _check(self, response: Any, what: str) -> None:
        """Check that *response* is a success.

        Raises:
            ShippingError: it is none; the codes of the registry are in the text.
        """
        status = response.status_code
        if status in _SUCCESSES:
            return
        try:
            problem = self._body(response, _MAX_PROBLEM_BYTES, what)
        except ShippingError:  # the status is enough
            problem = b""
        codes = "".join(f", {code}" for code in _codes_in(problem))
        advice = _ADVICE_OF_STATUS.get(status, CHECK_NETWORK)
        raise self._connection.error(f"{what}: status {status}{codes}", advice)


def _codes_in(problem: bytes) -> list[str]:
    """Return the codes of errors in the body *problem*, such as ``DENIED``."""
    try:
        value = parse_json(problem.decode())
    except (JsonError, UnicodeDecodeError):
        return []
    errors = value.get("errors") if isinstance(value, dict) else None
    if not isinstance(errors, list):
        return []
    codes = [each.get("code") for each in errors if isinstance(each, dict)]
    named = [code for code in codes if isinstance(code, str) and _ERROR_CODE.fullmatch(code)]
    return named[:_MOST_CODES]
