"""`WarmupError` and its subclasses: every error that warmup raises on purpose, and every warning.

docs/reference/errors.md lists them. Constructor arguments are positional, so that each error
survives pickling across compile workers; ``__str__`` makes the text: what is wrong; what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from warmup.core.text import counted, sentence, shown

# `MissReason`: why no row answered a question, and what to do about it.


class MissReason(StrEnum):
    """Why no row answered. A closed list: renaming a reason bumps the event schema."""

    NOT_IN_TABLE = "not_in_table"
    """The table has no row for this key."""
    DYNAMIC_DIM = "dynamic_dim"
    """A size is a range, and no row has the same ranges."""
    WRONG_DEVICE = "wrong_device"
    """The table is for another device."""
    WRONG_RUNTIME = "wrong_runtime"
    """Another minor version of torch, or of Triton on a GPU, runs here."""
    TEMPLATE_ABSENT = "template_absent"
    """A row exists, but this torch does not offer its choice here."""
    TEMPLATE_CHANGED = "template_changed"
    """The template's source or parameters, the arguments of a launch, or cuBLASLt's version are not
    those of the row.
    """
    CHOICE_REJECTED = "choice_rejected"
    """The row's parameters cannot be used here, or do not compile."""
    NOT_DESCRIBED = "not_described"
    """The problem cannot be written as a key, for example because a size depends on data."""
    CACHED_MISS = "cached_miss"
    """A cached graph was compiled with misses; in strict serving only."""
    UNTRUSTED = "untrusted"
    """A row exists, but a build found an output wrong with its winner."""
    NEEDS_FREEZING = "needs_freezing"
    """The row is for a frozen weight, and this program freezes none."""
    INTERNAL = "internal"
    """Code of warmup raised an exception; torch's own code ran as without a table."""

    @property
    def advice(self) -> str:
        """What to do about a miss for this reason, in one clause."""
        return _ADVICE[self]


_ADVICE: Final = {
    MissReason.NOT_IN_TABLE: "build this bucket, or pad to one that was built",
    MissReason.DYNAMIC_DIM: (
        "compile with dynamic=False, or build for the range: --policy range with --model, or a "
        "program that calls the range, build -- PROGRAM"
    ),
    MissReason.WRONG_DEVICE: "build on this device (on a CPU with the same number of threads)",
    MissReason.WRONG_RUNTIME: "build with the versions of torch and Triton that serve",
    MissReason.TEMPLATE_ABSENT: "build again with this torch, without inductor options of your own",
    MissReason.TEMPLATE_CHANGED: "build again with this torch",
    MissReason.CHOICE_REJECTED: "build again on this machine",
    MissReason.NOT_DESCRIBED: "no table can answer it: look at the model",
    MissReason.UNTRUSTED: "build again: the key is measured without the winner that was wrong",
    MissReason.NEEDS_FREEZING: (
        "if no weight changes after its first use, freeze: install(freezing=True), --freezing or "
        "WARMUP_FREEZING=1, under torch.no_grad()"
    ),
    MissReason.INTERNAL: "report it, with the traceback that WARMUP_DEBUG=1 prints",
    MissReason.CACHED_MISS: "build the bucket; without inductor's cache, the misses are named",
}

_DIFFERENCE: Final = re.compile(r"([a-z0-9_.]+): (?:row|table) (\S+), here (\S+)")
_WORDS: Final = re.compile(r"[a-z0-9]{1,8} [a-z0-9]{1,8}")  # a log is not trusted
_FORMS: Final = frozenset({"op", "dtype", "dtype_b", "a", "b", "a2", "b2", "bias", "out", "fp32"})
_PRECISIONS: Final = {"ieee": "highest", "tf32": "high", "bf16": "medium"}
_FROM_PROGRAM: Final = "build with the program's: warmup build --out TABLE -- COMMAND"


def advice_for(reason: MissReason, differs: Iterable[str]) -> str:
    """Return what to do about a miss whose nearest row *differs*, in one clause.

    Where a setting of the program differs from the build's, that setting is named: to build the
    same bucket again would leave the miss.
    """
    found = [match.groups() for each in differs if (match := _DIFFERENCE.fullmatch(each))]
    here = {name: (row, now) for name, row, now in found if _WORDS.fullmatch(f"{row} {now}")}
    if reason is MissReason.WRONG_DEVICE and here.keys() == {"device.threads"}:
        row, now = here["device.threads"]
        return (
            f"the table is for {row} threads, and {now} run here: set OMP_NUM_THREADS={row}, or "
            f"torch.set_num_threads({row}) before the install, or build with {now}"
        )
    if reason is not MissReason.NOT_IN_TABLE or not {name for name, *_ in found} <= _FORMS:
        return reason.advice
    if "dtype" in here:
        row, now = here["dtype"]
        return (
            f"the program computes in {now} (autocast, or a cast) what was built in {row}: leave "
            f"that out, or {_FROM_PROGRAM}"
        )
    if "fp32" in here and here["fp32"][0] in _PRECISIONS:
        row, now = here["fp32"]
        return (
            f"the program's precision of float32 matmuls is {now}, the build's was {row}: "
            f'torch.set_float32_matmul_precision("{_PRECISIONS[row]}") before the first compile, '
            f"or {_FROM_PROGRAM}"
        )
    return reason.advice


