"""Functions on generated Triton kernels: `CachingAutotuner` of runtime/triton_heuristics.py."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch._inductor.async_compile import size_hints_regex
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import TRITON_MAX_BLOCK, HeuristicType, ReductionHint
from torch._inductor.runtime.runtime_utils import triton_config_to_hashable
from torch._inductor.runtime.triton_heuristics import NoTritonConfigsError, config_from_dict
from torch._inductor.utils import clone_preserve_strides

from warmup.core.errors import MissReason, ProblemError
from warmup.core.rows import Family, KwargValue, Winner, portable_kwargs
from warmup.keys.kind import Problem, ProblemOfKey
from warmup.keys.launch import LaunchProblem

_BLOCK_SUFFIX: Final = "BLOCK"
_MAX_WARPS: Final = 32
_MAX_STAGES: Final = 16
_MAX_NUMEL: Final = 1 << 20  # elements of a tensor in a kernel, Triton's limit


def is_block(name: str) -> bool:
    """Return whether the config argument *name* is a block size with a known bound."""
    return name.endswith(_BLOCK_SUFFIX) and name.removesuffix(_BLOCK_SUFFIX) in TRITON_MAX_BLOCK


def winner_of(kernel: Any, config: Any) -> Winner | None:
    """Return *config* of *kernel* as a `Winner`, None if it cannot be written to a table."""
    kwargs = portable_kwargs(kwargs_of(config))
    name = kernel.heuristic_type.name.lower()
    return None if kwargs is None else Winner(Family.LAUNCH, name, kwargs)


def refusal_reason(winner: Winner, offered: Sequence[Any] | None) -> MissReason | None:
    """Return the reason why *winner* cannot be forced, None if it can."""
    # A config that is not among those *offered* must have their arguments and stay within
    # inductor's bounds.
    wanted = dict(winner.kwargs)
    if offered is not None:
        known = [kwargs_of(config) for config in offered]
        if wanted in known:
            return None
        if wanted.keys() != known[0].keys():
            return MissReason.TEMPLATE_CHANGED
    if not all(_is_allowed(*item) for item in wanted.items()):
        return MissReason.CHOICE_REJECTED
    blocks = [value for name, value in wanted.items() if is_block(name) and isinstance(value, int)]
    return None if math.prod(blocks) <= _MAX_NUMEL else MissReason.CHOICE_REJECTED


def _is_allowed(name: str, value: KwargValue) -> bool:
    if type(value) is not int or value < 1:
        return False
    if name == "num_stages":
        return value <= _MAX_STAGES
    is_power_of_two = value & (value - 1) == 0
    if name == "num_warps":
        return is_power_of_two and value <= _MAX_WARPS
    if not is_block(name):
        return False
    return is_power_of_two and value <= TRITON_MAX_BLOCK[name.removesuffix(_BLOCK_SUFFIX)]


def make_config(winner: Winner, offered: Sequence[Any]) -> Any:
    """Return the config of *winner*: the equal config among *offered*, else a new config."""
    wanted = dict(winner.kwargs)
    for config in offered:
        if kwargs_of(config) == wanted:
            return config
    return config_from_dict(wanted)


def kwargs_of(config: Any) -> dict[str, Any]:
    """Return *config* as plain values by name, as `config_from_dict` reads them."""
    hashable: Any = triton_config_to_hashable(config)
    return dict(hashable)


_LISTERS: Final = {
    HeuristicType.POINTWISE: "pointwise",
    HeuristicType.REDUCTION: "reduction",
    HeuristicType.PERSISTENT_REDUCTION: "persistent_reduction",
}
_LEAST_SPLIT_SCAN: Final = 256  # inductor's default, runtime/triton_heuristics.py, split_scan
_WARP: Final = 32
_WARPS: Final = (1, 2, 4, 8, 16, 32)
_STAGES: Final = (2, 3)
# What a grid has: elements of a block, and elements of a thread.
_BLOCK_ELEMENTS: Final = (256, 8192)
_TILE_ELEMENTS: Final = (256, 4096)  # of a block with two sides
_PER_THREAD: Final = (4, 16)
_PER_THREAD_OF_TILE: Final = (8, 16)
_MOST_SIDES: Final = 2
_SIDE: Final = 16  # of a tile; shorter rows waste what memory gives
_INNER_LOOP: Final = 1024  # elements of one step along a row
_OUTER: Final = (ReductionHint.OUTER, ReductionHint.OUTER_TINY)
_OUTER_LOOP: Final = (4, 64)  # rows of one step across rows


def listed_by_inductor(kernel: Any, *, max_autotune: bool) -> tuple[Any, ...]:
    """Return the configs that inductor lists for *kernel* with and without max-autotune."""
    # Empty for split scans, combined kernels and those of a user. The same heuristics made the
    # kernel's own list, but for a square tile of a pointwise kernel, for which default mode lists
    # the first config only.
    make = _LISTERS.get(kernel.heuristic_type)
    if make is None or not kernel.size_hints or "combo_grid_meta" in kernel.inductor_meta:
        return ()
    asked = {"max_autotune": max_autotune, "max_autotune_pointwise": max_autotune}
    arguments: dict[str, Any] = {
        "size_hints": dict(kernel.size_hints),
        "triton_meta": {**kernel.triton_meta, "device": kernel.device_props},
        "inductor_meta": {**kernel.inductor_meta, **asked},
    }
    if make != "pointwise":
        arguments["reduction_hint"] = kernel.inductor_meta.get("reduction_hint")
    configs: list[Any] = getattr(triton_heuristics, make)(**arguments, return_configs=True)
    if "XBLOCK" not in kernel.fn.arg_names:  # inductor drops it then too (cached_autotune)
        for config in configs:
            config.kwargs.pop("XBLOCK", None)
    return tuple(configs)


def default_list(kernel: Any, offered: Sequence[Any]) -> Sequence[Any]:
    """Return the configs of default mode for *kernel*, for which inductor *offered* some."""
    meta = kernel.inductor_meta
    if not (meta.get("max_autotune") or meta.get("max_autotune_pointwise")):
        return offered
    return listed_by_inductor(kernel, max_autotune=False) or offered


def has_too_small_block(kernel: Any, config: Any) -> bool:
    """Return whether a split scan with *config* has more blocks than its workspace has room for."""
    if kernel.heuristic_type is not HeuristicType.SPLIT_SCAN:
        return False
    least = kernel.inductor_meta.get("min_split_scan_rblock", _LEAST_SPLIT_SCAN)
    return any(
        value < least for name, value in config.kwargs.items() if is_block(name) and name[0] == "R"
    )


def grid_of(kernel: Any, like: Any) -> list[Any]:
    """Return a grid of configs for *kernel* with the arguments of the config *like*."""
    # Blocks are within the kernel's sizes; that of a persistent reduction holds whole rows. No grid
    # for three sides, nor for other arguments than blocks.
    names = [name for name in like.kwargs if is_block(name)]
    sizes = dict(kernel.size_hints or {})
    if len(names) != len(like.kwargs) or not sizes or len(names) > _MOST_SIDES:
        return []
    has_sides = len(names) == _MOST_SIDES
    row = _row_elements(names, sizes)
    least, most = _TILE_ELEMENTS if has_sides else _BLOCK_ELEMENTS
    least = min(least, math.prod(sizes.values()))
    thread = _PER_THREAD_OF_TILE if has_sides else _PER_THREAD
    spelled = [
        {**blocks, "num_warps": warps, "num_stages": 1}
        for blocks in _blocks(names, sizes, kernel.inductor_meta.get("reduction_hint"))
        if least <= (elements := math.prod(blocks.values()) * row) <= most
        for warps in _WARPS
        if thread[0] <= elements / (_WARP * warps) <= thread[1]
    ]
    return [config_from_dict(one) for one in spelled]


def staged(kernel: Any, config: Any) -> list[Any]:
    """Return *config* with more stages, for a reduction that loops; none for other kernels."""
    if kernel.heuristic_type is not HeuristicType.REDUCTION:
        return []
    named = {**config.kwargs, "num_warps": config.num_warps}
    return [config_from_dict({**named, "num_stages": stages}) for stages in _STAGES]


_FIXED_STEP: Final = {False: 2048, True: 16}  # of a loop along a row, and across rows
_FIXED_ELEMENTS: Final = {False: 512, True: 1024}  # of a block: at least one row, or some columns
_PER_FIXED_WARP: Final = 256
_MOST_FIXED_WARPS: Final = 16


def fixed_config(kernel: Any, like: Any) -> Any | None:
    """Return the config, with the arguments of *like*, that depends on the length of a row alone.

    None for a kernel that reduces nothing: its config changes no bits. With one config the partial
    sums of a row are added up in one order, whatever the number of rows.
    """
    if kernel.heuristic_type not in (HeuristicType.PERSISTENT_REDUCTION, HeuristicType.REDUCTION):
        return None
    is_outer = kernel.inductor_meta.get("reduction_hint") in _OUTER
    sizes, kwargs = dict(kernel.size_hints or {}), kwargs_of(like)
    loops = [name for name in kwargs if name.startswith("R") and is_block(name)]
    room, held = _FIXED_STEP[is_outer], 1
    for name in loops:
        step = min(sizes[name.removesuffix(_BLOCK_SUFFIX).lower()], room)
        kwargs[name], room, held = step, max(room // step, 1), held * step
    held *= _row_elements(loops, sizes)
    if "XBLOCK" in kwargs:
        kwargs["XBLOCK"] = max(_FIXED_ELEMENTS[is_outer] // held, 1)
    elements = held * kwargs.get("XBLOCK", 1)
    warps = min(max(elements // _PER_FIXED_WARP, 1), _MOST_FIXED_WARPS)
    return config_from_dict({**kwargs, "num_warps": warps, "num_stages": 1})


def _row_elements(names: list[str], sizes: Mapping[str, int]) -> int:
    """Return the elements of a row that a block holds whole: those of sizes without a block."""
    return math.prod(
        size
        for prefix, size in sizes.items()
        if prefix.startswith("r") and f"{prefix.upper()}BLOCK" not in names
    )


def _blocks(names: list[str], sizes: Mapping[str, int], hint: Any) -> Iterator[dict[str, int]]:
    is_outer = hint in _OUTER
    ranges = []
    for name in names:
        prefix = name.removesuffix("BLOCK")
        size = min(TRITON_MAX_BLOCK[prefix], sizes.get(prefix.lower(), 1))
        least, most = 1, size
        if name.startswith("R"):
            least, most = _OUTER_LOOP if is_outer else (_INNER_LOOP, size)
        elif is_outer:
            least = _SIDE
        powers = range(min(most, size).bit_length())
        ranges.append([1 << power for power in powers if 1 << power >= min(least, size)])
    is_tile = len(names) > 1 and not any(name.startswith("R") for name in names)
    for values in itertools.product(*ranges):
        if not is_tile or all(value == 1 or value >= _SIDE for value in values):
            yield dict(zip(names, values, strict=True))


_OFFERED: Final = "_warmup_offered"
_LEFT: Final = "_warmup_left_to_inductor"
_SIGNATURE: Final = re.compile(r"'signature': (\{.*?\})")
# Prefixes of the names of a kernel's arguments (codegen/common.py, KernelArgs).
_READ: Final = "in_ptr"
_WRITTEN: Final = "out_ptr"
_RESULTS: Final = (_READ, "in_out_ptr", _WRITTEN)
_NONE_LOADED: Final = "No valid triton configs"
_TUNABLE: Final = frozenset(  # kernels whose config coordinate descent may change
    {
        *(HeuristicType.POINTWISE, HeuristicType.REDUCTION),
        *(HeuristicType.PERSISTENT_REDUCTION, HeuristicType.SPLIT_SCAN),
    }
)


def was_looked_up(kernel: Any) -> bool:
    return hasattr(kernel, _OFFERED)


def leave_to_inductor(kernel: Any) -> None:
    """Make the hooks ignore *kernel*: no row is looked up for it, and none is measured."""
    setattr(kernel, _LEFT, True)


def is_left_to_inductor(kernel: Any) -> bool:
    return hasattr(kernel, _LEFT)


def describe_kernel(name: str, sizes: Any, signature: Any, code: str) -> LaunchProblem:
    """Return the problem of a kernel; an AttributeError where *signature* is no mapping."""
    kinds = [str(kind).replace(" ", "") for kind in signature.values()]
    arguments = [kind for kind in kinds if kind != "constexpr"]
    return LaunchProblem.of(name, sizes if isinstance(sizes, dict) else None, arguments, code)


def read_kernel(name: str, source_code: str) -> tuple[LaunchProblem, str, str] | None:
    """Return the problem of a generated kernel, its size hints as text, and its code."""
    # None if *source_code* has no size hints. Raises ProblemError where a key cannot describe the
    # kernel, SyntaxError or ValueError where hints or signature are no plain values.
    sizes, signature = size_hints_regex.search(source_code), _SIGNATURE.search(source_code)
    _, marker, code = source_code.partition("@triton.jit\n")
    if sizes is None or signature is None or not marker:
        return None
    words = ast.literal_eval(sizes[1]), ast.literal_eval(signature[1])
    return describe_kernel(name, *words, code), sizes[1], code


def problem_of(kernel: Any) -> LaunchProblem | None:
    """Return the problem of *kernel*, None if a key cannot describe it."""
    try:
        signature = kernel.triton_meta.get("signature", {})
        return describe_kernel(kernel.fn.__name__, kernel.size_hints, signature, kernel.fn.src)
    except (AttributeError, ProblemError):
        return None


def named_problem(problem: LaunchProblem | None, kernel: Any) -> Problem:
    """Return *problem*, or without one the kernel's name, as misses have it."""
    return problem or ProblemOfKey(f"launch ({kernel.fn.__name__})")


