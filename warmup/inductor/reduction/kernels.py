"""`calls_of`: calls of a reduction's kernel, persistent and looped, made while code is generated.

Both kernels are generated for the same nodes as inductor generates a kernel to time it
(`generate_kernel_code_from_nodes`): a module with the kernel and arguments of its own for it. They
run with the fastest config that inductor lists for them with max-autotune.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch._inductor import config as inductor_config
from torch._inductor import metrics
from torch._inductor.codecache import PyCodeCache
from torch._inductor.utils import Placeholder
from torch._inductor.virtualized import V

from warmup.core.rows import Winner
from warmup.core.trial import TimedCall
from warmup.inductor.launch.compiling import compile_configs
from warmup.inductor.launch.kernels import (
    OwnArguments,
    call_of,
    leave_to_inductor,
    offered_configs,
)
from warmup.inductor.launch.lists import listed_by_inductor

_GENERATED_NAME: Final = "triton_"


def calls_of(
    scheduling: Any, features: Any, ways: Iterable[Winner], create: Callable[[Winner], Any]
) -> dict[Winner, TimedCall]:
    """Return a call for each of *ways*; *create* returns the kernels that inductor makes for it.

    A way that does not compile has a call that raises the reason.
    """
    counted = metrics.generated_kernel_count
    calls: dict[Winner, TimedCall] = {}
    with torch.random.fork_rng(devices=[V.graph.get_current_device_or_throw()]):
        for way in ways:
            try:
                (kernel,) = create(way)
                calls[way] = _call(_generate(scheduling, features.node_schedule, kernel))
            except Exception as error:  # noqa: BLE001  a compiler or driver may raise anything
                calls[way] = _raising(error)
    metrics.generated_kernel_count = counted
    return calls


def _generate(scheduling: Any, schedule: Iterable[Any], kernel: Any) -> str:
    """Return the source of *kernel* for the nodes of *schedule*, with arguments to time it on."""
    scheduling.codegen_node_schedule_with_kernel(schedule, kernel)
    with inductor_config.patch({"benchmark_kernel": True}), V.set_kernel_handler(kernel):
        source = str(kernel.codegen_kernel())
    return source.replace(str(Placeholder.KERNEL_NAME), _GENERATED_NAME)


def _call(source: str) -> TimedCall:
    """Return a call of the kernel in *source*, with the fastest config that inductor lists."""
    module: Any = PyCodeCache.load(source)
    kernel = getattr(module, _GENERATED_NAME)
    leave_to_inductor(kernel)
    offered = offered_configs(kernel)
    kernel.precompile()
    longer = listed_by_inductor(kernel, max_autotune=True)
    args = module.get_args()
    loaded = compile_configs(kernel, (*offered, *longer))
    launchers = [each for each in loaded if not isinstance(each, str)]
    if not launchers:
        raise RuntimeError(str(loaded[0]))
    fastest = min(launchers, key=lambda launcher: kernel.bench(launcher, *args))
    return call_of(kernel, fastest, OwnArguments(kernel, args, {}))


def _raising(error: Exception) -> TimedCall:
    def call(_number: int) -> object:
        raise error

    return call