def advice(misses: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """Return ``REASON: what to do`` once for each of *misses*: a reason, and what differs."""
    known = {reason.value for reason in MissReason}
    return list(
        dict.fromkeys(
            f"{reason}: {advice_for(MissReason(reason), differs)}"
            for reason, differs in misses
            if reason in known
        )
    )


_SHOWN_CONFLICTS: Final = 3
_E = TypeVar("_E", bound=BaseException)
_LISTED_CONFLICTS: Final = 20  # where each has a line of its own


class WarmupError(Exception):
    """Base of every error that warmup raises on purpose."""

    exit_code = 3

    def __str__(self) -> str:
        return sentence(*self.args)

    def lines(self) -> tuple[str, ...]:
        """Return the error as lines for people: the first says what is wrong and what to do."""
        return (str(self),)


class SettingsError(WarmupError, ValueError):
    """An option, argument or variable cannot be used. Arguments: what is wrong, what to do."""


class ProblemError(WarmupError, ValueError):
    """A problem cannot be described in a key, or a key cannot be parsed."""


class ModelError(WarmupError):
    """The user's model or its inputs cannot be loaded or run. Arguments: problem, remedy."""


class SizeError(WarmupError, ValueError):
    """No bucket serves the sizes of a call, and ``outside="error"``. Arguments: problem, remedy."""


class TableError(WarmupError):
    """Base of the errors about table files."""


class TableNotFoundError(TableError, FileNotFoundError):
    """There is no table at a path or for a device. Arguments: the missing table, paths searched."""

    def __init__(self, wanted: str, searched: tuple[str, ...] = ()) -> None:
        super().__init__(wanted, searched)
        self.wanted = wanted
        self.searched = searched

    def __str__(self) -> str:
        where = f" (searched: {', '.join(self.searched)})" if self.searched else ""
        return f"{self.wanted}{where}; build one with `warmup build` or name it explicitly"


@dataclass(eq=False, repr=False)
class TableFormatError(TableError):
    """A file is not a valid table. ``pointer`` is the JSON pointer (RFC 6901) of the bad value."""

    path: str
    pointer: str
    reason: str
    advice: str = "restore the file or build it again"

    def __str__(self) -> str:
        at = f" at {shown(self.pointer)}" if self.pointer else ""
        problem = f"not a valid table{at}: {shown(self.reason)}"
        return f"{shown(self.path)}: {problem}; {self.advice}"


@dataclass(eq=False, repr=False)
class TableSchemaError(TableError):
    """A table has an unknown schema. Arguments: path, its schema, the schema this warmup reads."""

    path: str
    found: int
    known: int

    def __str__(self) -> str:
        is_older = self.found < self.known
        age, upgrade = ("older", "") if is_older else ("newer", "upgrade inductor-warmup or ")
        return (
            f"{shown(self.path)}: schema {self.found} is {age} than this warmup reads "
            f"({self.known}); {upgrade}build the table again"
        )


@dataclass(eq=False, repr=False)
class TableMismatchError(TableError):
    """A table is for another device, runtime or policy; ``mismatches`` has a line per field.

    ``summary``, where it is not None, says the same in one sentence, and is the text.
    """

    path: str
    mismatches: tuple[str, ...]
    advice: str
    summary: str | None = None

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.summary or '; '.join(self.mismatches)}; {self.advice}"


@dataclass(eq=False, repr=False)
class TableMergeError(TableError):
    """Tables cannot be merged; ``conflicts`` has a line per conflicting key or field."""

    conflicts: tuple[str, ...]
    advice: str

    def __str__(self) -> str:
        count, *lines = self._lines(_SHOWN_CONFLICTS)
        return f"{count}: {'; '.join(lines)}; {self.advice}"

    def lines(self) -> tuple[str, ...]:
        count, *lines = self._lines(_LISTED_CONFLICTS)
        return (f"{count}; {self.advice}:", *lines)

    def _lines(self, most: int) -> tuple[str, ...]:
        hidden = len(self.conflicts) - most
        more = (f"and {hidden} more",) if hidden > 0 else ()
        return (counted(len(self.conflicts), "conflict"), *self.conflicts[:most], *more)


class TableWriteError(TableError, OSError):
    """A table cannot be written. Arguments: path, reason, what to do."""

    def __init__(self, path: str, reason: str, advice: str) -> None:
        super().__init__(path, reason, advice)
        self.path = path
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return f"{shown(self.path)}: cannot write the table: {self.reason}; {self.advice}"


class BuildError(WarmupError):
    """A build did not produce a table that can be served. Arguments: problem, remedy."""