def offered_configs(kernel: Any) -> tuple[Any, ...]:
    """Return the configs that inductor offered for *kernel* before the first lookup."""
    known: tuple[Any, ...] | None = getattr(kernel, _OFFERED, None)
    if known is None:
        known = tuple(kernel.configs or [result.config for result in kernel.compile_results])
        setattr(kernel, _OFFERED, known)
    return known


def was_tuned(kernel: Any) -> bool:
    """Whether inductor already chose a config for *kernel*, from its cache or by timing."""
    known = kernel.autotune_cache_info or {}
    return known.get("autotune_cache_state") == "hit" or known.get("num_configs", 1) > 1


def try_load(proceed: Callable[[], Any]) -> bool:
    """Load a kernel by *proceed*; False if its config does not compile or load on the device."""
    try:
        proceed()
    except RuntimeError as error:  # a refusal by the device has no class of its own
        if isinstance(error, NoTritonConfigsError) or str(error).startswith(_NONE_LOADED):
            return False
        raise
    return True


def is_searchable(kernel: Any) -> bool:
    return kernel.heuristic_type in _TUNABLE and kernel.device_props.type != "cpu"


def ask_at_first_call(kernel: Any) -> None:
    """Make inductor choose among the launchers of *kernel* at its first call, be it only one."""
    if is_searchable(kernel) and len(kernel.launchers) == 1:
        kernel.launchers = [*kernel.launchers] * 2


