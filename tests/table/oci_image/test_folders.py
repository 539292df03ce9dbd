"""Images in a folder: pushed, pulled by way of the cache, checked, and refused."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmup.core.errors import BundleError, SettingsError, ShippingError, TableMismatchError
from warmup.core.rows import Row
from warmup.core.runtime import Runtime
from warmup.table import Table
from warmup.table.bundle_file import needs_of, write_bundle
from warmup.table.codec import digest_of, encode
from warmup.table.oci_image.blob import BlobDescriptor, image_digest
from warmup.table.oci_image.layout_folder import LayoutFolder
from warmup.table.oci_image.manifest import (
    BUNDLE_LAYER,
    MANIFEST_TYPE,
    decode_manifest,
    encode_manifest,
)
from warmup.table.oci_image.publication import push
from warmup.table.oci_image.reference import ImageReference
from warmup.table.oci_image.retrieval import ImageDemand, bundle_pieces, pull
from warmup.table.oci_image.table_image import TableImage, image_of

MakeTable = Callable[..., Table]


@pytest.fixture
def bundle(tmp_path: Path, make_table: MakeTable, here: Runtime) -> Path:
    """A bundle of the table that `make_table` makes."""
    path = tmp_path / "t.bundle"
    write_bundle(path, digest_of(make_table()), needs_of(here), {"triton/a/b.cubin": b"code"})
    return path


def test_a_table_comes_back(shipping: Any, make_table: MakeTable, here: Runtime) -> None:
    """Pulled by its tag on the device that it is for; then a second time from the cache alone."""
    pushed = shipping.push(make_table())
    pulled = shipping.pull(ImageDemand(runtime=here))
    assert (pulled.table, pulled.reference) == (make_table(), pushed.reference)
    assert (pulled.downloaded > 0, shipping.pull().downloaded) == (True, 0)
    shutil.rmtree(shipping.place.folder)
    assert shipping.pull(offline=True).table == make_table()


def test_the_folder_is_an_image_layout(shipping: Any, make_table: MakeTable) -> None:
    """The files are those of the specification, each blob is named by its SHA-256."""
    pushed = shipping.push(make_table())
    folder = shipping.place.folder
    assert json.loads((folder / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads((folder / "index.json").read_text())["manifests"]
    assert (entry["mediaType"], entry["digest"]) == (MANIFEST_TYPE, pushed.reference.digest)
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "v1"}
    blobs = [*(folder / "blobs" / "sha256").iterdir()]
    assert {image_digest(path.read_bytes()) for path in blobs} == {
        f"sha256:{path.name}" for path in blobs
    }
    assert (encode(make_table()).encode(), 3) in [(path.read_bytes(), len(blobs)) for path in blobs]


def test_a_push_of_the_same_table_changes_nothing(shipping: Any, make_table: MakeTable) -> None:
    """No blob is written, and the index stays as it was."""
    shipping.push(make_table())
    before = (shipping.place.folder / "index.json").read_bytes()
    assert shipping.push(make_table()).written == 0
    assert (shipping.place.folder / "index.json").read_bytes() == before


def test_a_tag_is_never_rewritten(
    shipping: Any, make_table: MakeTable, make_key: Callable[..., str], make_row: Callable[..., Row]
) -> None:
    """Another table under the tag is refused before anything is written, and the first stays."""
    shipping.push(make_table())
    other = make_table({make_key(7): make_row()})
    with pytest.raises(ShippingError, match=r"the tag v1 is sha256:.* never rewritten"):
        shipping.push(other)
    assert shipping.pull().table == make_table()
    assert not any(map(shipping.place.has_blob, image_of(other).manifest.layers.values()))


def test_a_tag_that_somebody_moved_is_refused(
    shipping: Any, make_table: MakeTable, make_key: Callable[..., str], make_row: Callable[..., Row]
) -> None:
    """The cache knows what the tag was; the digest of the other table can still be pulled."""
    shipping.push(make_table())
    shipping.pull()
    shutil.rmtree(shipping.place.folder)
    other = make_table({make_key(7): make_row()})
    digest = shipping.push(other).reference.digest
    with pytest.raises(ShippingError, match="never rewritten"):
        shipping.pull()
    by_digest = replace(shipping.reference, digest=digest)
    assert pull(by_digest, shipping.place, shipping.cache, ImageDemand()).table == other
    assert shipping.pull(offline=True).table == make_table()


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"sm_count": 78}, "device.sm_count"), ({"torch": "2.14.0"}, "torch minor")],
)
def test_a_table_for_another_machine_is_not_downloaded(
    shipping: Any,
    make_table: MakeTable,
    make_runtime: Callable[..., Runtime],
    changes: dict[str, Any],
    field: str,
) -> None:
    """Manifest and description are enough: the blob of the table is not in the cache."""
    pushed = shipping.push(make_table())
    with pytest.raises(TableMismatchError, match=field):
        shipping.pull(ImageDemand(runtime=make_runtime(**changes)))
    assert shipping.cache.has_blob(pushed.manifest.config)
    assert not shipping.cache.has_blob(pushed.manifest.table)


def test_another_driver_is_no_reason(
    shipping: Any, make_table: MakeTable, make_runtime: Callable[..., Runtime]
) -> None:
    """What a server only warns of is pulled."""
    shipping.push(make_table())
    assert shipping.pull(ImageDemand(runtime=make_runtime(driver="1.0"))).table == make_table()


def test_a_bundle_travels_with_its_table(
    shipping: Any, make_table: MakeTable, here: Runtime, bundle: Path
) -> None:
    """It is downloaded where it is asked for, and is the file that was pushed."""
    pushed = shipping.push(make_table(), bundle)
    assert shipping.pull().bundle is None
    assert not shipping.cache.has_blob(pushed.manifest.layers[BUNDLE_LAYER])
    demand = ImageDemand(runtime=here, bundle_facts=needs_of(here), wants_bundle=True)
    found = shipping.pull(demand).bundle
    assert b"".join(bundle_pieces(shipping.cache, found)) == bundle.read_bytes()


def test_a_bundle_for_another_runtime_is_not_downloaded(
    shipping: Any, make_table: MakeTable, here: Runtime, bundle: Path
) -> None:
    """The manifest says what it needs."""
    pushed = shipping.push(make_table(), bundle)
    facts = {**needs_of(here), "cuda": "12.8"}
    with pytest.raises(TableMismatchError, match=r"cuda: bundle 13\.0, here 12\.8"):
        shipping.pull(ImageDemand(bundle_facts=facts, wants_bundle=True))
    assert not shipping.cache.has_blob(pushed.manifest.layers[BUNDLE_LAYER])


def test_a_bundle_of_another_table_is_not_pushed(
    shipping: Any, make_table: MakeTable, bundle: Path
) -> None:
    """It would be ignored by every server."""
    with pytest.raises(BundleError, match="it is of the table"):
        shipping.push(make_table({}), bundle)
    assert not shipping.place.folder.exists()


@pytest.mark.parametrize("changes", [{"sm_count": 78}, {"torch": "2.14.0"}])
def test_a_description_of_another_machine_is_found_out(
    shipping: Any,
    make_table: MakeTable,
    make_runtime: Callable[..., Runtime],
    changes: dict[str, Any],
) -> None:
    """A table under the description of a table for this machine is refused after the download."""
    mine, here = make_table(), make_runtime(**changes)
    honest, other = image_of(mine), image_of(make_table(runtime=here))
    manifest = replace(honest.manifest, config=other.manifest.config)
    push(
        TableImage(manifest, (*other.blobs[:1], *honest.blobs[1:])),
        shipping.place,
        shipping.reference,
    )
    with pytest.raises(ShippingError, match="not as described"):
        shipping.pull(ImageDemand(runtime=here))
    with pytest.raises(ShippingError, match="no such image is in the cache"):
        shipping.pull(offline=True)


def test_what_is_not_in_the_cache_is_not_there_offline(
    shipping: Any, make_table: MakeTable
) -> None:
    """The message says what to do, and the place is not asked."""
    shipping.push(make_table())
    with pytest.raises(ShippingError, match="pull once without --offline"):
        shipping.pull(offline=True)


def test_a_damaged_cache_is_mended(shipping: Any, make_table: MakeTable) -> None:
    """A blob that was changed in the cache is downloaded again, and offline it is refused."""
    pushed = shipping.push(make_table())
    shipping.pull()
    path = shipping.cache.blob_path(pushed.manifest.table.digest)
    path.write_bytes(path.read_bytes().replace(b"0.03", b"0.04"))
    with pytest.raises(ShippingError, match="not in the cache"):
        shipping.pull(offline=True)
    assert shipping.pull().table == make_table()
    assert shipping.pull(offline=True).table == make_table()


def test_a_damaged_manifest_in_the_cache_is_no_moved_tag(
    shipping: Any, make_table: MakeTable, make_key: Callable[..., str], make_row: Callable[..., Row]
) -> None:
    """It is downloaded again; a tag that somebody moved meanwhile is refused all the same."""
    digest = shipping.push(make_table()).reference.digest
    shipping.pull()
    path = shipping.cache.blob_path(digest)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ShippingError, match="pull once without --offline"):
        shipping.pull(offline=True)
    assert shipping.pull().table == make_table()
    assert shipping.pull(offline=True).table == make_table()
    path.write_bytes(b"{}")
    shutil.rmtree(shipping.place.folder)
    shipping.push(make_table({make_key(7): make_row()}))
    with pytest.raises(ShippingError, match="never rewritten"):
        shipping.pull()


@settings(max_examples=25)
@given(data=st.data())
def test_a_damaged_blob_is_refused(
    tmp_path_factory: pytest.TempPathFactory, make_table: MakeTable, data: st.DataObject
) -> None:
    """Bytes changed, cut off or added in a blob: refused, and nothing of it is in the cache."""
    base = tmp_path_factory.mktemp("damaged")
    place, cache = LayoutFolder(base / "images"), LayoutFolder(base / "cache")
    reference = ImageReference(str(place.folder), tag="v1")
    pushed = push(image_of(make_table()), place, reference)
    assert pushed.reference.digest is not None
    manifest = BlobDescriptor(MANIFEST_TYPE, pushed.reference.digest, 1)
    descriptor = data.draw(
        st.sampled_from([manifest, pushed.manifest.config, pushed.manifest.table])
    )
    path = place.blob_path(descriptor.digest)
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content)))
    length = data.draw(st.integers(0, len(content)))
    damaged = content[:at] + data.draw(st.binary(max_size=4)) + content[at + length :]
    path.write_bytes(damaged)
    by_digest = replace(reference, tag=None, digest=pushed.reference.digest)
    if damaged == content:
        assert pull(by_digest, place, cache, ImageDemand()).table == make_table()
        return
    with pytest.raises(ShippingError):
        pull(by_digest, place, cache, ImageDemand())
    assert not cache.blob_path(descriptor.digest).exists()


def test_a_manifest_under_a_wrong_digest_is_refused(shipping: Any, make_table: MakeTable) -> None:
    """The place gives a valid image that is not the one that was named."""
    pushed = shipping.push(make_table())
    wanted = f"sha256:{'0' * 64}"
    right = shipping.place.blob_path(pushed.reference.digest)
    shipping.place.blob_path(wanted).write_bytes(right.read_bytes())
    with pytest.raises(ShippingError, match="do not use this place"):
        pull(
            replace(shipping.reference, digest=wanted),
            shipping.place,
            shipping.cache,
            ImageDemand(),
        )


def test_a_push_that_fails_leaves_no_image(
    shipping: Any, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest comes after the blobs: without the last blob there is no tag."""

    def fail(*_: object) -> None:
        raise ShippingError("images", "no space left", "free space")

    with monkeypatch.context() as patch:
        patch.setattr(LayoutFolder, "write_blob", fail)
        with pytest.raises(ShippingError, match="no space left"):
            shipping.push(make_table())
    assert shipping.place.manifest("v1") is None
    assert shipping.push(make_table()).written == 2


