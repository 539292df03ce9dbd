"""`push` and `signed`: an image at a place, under a tag that it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warmup.core.errors import SettingsError, ShippingError
from warmup.table.oci_image.blob import image_digest
from warmup.table.oci_image.image_files import ImageFiles
from warmup.table.oci_image.layout_folder import moved_tag
from warmup.table.oci_image.manifest import ImageManifest, encode_manifest
from warmup.table.oci_image.reference import ImageReference
from warmup.table.oci_image.signature import StatementSigner, statement_of
from warmup.table.oci_image.table_image import TableImage, image_of
from warmup.table.schema import Table


@dataclass(frozen=True, slots=True)
class Publication:
    """An image that is at ``reference``, which has its digest; ``written`` counts new blobs."""

    reference: ImageReference
    manifest: ImageManifest
    written: int
    bytes_written: int


def push(image: TableImage, files: ImageFiles, reference: ImageReference) -> Publication:
    """Write *image* to *files*, and give it the tag of *reference* if that has one.

    Blobs that are there already are not written again, and the manifest comes last: an image is
    whole, or not there. Pushing an image again under its tag changes nothing.

    Raises:
        SettingsError: *reference* has a digest.
        ShippingError: the tag is that of another image, or the place cannot be written.
    """
    if reference.digest is not None:
        raise SettingsError(f"{reference}: an image is not pushed to a digest", "give a tag")
    content = encode_manifest(image.manifest)
    digest = image_digest(content)
    tag = reference.tag
    _check_tag(files, tag, digest)
    written = [blob for blob in image.blobs if not files.has_blob(blob.descriptor)]
    for blob in written:
        try:
            files.write_blob(blob)
        except OSError as error:  # of the bundle's file: a place maps its own
            problem = f"a blob cannot be read ({error.strerror or type(error).__name__})"
            raise ShippingError(files.location, problem, "push again") from error
    files.write_manifest(content, tag)
    # A registry has no lock: of two pushes at once the later one moves the tag, which is seen here
    # by the earlier one, unless it had ended.
    if not _check_tag(files, tag or digest, digest):
        raise ShippingError(files.location, f"{tag or digest} is not there after the push", "retry")
    place = ImageReference(reference.place, reference.host, reference.repository, tag, digest)
    size = sum(blob.descriptor.size for blob in written)
    return Publication(place, image.manifest, len(written), size)


def signed(
    table: Table, bundle: Path | None, signer: StatementSigner, files: ImageFiles, tag: str | None
) -> TableImage:
    """Return *table* and *bundle* as an image that *signer* has signed, to be pushed to *tag*.

    Nothing is signed where the tag is taken: each signature is another, and so is its image.

    Raises:
        ShippingError: the tag is taken, or the image cannot be signed.
    """
    if tag is not None and files.manifest(tag) is not None:
        raise ShippingError(
            files.location,
            f"the tag {tag} is taken, and a new signature makes another image",
            "use another tag; nothing was signed",
        )
    unsigned = image_of(table, bundle)
    signature = signer.sign(statement_of(table, unsigned), files.location)
    return image_of(table, bundle, signature)


def _check_tag(files: ImageFiles, name: str | None, digest: str) -> bool:
    """Return whether the manifest *name* is there; it must be that of *digest*.

    Raises:
        ShippingError: it is another.
    """
    known = None if name is None else files.manifest(name)
    if known is not None and image_digest(known) != digest:
        raise moved_tag(files.location, str(name), image_digest(known), digest)
    return known is not None
