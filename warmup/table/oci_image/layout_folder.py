"""`LayoutFolder`: images in a folder, in the OCI image layout that registry tools read too."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmup.core.error_text import remedy_for
from warmup.core.errors import ShippingError
from warmup.core.file_lock import locked
from warmup.core.files import open_regular, replace_bytes
from warmup.core.strict_json import JsonError, parse_json
from warmup.table.oci_image.blob import (
    IMAGE_DIGEST,
    Blob,
    BlobDescriptor,
    checked,
    image_digest,
    pieces_of,
)
from warmup.table.oci_image.manifest import IMAGE_TYPE, MANIFEST_TYPE, MAX_MANIFEST_BYTES

_INDEX_FILE: Final = "index.json"
_LAYOUT_FILE: Final = "oci-layout"
_LAYOUT_VERSION: Final = b'{"imageLayoutVersion": "1.0.0"}'
_TAG_NAME: Final = "org.opencontainers.image.ref.name"
_MAX_INDEX_BYTES: Final = 4 * 1024 * 1024
_INDEX_LOCK_S: Final = 60


@dataclass(frozen=True, slots=True)
class LayoutFolder:
    """The images in *folder*. No file but ``index.json`` is changed; a tag is given once."""

    folder: Path

    @property
    def location(self) -> str:
        """The folder as the user named it."""
        return str(self.folder)

    def manifest(self, name: str) -> bytes | None:
        """Return the manifest with the tag or the digest *name*; None where there is none.

        The bytes are those of the file: that they have the digest is for the caller to check.
        """
        digest = self.digest(name)
        return None if digest is None else self._read(self.blob_path(digest), MAX_MANIFEST_BYTES)

    def digest(self, name: str) -> str | None:
        """Return the digest of the manifest with the tag or the digest *name*, None without it."""
        return name if IMAGE_DIGEST.fullmatch(name) else self._tags().get(name)

    def has_blob(self, descriptor: BlobDescriptor) -> bool:
        """Return whether a regular file of this digest and size is there."""
        with contextlib.suppress(OSError), open_regular(self.blob_path(descriptor.digest)) as file:
            return os.fstat(file.fileno()).st_size == descriptor.size
        return False

    def read_blob(self, descriptor: BlobDescriptor) -> Iterator[bytes]:
        """Yield the content of a blob in pieces."""
        try:
            with open_regular(self.blob_path(descriptor.digest)) as file:
                yield from pieces_of(file)
        except OSError as error:
            raise self._error(f"the blob {descriptor.digest} cannot be read", error) from error

    def write_blob(self, blob: Blob) -> None:
        """Write *blob*, whole or not at all; what was there is replaced."""
        with blob.open() as file:
            self.put_blob(blob.descriptor, pieces_of(file), self.location)

    def put_blob(self, descriptor: BlobDescriptor, pieces: Iterator[bytes], origin: str) -> None:
        """Write the blob of *descriptor* from *pieces*, which come from *origin*.

        Raises:
            ShippingError: *pieces* are not that blob, and nothing was kept.
        """
        path = self.blob_path(descriptor.digest)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(path, checked(pieces, descriptor, origin))
        except OSError as error:
            raise self._error(f"the blob {descriptor.digest} cannot be written", error) from error

    def write_manifest(self, content: bytes, tag: str | None) -> None:
        """Write the manifest *content*, and give it *tag* where given.

        Raises:
            ShippingError: another manifest has the tag.
        """
        digest = image_digest(content)
        descriptor = BlobDescriptor(MANIFEST_TYPE, digest, len(content))
        self.put_blob(descriptor, iter([content]), self.location)
        index_path = Path(os.path.realpath(self.folder)) / _INDEX_FILE
        try:
            with locked(index_path, _INDEX_LOCK_S):
                entries = self._entries()
                known = digest if tag is None else _tags_in(entries).get(tag, digest)
                if known != digest:
                    raise moved_tag(self.location, str(tag), known, digest)
                entry: dict[str, Any] = {
                    "mediaType": MANIFEST_TYPE,
                    "artifactType": IMAGE_TYPE,
                    "digest": digest,
                    "size": len(content),
                    **({} if tag is None else {"annotations": {_TAG_NAME: tag}}),
                }
                if entry not in entries:
                    index = {"schemaVersion": 2, "manifests": [*entries, entry]}
                    replace_bytes(index_path, json.dumps(index, indent=1).encode())
                    replace_bytes(index_path.with_name(_LAYOUT_FILE), _LAYOUT_VERSION)
        except OSError as error:
            raise self._error("its index cannot be written", error) from error

    def blob_path(self, digest: str) -> Path:
        """Return the path of the blob *digest*, which is ``sha256:`` and 64 hex digits."""
        assert IMAGE_DIGEST.fullmatch(digest)
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _tags(self) -> dict[str, str]:
        return _tags_in(self._entries())

    def _entries(self) -> list[Any]:
        """Return the entries of the index, none where there is no index."""
        raw = self._read(self.folder / _INDEX_FILE, _MAX_INDEX_BYTES)
        if raw is None:
            return []
        try:
            value = parse_json(raw.decode())
        except (JsonError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from None
        entries = value.get("manifests") if isinstance(value, dict) else None
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise self._damaged("it has no list of manifests")
        return entries

    def _read(self, path: Path, limit: int) -> bytes | None:
        try:
            with open_regular(path) as file:
                content = file.read(limit + 1)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._error(f"{path.name} cannot be read", error) from error
        if len(content) > limit:
            raise ShippingError(
                self.location, f"{path.name} has more than {limit} bytes", "name another folder"
            )
        return content

    def _damaged(self, reason: str) -> ShippingError:
        return ShippingError(
            self.location,
            f"{_INDEX_FILE} is not that of an image layout: {reason}",
            "name another folder, or push to an empty one",
        )

    def _error(self, what: str, error: OSError | ValueError) -> ShippingError:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        advice = remedy_for(error, "name a folder that this user can read and write")
        return ShippingError(self.location, f"{what}: {problem}", advice)


def moved_tag(location: str, tag: str, known: str, digest: str) -> ShippingError:
    """Return the error about *tag*, which is *known* at *location* and may not become *digest*."""
    return ShippingError(
        location,
        f"the tag {tag} is {known}, and not {digest}; a tag is never rewritten",
        "use another tag, or name the image by its digest",
    )


def _tags_in(entries: list[Any]) -> dict[str, str]:
    """Return the digest of each tag; entries of another form are those of other tools."""
    found: dict[str, str] = {}
    for entry in entries:
        annotations, digest = entry.get("annotations"), entry.get("digest")
        tag = annotations.get(_TAG_NAME) if isinstance(annotations, dict) else None
        if isinstance(tag, str) and isinstance(digest, str) and IMAGE_DIGEST.fullmatch(digest):
            found.setdefault(tag, digest)
    return found
