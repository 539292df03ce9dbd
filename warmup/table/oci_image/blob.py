"""`BlobDescriptor` and `Blob`: content that is named by its SHA-256, and how it is checked."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from warmup.core.errors import ShippingError
from warmup.core.files import open_regular

IMAGE_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_BLOB_PIECE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class BlobDescriptor:
    """The type, digest (``sha256:`` and 64 hex digits), size and annotations of a blob."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob to write: its descriptor, and how to open its content."""

    descriptor: BlobDescriptor
    open: Callable[[], BinaryIO]


def image_digest(content: bytes) -> str:
    """Return the digest of *content* as an image names it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob_of_bytes(
    media_type: str, content: bytes, annotations: Mapping[str, str] | None = None
) -> Blob:
    """Return *content* as a blob."""
    descriptor = BlobDescriptor(
        media_type, image_digest(content), len(content), dict(annotations or {})
    )
    return Blob(descriptor, lambda: io.BytesIO(content))


def blob_of_file(media_type: str, path: Path, annotations: Mapping[str, str]) -> Blob:
    """Return the regular file at *path* as a blob; it is read once now, and again when written.

    Raises:
        OSError: it cannot be read.
    """
    sha, size = hashlib.sha256(), 0
    with open_regular(path) as file:
        for piece in pieces_of(file):
            sha.update(piece)
            size += len(piece)
    descriptor = BlobDescriptor(media_type, f"sha256:{sha.hexdigest()}", size, dict(annotations))
    return Blob(descriptor, lambda: open_regular(path))


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of *file* in pieces."""
    while piece := file.read(_BLOB_PIECE):
        yield piece


def checked(pieces: Iterable[bytes], descriptor: BlobDescriptor, location: str) -> Iterator[bytes]:
    """Yield *pieces*, which must be the blob of *descriptor*; known behind the last piece.

    Not more than the size in *descriptor* is taken.

    Raises:
        ShippingError: they are longer, shorter, or other bytes; *location* is for the text.
    """
    sha, size = hashlib.sha256(), 0
    for piece in pieces:
        size += len(piece)
        if size > descriptor.size:
            raise _damaged(location, descriptor, "is longer than its manifest says")
        sha.update(piece)
        yield piece
    if size < descriptor.size:
        raise _damaged(location, descriptor, f"ends after {size} of {descriptor.size} bytes")
    if f"sha256:{sha.hexdigest()}" != descriptor.digest:
        raise _damaged(location, descriptor, "has other content than its digest")


def _damaged(location: str, descriptor: BlobDescriptor, problem: str) -> ShippingError:
    return ShippingError(
        location,
        f"the blob {descriptor.digest} {problem}",
        "nothing of it was kept: pull again, and push the table again where that does not help",
    )
