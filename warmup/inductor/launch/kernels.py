"""Functions on generated Triton kernels: `CachingAutotuner` of runtime/triton_heuristics.py."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch._inductor.async_compile import size_hints_regex
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import NoTritonConfigsError
from torch._inductor.utils import clone_preserve_strides

from warmup.core.errors import ProblemError
from warmup.inductor.launch.configs import same_config
from warmup.keys.launch import LaunchProblem

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
    """Return whether a row was looked up for *kernel* before."""
    return hasattr(kernel, _OFFERED)


def leave_to_inductor(kernel: Any) -> None:
    """Make the hooks ignore *kernel*: no row is looked up for it, and none is measured."""
    setattr(kernel, _LEFT, True)


def is_left_to_inductor(kernel: Any) -> bool:
    """Return whether `leave_to_inductor` was called with *kernel*."""
    return hasattr(kernel, _LEFT)


def describe_kernel(name: str, sizes: Any, signature: Any, code: str) -> LaunchProblem:
    """Return the problem of a kernel from its name, size hints, signature and code.

    Raises:
        AttributeError: *signature* is no mapping.
    """
    arguments = [
        str(kind).replace(" ", "") for kind in signature.values() if str(kind) != "constexpr"
    ]
    return LaunchProblem.of(name, sizes if isinstance(sizes, dict) else None, arguments, code)


def read_kernel(name: str, source_code: str) -> tuple[LaunchProblem, str, str] | None:
    """Return the problem of a generated kernel, its size hints as text, and its code.

    None if *source_code*, which inductor sends to a compile worker, has no size hints.

    Raises:
        ProblemError: a key cannot describe the kernel.
        SyntaxError, ValueError: the size hints or the signature are no plain values.
    """
    sizes, signature = size_hints_regex.search(source_code), _SIGNATURE.search(source_code)
    _, marker, code = source_code.partition("@triton.jit\n")
    if sizes is None or signature is None or not marker:
        return None
    words = ast.literal_eval(sizes[1]), ast.literal_eval(signature[1])
    return describe_kernel(name, *words, code), sizes[1], code


def key_of(kernel: Any) -> str | None:
    """Return the key of *kernel*, None if a key cannot describe it."""
    try:
        signature = kernel.triton_meta.get("signature", {})
        return describe_kernel(kernel.fn.__name__, kernel.size_hints, signature, kernel.fn.src).key
    except (AttributeError, ProblemError):
        return None


def key_or_name(key: str | None, kernel: Any) -> str:
    """Return the name of *kernel* in a miss: its key, or the kernel's name without a key."""
    return key or f"launch ({kernel.fn.__name__})"


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
    """Whether other configs than those that inductor offers can be tried for *kernel*."""
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
    if [same_config(each.config, config) for each in kernel.launchers] == [True]:
        return
    kernel.launchers = []
    if getattr(kernel, "_cached_launcher", None) is not None:
        kernel._cached_launcher = None
    ready = [result for result in kernel.compile_results if same_config(result.config, config)]
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

    So a candidate neither changes the model's tensors nor sees what another one wrote. The copies
    are made when they are first used.
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
        """The arguments by position."""
        return list(self._own.values())[: self._positions]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments by name."""
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
    """Return a call of *launcher* on *arguments*."""
    interface = kernel.get_device_interface()

    def call(_number: int) -> object:
        arguments.reset_to_zero()
        stream = interface.get_raw_stream(interface.current_device())
        return launcher(*arguments.args, **arguments.kwargs, stream=stream)

    return call


def written_by(call: Callable[[int], object], arguments: OwnArguments) -> list[torch.Tensor]:
    """Return copies of what *call* writes when *arguments* have their first values."""
    arguments.restore()
    call(0)
    return arguments.results()


def keep_only_launcher(kernel: Any, launcher: Any) -> None:
    """Leave *launcher* as the only launcher of *kernel*, and save it in inductor's cache, if any.

    Mirrors the end of `CachingAutotuner.autotune_to_one_config`.
    """
    kernel.launchers = [launcher]
    kernel.autotune_time_taken_ns = kernel.precompile_time_taken_ns
    if kernel.save_cache_hook:
        kernel.save_cache_hook(launcher.config, kernel.autotune_time_taken_ns)