class NothingRecordedError(BuildError):
    """The model asked inductor for no GEMM choice, so there is nothing to put in a table."""

    @classmethod
    def of_uncovered(cls, sites: Iterable[str]) -> NothingRecordedError:
        """Return the error where all that was asked for are selections at *sites*, of no kind."""
        return cls(
            f"no row kind covers what inductor was asked to choose ({', '.join(sites)})",
            "default mode's kernels are compiled for these, with a table and without",
        )


class OutputMismatchError(BuildError):
    """The compiled output of a bucket is further from eager mode than the tolerance."""


@dataclass(eq=False, repr=False)
class BundleError(WarmupError):
    """A bundle cannot be made, read or used. Arguments: path, reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        problem = f"{shown(self.path)}: {shown(self.reason)}"
        return f"{problem}; make the bundle again with `warmup build`"


@dataclass(eq=False, repr=False)
class MissError(WarmupError):
    """No row of the table answered a question of inductor, in strict serving.

    ``nearest`` is the key of the most similar row, None without any. ``differs`` has its differing
    ingredients, or the differing fields of table and machine, as ``name: row X, here Y``.
    """

    key: str
    reason: str
    nearest: str | None = None
    differs: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.reason == "cached_miss":
            return (
                f"{self.key} had no row ({self.reason}); build the bucket (an empty cache folder "
                'has the keys named), or serve with on_miss="fallback"'
            )
        text = f"no row answers `{self.key}` ({self.reason})"
        if self.nearest is None and self.differs:
            text += f"; table and machine differ in {', '.join(self.differs)}"
        elif self.nearest is None and self.reason == "internal":
            text += "; an exception of warmup's own kept the table from being asked"
        elif self.nearest is None and self.reason != "not_described":
            text += "; the table has no row for this op"
        elif self.nearest is not None:
            text += f"; nearest row `{self.nearest}` differs in {', '.join(self.differs)}"
        advised = advice_for(MissReason(self.reason), self.differs)
        return f'{text}; {advised}; or serve with on_miss="fallback"'


@dataclass(eq=False, repr=False)
class UncoveredError(WarmupError):
    """A measurement that no row kind covers was stopped before it ran. Argument: its site."""

    site: str

    def __str__(self) -> str:
        return (
            f"a measurement on the device was refused: no row covers the site {self.site}; "
            'switch the feature that measures off, or install with uncovered="measure" or "library"'
        )


@dataclass(eq=False, repr=False)
class ForeignGraphError(WarmupError):
    """A graph that was compiled under another table, or under none, was loaded and refused.

    ``compiled_under`` and ``installed`` are digests as in the event ``graph.foreign``; the first is
    None for a graph that was compiled without warmup.
    """

    compiled_under: str | None
    installed: str

    def __str__(self) -> str:
        origin = "without a table" if self.compiled_under is None else self.compiled_under
        under = "" if self.compiled_under is None else "under table "
        return (
            f"a loaded graph was compiled {under}{origin}, and table {self.installed} is "
            "installed; compile the graph again, and make the table's digest part of the key under "
            "which it is kept"
        )


@dataclass(eq=False, repr=False)
class WeightChangedError(WarmupError):
    """A weight that a graph had frozen was changed, in strict serving.

    Arguments: the first such weight, their number, the function that was compiled.
    """

    weight: str
    changed: int
    frame: str

    def __str__(self) -> str:
        more = f" and {self.changed - 1} more" if self.changed > 1 else ""
        return (
            f"weights were changed after {self.frame} was compiled with their values frozen: "
            f"{self.weight}{more}; load all weights before the first call, or install without "
            'freezing, or serve with on_miss="fallback", which compiles again'
        )


class AdapterError(WarmupError):
    """Base of the errors about the installed torch."""


@dataclass(eq=False, repr=False)
class UnsupportedTorchError(AdapterError):
    """This torch is outside the supported range. Arguments: its version, the supported range."""

    found: str
    supported: str

    def __str__(self) -> str:
        return (
            f"torch {self.found} is not supported (supported: {self.supported}); "
            "install a supported torch or a newer inductor-warmup"
        )


class InductorChangedError(AdapterError):
    """An internal of torch that warmup uses is gone or changed. Argument: its name, the change."""

    def __str__(self) -> str:
        return (
            f"torch._inductor is not what this warmup was written for: {self.args[0]}; "
            "use a released torch of a supported minor, or a newer inductor-warmup"
        )


class WarmupWarning(UserWarning):
    """Base of the warnings: something that a user should know, and that stops nothing."""


class StaleTableWarning(WarmupWarning):
    """Table and machine differ in a field; the text says whether the rows can still be used."""


class ContradictionWarning(WarmupWarning):
    """An option of the caller differs from the policy of the table, or a fusion from its row."""


def warmup_error_in(error: BaseException) -> WarmupError | None:
    """Return the first `WarmupError` among *error* and its causes, None if there is none."""
    return cause_in(error, WarmupError)


def cause_in(error: BaseException, *kinds: type[_E]) -> _E | None:
    """Return the first error of *kinds* among *error* and its causes, None if there is none."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, kinds):
            return current
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return None
