"""`RowIndex`: rows found by what a trace without a plan says of a kernel: its shapes and its name.

Names of generated kernels lose their number, which differs between graphs. A key's epilogue, and
whether an addmm's bias was expanded, are not in a trace: rows that differ in these alone are equal
here where their winners are, and else the match is not certain.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warmup.core.rows import Family, Row
from warmup.diagnostics.profile.alignment import unnumbered
from warmup.diagnostics.profile.operator_work import TEMPLATE_PREFIX, Tensor, tensors_of
from warmup.diagnostics.profile.trace import DeviceEvent, HostCall, HostOperator
from warmup.keys.gemm import GEMM
from warmup.keys.launch import LAUNCH
from warmup.keys.registry import kind_of

_OPS: Final = {  # operator -> op of a key, and the place of its first matrix
    "aten::mm": ("mm", 0),
    "aten::addmm": ("addmm", 1),
    "aten::bmm": ("bmm", 0),
    "aten::baddbmm": ("baddbmm", 1),
    "aten::_addmm_activation": ("addmm", 1),
    "aten::_int_mm": ("int_mm", 0),
    "aten::_scaled_mm": ("scaled_mm", 0),
}
_CONFIG: Final = ("num_warps", "num_stages")
_DIMS_OF_BATCHES: Final = 3
_MATMUL: Final = ("batch", "m", "n", "k", "dtype", "epilogue")


def is_launch_key(key: str) -> bool:
    """Return whether *key* is about a launch config."""
    return kind_of(key) is LAUNCH


def matmul_of(key: str) -> str:
    """Return what *key* computes, equal for the ops by which inductor may spell the same matmul.

    The keys of other kinds are returned unchanged.
    """
    if kind_of(key) is not GEMM:
        return key
    named = GEMM.ingredients(key)
    return " ".join(["matmul", *(f"{name}={named[name]}" for name in _MATMUL if name in named)])


class RowIndex:
    """The rows of a table by what traces name; ``rows`` has them by key."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self.rows = rows
        self._gemms: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        self._templates: list[tuple[tuple[int, int, int], str]] = []
        self._launches: dict[str, list[str]] = defaultdict(list)
        for key, row in rows.items():
            kind = kind_of(key)
            if kind is LAUNCH:
                self._launches[LAUNCH.ingredients(key)["kernel"]].append(key)
            elif kind is GEMM:
                self._add_gemm(key, row)

    def _add_gemm(self, key: str, row: Row) -> None:
        named = GEMM.ingredients(key)
        sizes = tuple(named.get(name, "1") for name in ("batch", "m", "n", "k"))
        if not all(size.isdecimal() for size in sizes):
            return  # a range: its sizes are not in the key
        batch, m, n, k = map(int, sizes)
        if row.winner.family is Family.TEMPLATE:
            self._templates.append(((m, n, k), key))
        else:
            self._gemms[named["op"], batch, m, n, k, named["dtype"]].append(key)

    def covers(self, operator: HostOperator) -> bool:
        """Return whether rows can be about calls of *operator*."""
        return operator.name in _OPS

    def by_shapes(self, event: DeviceEvent, call: HostCall | None) -> tuple[str, ...]:
        """Return the keys whose rows *event* may be, by the shapes of its operator *call*."""
        if call is None:
            return ()
        tensors = tensors_of(call.operator)
        if not any(tensors):
            return ()
        if event.name.startswith(TEMPLATE_PREFIX):
            return self._template(call.operator, [each for each in tensors if each is not None])
        if call.operator.name in _OPS:
            return self._library(call.operator, tensors)
        return ()

    def by_name(self, event: DeviceEvent, call: HostCall | None) -> tuple[str, ...]:
        """Return the keys of launch rows of the kernel's name whose winner is its config."""
        keys = self._launches.get(unnumbered(event.name), [])
        if call is None:
            return tuple(keys)
        given = call.operator.arguments
        sizes = {
            1 << max(math.prod(each.sizes) - 1, 0).bit_length()
            for each in tensors_of(call.operator)
            if each is not None
        }
        fitting = [key for key in keys if _has_config(self.rows[key], given)]
        sized = [key for key in fitting if not sizes or _elements(key) in sizes]
        return tuple(sized or fitting)

    def _library(self, operator: HostOperator, tensors: Sequence[Tensor | None]) -> tuple[str, ...]:
        op, first = _OPS[operator.name]
        if len(tensors) < first + 2:
            return ()
        a, b = tensors[first : first + 2]
        if a is None or b is None or len(a.sizes) < 2 or len(a.sizes) != len(b.sizes):  # noqa: PLR2004  matrices
            return ()
        batch = a.sizes[0] if len(a.sizes) == _DIMS_OF_BATCHES else 1
        key = (op, batch, a.sizes[-2], b.sizes[-1], a.sizes[-1], a.dtype)
        return self._alike(self._gemms.get(key, []))

    def _template(self, operator: HostOperator, tensors: Sequence[Tensor]) -> tuple[str, ...]:
        shapes = {tuple(sorted(each.sizes[-2:])) for each in tensors if len(each.sizes) > 1}
        found = [
            key
            for (m, n, k), key in self._templates
            if {tuple(sorted(pair)) for pair in ((m, k), (k, n))} <= shapes
            and _has_config(self.rows[key], operator.arguments)
        ]
        return self._alike(found)

    def _alike(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Return *keys*, or the first where all their rows have one winner."""
        winners = {self.rows[key].winner for key in keys}
        return tuple(keys[:1] if len(winners) == 1 else keys)


def _has_config(row: Row, given: Mapping[str, Any]) -> bool:
    """Return whether *row*'s winner has the config that the profiler recorded."""
    winner = dict(row.winner.kwargs)
    named = {name: given[name] for name in _CONFIG if name in given}
    recorded = given.get("kernel_kwargs")
    if isinstance(recorded, str):
        pairs = (pair.partition("=") for pair in recorded.split(",") if pair)
        named |= {name: int(value) for name, _, value in pairs if value.isdecimal()}
    return all(winner.get(name, value) == value for name, value in named.items())


def _elements(key: str) -> int:
    named = LAUNCH.ingredients(key)
    sizes = [value for name, value in named.items() if value.isdecimal() and name != "kernel"]
    return math.prod(map(int, sizes))
