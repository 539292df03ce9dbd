"""Images in folders: a table, a place for it, and a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from warmup.core.runtime import Runtime
from warmup.table import Table
from warmup.table.oci_image.layout_folder import LayoutFolder
from warmup.table.oci_image.publication import Publication, push
from warmup.table.oci_image.reference import ImageReference
from warmup.table.oci_image.retrieval import ImageDemand, Retrieval, pull
from warmup.table.oci_image.table_image import image_of


@dataclass(frozen=True, slots=True)
class Shipping:
    """A folder of images, ``place``, and a cache; `push` and `pull` use the tag v1."""

    place: LayoutFolder
    cache: LayoutFolder
    reference: ImageReference

    def push(self, table: Table, bundle: Path | None = None) -> Publication:
        """Push *table* under the tag v1."""
        return push(image_of(table, bundle), self.place, self.reference)

    def pull(self, demand: ImageDemand | None = None, *, offline: bool = False) -> Retrieval:
        """Pull the tag v1."""
        source = None if offline else self.place
        return pull(self.reference, source, self.cache, demand or ImageDemand())


@pytest.fixture
def shipping(tmp_path: Path) -> Shipping:
    """An empty place and an empty cache."""
    place = LayoutFolder(tmp_path / "images")
    reference = ImageReference(str(place.folder), tag="v1")
    return Shipping(place, LayoutFolder(tmp_path / "cache"), reference)


@pytest.fixture
def here(make_runtime: Callable[..., Runtime]) -> Runtime:
    """The runtime of the table that `make_table` makes."""
    return make_runtime()
