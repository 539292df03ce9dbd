"""`attribute`: which decision, which row and which work are behind each kernel of a trace.

In the order of certainty: by the plan that was recorded with the trace, by the shapes that the
profiler recorded, by the kernel's name. A plan lists the kernels of a compiled graph in order, the
generated ones by name; a library's kernels, of which one call may launch several, are matched by
their place between generated kernels.

A key's epilogue, and whether an addmm's bias was expanded, are not in a trace: without a plan rows
that differ in these alone are equal where their winners are, and else the match is not certain.

Work is that of the plan, else of the operator, from its shapes: each operand and the result once,
and the operations by the formulas of `torch.utils.flop_counter`.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import msgspec

from warmup.bench.trace import (
    COPIES,
    GENERATED_PREFIXES,
    DeviceEvent,
    HostCall,
    HostOperator,
    Shape,
    Trace,
)
from warmup.core.roofline import PlannedBy, PlannedKernel, Work, dtype_name, item_bytes
from warmup.core.rows import Family, Row
from warmup.keys.gemm import CPU_LINEAR, GEMM
from warmup.keys.launch import LAUNCH, unnumbered
from warmup.keys.registry import kind_of, work_of
from warmup.table.schema import Table

_GRAPH_PREFIX: Final = re.compile(r"^graph_[0-9]+_")  # of C++ kernels in a trace
# Kernels that finish the work of the kernel before them, whose own name may have splitK too:
# nvjet_sm90_tst_64x32_64x16_4x1_v_bz_splitK_TNT, then cublasLt::splitKreduce_kernel.
_FINISHES: Final = re.compile(r"split_?k_?reduce", re.IGNORECASE)
_OPS: Final = {  # operator -> op of a key, and the place of its first matrix
    "aten::mm": ("mm", 0),
    "aten::addmm": ("addmm", 1),
    "aten::bmm": ("bmm", 0),
    "aten::baddbmm": ("baddbmm", 1),
    "aten::_addmm_activation": ("addmm", 1),
    "aten::_int_mm": ("int_mm", 0),
    "aten::_scaled_mm": ("scaled_mm", 0),
    "mkl::_mkl_linear": ("packed_linear", 0),
    "mkldnn::_linear_pointwise": ("linear_unary", 0),
}
_TEMPLATE_PREFIX: Final = "triton_tem_"  # of the kernels of inductor's GEMM templates
_MATMUL: Final = ("batch", "m", "n", "k", "dtype", "epilogue")
_DIMS_OF_A_BATCH: Final = 3
_DIGITS: Final = 20  # of a number of a config
Keys = tuple[str, ...]
_Ints = Sequence[int]


# The profiler writes C++'s names of dtypes (c10/util/typeid, caffe2::TypeMeta::name).
_CPP_DTYPES: Final = {
    "float": "f32",
    "double": "f64",
    "c10::Half": "f16",
    "c10::BFloat16": "bf16",
    "long int": "i64",
    "long": "i64",
    "int": "i32",
    "short int": "i16",
    "signed char": "i8",
    "unsigned char": "u8",
    "bool": "bool",
    "c10::complex<float>": "c64",
    "c10::Float8_e4m3fn": "f8_e4m3fn",
    "c10::Float8_e5m2": "f8_e5m2",
}
_TORCH_DTYPE: Final = re.compile(r"(?:bf|f|i|u)[0-9]+(?:_\w+)?")  # of a generated kernel
_NAMESPACE: Final = re.compile(r"^(?:aten|mkl|mkldnn|onednn)::")
_MOST: Final = 1 << 40  # a size of a tensor: a terabyte of bytes
_MOST_DIMS: Final = 8
_MOST_FLOPS: Final = 1 << 62
# The places of the two matrices among the arguments, and how many first arguments are read: an
# ``out`` argument comes after them.
_MATMULS: Final = {
    **dict.fromkeys(("mm", "_int_mm", "bmm", "_grouped_mm"), (0, 1, 2)),
    **dict.fromkeys(("_scaled_mm", "_scaled_grouped_mm"), (0, 1, 4)),
    **dict.fromkeys(("addmm", "_addmm_activation", "baddbmm"), (1, 2, 3)),
}
_LINEARS: Final = frozenset({"linear", "_linear_pointwise", "_mkl_linear"})
_CONVOLUTIONS: Final = {  # the places of stride, padding and dilation
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), (3, 4, 5)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), (3, 4, 5)),
    **dict.fromkeys((f"conv_transpose{dims}d" for dims in (1, 2, 3)), (3, 4, 7)),
    "_convolution_pointwise": (4, 3, 5),
    "cudnn_convolution": (3, 2, 4),
}
_BY_HEADS: Final = (  # batch, heads, rows, width
    *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_cudnn_attention_forward"),
)
_BY_ROWS: Final = ("_flash_attention_forward", "_efficient_attention_forward")  # rows before heads
_FORMULAS: Final = frozenset({*_MATMULS, *_LINEARS, *_CONVOLUTIONS, *_BY_HEADS, *_BY_ROWS})
# What a formula raises of the arguments of another operator with its name.
_UNFIT: Final = (
    *(ArithmeticError, AssertionError, AttributeError),
    *(LookupError, TypeError, ValueError),
)


class Reason(StrEnum):
    """Why an event has no row."""

    MISS = "miss"  # its key has no row in the table
    NO_TABLE = "no table"  # it has a key, and no table was given
    LIBRARY = "library"  # a library's kernel that nobody chooses among, such as attention
    UNCOVERED = "uncovered"  # generated code without a decision that rows are kept for
    COPY = "copy"  # a copy or a fill of the device's memory
    UNTRACED = "unknown"  # neither plan nor shapes nor name say what it is


class Known(StrEnum):
    """How the decision behind an event is known."""

    PLAN = "plan"
    SHAPES = "shapes"
    NAME = "name"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Attributed:
    """An event with its decision.

    ``keys`` has several keys where the decision is one of them and nothing says which. ``row`` is
    the row of the first; None with a ``reason``. ``work`` is that of one call, which only its
    longest event has. ``call`` is equal for the events of one call.
    """

    event: DeviceEvent
    known: Known
    call: object
    keys: Keys = ()
    row: Row | None = None
    reason: Reason | None = None
    work: Work | None = None


def attribute(trace: Trace, table: Table | None) -> tuple[Attributed, ...]:
    """Return every event of *trace* with its decision, in the trace's order."""
    index, planned = _RowIndex(table), _planned(trace)
    found = [
        Attributed(event, Known.NAME, event, reason=Reason.COPY)
        if event.category in COPIES
        else _from_plan(event, *planned[event], table)
        if event in planned
        else _from_trace(event, table, index)
        for event in trace.events
    ]
    longest: dict[object, Attributed] = {}
    for each in found:
        other = longest.get(each.call)
        if each.work is not None and (other is None or each.event.us > other.event.us):
            longest[each.call] = each
    return tuple(
        each if longest.get(each.call, each) is each else replace(each, work=None) for each in found
    )


