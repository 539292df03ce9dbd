"""`ReductionLoops`: the hooks of the row kind ``reduction``, for persistent and looped kernels.

Inductor decides by a rule, before there is a kernel: up to 1024 elements a row, or 64 where rows do
not lie together, the kernel holds whole rows, else it loops (choices.py,
`should_use_persistent_reduction`). ``TritonScheduling.create_kernel_choices`` makes the kernel, and
takes another decision as an argument. Inductor's own wider search, ``triton.multi_kernel``, goes 16
times as far with persistent kernels: so far there is a choice, and beyond the kernel loops.
"""

from __future__ import annotations

import contextlib
import math
import re
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch._inductor import config as inductor_config
from torch._inductor import metrics
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.codegen.cpp import CppKernel
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.ir import Reduction
from torch._inductor.runtime.runtime_utils import next_power_of_2
from torch._inductor.scheduler import FusedSchedulerNode, SchedulerNode
from torch._inductor.utils import Placeholder
from torch._inductor.virtualized import V
from torch.fx import Node
from torch.utils._ordered_set import OrderedSet

from warmup.core.errors import MissReason, ProblemError
from warmup.core.events import Hit, Missed, logger
from warmup.core.roofline import dtype_name
from warmup.core.rows import Search, SearchCounts, Winner
from warmup.core.text import first_line
from warmup.core.trial import LiveSearch, Region, TimedCall
from warmup.inductor.gemm.key import current_node
from warmup.inductor.gemm.regions import (
    is_read_again,
    is_reduction,
    region_of_reduction,
    sizes_of,
    tensors_of,
)
from warmup.inductor.launch.compiling import compile_configs, compile_in_workers, send_ahead
from warmup.inductor.launch.hooks import LaunchSearch
from warmup.inductor.launch.kernels import (
    OwnArguments,
    call_of,
    default_list,
    leave_to_inductor,
    named_problem,
    offered_configs,
    problem_of,
    written_by,
)
from warmup.inductor.listing import backlog, is_listing, listing
from warmup.inductor.patches import Function, KindHooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.question import Answers, RegionQuestion, SearchQuestion
from warmup.keys.reduction import (
    LOOPED,
    PERSISTENT,
    ReductionProblem,
    SplitProblem,
    parts_of,
    split_into,
)

_TEXT: Final = re.compile(r"'(\w+)'")
_SYMBOL: Final = re.compile(r"\b(?:ks|[su])\d+\b")


