"""Manifests of images: written, read back, and refused where they are not of a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.errors import ShippingError
from warmup.table import Table
from warmup.table.oci_image.manifest import (
    BUNDLE_LAYER,
    TABLE_LAYER,
    decode_manifest,
    encode_manifest,
)
from warmup.table.oci_image.table_image import TABLE_DIGEST, image_of

UNKNOWN = "application/vnd.oci.image.layer.v1.tar"


@pytest.fixture(scope="module")
def written(make_table: Callable[..., Table]) -> bytes:
    """The manifest of a table."""
    return encode_manifest(image_of(make_table()).manifest)


def test_a_manifest_comes_back(make_table: Callable[..., Table], written: bytes) -> None:
    """Equal tables have equal manifests, and reading gives what was written."""
    manifest = image_of(make_table()).manifest
    assert encode_manifest(manifest) == written
    assert decode_manifest(written, "x") == manifest


def test_a_manifest_says_what_the_table_is_for(written: bytes) -> None:
    """Device, versions, mode and digest are annotations, for people and other tools."""
    found = json.loads(written)["annotations"]
    assert {found[f"vnd.inductor-warmup.{name}"] for name in ("device", "torch", "triton")} == {
        *("nvidia-h200", "2.13", "3.7"),
    }
    assert (found["vnd.inductor-warmup.mode"], len(found[TABLE_DIGEST])) == (
        "max-autotune-gemm",
        64,
    )


def _with(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return changed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: b"\xff", "not JSON"),
        (lambda _: b"[]", "expected an object"),
        (lambda text: text.replace(b"{", b'{"schemaVersion":2,', 1), "appears twice"),
        (_with(lambda d: d.update(schemaVersion=1)), "integer from 2 to 2"),
        (_with(lambda d: d.update(subject={})), "unknown field"),
        (_with(lambda d: d.update(artifactType="a/b")), "no image of a table"),
        (_with(lambda d: d["config"].update(mediaType=UNKNOWN)), "does not know"),
        (_with(lambda d: d["config"].update(mediaType=TABLE_LAYER)), "no image of a table"),
        (_with(lambda d: d.update(layers=[])), "1 to 4 elements"),
        (_with(lambda d: d.update(layers=d["layers"] * 2)), "a second"),
        (_with(lambda d: d["layers"][0].update(mediaType=BUNDLE_LAYER)), "no table among them"),
        (_with(lambda d: d["layers"][0].update(size=2**40)), "an integer from 1"),
        (_with(lambda d: d["layers"][0].update(size=0)), "an integer from 1"),
        (_with(lambda d: d["layers"][0].update(digest="sha256:../../etc/passwd")), "64 hex"),
        (_with(lambda d: d["layers"][0].update(digest="md5:00")), "64 hex"),
        (_with(lambda d: d["layers"][0].update(urls=["http://h"])), "unknown field"),
        (_with(lambda d: d["annotations"].update(a="\x1b[2J")), "printable"),
    ],
)
def test_another_manifest_is_refused(
    change: Callable[[bytes], bytes], reason: str, written: bytes
) -> None:
    """Before anything that it names is downloaded."""
    with pytest.raises(ShippingError, match=reason):
        decode_manifest(change(written), "x")


@given(data=st.data())
def test_a_damaged_manifest_is_read_or_refused(written: bytes, data: st.DataObject) -> None:
    """Whatever bytes are replaced or removed: no other error, and no larger size than allowed."""
    at = data.draw(st.integers(0, len(written)))
    damaged = (
        written[:at]
        + data.draw(st.binary(max_size=8))
        + written[at + data.draw(st.integers(0, 40)) :]
    )
    try:
        found = decode_manifest(damaged, "x")
    except ShippingError:
        return
    assert found.table.digest.startswith("sha256:")
    assert 0 < found.table.size <= 2**28