def uses_coordinate_descent(kernel: Any) -> bool:
    """Whether *kernel* runs coordinate descent after choosing among its configs."""
    wanted = kernel.inductor_meta.get("coordinate_descent_tuning", False)
    return bool(wanted) and kernel.heuristic_type in _TUNABLE


def keep_only_config(kernel: Any, config: Any, reload_kernel: Callable[[], Any] | None) -> None:
    """Leave *config* as the only config of *kernel*, whether it is compiled already or not."""
    if [kwargs_of(each.config) for each in kernel.launchers] == [kwargs_of(config)]:
        return
    kernel.launchers = []
    if getattr(kernel, "_cached_launcher", None) is not None:
        kernel._cached_launcher = None
    results = kernel.compile_results
    ready = [result for result in results if kwargs_of(result.config) == kwargs_of(config)]
    kernel.compile_results = ready[:1]
    if ready:
        return
    kernel.configs = [config]
    if kernel.fn.fn is None:  # compiled in a worker, which does not send the function back
        source = reload_kernel or kernel._reload_kernel
        kernel.fn = source().fn


def spills(kernel: Any, launcher: Any) -> bool:
    """Whether *launcher* spills more registers than inductor allows for a kernel that it times."""
    threshold = kernel.inductor_meta.get("spill_threshold", 32 if torch.version.hip else 16)
    return launcher.n_spills is not None and launcher.n_spills > threshold


