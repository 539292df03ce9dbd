"""`UserConfigs`: the hooks of the row kind ``autotune``, for kernels under ``@triton.autotune``.

In a compiled graph inductor chooses among a kernel's configs at its first call, outside of a graph
Triton does, which keeps what it chose in the kernel's ``cache``. Where a row names one of these
configs, it is chosen and nothing is measured. A build lets the kernel's own tuner measure, with all
of the user's hooks, and takes down the times. Without a row that tuner measures as without a table,
which `warmup.inductor.compile_watch` reports.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from warmup.core.errors import MissReason, ProblemError
from warmup.core.events import Hit, Missed
from warmup.core.roofline import dtype_name
from warmup.core.rows import Family, Winner, portable_kwargs
from warmup.inductor.compile_watch import Autotuner
from warmup.inductor.patches import Function, KindHooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.launch import AUTOTUNE, AutotuneProblem
from warmup.keys.question import Answers, TimedQuestion

_WORD: Final = re.compile(r"[A-Za-z0-9_]{0,32}")  # as tables have it: no file, as an ir_override
_UID: Final = HeuristicType.USER_AUTOTUNE.name.lower()


class UserConfigs(KindHooks):
    """Answers the choices of ``@triton.autotune`` kernels from *answers* while attached."""

    def __init__(self, version: Version, answers: Answers) -> None:
        super().__init__(version, answers)
        # What each of Triton's tuners had chosen, by its key, before the key was looked up.
        self._before: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(CachingAutotuner, "autotune_to_one_config", self._choose_in_graph)
        if Autotuner is not None:
            patches.hook(Autotuner, "run", self._run)
            patches.hook(Autotuner, "prune_configs", self._prune)

    def _deactivate(self) -> None:
        super()._deactivate()
        for tuner, choices in list(self._before.items()):
            for key, config in list(choices.items()):
                tuner.cache.pop(key, None)
                if config is not None:
                    tuner.cache[key] = config

    def _choose_in_graph(self, original: Function, kernel: Any, *args: Any, **kw: Any) -> Any:
        is_users = kernel.heuristic_type is HeuristicType.USER_AUTOTUNE
        if not self._active or not is_users:
            return original(kernel, *args, **kw)
        # A call passes all arguments but those declared constant, and the grid's sizes after them.
        declared, names = kernel.fn.constexprs, kernel.fn.arg_names
        passed = (name for i, name in enumerate(names) if i not in declared)
        given = {**dict(zip(passed, args, strict=False)), **kw}
        sizes = {name: value for name, value in given.items() if isinstance(value, int)}
        tensors = (
            f"*{dtype_name(value.dtype)}[{','.join(map(str, value.shape))}]"
            for value in given.values()
            if isinstance(value, torch.Tensor)
        )
        named = _named(each.config for each in kernel.launchers)
        values = {**kernel.triton_meta["constants"], **sizes}
        problem = _problem_of(kernel.fn, values.items(), tensors, named)
        if problem is None:
            return original(kernel, *args, **kw)
        answer = self._answers.find(problem)
        if (config := named.get(answer)) is not None:
            kernel.launchers = [each for each in kernel.launchers if each.config is config]
            self._answers.emit(Hit(problem.key, str(answer)))
            return None
        if (missed := self._missed(problem, answer)) is not None:
            self._answers.emit(missed)
        kernel.save_cache_hook = None  # else the next start takes what is saved, and asks no row
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
        problem = _problem_of(tuner.fn, values, (f"*{dtype_name(each)}" for each in dtypes), named)
        if problem is None:
            before[key] = chosen
            return original(tuner, *args, **kw)
        answer = self._answers.find(problem)
        if (config := named.get(answer)) is not None:
            tuner.cache[key] = config
            self._answers.emit(Hit(problem.key, str(answer)))
        elif self._settings.measures:
            tuner.cache.pop(key, None)
        else:
            self._local.missed = self._missed(problem, answer)
        earlier = getattr(tuner, "configs_timings", None)
        try:
            done = original(tuner, *args, **kw)
        finally:
            self._local.missed = None
        before[key] = chosen  # not where a miss is refused: the next call is refused too
        timings: Any = getattr(tuner, "configs_timings", None)
        if timings is not earlier:
            self._take_down(problem, _named(timings), timings.get)
        return done

    def _prune(self, original: Function, tuner: Any, *args: Any, **kw: Any) -> Any:
        """Report the miss of the call under way, now that Triton has several configs to measure."""
        configs = original(tuner, *args, **kw)
        missed = getattr(self._local, "missed", None)
        if missed is not None and len(configs) > 1:
            self._answers.emit(missed)
        return configs

    def _missed(self, problem: AutotuneProblem, answer: Winner | MissReason) -> Missed | None:
        """Return the miss to report: none in a build, nor under a table of an earlier one."""
        if self._settings.measures or AUTOTUNE.name not in self._settings.searched:
            return None
        reason = MissReason.CHOICE_REJECTED if isinstance(answer, Winner) else answer
        return Missed(problem.key, reason, "measured by its own tuner")

    def _take_down(
        self, problem: AutotuneProblem, named: Mapping[Any, Any], ms_of: Callable[[Any], Any]
    ) -> None:
        """Give the row of *problem* what its own tuner measured, if this is a build."""
        if self._settings.measures and named:
            timed = {winner: ms_of(config) for winner, config in named.items()}
            times_us = {
                winner: tuple(one * 1000.0 for one in (ms if isinstance(ms, list) else [ms]))
                for winner, ms in timed.items()  # Triton's are medians with two quantiles
            }
            self._answers.measure(TimedQuestion(problem, next(iter(times_us)), times_us))


def _named(configs: Iterable[Any]) -> dict[Any, Any]:
    """Return *configs* by what a row calls them; empty where a row cannot tell them apart."""
    named: dict[Any, Any] = {}
    for config in configs:
        kwargs = portable_kwargs(config.all_kwargs())
        texts = [value for _, value in kwargs or () if isinstance(value, str)]
        if kwargs is None or not all(map(_WORD.fullmatch, texts)):
            return {}
        if named.setdefault(Winner(Family.LAUNCH, _UID, kwargs), config) != config:
            return {}  # they differ in their hooks
    return named


def _problem_of(
    function: Any,
    values: Iterable[tuple[str, Any]],
    args: Iterable[str],
    named: Mapping[Winner, Any],
) -> AutotuneProblem | None:
    """Return the problem of a kernel; None where a row can name no config, or a key no value."""
    while not hasattr(function, "src"):  # below `triton.heuristics`
        function = function.fn
    spelled = tuple((name, str(value)) for name, value in values)
    configs = tuple(named)
    try:
        problem = AutotuneProblem(function.__name__, spelled, tuple(args), configs, function.src)
    except ProblemError:
        return None
    return problem if configs else None
