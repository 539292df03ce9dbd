"""`pull`: an image from its place into the cache, checked before its table is downloaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from warmup.core.errors import SettingsError, ShippingError, TableMismatchError
from warmup.core.runtime import Runtime
from warmup.table.oci_image.blob import BlobDescriptor, checked, image_digest
from warmup.table.oci_image.image_files import ImageFiles
from warmup.table.oci_image.layout_folder import LayoutFolder, moved_tag
from warmup.table.oci_image.manifest import (
    BUNDLE_LAYER,
    SIGNATURE_LAYER,
    ImageManifest,
    decode_manifest,
)
from warmup.table.oci_image.reference import ImageReference
from warmup.table.oci_image.signature import SignatureVerifier, check_signed
from warmup.table.oci_image.table_image import (
    bundle_mismatches,
    check_described,
    described,
    table_mismatches,
)
from warmup.table.schema import Table
from warmup.table.store import read


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDemand:
    """What an image must be. None: not asked.

    ``runtime`` is that of the machine, ``bundle_facts`` the facts that a bundle is compared with
    where the bundle is wanted, ``verifier`` the signer whose signature the image must have.
    """

    runtime: Runtime | None = None
    bundle_facts: Mapping[str, str] | None = None
    wants_bundle: bool = False
    verifier: SignatureVerifier | None = None


@dataclass(frozen=True, slots=True)
class Retrieval:
    """An image that is in the cache and was checked: its ``reference`` has the digest.

    ``bundle`` is its blob, None where it was not wanted. ``downloaded`` counts the bytes of blobs
    that the cache lacked. ``is_signed``: there is a signature, verified where one was asked for.
    """

    reference: ImageReference
    table: Table
    bundle: BlobDescriptor | None
    downloaded: int
    is_signed: bool


class _Transfer:
    """The blobs of one image on their way from *source*, None where offline, to *cache*."""

    def __init__(self, source: ImageFiles | None, cache: LayoutFolder, location: str) -> None:
        self.source = source
        self.cache = cache
        self.location = location
        self.downloaded = 0

    def fetch(self, descriptor: BlobDescriptor) -> None:
        """Have an intact blob of *descriptor* in the cache.

        Raises:
            ShippingError: there is none, or the place gives another.
        """
        if self.cache.has_blob(descriptor):
            with contextlib.suppress(ShippingError):  # damaged in the cache: downloaded again
                for _ in checked(self.cache.read_blob(descriptor), descriptor, self.location):
                    pass
                return
        if self.source is None:
            raise ShippingError(
                self.location,
                f"the blob {descriptor.digest} is not in the cache {self.cache.location}",
                "pull once without --offline",
            )
        self.cache.put_blob(descriptor, self.source.read_blob(descriptor), self.location)
        self.downloaded += descriptor.size

    def read(self, descriptor: BlobDescriptor) -> bytes:
        """Return the blob of *descriptor*, which is small, by way of the cache."""
        self.fetch(descriptor)
        return b"".join(checked(self.cache.read_blob(descriptor), descriptor, self.location))


def pull(
    reference: ImageReference, source: ImageFiles | None, cache: LayoutFolder, demand: ImageDemand
) -> Retrieval:
    """Have the image of *reference* in *cache*, if it meets *demand*.

    Manifest, description and signature come first: a table that is for another machine, or not
    signed as demanded, is refused before it is downloaded. Without *source* everything is from the
    cache. What arrived whole stays in the cache when a later part fails.

    Raises:
        SettingsError: *reference* has neither tag nor digest.
        TableMismatchError: the table, or the wanted bundle, is for another machine.
        ShippingError: there is no such image, the tag was moved, or a part is damaged, not signed
            as demanded, or not what the manifest says.
    """
    if reference.tag is None and reference.digest is None:
        raise SettingsError(f"{reference} names no image", "give a tag or a digest")
    content = _manifest(reference, source, cache)
    found = replace(reference, digest=image_digest(content))
    manifest = decode_manifest(content, str(found))
    transfer = _Transfer(source, cache, str(found))
    description = described(transfer.read(manifest.config), str(found))
    _check_machine(manifest, description, demand, found)
    wanted = [manifest.table, *([manifest.layers[BUNDLE_LAYER]] if demand.wants_bundle else [])]
    _check_signature(manifest, transfer, demand, wanted)
    for descriptor in wanted:
        transfer.fetch(descriptor)
    table = read(cache.blob_path(manifest.table.digest))
    check_described(table, description, manifest, str(found))
    cache.write_manifest(content, _tag_in_cache(reference))
    bundle = wanted[1] if demand.wants_bundle else None
    return Retrieval(found, table, bundle, transfer.downloaded, SIGNATURE_LAYER in manifest.layers)


def bundle_pieces(cache: LayoutFolder, bundle: BlobDescriptor) -> Iterable[bytes]:
    """Return the content of *bundle*, which `pull` put into *cache*, checked once more."""
    return checked(cache.read_blob(bundle), bundle, cache.location)


def default_cache() -> Path:
    """Return the folder of pulled images, in the user's folder for caches."""
    from platformdirs import user_cache_path

    return user_cache_path("inductor-warmup") / "images"


