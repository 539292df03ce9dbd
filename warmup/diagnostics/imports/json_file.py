"""`json_in`: the JSON value in a file that other tools wrote, read without trust."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from warmup.core.error_text import shown
from warmup.core.errors import SettingsError
from warmup.core.files import open_regular
from warmup.core.strict_json import JsonError, parse_json

_MAX_JSON_BYTES: Final = 64 * 1024 * 1024


def text_in(path: Path, most: int = _MAX_JSON_BYTES) -> str:
    """Return the text of the file *path*, at most *most* bytes.

    Raises:
        SettingsError: it cannot be read, is larger, or is not UTF-8.
    """
    try:
        with open_regular(path) as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:  # a path with a NUL character
        raise unreadable(path, str(error)) from error
    if len(raw) > most:
        raise unreadable(path, f"larger than {most} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(path, f"not UTF-8 (byte {error.start})") from error


def json_in(path: Path, most: int = _MAX_JSON_BYTES) -> object:
    """Return the JSON value in the file *path*, at most *most* bytes.

    A number may be NaN or infinite: inductor writes ``Infinity`` as the time of a choice that
    failed (torch/_inductor/codecache.py, ``update_local_cache``).

    Raises:
        SettingsError: it cannot be read, is larger, or is not JSON.
    """
    try:
        return parse_json(text_in(path, most), has_constants=True)
    except JsonError as error:
        raise unreadable(path, f"not JSON: {error}") from error


def unreadable(path: Path, reason: str) -> SettingsError:
    """Return the error about the imported file *path*, which cannot be used for *reason*."""
    return SettingsError(f"{shown(path)}: {shown(reason)}", "name another file to import")
