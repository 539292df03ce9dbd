"""`search_of`: the kernels of a reduction, persistent and looped, made while code is generated.

Both kernels are generated for the same nodes as inductor generates a kernel to time it
(`generate_kernel_code_from_nodes`): a module with the kernel and arguments for it. Both take the
arguments of the first, and each runs with the launch config that a search finds for it. What the
searches begin with is compiled for both at once. The persistent kernel, which has fewer configs, is
searched first. Where the looped kernel is far slower with what its search begins with, the search
ends there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from warmup.inductor.launch.compiling import compile_configs, compile_in_workers, send_configs
from warmup.inductor.launch.kernels import (
    OwnArguments,
    call_of,
    key_of,
    key_or_name,
    leave_to_inductor,
    offered_configs,
    written_by,
)
from warmup.inductor.launch.search import LaunchSearch
from warmup.keys.question import Answers
from warmup.keys.reduction import PERSISTENT

_GENERATED_NAME: Final = "triton_"
# Times the least time of the persistent kernel: a looped kernel that takes longer with each config
# that its search begins with is not searched further. The share of finalists (screening.py).
_LOSING_TIMES: Final = 1.25
_NO_CONFIGS: Final = SearchCounts(search=Search.DEFAULT, listed=0)


@dataclass(slots=True)
class _Loaded:
    """A kernel with the configs that inductor offers for it, those to compile ahead, and arguments.

    ``make_args`` makes arguments for it; ``args`` are those that it is called with.
    """

    kernel: Any
    offered: tuple[Any, ...]
    ahead: Sequence[Any]
    make_args: Callable[[], Iterable[Any]]
    args: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Way:
    """The kernel of one way with the launch config found for it, as a call on its arguments.

    ``time_us`` is the least time that the search saw.
    """

    call: TimedCall
    arguments: OwnArguments
    searched: SearchCounts
    time_us: float


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
    loaded: dict[Winner, _Loaded] = {}
    uncompiled: dict[Winner, str] = {}
    counted, given = metrics.generated_kernel_count, _Given()

    @contextlib.contextmanager
    def reporting(way: Winner) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  a compiler or driver may raise anything
            uncompiled[way] = f"{type(error).__name__}: {error}".partition("\n")[0]

    with torch.random.fork_rng(devices=[V.graph.get_current_device_or_throw()]):
        for way in ways:
            with reporting(way):
                (kernel,) = create(way)
                source = _generate(scheduling, features.node_schedule, kernel)
                loaded[way] = _loaded(source)
        compile_in_workers((one.kernel, one.ahead) for one in loaded.values())
        for way, one in list(loaded.items()):
            with reporting(way):
                one.kernel.precompile()
                one.args = given.args_for(one.kernel, one.make_args)
        fastest_us = math.inf
        for way in sorted(loaded.keys() - uncompiled.keys(), key=lambda way: way != PERSISTENT):
            with reporting(way):
                made[way] = _searched(answers, loaded[way], fastest_us * _LOSING_TIMES)
                fastest_us = min(fastest_us, made[way].time_us)
    metrics.generated_kernel_count = counted
    return LiveSearch(
        listed=(ways[0],),
        calls={way: made[way].call for way in ways if way in made},
        more=lambda _times_us: {},
        written=lambda way: written_by(made[way].call, made[way].arguments),
        uncompiled=uncompiled,
        counts=lambda: sum((one.searched for one in made.values()), _NO_CONFIGS),
    )


def send_ahead(
    scheduling: Any, features: Any, ways: Sequence[Winner], create: Callable[[Winner], Any]
) -> None:
    """Send what `search_of` begins with to the workers, for each of *ways*; nothing waits for it.

    A way that cannot be generated is left out; `search_of` says why.
    """
    counted = metrics.generated_kernel_count
    for way in ways:
        with contextlib.suppress(Exception):
            (kernel,) = create(way)
            loaded = _loaded(_generate(scheduling, features.node_schedule, kernel))
            send_configs([(loaded.kernel, loaded.ahead)])
    metrics.generated_kernel_count = counted


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
    """Return the kernel in *source*, which nothing compiled yet."""
    module: Any = PyCodeCache.load(source)
    kernel = getattr(module, _GENERATED_NAME)
    leave_to_inductor(kernel)
    offered = offered_configs(kernel)
    ahead = LaunchSearch(kernel, offered, (), {}, compile_configs).ahead()
    return _Loaded(kernel, offered, ahead, module.get_args)


def _searched(answers: Answers, loaded: _Loaded, limit_us: float) -> _Way:
    """Return the kernel with the launch config that *answers* find for it.

    Where what the search begins with takes longer than *limit_us*, it ends there.

    Raises:
        RuntimeError: no config of it compiles and runs.
    """
    kernel, args = loaded.kernel, loaded.args
    search = LaunchSearch(kernel, loaded.offered, args, {}, compile_configs, limit_us)
    live = search.start()
    if live is None:
        raise RuntimeError(search.first_failure)
    seen: list[float] = []

    def more(times_us: Mapping[Winner, float]) -> Mapping[Winner, TimedCall]:
        seen.append(min(times_us.values()))
        return live.more(times_us)

    winner = answers.try_search(key_or_name(key_of(kernel), kernel), replace(live, more=more))
    launcher = None if winner is None else search.launcher_of(winner)
    if launcher is None:
        raise RuntimeError("no launch config of the kernel could be measured")
    arguments = OwnArguments(kernel, args, {})
    return _Way(
        call_of(kernel, launcher, arguments), arguments, live.counts(), min(seen, default=math.inf)
    )