def _tag_in_cache(reference: ImageReference) -> str | None:
    """Return the tag of the cache for that of *reference*: the cache has images of many places."""
    if reference.tag is None or reference.digest is not None:  # the digest alone counts
        return None
    place = reference.place
    if reference.host is None:
        place = str(Path(place).resolve())
    return f"{place}:{reference.tag}"


def _manifest(reference: ImageReference, source: ImageFiles | None, cache: LayoutFolder) -> bytes:
    """Return the manifest of *reference*, of the digest that its tag had before."""
    tag = _tag_in_cache(reference)
    known = reference.digest if tag is None else cache.digest(tag)
    cached = None if known is None else cache.manifest(known)
    if cached is not None and image_digest(cached) != known:
        cached = None  # damaged in the cache
    # What a tag names is asked at its place each time.
    content = None if tag is not None and source is not None else cached
    if content is None and source is not None:
        content = source.manifest(reference.digest or str(reference.tag))
    if content is None:
        where = "in the cache; pull once without --offline" if source is None else "there"
        raise ShippingError(
            str(reference), f"no such image is {where}", "see the tag or the digest"
        )
    digest = image_digest(content)
    if reference.digest not in {None, digest}:
        raise ShippingError(
            str(reference), f"the manifest has the digest {digest}", "do not use this place"
        )
    if tag is not None and known not in {None, digest}:
        raise moved_tag(reference.location, str(reference.tag), str(known), digest)
    return content


def _check_machine(
    manifest: ImageManifest, description: Table, demand: ImageDemand, reference: ImageReference
) -> None:
    if demand.runtime is not None:
        mismatches = table_mismatches(description, demand.runtime)
        if mismatches:
            raise TableMismatchError(
                str(reference),
                mismatches,
                "the table was not downloaded: pull that of this device and runtime, or give "
                "--any-device to have this table all the same",
            )
    if not demand.wants_bundle:
        return
    if BUNDLE_LAYER not in manifest.layers:
        raise ShippingError(str(reference), "the image has no bundle", "pull without --with-bundle")
    if demand.bundle_facts is not None:
        mismatches = bundle_mismatches(manifest, demand.bundle_facts)
        if mismatches:
            raise TableMismatchError(
                str(reference), mismatches, "pull without --with-bundle: kernels are then compiled"
            )


def _check_signature(
    manifest: ImageManifest,
    transfer: _Transfer,
    demand: ImageDemand,
    wanted: Iterable[BlobDescriptor],
) -> None:
    if demand.verifier is None:
        return
    layer = manifest.layers.get(SIGNATURE_LAYER)
    if layer is None:
        raise ShippingError(
            transfer.location,
            "the image has no signature, and --identity asks for one",
            "nothing was written; have the image signed, and pushed under another tag",
        )
    statement = demand.verifier.signed_statement(transfer.read(layer), transfer.location)
    check_signed(statement, wanted, transfer.location)
