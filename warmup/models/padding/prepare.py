"""`prepare`: weights padded as the rows of a table say."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warmup.core.errors import ProblemError
from warmup.core.rows import Row
from warmup.core.runtime import Mismatch, compare_runtimes
from warmup.core.units import MIB
from warmup.keys.gemm import Dim
from warmup.keys.registry import kind_of
from warmup.keys.weight import WEIGHT, Padding, Structure, features_of, parse_weight
from warmup.table import Table
from warmup.table.store import read

if TYPE_CHECKING:
    from torch import nn

    from warmup.models.padding.groups import Group, Left


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was padded to how many features, what was left as it is and why, and the memory.

    Bytes are those of the model's parameters and buffers, memory that several share once; sharded
    and quantized tensors are not counted.
    """

    padded: Mapping[Group, Padding]
    left: tuple[Left, ...]
    bytes_before: int
    bytes_after: int

    @property
    def summary(self) -> str:
        """How many groups were padded, and what that takes."""
        grown = (self.bytes_after - self.bytes_before) / MIB
        share = grown * MIB / self.bytes_before if self.bytes_before else 0.0
        return f"groups of weights padded: {len(self.padded)}, {grown:.1f} MiB more ({share:.2%})"

    def __str__(self) -> str:
        lines = [self.summary]
        lines += [
            f"{group}: {group.structure.features} features padded to {padding}"
            for group, padding in self.padded.items()
        ]
        lines += [str(each) for each in self.left]
        return "\n".join(lines)


def prepare(model: nn.Module, table: str | os.PathLike[str] | Table) -> Prepared:
    """Pad the weights of *model* in place where the rows of *table* say that it pays.

    Call it once the model is in eval mode and on its device, and before it is compiled or wrapped.
    Weights are shared by all numbers of rows, so a group is padded when all rows of its structure
    name the same size; one that only makes features serves those as it is whose rows say so. Rows
    of a table for another device or runtime say nothing here.

    Raises:
        SettingsError: the model is in training mode, or padded already.
        TableError: the table is missing or damaged.
        AdapterError: this torch is not supported.
    """
    from warmup.inductor import connect
    from warmup.models.padding.linears import tensors_of

    table = table if isinstance(table, Table) else read(table)
    device = next((tensor.device for tensor in tensors_of(model)), None)
    if device is None:
        return pad_by_rows(model, {})
    found = compare_runtimes(table.provenance.runtime, connect().runtime(str(device)))
    return pad_by_rows(model, table.rows, refusal_of(found))


def refusal_of(mismatches: Iterable[Mismatch]) -> str | None:
    """Return why the rows of a table with these *mismatches* say nothing here, None if they do."""
    return "; ".join(str(mismatch) for mismatch in mismatches if mismatch.is_hard) or None


def paddings(table: Table, mismatches: Iterable[Mismatch]) -> dict[Structure, Padding]:
    """Return how *table* pads which structures here; not those that it leaves as they are."""
    if refusal_of(mismatches) is not None:
        return {}
    agreed = {structure: _agreed(structure, said) for structure, said in _said(table.rows).items()}
    return {
        structure: answer for structure, answer in agreed.items() if isinstance(answer, Padding)
    }


def pad_by_rows(model: nn.Module, rows: Mapping[str, Row], refusal: str | None = None) -> Prepared:
    """Do as `prepare`, from *rows*; with a *refusal*, leave every group for that reason.

    Raises:
        SettingsError: the model is in training mode, or padded already.
    """
    from warmup.models.padding.apply import pad
    from warmup.models.padding.groups import Left, find_groups

    found = find_groups(model)
    said = _said(rows)
    choices: dict[Group, Padding] = {}
    left = list(found.left)
    for group in found.groups:
        answer = refusal or _agreed(group.structure, said.get(group.structure, {}))
        if isinstance(answer, Padding):
            choices[group] = answer
        else:
            left.append(Left(group.names, answer))
    before = _held(model)
    pad(model, choices)
    return Prepared(choices, tuple(left), before, _held(model))


def _said(rows: Mapping[str, Row]) -> dict[Structure, dict[Dim, int | str]]:
    """Return what *rows* say about each structure: a size, or what is wrong, by their rows."""
    said: dict[Structure, dict[Dim, int | str]] = {}
    for key, row in rows.items():
        if kind_of(key) is not WEIGHT:
            continue
        structure, m = parse_weight(key)
        try:
            answer: int | str = features_of(structure, row.winner)
        except ProblemError as error:
            answer = str(error)
        said.setdefault(structure, {})[m] = answer
    return said


def _agreed(structure: Structure, said: Mapping[Dim, int | str]) -> Padding | str:
    """Return how to pad *structure* as its rows *said*, or why to leave it."""
    if not said:
        return "not in the table"
    own = structure.features
    named = {*said.values()}
    as_is: list[Dim] = []
    if structure.differs_by_rows and len(named) > 1:
        as_is = sorted((m for m, size in said.items() if size == own), key=lambda m: m.low)
        named.discard(own)
    if len(named) > 1:
        each = ", ".join(f"m={m}: {size}" for m, size in said.items())
        return f"its rows disagree ({each})"
    answer = named.pop()
    if isinstance(answer, str):
        return answer
    return "it is faster as it is" if answer == own else Padding(answer, tuple(as_is))


def _held(model: nn.Module) -> int:
    """Return the bytes of the memory that the tensors of *model* are in."""
    from warmup.models.padding.linears import tensors_of

    storages = [tensor.untyped_storage() for tensor in tensors_of(model)]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
