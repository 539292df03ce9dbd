"""References to images: what is one, and what is refused."""

from __future__ import annotations

import pytest

from warmup.core.errors import SettingsError
from warmup.table.oci_image.reference import ImageReference, parse_reference

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("images:v1", ImageReference("images", tag="v1")),
        ("./a:b/images:v1", ImageReference("./a:b/images", tag="v1")),
        (f"images@{DIGEST}", ImageReference("images", digest=DIGEST)),
        ("oci://h.example/a/b:v1", ImageReference("h.example/a/b", "h.example", "a/b", "v1")),
        ("oci://h:5000/a", ImageReference("h:5000/a", "h:5000", "a")),
        ("oci://[::1]:5000/a:v1", ImageReference("[::1]:5000/a", "[::1]:5000", "a", "v1")),
        (f"oci://h/a:v1@{DIGEST}", ImageReference("h/a", "h", "a", "v1", DIGEST)),
    ],
)
def test_a_reference_is_parsed_and_spelled(text: str, expected: ImageReference) -> None:
    """Place, tag and digest are told apart, and the text comes back."""
    assert (parse_reference(text), str(parse_reference(text))) == (expected, text)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":v1", "images:", "images:v1:", "images:-v1", f"images:{'v' * 129}"),
        *("images@sha256:12", f"images@{DIGEST}0", "https://h/a:v1", "docker://h/a:v1"),
        *("oci://", "oci:///a:v1", "oci://h", "oci://h/", "oci://h/A:v1", "oci://h/a//b:v1"),
        *("oci://h/../a:v1", "oci://h/a?b:v1", "oci://h:x/a:v1", "oci://h /a:v1"),
        f"oci://h/{'a' * 255}:v1",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    """In one line that says which forms there are."""
    with pytest.raises(SettingsError, match=r"write oci://HOST/NAME:TAG"):
        parse_reference(text)


def test_a_password_in_a_reference_is_not_repeated() -> None:
    """The message says that it was there, and not what it was."""
    with pytest.raises(SettingsError, match="docker login") as caught:
        parse_reference("oci://me:secret-word@h/a:v1")
    assert "secret" not in str(caught.value)