def name_of(event: DeviceEvent) -> str:
    return _GRAPH_PREFIX.sub("", event.name)


def subject_of(keys: Keys, kernel: str) -> str:
    """Return the matmul of *keys*, alike for all its operators, the first key, or the *kernel*."""
    if not keys or kind_of(keys[0]) is not GEMM:
        return keys[0] if keys else unnumbered(kernel)
    named = GEMM.ingredients(keys[0])
    return " ".join(["matmul", *(f"{name}={named[name]}" for name in _MATMUL if name in named)])


def _planned(trace: Trace) -> dict[DeviceEvent, tuple[list[PlannedKernel], object]]:
    if trace.plan is None:
        return {}
    calls: dict[object, list[DeviceEvent]] = defaultdict(list)
    for event in trace.events:
        if event.bucket is not None and event.category not in COPIES:
            calls[event.device, event.bucket, event.iteration, event.graph].append(event)
    found: dict[DeviceEvent, tuple[list[PlannedKernel], object]] = {}
    for call, events in calls.items():
        graph, plans = events[0].graph, trace.plan.plans.get(events[0].bucket or "", ())
        if graph is not None and len(plans) > 1:  # else those of all graphs of the bucket
            plans = tuple(plan for plan in plans if plan.graph == graph.name)[:1]
        kernels = [kernel for plan in plans for kernel in plan.kernels]
        for index, places in _align(events, kernels).items():
            event = events[index]
            turn = places[0] if len(places) == 1 else event
            found[event] = [kernels[place] for place in places], (call, turn)
    return found


