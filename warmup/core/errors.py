"""Every error and warning of warmup.

    WarmupError
    |- SettingsError(ValueError)            a flag, variable or argument that cannot be used
    |- ProblemError(ValueError)             a problem that cannot be described, or a malformed key
    |- ModelError                           the user's model or its inputs cannot be loaded or run
    |- TableError
    |  |- TableNotFoundError(FileNotFoundError)
    |  |- TableFormatError                  damaged, edited or malformed; .path .pointer .reason
    |  |- TableSchemaError                  written by a newer or a much older warmup
    |  |- TableMismatchError                another device, runtime or policy; .mismatches
    |  |- TableMergeError                   the same key with two winners; .conflicts
    |  |- TableWriteError(OSError)          the table cannot be written where it was asked for
    |- BuildError
    |  |- NothingRecordedError              the model asked inductor for no GEMM choice
    |  |- OutputMismatchError               compiled and eager outputs disagree
    |- BundleError                          a bundle cannot be made, read or used; .path .reason
    |- MissError                            strict serving: inductor asked, no row answered
    |- UncoveredError                       uncovered="forbid": something was about to be measured
    |- AdapterError
       |- UnsupportedTorchError             this torch is outside the supported range
       |- InductorChangedError              an internal that warmup names is gone or was changed

Constructor arguments are positional and reach ``Exception.__init__`` unchanged, so that each error
survives pickling across compile workers; ``__str__`` makes the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    pass

_SHOWN_CONFLICTS = 3


class WarmupError(Exception):
    """Base of every error that warmup raises on purpose."""

    exit_code = 3


class SettingsError(WarmupError, ValueError):
    """A setting cannot be used. Arguments: what is wrong, what to do."""

    def __str__(self) -> str:
        return _sentence(*self.args)


class ProblemError(WarmupError, ValueError):
    """A problem cannot be described, or its key is malformed."""


class ModelError(WarmupError):
    """The user's model, or its inputs, cannot be loaded or run. Arguments: what, what to do."""

    def __str__(self) -> str:
        return _sentence(*self.args)


class SizeError(WarmupError, ValueError):
    """No bucket serves a call's sizes, and nothing else is to. Arguments: what, what to do."""

    def __str__(self) -> str:
        return _sentence(*self.args)


class TableError(WarmupError):
    """Base of what can go wrong with a table file."""


class TableNotFoundError(TableError, FileNotFoundError):
    """No table where one was asked for. Arguments: what was looked for, the places searched."""

    def __init__(self, wanted: str, searched: tuple[str, ...] = ()) -> None:
        super().__init__(wanted, searched)
        self.wanted = wanted
        self.searched = searched

    def __str__(self) -> str:
        where = f" (searched: {', '.join(self.searched)})" if self.searched else ""
        return f"{self.wanted}{where}; build one with `warmup build` or name it explicitly"


class TableFormatError(TableError):
    """A table file is not a table. ``pointer`` is the JSON pointer of the offending value."""

    def __init__(self, path: str, pointer: str, reason: str) -> None:
        super().__init__(path, pointer, reason)
        self.path = path
        self.pointer = pointer
        self.reason = reason

    def __str__(self) -> str:
        at = f" at {self.pointer}" if self.pointer else ""
        said = f"{self.path}: not a valid table{at}: {self.reason}"
        return f"{printable(said)}; restore the file or build it again"


