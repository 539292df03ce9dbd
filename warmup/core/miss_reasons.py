"""`MissReason`: why no row answered a question, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final


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
    """The template's source or parameters, or the arguments of a launch, are not those of the row.
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
    """Return ``REASON: what to do`` for *misses*: a reason, and the nearest row's differences.

    Each text comes once, in their order; an unknown reason has none.
    """
    known = {reason.value for reason in MissReason}
    return list(
        dict.fromkeys(
            f"{reason}: {advice_for(MissReason(reason), differs)}"
            for reason, differs in misses
            if reason in known
        )
    )