def _align(events: Sequence[DeviceEvent], kernels: Sequence[PlannedKernel]) -> dict[int, Shape]:
    names = [name_of(event) for event in events]
    launched = set(names)
    loose: list[int] = []  # places of kernels that no event is named by
    named: dict[str, list[int]] = defaultdict(list)
    for place, kernel in enumerate(kernels):
        is_loose = kernel.by is PlannedBy.LIBRARY or kernel.name not in launched
        (loose if is_loose else named[kernel.name]).append(place)
    found: dict[int, Shape] = {}
    bounds = [(-1, -1)]
    for index, name in enumerate(names):
        if name in named:
            # A kernel that is launched more often than planned stays at its last place.
            place = named[name].pop(0) if len(named[name]) > 1 else named[name][0]
            found[index] = (place,)
            if place > bounds[-1][1]:  # streams may change the order
                bounds.append((index, place))
    for (first, low), (last, high) in itertools.pairwise([*bounds, (len(events), len(kernels))]):
        inside = [index for index in range(first + 1, last) if index not in found]
        places = [place for place in loose if low < place < high]
        if inside and places:
            found |= _in_segment(events, inside, places, kernels)
    return found


def _in_segment(
    events: Sequence[DeviceEvent], inside: _Ints, places: _Ints, kernels: Sequence[PlannedKernel]
) -> dict[int, Shape]:
    tops = {index: _top(events[index]) for index in inside}
    # The events of one operator's call stand together.
    groups = [list(group) for _, group in itertools.groupby(inside, lambda at: tops[at] or at)]
    if len(groups) != len(places):
        joined: list[list[int]] = []
        for group in groups:
            if joined and all(_FINISHES.search(events[index].name) for index in group):
                joined[-1] += group
            else:
                joined.append(group)
        groups = joined
    matched: dict[int, int] = {}  # by the turn of the group
    if len(groups) == len(places):
        matched = dict(enumerate(places))
    elif len(places) > 1:  # by the operator, in order
        rest = list(places)
        for turn, group in enumerate(groups):
            top = tops[group[0]]
            name = None if top is None else _base(top.operator.name)
            fitting = [at for at, place in enumerate(rest) if _base(kernels[place].name) == name]
            if fitting:
                matched[turn] = rest[fitting[0]]
                del rest[: fitting[0] + 1]
    return {
        index: (matched[turn],) if turn in matched else tuple(places)
        for turn, group in enumerate(groups)
        for index in group
    }


def _top(event: DeviceEvent) -> HostCall | None:
    return None if event.call is None else event.call.top or event.call


def _base(operator: str) -> str:
    """Return ``addmm`` for ``aten::addmm`` and for ``aten.addmm.out``."""
    parts = operator.replace("::", ".").split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _from_plan(
    event: DeviceEvent, kernels: Sequence[PlannedKernel], call: object, table: Table | None
) -> Attributed:
    found = Attributed(event, Known.PLAN, call)
    if len({kernel.keys for kernel in kernels}) > 1:
        keys = tuple(dict.fromkeys(key for kernel in kernels for key in kernel.keys))
        return replace(found, keys=keys, reason=Reason.UNTRACED)
    kernel, rows = kernels[0], {} if table is None else table.rows
    keys = (*(key for key in kernel.keys if key in rows), *kernel.keys)[:1]
    row = rows.get(keys[0]) if keys else None
    reason = None if row is not None else _reason_of(kernel, keys, table)
    work, operator = None, _telling(event)
    if kernel.moved is not None or kernel.flops is not None:
        work = Work(kernel.dtype, kernel.flops, kernel.moved or 0)
    if operator is not None and (work is None or work.flops is None):
        own = work_of_operator(operator)
        if work is None:
            work = own
        elif own is not None and own.flops is not None:
            work = replace(own, moved=work.moved)
    return replace(found, keys=keys, row=row, reason=reason, work=work)


