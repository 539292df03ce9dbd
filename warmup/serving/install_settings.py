"""`InstallSettings`: decides whether a second `install` asks for what is installed already."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InstallSettings:
    """What is equal in two calls of `install` that are one install. Paths are absolute, or empty.

    A call with a model is never the same install as another: it pads the weights of its model.
    """

    digest: str
    on_miss: str
    uncovered: str
    device: str
    audit_log: str
    bundle: str
    freezes: bool
    pads_model: bool

    def difference(self, asked: InstallSettings) -> str:
        """Return the settings in which *asked* differs, as ``name: installed X, asked Y``.

        Empty when both are one install.
        """
        theirs = asdict(asked)
        differences = [
            f"{name}: installed {_shown(value)}, asked {_shown(theirs[name])}"
            for name, value in asdict(self).items()
            if value != theirs[name]
        ]
        if self.pads_model and asked.pads_model:
            differences.append("each install would pad a model")
        return "; ".join(differences)


class RecordingSettings(InstallSettings):
    """The settings of a recording: whatever the program installs meanwhile is that recording."""

    __slots__ = ()

    def difference(self, asked: InstallSettings) -> str:  # noqa: ARG002  all are one install
        """Return nothing: the rows that the program names are not served while it is recorded."""
        return ""


def absolute_path(named: str | os.PathLike[str] | None, variable: str) -> str:
    """Return the path *named*, or else in the environment *variable*, absolute; empty for none."""
    path = named if named is not None else os.environ.get(variable)
    return str(Path(path).absolute()) if path else ""


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text[:64] or "none"
