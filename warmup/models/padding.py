"""`prepare`: pads the weights of a model as the rows of a table say."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warmup.core.device import Mismatch, compare_runtimes
from warmup.core.errors import ProblemError
from warmup.core.rows import Row
from warmup.core.text import MIB
from warmup.keys.gemm import Dim
from warmup.keys.pad import WEIGHT, Padding, Structure, features_of, parse_weight
from warmup.keys.registry import kind_of
from warmup.table.schema import Table
from warmup.table.store import read

if TYPE_CHECKING:
    from torch import nn

    from warmup.models.weight_groups import Group, UnpaddedLinears


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `prepare` did to a model: ``padded`` groups, and ``left`` Linears with the reason.

    ``bytes_before`` and ``bytes_after`` are the memory of the model's parameters and buffers;
    shared memory counts once, sharded and quantized tensors do not count.
    """

    padded: Mapping[Group, Padding]
    left: tuple[UnpaddedLinears, ...]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        grown = self.bytes_after - self.bytes_before
        share = grown / self.bytes_before if self.bytes_before else 0.0
        groups = f"groups of weights padded: {len(self.padded)}"
        items = self.padded.items()
        padded = (
            f"{group}: {group.structure.features} features padded to {to}" for group, to in items
        )
        lines = [f"{groups}, {grown / MIB:.1f} MiB more ({share:.2%})", *padded]
        return "\n".join([*lines, *map(str, self.left)])


def prepare(model: nn.Module, table: str | os.PathLike[str] | Table) -> Prepared:
    """Pad the weights of *model* in place where the rows of *table* say that it pays.

    The model is in eval mode, on its device, and not compiled or wrapped yet. A weight serves all
    numbers of rows, so a group is padded when all table rows of its structure name the same size.
    A group of producers alone may have table rows for its own size as well: for those numbers of
    rows it is used unpadded. A table for another device or runtime pads nothing.

    Raises:
        SettingsError: the model is in training mode, or padded already.
        TableError: the table is missing or damaged.
    """
    from warmup.inductor.machine import describe_runtime
    from warmup.models.weight_groups import tensors_of

    table = table if isinstance(table, Table) else read(table)
    device = next((tensor.device for tensor in tensors_of(model)), None)
    if device is None:
        return pad_by_rows(model, {})
    mismatches = compare_runtimes(table.provenance.runtime, describe_runtime(device))
    return pad_by_rows(model, table.rows, refusal_of(mismatches))


def refusal_of(mismatches: Iterable[Mismatch]) -> str | None:
    """Return why a table with these *mismatches* pads nothing here, None if it may pad."""
    return "; ".join(str(mismatch) for mismatch in mismatches if mismatch.is_hard) or None


def paddings(table: Table, mismatches: Iterable[Mismatch]) -> dict[Structure, Padding]:
    """Return the structures that *table* pads on this machine, each with its padding."""
    if refusal_of(mismatches) is not None:
        return {}
    return {
        structure: padding
        for structure, sizes in _sizes_by_structure(table.rows).items()
        if isinstance(padding := _padding_of(structure, sizes), Padding)
    }


def pad_by_rows(model: nn.Module, rows: Mapping[str, Row], refusal: str | None = None) -> Prepared:
    """Pad *model* as `prepare` does, from *rows*; with a *refusal* pad nothing, for that reason."""
    from warmup.models.weight_groups import UnpaddedLinears, find_groups, pad

    found = find_groups(model)
    sizes = _sizes_by_structure(rows)
    choices: dict[Group, Padding] = {}
    unpadded = list(found.unpadded)
    for group in found.groups:
        padding = refusal or _padding_of(group.structure, sizes.get(group.structure, {}))
        if isinstance(padding, Padding):
            choices[group] = padding
        else:
            unpadded.append(UnpaddedLinears(group.names, padding))
    before = _bytes_of(model)
    pad(model, choices)
    return Prepared(choices, tuple(unpadded), before, _bytes_of(model))


def _sizes_by_structure(rows: Mapping[str, Row]) -> dict[Structure, dict[Dim, int | str]]:
    sizes: dict[Structure, dict[Dim, int | str]] = {}
    for key, row in rows.items():
        if kind_of(key) is not WEIGHT:
            continue
        structure, m = parse_weight(key)
        if row.untrusted is not None:
            sizes.setdefault(structure, {})[m] = f"not trusted: {row.untrusted}"
            continue
        try:
            size: int | str = features_of(structure, row.winner)
        except ProblemError as error:
            size = str(error)
        sizes.setdefault(structure, {})[m] = size
    return sizes


def _padding_of(structure: Structure, sizes: Mapping[Dim, int | str]) -> Padding | str:
    if not sizes:
        return "not in the table"
    own = structure.features
    distinct = {*sizes.values()}
    as_is: list[Dim] = []
    if structure.differs_by_rows and len(distinct) > 1:
        as_is = sorted((m for m, size in sizes.items() if size == own), key=lambda m: m.low)
        distinct.discard(own)
    if reasons := [size for size in distinct if isinstance(size, str)]:
        return min(reasons)
    if len(distinct) > 1:
        by_rows = ", ".join(f"m={m}: {size}" for m, size in sizes.items())
        return f"its rows disagree ({by_rows})"
    features = distinct.pop()
    assert not isinstance(features, str)
    return "it is faster unpadded" if features == own else Padding(features, tuple(as_is))


def _bytes_of(model: nn.Module) -> int:
    from warmup.models.weight_groups import tensors_of

    storages = [tensor.untyped_storage() for tensor in tensors_of(model)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