def _reason_of(kernel: PlannedKernel, keys: Sequence[str], table: Table | None) -> Reason:
    if not keys:
        is_library = kernel.by is PlannedBy.LIBRARY
        return Reason.LIBRARY if is_library else Reason.UNCOVERED
    if table is None:
        return Reason.NO_TABLE
    if kind_of(keys[0]) is LAUNCH and "launch" not in table.policy.searches:
        return Reason.UNCOVERED  # nothing was to be decided, or rows of this kind are not kept
    return Reason.MISS


def _from_trace(event: DeviceEvent, table: Table | None, index: _RowIndex) -> Attributed:
    operator, call = _telling(event), _top(event) or event
    known, keys = index.keys_of(event, operator)
    # The name alone, as in a CUDA graph, says neither the graph nor the config.
    row = index.rows[keys[0]] if len(keys) == 1 and operator is not None else None
    reason = None if row is not None else Reason.UNTRACED
    work = None if operator is None else work_of_operator(operator)
    if row is not None and work is not None and work.flops is None and kind_of(keys[0]) is GEMM:
        product = work_of(keys[0])  # a template's arguments do not say which of them it multiplies
        work = replace(work, flops=None if product is None else product.flops)
    if not keys:
        known, reason = _reason_by_name(event, table)
        if operator is not None and reason is Reason.UNTRACED:
            known, reason = Known.NAME, Reason.LIBRARY
            if operator.name in _OPS:
                reason = Reason.NO_TABLE if table is None else Reason.MISS
    return Attributed(event, known, id(call), keys, row, reason, work)


def _telling(event: DeviceEvent) -> HostOperator | None:
    """Return the outermost operator around *event* if its work is known, else the innermost."""
    top = _top(event)
    if event.call is None or top is None:
        return None
    has_formula = _NAMESPACE.sub("", top.operator.name) in _FORMULAS
    return top.operator if has_formula else event.call.operator


def _reason_by_name(event: DeviceEvent, table: Table | None) -> tuple[Known, Reason]:
    if not event.name.startswith(GENERATED_PREFIXES):
        return Known.NOTHING, Reason.UNTRACED
    if not event.name.startswith("triton_"):
        return Known.NAME, Reason.UNCOVERED
    if table is None:
        return Known.NAME, Reason.NO_TABLE
    is_decided = "launch" in table.policy.searches or event.name.startswith(_TEMPLATE_PREFIX)
    return Known.NAME, Reason.MISS if is_decided else Reason.UNCOVERED


