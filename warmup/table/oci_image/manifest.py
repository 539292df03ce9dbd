"""`ImageManifest`: the blobs of an image, written and read as JSON that is not trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from warmup.core.errors import ShippingError, TableFormatError
from warmup.core.json_node import Node
from warmup.core.strict_json import JsonError, parse_json
from warmup.table.oci_image.blob import IMAGE_DIGEST, BlobDescriptor
from warmup.table.schema import MAX_TABLE_BYTES

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
IMAGE_TYPE: Final = "application/vnd.inductor-warmup.table.v1"
CONFIG_LAYER: Final = "application/vnd.inductor-warmup.table.config.v1+json"
TABLE_LAYER: Final = "application/vnd.inductor-warmup.table.v1+json"
BUNDLE_LAYER: Final = "application/vnd.inductor-warmup.bundle.v1+zip"
SIGNATURE_LAYER: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
MAX_MANIFEST_BYTES: Final = 64 * 1024
MAX_SIGNATURE_BYTES: Final = 256 * 1024
_MOST_LAYER_BYTES: Final = {
    CONFIG_LAYER: 256 * 1024,
    TABLE_LAYER: MAX_TABLE_BYTES,
    BUNDLE_LAYER: 1024**3,
    SIGNATURE_LAYER: MAX_SIGNATURE_BYTES,
}
_MOST_ANNOTATION: Final = 4096
_REQUIRED: Final = frozenset({"schemaVersion", "config", "layers"})
_MANIFEST_OPTIONAL: Final = frozenset({"mediaType", "artifactType", "annotations"})
_OF_BLOB: Final = frozenset({"mediaType", "digest", "size"})


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """The description, the layers by their media type, and annotations of an image."""

    config: BlobDescriptor
    layers: Mapping[str, BlobDescriptor]
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def table(self) -> BlobDescriptor:
        """The layer with the table, which every image has."""
        return self.layers[TABLE_LAYER]


def encode_manifest(manifest: ImageManifest) -> bytes:
    """Return the JSON text of *manifest*; equal manifests have equal texts."""
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": IMAGE_TYPE,
        "config": _json_of(manifest.config),
        "layers": [_json_of(layer) for layer in manifest.layers.values()],
        "annotations": dict(sorted(manifest.annotations.items())),
    }
    return json.dumps(document, indent=1).encode()


def decode_manifest(content: bytes, location: str) -> ImageManifest:
    """Return the manifest in *content*, which is not trusted.

    Raises:
        ShippingError: it is not that of a table, or names something too large or unknown.
    """
    try:
        value = parse_json(content.decode())
        return _read(Node(value, location))
    except (JsonError, UnicodeDecodeError) as error:
        raise _no_manifest(location, f"it is not JSON: {error}") from None
    except TableFormatError as error:
        raise _no_manifest(location, f"{error.pointer}: {error.reason}") from None


def _read(root: Node) -> ImageManifest:
    members = root.members(_REQUIRED, optional=_MANIFEST_OPTIONAL)
    members["schemaVersion"].integer(2, 2)
    for name, expected in (("mediaType", MANIFEST_TYPE), ("artifactType", IMAGE_TYPE)):
        if name in members and members[name].string() != expected:
            members[name].fail("it is no image of a table")
    config = _descriptor(members["config"])
    if config.media_type != CONFIG_LAYER:
        members["config"].fail("it is no image of a table")
    layers: dict[str, BlobDescriptor] = {}
    for node in members["layers"].elements(len(_MOST_LAYER_BYTES)):
        layer = _descriptor(node)
        if layer.media_type in {*layers, CONFIG_LAYER}:
            node.fail(f"a second {layer.media_type}")
        layers[layer.media_type] = layer
    if TABLE_LAYER not in layers:
        members["layers"].fail("there is no table among them")
    return ImageManifest(config, layers, _annotations(members.get("annotations")))


def _descriptor(node: Node) -> BlobDescriptor:
    members = node.members(_OF_BLOB, optional=frozenset({"annotations"}))
    media_type = members["mediaType"].string()
    if media_type not in _MOST_LAYER_BYTES:
        members["mediaType"].fail("a part that this warmup does not know; upgrade inductor-warmup")
    digest = members["digest"].string()
    if IMAGE_DIGEST.fullmatch(digest) is None:
        members["digest"].fail("expected sha256: and 64 hex digits")
    size = members["size"].integer(1, _MOST_LAYER_BYTES[media_type])
    return BlobDescriptor(media_type, digest, size, _annotations(members.get("annotations")))


def _annotations(node: Node | None) -> dict[str, str]:
    return (
        {} if node is None else {name: each.string(_MOST_ANNOTATION) for name, each in node.items()}
    )


def _json_of(descriptor: BlobDescriptor) -> dict[str, object]:
    document: dict[str, object] = {
        "mediaType": descriptor.media_type,
        "digest": descriptor.digest,
        "size": descriptor.size,
    }
    if descriptor.annotations:
        document["annotations"] = dict(sorted(descriptor.annotations.items()))
    return document


def _no_manifest(location: str, reason: str) -> ShippingError:
    return ShippingError(
        location,
        f"the manifest cannot be used: {reason}",
        "name an image that `warmup push` wrote",
    )
