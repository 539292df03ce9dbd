"""`ImageReference`: where an image is, and which: ``oci://HOST/NAME:TAG`` or ``FOLDER:TAG``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.table.oci_image.blob import IMAGE_DIGEST

IMAGE_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")  # of the OCI specification
_SCHEME: Final = "oci://"
_ANY_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST: Final = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
)
_NAME_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"  # of the OCI specification
_REPOSITORY: Final = re.compile(f"{_NAME_PART}(?:/{_NAME_PART})*")
_MOST_NAME: Final = 255
_REFERENCE_FORMS: Final = (
    "write oci://HOST/NAME:TAG, oci://HOST/NAME@sha256:..., FOLDER:TAG or FOLDER@sha256:..."
)


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image, or the place of images where both ``tag`` and ``digest`` are None.

    ``place`` is a folder, or the registry ``host`` with the name of a repository, ``repository``;
    the last two are None for a folder.
    """

    place: str
    host: str | None = None
    repository: str | None = None
    tag: str | None = None
    digest: str | None = None

    @property
    def location(self) -> str:
        """The place as a user writes it."""
        return self.place if self.host is None else f"{_SCHEME}{self.place}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag is not None else ""
        digest = f"@{self.digest}" if self.digest is not None else ""
        return f"{self.location}{tag}{digest}"


def parse_reference(text: str) -> ImageReference:
    """Return the reference in *text*.

    Raises:
        SettingsError: *text* is none. A text with a user and a password is not repeated.
    """
    is_registry = text.startswith(_SCHEME)
    rest = text.removeprefix(_SCHEME)
    if is_registry and "@" in rest.partition("/")[0]:
        raise SettingsError(
            "a reference has a user or a password in it",
            "leave it out: credentials are those of `docker login`",
        )
    if not is_registry and _ANY_SCHEME.match(text):
        raise SettingsError(f"{shown(text)} is no reference to an image", _REFERENCE_FORMS)
    rest, at, digest = rest.partition("@") if "@sha256:" in rest else (rest, "", "")
    place, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        place, tag = rest, ""
    if (at and IMAGE_DIGEST.fullmatch(digest) is None) or (
        place != rest and IMAGE_TAG.fullmatch(tag) is None
    ):
        raise SettingsError(f"{shown(text)}: the tag or the digest is none", _REFERENCE_FORMS)
    if not is_registry:
        if not place or "\0" in place:
            raise SettingsError(f"{shown(text)} names no folder", _REFERENCE_FORMS)
        return ImageReference(place, tag=tag or None, digest=digest or None)
    host, _, repository = place.partition("/")
    if (
        _HOST.fullmatch(host) is None
        or len(place) > _MOST_NAME
        or _REPOSITORY.fullmatch(repository) is None
    ):
        raise SettingsError(f"{shown(text)} is no reference to an image", _REFERENCE_FORMS)
    return ImageReference(place, host, repository, tag or None, digest or None)