class _RowIndex:
    """The rows of matmuls and launches by what traces name; ``rows`` has all rows by key."""

    def __init__(self, table: Table | None) -> None:
        self.rows: Mapping[str, Row] = {} if table is None else table.rows
        self._libraries: dict[tuple[object, ...], list[str]] = defaultdict(list)
        self._templates: list[tuple[set[tuple[int, ...]], str]] = []
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._launches: dict[str, list[str]] = defaultdict(list)
        for key, row in self.rows.items():
            if kind_of(key) is LAUNCH:
                self._launches[LAUNCH.ingredients(key)["kernel"]].append(key)
            named = GEMM.ingredients(key) if kind_of(key) is GEMM else {}
            sizes = [named.get(name, "1") for name in ("batch", "m", "n", "k")]
            if not named or not all(size.isdecimal() for size in sizes):
                continue  # of another kind, or a range, whose sizes are not in the key
            batch, m, n, k = self._sizes[key] = tuple(map(int, sizes))
            if row.winner.family is Family.TEMPLATE:
                self._templates.append(({_pair(m, k), _pair(k, n)}, key))
            else:
                self._libraries[named["op"], batch, m, n, k, named["dtype"]].append(key)

    def keys_of(self, event: DeviceEvent, operator: HostOperator | None) -> tuple[Known, Keys]:
        tensors = [] if operator is None else _tensors_of(operator)
        given = {} if operator is None else operator.arguments
        keys: list[str] = []
        if event.name.startswith(_TEMPLATE_PREFIX):
            shapes = {_pair(*t.sizes[-2:]) for t in tensors if t is not None and len(t.sizes) > 1}
            templates = [key for pairs, key in self._templates if pairs <= shapes]
            keys = [key for key in templates if _has_config(self.rows[key], given)]
        elif operator is not None and operator.name in _OPS:
            op, first = _OPS[operator.name]
            if op in CPU_LINEAR and (linear := _linear_product(tensors)) is not None:
                *product, is_third = linear
                op = "linear_binary" if is_third and op == "linear_unary" else op
                dtype = next(each.dtype for each in tensors if each is not None)
                keys = self._libraries.get((op, 1, *product, dtype), [])
            operands = [each for each in tensors[first : first + 2] if each is not None]
            dims = {len(each.sizes) for each in operands}
            if not keys and len(operands) == 2 and len(dims) == 1 and min(dims) > 1:  # noqa: PLR2004  two matrices
                a, b = operands
                batch = a.sizes[0] if len(a.sizes) == _DIMS_OF_A_BATCH else 1
                sizes = (batch, a.sizes[-2], b.sizes[-1], a.sizes[-1])
                keys = self._libraries.get((op, *sizes, a.dtype), [])
        if keys:
            # Rows that differ in what no trace has are equal where they have one winner. Products
            # of other sizes are not: a fused kernel may take the matrices of another product too.
            is_one = len({(self._sizes[key], self.rows[key].winner) for key in keys}) == 1
            return Known.SHAPES, tuple(keys[:1] if is_one else keys)
        keys = self._launches.get(unnumbered(event.name), [])
        if operator is None:
            return Known.NAME, tuple(keys)
        counts = {math.prod(each.sizes) for each in tensors if each is not None}
        rounded = {1 << max(count - 1, 0).bit_length() for count in counts}
        fitting = [key for key in keys if _has_config(self.rows[key], given)]
        sized = [key for key in fitting if not rounded or _elements(key) in rounded]
        return Known.NAME, tuple(sized or fitting)


def _elements(key: str) -> int:
    return math.prod(int(size) for size in LAUNCH.ingredients(key).values() if size.isdecimal())


def _pair(*sizes: int) -> tuple[int, ...]:
    return tuple(sorted(sizes))


def _has_config(row: Row, given: Mapping[str, Any]) -> bool:
    winner, recorded = dict(row.winner.kwargs), given.get("kernel_kwargs")
    pairs = [each.partition("=") for each in recorded.split(",")] if type(recorded) is str else []
    config = {name: int(one) for name, _, one in pairs if one.isdecimal() and len(one) < _DIGITS}
    config |= {name: given[name] for name in ("num_warps", "num_stages") if name in given}
    return all(winner.get(name, value) == value for name, value in config.items())


@dataclass(frozen=True, slots=True)
class _Tensor:
    sizes: Shape
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.sizes) * item_bytes(self.dtype)


@functools.cache
def _tensors_of(operator: HostOperator) -> list[_Tensor | None]:
    dims, types = operator.arguments.get("Input Dims"), operator.arguments.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    return [_tensor(sizes, str(name)) for sizes, name in zip(dims, types, strict=False)]


def _tensor(sizes: Any, name: str) -> _Tensor | None:
    dtype = _CPP_DTYPES.get(name) or dtype_name(name)
    is_dtype = name in _CPP_DTYPES or _TORCH_DTYPE.fullmatch(dtype)
    if not is_dtype or not isinstance(sizes, list) or len(sizes) > _MOST_DIMS:
        return None
    is_size = all(type(each) is int and 0 <= each < _MOST for each in sizes)
    return _Tensor(tuple(sizes), dtype) if is_size else None


def _linear_product(tensors: Sequence[Any]) -> tuple[int, int, int, bool] | None:
    """Return m, n and k of a linear with the arguments *tensors*; None where they do not fit."""
    # And whether the weight, with the rows of its output, is the third of them, after a packed copy
    # or after what ``_linear_pointwise.binary`` adds; else it is the second.
    is_third = len(tensors) > 2 and tensors[2] is not None and len(tensors[2].sizes) > 1  # noqa: PLR2004
    x, weight = (*tensors[:1], *tensors[1 + is_third : 2 + is_third], None, None)[:2]
    if x is None or weight is None or len(weight.sizes) != 2 or x.sizes[-1:] != weight.sizes[1:]:  # noqa: PLR2004
        return None
    return math.prod(x.sizes[:-1]), *weight.sizes, is_third


