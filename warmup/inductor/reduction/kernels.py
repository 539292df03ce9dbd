"""`search_of`: the kernels of a reduction, persistent and looped, made while code is generated.

Both kernels are generated for the same nodes as inductor generates a kernel to time it
(`generate_kernel_code_from_nodes`): a module with the kernel and arguments for it. Both take the
arguments of the first, and each runs with the launch config that a search finds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._inductor import config as inductor_config
from torch._inductor import metrics
from torch._inductor.codecache import PyCodeCache
from torch._inductor.utils import Placeholder
from torch._inductor.virtualized import V

from warmup.core.live_search import LiveSearch
from warmup.core.method import Search
from warmup.core.rows import Winner
from warmup.core.search import SearchCounts
from warmup.core.trial import TimedCall
from warmup.inductor.launch.compiling import compile_configs
from warmup.inductor.launch.kernels import (
    OwnArguments,
    call_of,
    leave_to_inductor,
    offered_configs,
    written_by,
)
from warmup.inductor.launch.search import LaunchSearch
from warmup.keys.question import Answers

_GENERATED_NAME: Final = "triton_"
_NO_CONFIGS: Final = SearchCounts(search=Search.DEFAULT, listed=0)


@dataclass(frozen=True, slots=True)
class _Way:
    """The kernel of one way with the launch config found for it, as a call on its arguments."""

    call: TimedCall
    arguments: OwnArguments
    searched: SearchCounts


def search_of(
    answers: Answers,
    scheduling: Any,
    features: Any,
    ways: Sequence[Winner],
    create: Callable[[Winner], Any],
) -> LiveSearch:
    """Return the decision between *ways*, that of inductor's rule first, ready to be measured.

    *create* returns the kernels that inductor makes for a way. *answers* search the launch config
    of each, and ``counts`` has the configs. A way that does not compile is in ``uncompiled``.
    """
    made: dict[Winner, _Way] = {}
    uncompiled: dict[Winner, str] = {}
    counted, given = metrics.generated_kernel_count, _Given()
    with torch.random.fork_rng(devices=[V.graph.get_current_device_or_throw()]):
        for way in ways:
            try:
                (kernel,) = create(way)
                source = _generate(scheduling, features.node_schedule, kernel)
                made[way] = _searched(answers, source, given)
            except Exception as error:  # noqa: BLE001  a compiler or driver may raise anything
                uncompiled[way] = f"{type(error).__name__}: {error}".partition("\n")[0]
    metrics.generated_kernel_count = counted
    return LiveSearch(
        listed=(ways[0],),
        calls={way: one.call for way, one in made.items()},
        more=lambda _times_us: {},
        written=lambda way: written_by(made[way].call, made[way].arguments),
        uncompiled=uncompiled,
        counts=lambda: sum((one.searched for one in made.values()), _NO_CONFIGS),
    )


def _generate(scheduling: Any, schedule: Iterable[Any], kernel: Any) -> str:
    """Return the source of *kernel* for the nodes of *schedule*, with arguments to time it on."""
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
        """Return the arguments for *kernel*; the first time they are made by *make*.

        Raises:
            RuntimeError: *kernel* takes other arguments.
        """
        if not self._args:
            self._args = list(make())
            self._names = tuple(kernel.fn.arg_names[: len(self._args)])
        names = tuple(kernel.fn.arg_names[: len(self._args)])
        if names != self._names:
            raise RuntimeError(
                f"the kernel takes {names}, and that of inductor's rule {self._names}"
            )
        return self._args


def _searched(answers: Answers, source: str, given: _Given) -> _Way:
    """Return the kernel in *source* with the launch config that *answers* find for it.

    Raises:
        RuntimeError: no config of it compiles and runs, or it takes other arguments than *given*.
    """
    module: Any = PyCodeCache.load(source)
    kernel = getattr(module, _GENERATED_NAME)
    leave_to_inductor(kernel)
    offered = offered_configs(kernel)
    kernel.precompile()
    args = given.args_for(kernel, module.get_args)
    search = LaunchSearch(kernel, offered, args, {}, compile_configs)
    live = search.start()
    if live is None:
        raise RuntimeError(search.first_failure)
    winner = answers.try_search(live)
    if winner is None:
        raise RuntimeError("no launch config of the kernel could be measured")
    arguments = OwnArguments(kernel, args, {})
    call = call_of(kernel, search.launcher_of(winner), arguments)
    return _Way(call, arguments, live.counts())