def reduction_problem(features: Any) -> ReductionProblem:
    """Return the problem of the reduction with *features*; else a ProblemError."""
    # A number of rows that is a range is spelled as inductor's size hint, a power of two, as in
    # keys of launch configs.
    nodes = list(features.scheduler_nodes())
    try:
        kept = _kept_buffers(nodes)
        written = {name for node in nodes for name in node.get_buffer_names()}
        read = {dep.name for node in nodes for dep in node.read_writes.reads} - written
        return ReductionProblem(
            ops=sorted(
                {str(node.node.get_reduction_type()) for node in nodes if node.is_reduction()}
            ),
            x=_rows(features.numel),
            r=int(features.reduction_numel),
            hint=features.get_reduction_hint().name.lower(),
            reads=sorted(dtype_name(V.graph.get_dtype(name)) for name in read),
            writes=sorted(dtype_name(V.graph.get_dtype(name)) for name in kept),
            body=_body(nodes, kept),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProblemError(f"a kernel that a key cannot describe: {error}") from error


def _rows(numel: Any) -> int:
    try:
        return int(numel)
    except TypeError:  # a range
        return int(next_power_of_2(int(V.graph.sizevars.optimization_hint(numel))))


def _kept_buffers(nodes: Sequence[Any]) -> frozenset[str]:
    own = OrderedSet(node.get_name() for node in nodes)
    scheduler = V.graph.scheduler
    names = [name for node in nodes for name in node.get_buffer_names()]
    return frozenset(
        name for name in names if not scheduler.can_buffer_be_removed_through_fusion(name, own)
    )


def _body(nodes: Sequence[Any], kept: frozenset[str]) -> str:
    """Return what *nodes* compute as a text without names that depend on the rest of the graph."""
    names: dict[str, str] = {}
    symbols: dict[str, str] = {}
    buffers = {dep.name for node in nodes for dep in node.read_writes.reads_and_writes()}
    buffers |= {name for node in nodes for name in node.get_buffer_names()}

    def rename(found: re.Match[str]) -> str:
        name = found[1]
        if name not in buffers:
            return found[0]
        mark = "kept" if name in kept else "buffer"
        return names.setdefault(name, f"{mark}{len(names)} {V.graph.get_dtype(name)}")

    def number(found: re.Match[str]) -> str:
        return symbols.setdefault(found[0], f"size{len(symbols)}")

    texts = [f"{node.get_ranges()}\n{node._body.debug_str()}" for node in nodes]
    return _SYMBOL.sub(number, _TEXT.sub(rename, "\n".join(texts)))


_GENERATED_NAME: Final = "triton_"
# Times the least time of the persistent kernel: a looped kernel that takes longer with each config
# of the lists and the grid is not searched further. Of 31 reductions searched whole on an H200 the
# looped kernel won 4, by at most 5 %.
_LOSING_TIMES: Final = 1.05
_NO_CONFIGS: Final = SearchCounts(search=Search.DEFAULT, listed=0)


@dataclass(slots=True)
class _Loaded:
    kernel: Any
    offered: tuple[Any, ...]
    listed: Sequence[Any]
    make_args: Callable[[], Iterable[Any]]
    args: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Variant:
    call: TimedCall
    arguments: OwnArguments
    searched: SearchCounts
    time_us: float


def search_of(
    answers: Answers,
    scheduling: Any,
    features: Any,
    variants: Sequence[Winner],
    create: Callable[[Winner], Any],
) -> LiveSearch:
    """Return the decision between *variants*, that of inductor's rule first, ready to be measured.

    *create* returns the kernels that inductor makes for a variant; *answers* search the launch
    config of each.
    """
    made: dict[Winner, _Variant] = {}
    loaded: dict[Winner, _Loaded] = {}
    uncompiled: dict[Winner, str] = {}
    counted, given = metrics.generated_kernel_count, _Given()

    @contextlib.contextmanager
    def reporting(variant: Winner) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  a compiler or driver may raise anything
            uncompiled[variant] = first_line(error)

    with torch.random.fork_rng(devices=[V.graph.get_current_device_or_throw()]):
        for variant in variants:
            with reporting(variant):
                (kernel,) = create(variant)
                source = _generate(scheduling, features.node_schedule, kernel)
                loaded[variant] = _loaded(source)
        compile_in_workers((one.kernel, one.listed) for one in loaded.values())
        for variant, one in list(loaded.items()):
            with reporting(variant):
                one.kernel.precompile()
                one.args = given.args_for(one.kernel, one.make_args)
        fastest_us = math.inf
        for variant in sorted(
            loaded.keys() - uncompiled.keys(), key=lambda variant: variant != PERSISTENT
        ):
            with reporting(variant):
                made[variant] = _searched(answers, loaded[variant], fastest_us * _LOSING_TIMES)
                fastest_us = min(fastest_us, made[variant].time_us)
    metrics.generated_kernel_count = counted
    return LiveSearch(
        listed=(variants[0],),
        calls={variant: made[variant].call for variant in variants if variant in made},
        more=lambda _times_us: {},
        written=lambda variant: written_by(made[variant].call, made[variant].arguments),
        uncompiled=uncompiled,
        counts=lambda: sum((one.searched for one in made.values()), _NO_CONFIGS),
    )


def _generate(scheduling: Any, schedule: Iterable[Any], kernel: Any) -> str:
    scheduling.codegen_node_schedule_with_kernel(schedule, kernel)
    with inductor_config.patch({"benchmark_kernel": True}), V.set_kernel_handler(kernel):
        source = str(kernel.codegen_kernel())
    return source.replace(str(Placeholder.KERNEL_NAME), _GENERATED_NAME)


class _Given:
    """The arguments of the first kernel, which the other kernel must be able to take."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._args: list[Any] = []

    def args_for(self, kernel: Any, make: Callable[[], Iterable[Any]]) -> list[Any]:
        """Return the arguments for *kernel*; a RuntimeError where it takes others."""
        if not self._args:
            self._args = list(make())
            self._names = tuple(kernel.fn.arg_names[: len(self._args)])
        names = tuple(kernel.fn.arg_names[: len(self._args)])
        if names != self._names:
            raise RuntimeError(
                f"the kernel takes {names}, and that of inductor's rule {self._names}"
            )
        return self._args


def _loaded(source: str) -> _Loaded:
    module: Any = PyCodeCache.load(source)
    kernel = getattr(module, _GENERATED_NAME)
    leave_to_inductor(kernel)
    offered = offered_configs(kernel)
    return _Loaded(kernel, offered, default_list(kernel, offered), module.get_args)


def _searched(answers: Answers, loaded: _Loaded, limit_us: float) -> _Variant:
    # It ends early beyond *limit_us*. Raises RuntimeError where no config compiles and runs.
    kernel, args = loaded.kernel, loaded.args
    search = LaunchSearch(kernel, loaded.offered, args, {}, compile_configs, limit_us)
    live = search.start()
    if live is None:
        raise RuntimeError(search.first_failure)
    seen: list[float] = []

    def more(times_us: Mapping[Winner, float]) -> Mapping[Winner, TimedCall]:
        seen.append(min(times_us.values()))
        return live.more(times_us)

    problem = named_problem(problem_of(kernel), kernel)
    winner = answers.measure(SearchQuestion(problem, replace(live, more=more), makes_row=False))
    backlog.drop(until=kernel.filename)
    launcher = None if winner is None else search.launcher_of(winner)
    if launcher is None:
        raise RuntimeError("no launch config of the kernel could be measured")
    arguments = OwnArguments(kernel, args, {})
    return _Variant(
        call_of(kernel, launcher, arguments), arguments, live.counts(), min(seen, default=math.inf)
    )


# Arguments of kernels for which inductor decided already: sorts, and two reductions in one kernel.
_DECIDED: Final = frozenset({"override_persistent_reduction", "override_cooperative_reduction"})


# Features of a reduction, inductor's own variant, and what makes the kernels of a variant.
_Asked = tuple[Any, Winner, Callable[[Winner], Any]]
_Names = tuple[str, ...]


class ReductionLoops(KindHooks):
    """Answers persistent or looped from *answers* while attached."""

    def __init__(self, version: Version, answers: Answers) -> None:
        super().__init__(version, answers)
        self._asked: list[_Asked] = []
        # Of each graph, by the names of nodes: generating a kernel changes what its key is made of.
        self._known: weakref.WeakKeyDictionary[Any, dict[_Names, ReductionProblem]]
        self._known = weakref.WeakKeyDictionary()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(TritonScheduling, "create_kernel_choices", self._create_kernel_choices)
        if self._settings.fixes_rows:
            patches.hook(CppKernel, "decide_parallel_depth", self._decide_parallel_depth)

    def _decide_parallel_depth(
        self, original: Function, kernel: Any, max_parallel_depth: Any, threads: Any
    ) -> Any:
        """Let no sum be split over threads: inductor does so where there is a single row."""
        chosen = original(kernel, max_parallel_depth, threads)
        is_sum = chosen.start_depth >= kernel.reduction_depth
        return replace(chosen, parallel_depth=0) if self._active and is_sum else chosen

    def _create_kernel_choices(
        self,
        original: Function,
        scheduling: Any,
        kernel_features: Any,
        kernel_args: list[Any],
        kernel_kwargs: dict[str, Any],
    ) -> Any:
        arguments = dict(kernel_kwargs)
        made = original(scheduling, kernel_features, kernel_args, arguments)
        is_asked = self._active and "reduction" in self._settings.searched
        if not is_asked or not _leaves_choice(kernel_features, made, arguments):
            return made

        def create(variant: Winner) -> Any:
            forced = {"override_persistent_reduction": variant == PERSISTENT}
            return original(scheduling, kernel_features, kernel_args, {**kernel_kwargs, **forced})

        by_rule = PERSISTENT if made[0].persistent_reduction else LOOPED
        if is_listing():
            self._asked.append((kernel_features, by_rule, create))
            return made
        variant = self._choose(scheduling, kernel_features, by_rule, create)
        return made if variant == by_rule else create(variant)

    def _choose(
        self, scheduling: Any, features: Any, by_rule: Winner, create: Callable[[Winner], Any]
    ) -> Winner:
        try:
            known = self._known.get(V.graph.scheduler, {}).get(_names_of(features))
            problem = known or reduction_problem(features)
        except ProblemError as error:
            reason, described = MissReason.NOT_DESCRIBED, f"reduction ({error})"
            self._answers.emit(Missed(described, reason, str(by_rule)))
            return by_rule
        answer = self._answers.find(problem)
        if isinstance(answer, Winner):
            self._answers.emit(Hit(problem.key, str(answer)))
            return answer
        if self._settings.measures and self._settings.times_kernels:
            self._send_all(scheduling)
            search = search_of(self._answers, scheduling, features, _variants(by_rule), create)
            return self._answers.measure(SearchQuestion(problem, search)) or by_rule
        self._answers.emit(Missed(problem.key, answer, str(by_rule)))
        return by_rule

    def _send_all(self, scheduling: Any) -> None:
        # Once for each graph, before its first search: inductor generates a kernel when the one
        # before has its row, and while that row is timed the workers would be idle.
        has_workers: Any = AsyncCompile.use_process_pool  # untyped in torch
        scheduler = V.graph.scheduler
        if scheduler in self._known or not has_workers():
            return
        known, sent = self._known.setdefault(scheduler, {}), set[str]()
        self._asked.clear()  # of a listing that ended early
        counted = metrics.generated_kernel_count
        try:
            with contextlib.closing(_reducing_nodes(scheduler, scheduling)) as nodes:
                for _ in nodes:
                    asked, self._asked = self._asked, []
                    for features, by_rule, create in asked:
                        with contextlib.suppress(ProblemError):  # its own codegen reports it
                            problem = reduction_problem(features)
                            known[_names_of(features)] = problem
                            is_first = problem.key not in sent
                            if is_first and isinstance(self._answers.find(problem), MissReason):
                                _send_first_configs(scheduling, features, by_rule, create)
                            sent.add(problem.key)
        except Exception as error:  # noqa: BLE001  the codegen that counts says what is wrong
            said = "not every reduction of a graph is compiled ahead: %s"
            logger.warning(said, first_line(error))
        metrics.generated_kernel_count = counted


def _names_of(features: Any) -> _Names:
    return tuple(node.get_name() for node in features.scheduler_nodes())


def _variants(by_rule: Winner) -> tuple[Winner, Winner]:
    return by_rule, LOOPED if by_rule == PERSISTENT else PERSISTENT


def _send_first_configs(
    scheduling: Any, features: Any, by_rule: Winner, create: Callable[[Winner], Any]
) -> None:
    for variant in sorted(_variants(by_rule), key=lambda one: one != PERSISTENT):
        (kernel,) = create(variant)
        one = _loaded(_generate(scheduling, features.node_schedule, kernel))
        search = LaunchSearch(one.kernel, one.offered, (), {}, compile_configs)
        if (problem := problem_of(one.kernel)) is not None:
            send_ahead(one.kernel, problem, search.first_configs)


def _reducing_nodes(scheduler: Any, scheduling: Any) -> Generator[Any, None, None]:
    """Yield each reducing node from the current one on, after inductor asked for its kernel."""
    # At each node the lists of buffers and operations of *scheduler* are those of inductor's
    # codegen there; no code of the graph is generated, and both lists are put back at the end.
    current = scheduler.current_node
    kept = scheduler.available_buffer_names, scheduler.completed_operations
    buffers, operations = map(OrderedSet, kept)
    scheduler.available_buffer_names, scheduler.completed_operations = buffers, operations
    scheduling.codegen_node_schedule = partial(_ask_for_kernels, scheduling)
    try:
        for node in scheduler.nodes[scheduler.nodes.index(current) :]:
            is_plain = type(node) in (FusedSchedulerNode, SchedulerNode)
            if is_plain and node.is_reduction():
                scheduler.current_node = node
                with listing():
                    scheduling.codegen_node(node)
                yield node
            buffers.update(node.get_buffer_names())
            operations.update(node.get_operation_names())
    finally:
        del scheduling.codegen_node_schedule
        scheduler.current_node = current
        scheduler.available_buffer_names, scheduler.completed_operations = kept


def _ask_for_kernels(scheduling: Any, features: Any) -> None:
    """Do what `codegen_node_schedule` of simd.py in torch 2.11 to 2.15 does first."""
    tiling, scores = scheduling.get_tiling_and_scores(
        *(features.node_schedule, features.numel),
        *(features.reduction_numel, features.coalesce_analysis),
    )
    arguments = {"features": features, "tiling_scores": scores}
    scheduling.create_kernel_choices(features, [tiling], arguments)


def _leaves_choice(features: Any, made: Sequence[Any], arguments: Mapping[str, Any]) -> bool:
    """Whether another kernel than *made*, by *arguments* as inductor left them, is possible."""
    if not features.is_reduction() or _DECIDED & arguments.keys() or len(made) != 1:
        return False
    if made[0].cooperative_reduction or any(features.contains_op(op) for op in ("scan", "dot")):
        return False
    if arguments.get("mix_order_reduction") or not features.reduction_numel.is_number:
        return False
    with inductor_config.patch({"triton.multi_kernel": 1}):
        return bool(
            V.choices.should_use_persistent_reduction(features, cooperative_reduction=False)
        )


_SCAN: Final = "scan"
# In the meta of a node: rows and elements of a row of the parts that a row of the table asks for.
_META_OF_PARTS: Final = "warmup_parts"
_NAMES: Final = (  # of the parameters of `num_splits`, which callers pass either way
    *("device", "dst_dtype", "src_dtype", "inner_fn", "ranges", "reduction_ranges"),
    *("reduction_type", "reduction_numel", "input_node"),
)


class ReductionSplits(KindHooks):
    """Answers into how many parts a reduction is split from *answers* while attached."""

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(Reduction, "num_splits", self._num_splits)

    def _num_splits(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        hint, parts = original(*args, **kwargs)
        is_split = isinstance(parts, int) and parts > 1
        if not (self._active and is_split and "split" in self._settings.searched):
            return hint, parts
        node, given = current_node(), {**dict(zip(_NAMES, args, strict=False)), **kwargs}
        if node is not None and node.meta.get(_META_OF_PARTS) == _sizes(given):
            return hint, 1
        region = _region_of(node, given)
        if node is None or region is None:
            return hint, parts
        try:
            problem = _problem_of(node, region, given, hint, parts)
        except ProblemError as error:
            described, by_rule = f"split ({error})", str(split_into(parts))
            self._answers.emit(Missed(described, MissReason.NOT_DESCRIBED, by_rule))
            return hint, parts
        chosen = self._choose(problem, region)
        if chosen != parts:
            node.meta[_META_OF_PARTS] = problem.x * chosen, math.ceil(problem.r / chosen)
        return hint, chosen

    def _choose(self, problem: SplitProblem, region: Region) -> int:
        by_rule, answer = problem.rule, self._answers.find(problem)
        if isinstance(answer, Winner):
            parts = parts_of(answer, problem.r)
            if parts is not None:
                self._answers.emit(Hit(problem.key, str(answer)))
                return parts
            answer = MissReason.CHOICE_REJECTED
        if not self._settings.measures:
            self._answers.emit(Missed(problem.key, answer, str(split_into(by_rule))))
            return by_rule
        keys = frozenset({problem.key})
        measured = self._answers.measure(RegionQuestion(problem, problem.variants, region, keys))
        return by_rule if measured is None else parts_of(measured, problem.r) or by_rule


def _region_of(node: Node | None, given: Mapping[str, Any]) -> Region | None:
    """Return the region of *node* if *given* describes its reduction, of fixed sizes, not parts."""
    if node is None or given["reduction_type"] == _SCAN or not is_reduction(node):
        return None
    x, r = _sizes(given)
    operands, result = tensors_of(node), node.meta.get("val")
    made = result[0] if isinstance(result, tuple | list) else result
    if not operands or not isinstance(made, torch.Tensor) or x is None or r is None:
        return None
    sizes = sizes_of(operands[0])
    is_own = sizes is not None and x * r == math.prod(sizes) and x == made.numel()
    is_float = given["src_dtype"].is_floating_point
    return region_of_reduction(node) if is_own and is_float else None


def _sizes(given: Mapping[str, Any]) -> tuple[int | None, int | None]:
    x, r = (_product(given[name]) for name in ("ranges", "reduction_ranges"))
    return x, r


def _product(sizes: Sequence[Any]) -> int | None:
    try:
        return math.prod(int(size) for size in sizes)
    except TypeError:  # a range
        return None


def _problem_of(
    node: Node, region: Region, given: Mapping[str, Any], hint: Any, by_rule: int
) -> SplitProblem:
    x, r = _sizes(given)
    assert x is not None
    assert r is not None
    read = {dtype_name(one.dtype) for one in region.inputs if math.prod(one.sizes) == x * r}
    return SplitProblem(
        op=str(given["reduction_type"]),
        x=x,
        r=r,
        dtype=dtype_name(given["src_dtype"]),
        out=dtype_name(given["dst_dtype"]),
        reads=sorted(read),
        hint=hint.name.lower(),
        rule=by_rule,
        is_read_again=is_read_again(node),
    )