@functools.cache
def work_of_operator(operator: HostOperator) -> Work | None:
    """Return the work of a call of *operator*, also a recorded flop count; None without shapes."""
    tensors = _tensors_of(operator)
    present = [each for each in tensors if each is not None]
    if not present:
        return None
    name, dtype = _NAMESPACE.sub("", operator.name), present[0].dtype
    if name in _FORMULAS:
        try:
            flops, written = _formula(name, tensors, operator.arguments.get("Concrete Inputs"))
        except _UNFIT:
            flops = written = -1  # as without a formula
        if 0 <= flops < _MOST_FLOPS and written >= 0:
            operands = tensors[: _MATMULS.get(name, (0, 1, 4 if name in _LINEARS else 3))[2]]
            if name == "_mkl_linear":
                del operands[1]  # a packed copy of the weight after it
            read = sum(each.bytes for each in operands if each is not None)
            return Work(dtype, flops, read + written * item_bytes(dtype))
    recorded = operator.arguments.get("kernel_flop")
    counted = recorded if type(recorded) is int and 0 < recorded < _MOST_FLOPS else None
    return Work(dtype, counted, sum(each.bytes for each in present))


def _formula(name: str, tensors: list[Any], concrete: Any) -> tuple[int, int]:
    from torch.utils.flop_counter import bmm_flop, conv_flop_count, mm_flop, sdpa_flop_count

    if name in _MATMULS:
        first, second, _ = _MATMULS[name]
        a, b = tensors[first].sizes, tensors[second].sizes
        if len(a) == len(b) == _DIMS_OF_A_BATCH:
            return bmm_flop(a, b), a[0] * a[1] * b[2]
        # Each row of a, column of b, or step of the sum belongs to one group, whichever it is.
        is_sum = "grouped" in name and len(a) == len(b)
        groups = math.prod(tensors[4 if "scaled" in name else 2].sizes) if is_sum else 1  # offsets
        return mm_flop(a[-2:], b[-2:]), groups * a[-2] * b[-1]
    if name in _LINEARS:
        if (linear := _linear_product(tensors)) is None:
            raise ValueError(name)
        m, n, k, _ = linear
        return mm_flop((m, k), (k, n)), m * n
    if name in _CONVOLUTIONS:
        x, w = tensors[0].sizes, tensors[1].sizes
        out, is_transposed = _result_of_convolution(name, x, w, concrete)
        return conv_flop_count(x, w, out, transposed=is_transposed), math.prod(out)
    query, key, value = (each.sizes for each in tensors[:3])
    if name in _BY_ROWS:
        query, key, value = ((b, heads, r, w) for b, r, heads, w in (query, key, value))
    batch, heads, rows, _ = query
    key, value = ((batch, heads, *each[2:]) for each in (key, value))  # shared by groups of heads
    flops = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]  # torch's own
    return flops, batch * heads * rows * value[3]


def _result_of_convolution(name: str, x: Shape, w: Shape, concrete: Any) -> tuple[list[int], bool]:

    def spread(place: int) -> list[int]:
        value = msgspec.json.decode(concrete[place], type=int | list[int])
        values = [value] if isinstance(value, int) else value
        return values * (len(x) - 2) if len(values) == 1 else values

    places = _CONVOLUTIONS[name]
    is_transposed = "transpose" in name or (places == (3, 4, 5) and concrete[6:7] == ["True"])
    out = [x[0], w[1] if is_transposed else w[0]]
    for size, kernel, step, margin, gap in zip(x[2:], w[2:], *map(spread, places), strict=True):
        reach = gap * (kernel - 1)
        if is_transposed:
            out.append((size - 1) * step - 2 * margin + reach + 1)
        else:
            out.append((size + 2 * margin - reach - 1) // step + 1)
    return out, is_transposed
