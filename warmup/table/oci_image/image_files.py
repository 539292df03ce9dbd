"""`ImageFiles`: what `push` and `pull` need from a place of images; `open_images`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from warmup.table.oci_image.blob import Blob, BlobDescriptor
from warmup.table.oci_image.layout_folder import LayoutFolder
from warmup.table.oci_image.reference import ImageReference


class ImageFiles(Protocol):
    """Manifests by digest or tag, and blobs by digest. Every method may raise `ShippingError`."""

    @property
    def location(self) -> str:
        """The place as the user named it."""
        ...

    def manifest(self, name: str) -> bytes | None:
        """Return the manifest with the tag or the digest *name*; None where there is none.

        The caller checks the digest.
        """
        ...

    def has_blob(self, descriptor: BlobDescriptor) -> bool:
        """Return whether a blob of this digest and size is there; the content is not read."""
        ...

    def read_blob(self, descriptor: BlobDescriptor) -> Iterator[bytes]:
        """Yield the content of a blob in pieces, which the caller checks."""
        ...

    def write_blob(self, blob: Blob) -> None:
        """Write *blob*, whole or not at all."""
        ...

    def write_manifest(self, content: bytes, tag: str | None) -> None:
        """Write the manifest *content*, whose blobs are there, and give it *tag* where given.

        A folder refuses a tag that another manifest has. A registry may not: `push` asks first.
        """
        ...


def open_images(reference: ImageReference) -> ImageFiles:
    """Return the images at the place of *reference*.

    Raises:
        SettingsError: the place is a registry, and the extra ``oci`` is not installed.
    """
    if reference.host is None:
        return LayoutFolder(Path(reference.place))
    from warmup.table.oci_image.registry import Registry

    return Registry(reference)