def test_pushes_at_once_keep_each_others_tags(
    shipping: Any, make_table: MakeTable, make_key: Callable[..., str], make_row: Callable[..., Row]
) -> None:
    """Eight writers give eight tags, and one index has all of them."""

    def write(number: int) -> None:
        table = make_table({make_key(number + 1): make_row()})
        push(image_of(table), shipping.place, replace(shipping.reference, tag=f"v{number}"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(shipping.place.manifest(f"v{number}") is not None for number in range(8))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"manifests": 1}', '{"manifests": [1]}'])
def test_a_folder_that_is_something_else_is_refused(
    shipping: Any, make_table: MakeTable, content: str
) -> None:
    """Its index.json is not replaced."""
    path = shipping.place.folder / "index.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ShippingError, match=r"index\.json is not that of an image layout"):
        shipping.push(make_table())
    assert path.read_text() == content


def test_entries_of_other_tools_stay(shipping: Any, make_table: MakeTable) -> None:
    """An index with images of other programs gets one more entry."""
    other = {"mediaType": "a/b", "digest": f"sha256:{'1' * 64}", "size": 3, "platform": {"os": "x"}}
    path = shipping.place.folder / "index.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"schemaVersion": 2, "manifests": [other]}))
    shipping.push(make_table())
    first, _ = json.loads(path.read_text())["manifests"]
    assert first == other


def test_an_image_of_another_program_is_no_table(shipping: Any, make_table: MakeTable) -> None:
    """Its layers are not downloaded."""
    manifest = image_of(make_table()).manifest
    document = json.loads(encode_manifest(manifest))
    document["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json"
    shipping.place.write_manifest(json.dumps(document).encode(), "v1")
    with pytest.raises(ShippingError, match="name an image that `warmup push` wrote"):
        shipping.pull()


def test_nobody_pushes_to_a_digest(shipping: Any, make_table: MakeTable) -> None:
    """The digest follows from the table."""
    reference = replace(shipping.reference, digest=f"sha256:{'0' * 64}")
    with pytest.raises(SettingsError, match="give a tag"):
        push(image_of(make_table()), shipping.place, reference)


def test_an_image_without_a_tag_is_pulled_by_its_digest(
    shipping: Any, make_table: MakeTable
) -> None:
    """And a place alone names no image."""
    place = replace(shipping.reference, tag=None)
    pushed = push(image_of(make_table()), shipping.place, place)
    assert (
        pull(pushed.reference, shipping.place, shipping.cache, ImageDemand()).table == make_table()
    )
    with pytest.raises(SettingsError, match="give a tag or a digest"):
        pull(place, shipping.place, shipping.cache, ImageDemand())


def test_the_title_in_a_manifest_is_no_path(shipping: Any, make_table: MakeTable) -> None:
    """A file name in an annotation, which other tools write to, is not used."""
    image = image_of(make_table())
    document = json.loads(encode_manifest(image.manifest))
    title = {"org.opencontainers.image.title": "../../escaped"}
    document["layers"][0]["annotations"] = title
    hostile = decode_manifest(json.dumps(document).encode(), "x")
    push(TableImage(hostile, image.blobs), shipping.place, shipping.reference)
    assert shipping.pull().table == make_table()
    names = {path.name for path in shipping.cache.folder.parent.rglob("*")}
    assert "escaped" not in names
