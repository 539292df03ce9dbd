"""`TableImage`: the manifest and the blobs of a table, and what the manifest says before them.

The config of the image is the table without its rows: where and how it was measured, in the form
of a table. The digest of the table and what its bundle needs are annotations. So a reader knows
from the manifest and a blob of some kilobytes whether the table is for its machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmup.core.errors import BundleError, ShippingError, TableError
from warmup.core.runtime import Runtime, compare_runtimes, minor_of
from warmup.table.bundle_file import open_bundle
from warmup.table.codec import decode, digest_of, encode
from warmup.table.oci_image.blob import Blob, blob_of_bytes, blob_of_file
from warmup.table.oci_image.manifest import (
    BUNDLE_LAYER,
    CONFIG_LAYER,
    SIGNATURE_LAYER,
    TABLE_LAYER,
    ImageManifest,
)
from warmup.table.row_store.row_group import without_rows
from warmup.table.schema import Table

TABLE_DIGEST: Final = "vnd.inductor-warmup.table.digest"
_NEED: Final = "vnd.inductor-warmup.bundle.needs."
_TITLE: Final = "org.opencontainers.image.title"  # the file name that other tools write to


@dataclass(frozen=True, slots=True)
class TableImage:
    """An image to write: its manifest, and its blobs, the description first."""

    manifest: ImageManifest
    blobs: tuple[Blob, ...]


def image_of(
    table: Table, bundle: Path | None = None, signature: bytes | None = None
) -> TableImage:
    """Return *table* as an image, with the file *bundle* and the *signature* where given.

    Equal arguments give equal images.

    Raises:
        BundleError: *bundle* cannot be read, or was made from another table.
    """
    runtime, digest = table.provenance.runtime, digest_of(table)
    config = blob_of_bytes(CONFIG_LAYER, encode(without_rows(table)).encode())
    layers = [blob_of_bytes(TABLE_LAYER, encode(table).encode(), {_TITLE: "table.json"})]
    if bundle is not None:
        layers.append(_bundle_layer(bundle, digest))
    if signature is not None:
        layers.append(
            blob_of_bytes(SIGNATURE_LAYER, signature, {_TITLE: "signature.sigstore.json"})
        )
    manifest = ImageManifest(
        config.descriptor,
        {layer.descriptor.media_type: layer.descriptor for layer in layers},
        # For people and other tools; warmup itself reads the first alone.
        {
            TABLE_DIGEST: digest,
            "org.opencontainers.image.created": table.provenance.created,
            "org.opencontainers.image.description": f"{len(table.rows)} rows for {runtime}",
            "vnd.inductor-warmup.device": runtime.device.slug,
            "vnd.inductor-warmup.torch": str(minor_of(runtime.torch)),
            "vnd.inductor-warmup.triton": str(minor_of(runtime.triton)),
            "vnd.inductor-warmup.mode": table.policy.mode,
        },
    )
    return TableImage(manifest, (config, *layers))


def described(config: bytes, location: str) -> Table:
    """Return the table without rows in *config*, the config of an image.

    Raises:
        ShippingError: *config* is no such table.
    """
    try:
        table = decode(config.decode(), location)
    except (TableError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, UnicodeDecodeError) else str(error)
        raise ShippingError(
            location, f"the description of the table cannot be read: {reason}", "push it again"
        ) from error
    if table.rows or table.imported:
        raise ShippingError(location, "the description of the table has rows", "push it again")
    return table


def table_mismatches(description: Table, here: Runtime) -> tuple[str, ...]:
    """Return a line for each field because of which every lookup *here* would be a miss."""
    mismatches = compare_runtimes(description.provenance.runtime, here)
    return tuple(str(mismatch) for mismatch in mismatches if mismatch.is_hard)


def bundle_mismatches(manifest: ImageManifest, here: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each need of the bundle in *manifest* that the facts *here* do not meet."""
    annotations = manifest.layers[BUNDLE_LAYER].annotations
    needs = {
        name.removeprefix(_NEED): value
        for name, value in annotations.items()
        if name.startswith(_NEED)
    }
    return tuple(
        f"{name}: bundle {needs.get(name, 'none')}, here {here.get(name, 'none')}"
        for name in dict.fromkeys((*needs, *here))
        if needs.get(name) != here.get(name)
    )


def check_described(
    table: Table, description: Table, manifest: ImageManifest, location: str
) -> None:
    """Check that *table* is what the *manifest* and its *description* said.

    Raises:
        ShippingError: it is another.
    """
    if digest_of(table) != manifest.annotations.get(TABLE_DIGEST):
        problem = "its digest is not that of the manifest's annotation"
    elif digest_of(without_rows(table)) != digest_of(description):
        problem = "it is for another device, runtime or policy than its description says"
    else:
        return
    raise ShippingError(location, f"the table is not as described: {problem}", "push it again")


def _bundle_layer(path: Path, table: str) -> Blob:
    with open_bundle(path) as opened:
        manifest = opened.manifest
    if manifest.table != table:
        raise BundleError(str(path), f"it is of the table {manifest.table}, and not of {table}")
    annotations = {_NEED + name: value for name, value in sorted(manifest.needs.items())}
    try:
        return blob_of_file(BUNDLE_LAYER, path, {_TITLE: "table.bundle", **annotations})
    except OSError as error:
        raise BundleError(str(path), f"it cannot be read ({error.strerror})") from error
