"""`UserConfigs`: the hooks of the row kind ``autotune``, for kernels under ``@triton.autotune``.

In a compiled graph inductor chooses among a kernel's configs at its first call, outside of a graph
Triton does, which keeps what it chose in the kernel's ``cache``. Where a row names one of these
configs, it is chosen and nothing is measured. A build lets the kernel's own tuner measure, with all
of the user's hooks, and takes down the times. Without a row that tuner measures as without a table,
which `warmup.inductor.compile_watch` reports as uncovered: strict serving refuses no call of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from warmup.core.errors import ProblemError
from warmup.core.events import Hit
from warmup.core.roofline import dtype_name
from warmup.core.rows import Family, Winner, portable_kwargs
from warmup.inductor.compile_watch import Autotuner
from warmup.inductor.patches import Function, KindHooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.launch import AUTOTUNE, AutotuneProblem
from warmup.keys.question import Answers, CallsQuestion

_UID: Final = HeuristicType.USER_AUTOTUNE.name.lower()


class UserConfigs(KindHooks):
    """Answers the choices of ``@triton.autotune`` kernels from *answers* while attached."""

    def __init__(self, version: Version, answers: Answers) -> None:
        super().__init__(version, answers)
        # What each of Triton's tuners had chosen, by its key, before the key was looked up.
        self._before: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    def attach(self, patches: Patches) -> None:
        if not self._settings.measures and AUTOTUNE.name not in self._settings.kinds:
            return  # each call of such a kernel outside of graphs would take longer for nothing
        patches.on_restore(self._deactivate)
        patches.hook(CachingAutotuner, "autotune_to_one_config", self._choose_in_graph)
        if Autotuner is not None:
            patches.hook(Autotuner, "run", self._run)

    def _deactivate(self) -> None:
        super()._deactivate()
        for tuner, choices in list(self._before.items()):
            for key, config in list(choices.items()):
                tuner.cache.pop(key, None)
                if config is not None:
                    tuner.cache[key] = config

    def _choose_in_graph(self, original: Function, kernel: Any, *args: Any, **kw: Any) -> Any:
        if not self._active or kernel.heuristic_type is not HeuristicType.USER_AUTOTUNE:
            return original(kernel, *args, **kw)
        # A call passes all arguments but those declared constant, and the grid's sizes after them.
        function, values = kernel.fn, dict(kernel.triton_meta["constants"])
        names = (name for i, name in enumerate(function.arg_names) if i not in function.constexprs)
        given = zip(names, args, strict=False)
        values |= {name: value for name, value in given if isinstance(value, int)}
        tensors = [
            f"*{dtype_name(each.dtype)}[{','.join(map(str, each.shape))}]"
            for each in args
            if isinstance(each, torch.Tensor)
        ]
        named = _named(each.config for each in kernel.launchers)
        problem = _problem_of(function, values.items(), tensors, named)
        if problem is None:
            return original(kernel, *args, **kw)
        if (config := self._find(problem, named)) is not None:
            kernel.launchers = [each for each in kernel.launchers if each.config is config]
            return None
        done = original(kernel, *args, **kw)
        self._take_down(problem, named, kernel.coordesc_tuner.lookup_in_cache)
        return done

    def _run(self, original: Function, tuner: Any, *args: Any, **kw: Any) -> Any:
        if not self._active or len(tuner.configs) == 1:
            return original(tuner, *args, **kw)
        # Triton's own key (runtime/autotuner.py, Autotuner.run).
        given = {**dict(zip(tuner.arg_names, args, strict=False)), **kw}
        given = {name: value for name, value in given.items() if name in tuner.arg_names}
        values = [(name, given[name]) for name in tuner.keys if name in given]
        dtypes = [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
        key, before = (*(value for _, value in values), *dtypes), self._before.setdefault(tuner, {})
        if key in before:
            return original(tuner, *args, **kw)
        chosen, named = tuner.cache.get(key), _named(tuner.configs)
        problem = _problem_of(tuner.fn, values, [f"*{dtype_name(each)}" for each in dtypes], named)
        config = None if problem is None else self._find(problem, named)
        if config is not None:
            tuner.cache[key] = config
        elif self._settings.measures:
            tuner.cache.pop(key, None)
        earlier = getattr(tuner, "configs_timings", None)
        done = original(tuner, *args, **kw)
        before[key] = chosen  # not where `forbid` refuses: the next call is refused too
        timings: Any = getattr(tuner, "configs_timings", None)
        if problem is not None and timings is not earlier:
            self._take_down(problem, _named(timings), timings.get)
        return done

    def _find(self, problem: AutotuneProblem, named: Mapping[Any, Any]) -> Any | None:
        answer = self._answers.find(problem)
        if (config := named.get(answer)) is not None:
            self._answers.emit(Hit(problem.key, str(answer)))
        return config

    def _take_down(
        self, problem: AutotuneProblem, named: Mapping[Any, Any], ms_of: Callable[[Any], Any]
    ) -> None:
        if self._settings.measures and named:
            timed = {winner: ms_of(config) for winner, config in named.items()}
            times_us = {  # by Triton a median with two more quantiles
                winner: tuple(1000.0 * one for one in (ms if isinstance(ms, list) else [ms]))
                for winner, ms in timed.items()
            }
            self._answers.measure(CallsQuestion(problem, next(iter(named)), {}, times_us))


def _named(configs: Iterable[Any]) -> dict[Any, Any]:
    """Return *configs* by what a row calls them; empty where a row cannot tell them apart."""
    named: dict[Any, Any] = {}
    for config in configs:
        kwargs = portable_kwargs(config.all_kwargs())
        if kwargs is None:
            return {}
        if named.setdefault(Winner(Family.LAUNCH, _UID, kwargs), config) != config:
            return {}  # they differ in their hooks
    return named


def _problem_of(
    function: Any, values: Iterable[tuple[str, Any]], args: Sequence[str], named: Iterable[Winner]
) -> AutotuneProblem | None:
    while not hasattr(function, "src"):  # below `triton.heuristics`
        function = function.fn
    words, configs, name = tuple(values), tuple(named), function.__name__
    try:
        return AutotuneProblem(name, words, tuple(args), configs, function.src) if configs else None
    except ProblemError:
        return None