class OwnArguments:
    """The arguments of a call of *kernel*, with copies of all tensors that it may write.

    So a candidate neither changes the model's tensors nor sees what another one wrote.
    """

    def __init__(self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._kernel = kernel
        names = kernel.fn.arg_names[: len(args)]
        self._given = {**dict(zip(names, args, strict=True)), **kwargs}
        self._positions = len(names)

    @functools.cached_property
    def _own(self) -> dict[str, Any]:
        return {
            name: clone_preserve_strides(arg) if self._may_be_written(name, arg) else arg
            for name, arg in self._given.items()
        }

    @property
    def args(self) -> list[Any]:
        return list(self._own.values())[: self._positions]

    @property
    def kwargs(self) -> dict[str, Any]:
        return dict(list(self._own.items())[self._positions :])

    def reset_to_zero(self) -> None:
        """Zero the workspaces that the kernel expects to be zero."""
        if self._kernel.reset_to_zero_arg_names:
            self._kernel.reset_to_zero_args(*self.args, **self.kwargs)

    def restore(self) -> None:
        """Give each copy its first values, and poison what the kernel only writes."""
        for name, own in self._own.items():
            if self._is_only_written(name):
                own.fill_(_poison(own.dtype))
            elif own is not self._given[name]:
                own.copy_(self._given[name])

    def results(self) -> list[torch.Tensor]:
        """Return copies of what the kernel wrote, without its workspaces and semaphores."""
        return [
            own.clone()
            for name, own in self._own.items()
            if own is not self._given[name] and name.startswith(_RESULTS)
        ]

    def _may_be_written(self, name: str, arg: Any) -> bool:
        is_read = name.startswith(_READ) and name not in self._kernel.mutated_arg_names
        return isinstance(arg, torch.Tensor) and not is_read

    def _is_only_written(self, name: str) -> bool:
        # A semaphore must be as it was: a poisoned one would make a kernel wait forever.
        return name.startswith(_WRITTEN) and name not in self._kernel.mutated_arg_names


def _poison(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def call_of(kernel: Any, launcher: Any, arguments: OwnArguments) -> Callable[[int], object]:
    interface = kernel.get_device_interface()

    def call(_number: int) -> object:
        arguments.reset_to_zero()
        stream = interface.get_raw_stream(interface.current_device())
        return launcher(*arguments.args, **arguments.kwargs, stream=stream)

    return call


def written_by(call: Callable[[int], object], arguments: OwnArguments) -> list[torch.Tensor]:
    arguments.restore()
    call(0)
    return arguments.results()


def keep_only_launcher(kernel: Any, launcher: Any) -> None:
    """Leave *launcher* as the only one, and save it, as `autotune_to_one_config` does."""
    kernel.launchers = [launcher]
    kernel.autotune_time_taken_ns = kernel.precompile_time_taken_ns
    if kernel.save_cache_hook:
        kernel.save_cache_hook(launcher.config, kernel.autotune_time_taken_ns)