class TableSchemaError(TableError):
    """A table has another schema. Arguments: path, found schema, the schema this warmup reads."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(path, found, known)
        self.path = path
        self.found = found
        self.known = known

    def __str__(self) -> str:
        if self.found < self.known:
            return (
                f"{self.path}: schema {self.found} is older than this warmup reads "
                f"({self.known}); build the table again"
            )
        return (
            f"{self.path}: schema {self.found} is newer than this warmup reads ({self.known}); "
            "upgrade inductor-warmup or build the table again"
        )


class TableMismatchError(TableError):
    """A table is for another device, runtime or policy. ``mismatches`` names each field."""

    def __init__(self, path: str, mismatches: tuple[str, ...], advice: str) -> None:
        super().__init__(path, mismatches, advice)
        self.path = path
        self.mismatches = mismatches
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.path}: {'; '.join(self.mismatches)}; {self.advice}"


class TableMergeError(TableError):
    """Tables disagree. ``conflicts`` is one line per key (or provenance field) in dispute."""

    def __init__(self, conflicts: tuple[str, ...], advice: str) -> None:
        super().__init__(conflicts, advice)
        self.conflicts = conflicts
        self.advice = advice

    def __str__(self) -> str:
        shown = "; ".join(self.conflicts[:_SHOWN_CONFLICTS])
        hidden = len(self.conflicts) - _SHOWN_CONFLICTS
        more = f" and {hidden} more" if hidden > 0 else ""
        return f"{len(self.conflicts)} conflict(s): {shown}{more}; {self.advice}"


class TableWriteError(TableError, OSError):
    """A table cannot be written. Arguments: path, reason, what to do."""

    def __init__(self, path: str, reason: str, advice: str) -> None:
        super().__init__(path, reason, advice)
        self.path = path
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.path}: cannot write the table: {self.reason}; {self.advice}"


class BuildError(WarmupError):
    """A build did not produce a table that can be served. Arguments: what, what to do."""

    def __str__(self) -> str:
        return _sentence(*self.args)


class NothingRecordedError(BuildError):
    """The model asked inductor for no GEMM choice, so there is nothing to put in a table."""


class OutputMismatchError(BuildError):
    """A compiled bucket disagrees with eager beyond the tolerance."""


class BundleError(WarmupError):
    """A bundle cannot be made, read or used. Arguments: its path, why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        said = f"{self.path}: {self.reason}"
        return f"{printable(said)}; make the bundle again with `warmup build --bundle`"


class MissError(WarmupError):
    """Strict serving: inductor asked for a choice that no row answers.

    ``differs`` are the ingredients of the nearest row that differ, as ``name: row X, here Y``.
    """

    def __init__(
        self, key: str, reason: str, nearest: str | None = None, differs: tuple[str, ...] = ()
    ) -> None:
        super().__init__(key, reason, nearest, differs)
        self.key = key
        self.reason = reason
        self.nearest = nearest
        self.differs = differs

    def __str__(self) -> str:
        if self.reason == "cached_miss":
            return (
                f"{self.key} were compiled without a row ({self.reason}); build the bucket, or "
                'empty the cache folder and serve with on_miss="fallback"'
            )
        text = f"no row answers `{self.key}` ({self.reason})"
        if self.nearest is None and self.differs:
            text += f"; table and machine differ in {', '.join(self.differs)}"
        elif self.nearest is None:
            text += "; the table has no row for this op"
        else:
            text += f"; nearest row `{self.nearest}` differs in {', '.join(self.differs)}"
        return text + '; build this bucket, or serve with on_miss="fallback"'


class UncoveredError(WarmupError):
    """Something that no row covers was about to be measured and was refused. Argument: the site."""

    def __init__(self, site: str) -> None:
        super().__init__(site)
        self.site = site

    def __str__(self) -> str:
        return (
            f"a measurement on the device was refused: site {self.site} is covered by no row; "
            'switch off what measures there, or install with uncovered="count"'
        )


class AdapterError(WarmupError):
    """Base of what can go wrong between warmup and torch._inductor."""


class UnsupportedTorchError(AdapterError):
    """This torch is outside the supported range. Arguments: found version, supported range."""

    def __init__(self, found: str, supported: str) -> None:
        super().__init__(found, supported)
        self.found = found
        self.supported = supported

    def __str__(self) -> str:
        return (
            f"torch {self.found} is not supported (supported: {self.supported}); "
            "install a supported torch or a newer inductor-warmup"
        )


class InductorChangedError(AdapterError):
    """An internal that warmup names is gone or has another signature. Argument: which, and how."""

    def __str__(self) -> str:
        return (
            f"torch._inductor is not what this warmup was written for: {self.args[0]}; "
            "use a released torch of a supported minor, or a newer inductor-warmup"
        )


class WarmupWarning(UserWarning):
    """Something a person should know that does not stop the program."""


class StaleTableWarning(WarmupWarning):
    """The table's provenance differs from what runs now; the text says whether rows still hold."""


class ContradictionWarning(WarmupWarning):
    """The caller's own inductor settings contradict the installed table's policy."""


def warmup_error_in(error: BaseException) -> WarmupError | None:
    """Return the `WarmupError` that *error* was raised from, itself included; None without one.

    torch.compile wraps what is raised during a compile in errors of its own.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, WarmupError):
            return current
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return None


def printable(text: str) -> str:
    """Return *text* with everything escaped that could move a cursor or break a line."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def _sentence(*parts: object) -> str:
    return "; ".join(str(part) for part in parts if part)


_LONGEST_REASON: Final = 300


def first_line(error: BaseException | str) -> str:
    """Return the first line of what *error* says, with its type."""
    said = (str(error).splitlines() or [""])[0][:_LONGEST_REASON]
    return f"{type(error).__name__}: {said}"
