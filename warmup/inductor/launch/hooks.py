"""`LaunchConfigs`: the hooks of the row kind ``launch``, for configs of generated Triton kernels.

Inductor compiles every config that its heuristics offer for a pointwise or reduction kernel, and
times them all at the kernel's first call, in every mode (runtime/triton_heuristics.py). Hooks:

- ``AsyncCompile.triton`` sends a kernel's source to a compile worker: the hook adds the row's
  config (``config.autotune_lookup_table``), so that the worker compiles only this config.
- ``CachingAutotuner.precompile`` loads the kernel in this process: the hook drops all configs but
  one and reports the hit or miss. This hook decides; the worker's config only saves time.
- ``CachingAutotuner.autotune_to_one_config`` and ``coordinate_descent_tuning`` measure: in a build
  the hooks record the winner; at serving they choose without measuring.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import (
    CachingAutotuner,
    generate_lookup_hash_from_source_code,
)

from warmup.core.errors import ProblemError
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Winner
from warmup.inductor.launch.compiling import compile_configs, load_row
from warmup.inductor.launch.configs import (
    is_block,
    make_config,
    refusal_reason,
    winner_of,
)
from warmup.inductor.launch.kernels import (
    OwnArguments,
    ask_at_first_call,
    call_of,
    is_left_to_inductor,
    is_searchable,
    keep_only_config,
    keep_only_launcher,
    key_of,
    key_or_name,
    offered_configs,
    read_kernel,
    spills,
    try_load,
    uses_coordinate_descent,
    was_looked_up,
    was_tuned,
)
from warmup.inductor.launch.search import LaunchSearch
from warmup.inductor.patches import Hooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.question import Answers

_REJECTED: Final = MissReason.CHOICE_REJECTED
_BLOCK_ARGUMENT = re.compile(r"(\w+)\s*:\s*tl\.constexpr")


class LaunchConfigs(Hooks):
    """Answers launch configs from *answers* while attached."""

    def __init__(self, _version: Version, answers: Answers) -> None:
        self._answers = answers
        self._touched: set[str] = set()

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(AsyncCompile, "triton", self._wrap_submit)
        patches.wrap(CachingAutotuner, "precompile", self._wrap_precompile)
        patches.wrap(
            CachingAutotuner, "autotune_to_one_config", self._wrap_autotune, _unless_chosen
        )
        patches.wrap(CachingAutotuner, "coordinate_descent_tuning", self._wrap_descent)

    def _deactivate(self) -> None:
        super()._deactivate()
        # A loaded kernel keeps its config; when loaded again, it starts from inductor's configs.
        for file in tuple(self._touched):
            PyCodeCache.modules_no_attr.pop(file, None)

    def _handles(self, kernel: Any) -> bool:
        # A user's kernel may need another config for each size, and its key has no sizes.
        if not self._active or kernel.heuristic_type is HeuristicType.USER_AUTOTUNE:
            return False
        if is_left_to_inductor(kernel):
            return False
        if kernel.filename is not None:
            self._touched.add(kernel.filename)
        return True

    # -- in compile workers --------------------------------------------------------------------

    def _wrap_submit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def submit(compiler: Any, kernel_name: str, source_code: str, *args: Any, **kw: Any) -> Any:
            # Without workers the entry would hide inductor's other configs from `precompile`.
            uses_worker = self._active and compiler.use_process_pool()
            entry = self._lookup_entry(kernel_name, source_code) if uses_worker else {}
            if not entry:
                return original(compiler, kernel_name, source_code, *args, **kw)
            table = {**inductor_config.autotune_lookup_table, **entry}
            with inductor_config.patch({"autotune_lookup_table": table}):
                return original(compiler, kernel_name, source_code, *args, **kw)

        return submit

    def _lookup_entry(self, kernel_name: str, source_code: str) -> dict[str, dict[str, Any]]:
        """Return the entry of inductor's lookup table for this kernel; empty without a row.

        Before torch 2.15 the lookup table drops everything but block sizes, so rows with other
        kwargs are left to `precompile`.
        """
        try:
            read = read_kernel(kernel_name, source_code)
            answer = None if read is None else self._answers.find(read[0].key)
        except (ProblemError, SyntaxError, ValueError):
            return {}
        if read is None or not isinstance(answer, Winner):
            return {}
        _, sizes, code = read
        kwargs = dict(answer.kwargs)
        blocks = {name for name in kwargs if is_block(name)}
        taken = set(_BLOCK_ARGUMENT.findall(code.partition("):")[0]))
        if blocks | {"num_warps", "num_stages"} != kwargs.keys() or blocks != taken:
            return {}
        if refusal_reason(answer, None) is not None:
            return {}
        return {generate_lookup_hash_from_source_code(sizes, code): kwargs}

    # -- in this process -----------------------------------------------------------------------

    def _wrap_precompile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def precompile(kernel: Any, *args: Any, **kw: Any) -> Any:
            def proceed() -> Any:
                return original(kernel, *args, **kw)

            only_warms_cache = args[0] if args else kw.get("warm_cache_only", False)
            if not self._handles(kernel) or only_warms_cache:
                return proceed()
            offered = offered_configs(kernel)
            key = key_of(kernel)
            answer = MissReason.NOT_DESCRIBED if key is None else self._answers.find(key)
            if isinstance(answer, Winner):
                reload_kernel = kw.get("reload_kernel", args[1] if len(args) > 1 else None)
                refused = refusal_reason(answer, offered)
                if refused is None:
                    keep_only_config(kernel, make_config(answer, offered), reload_kernel)
                    if try_load(proceed):
                        self._answers.hit(str(key), answer)
                        return None
                    refused = _REJECTED
                    if reload_kernel is not None:  # the worker compiled the row's config only
                        offered = offered_configs(reload_kernel())
                answer = refused
            if self._answers.tunes:
                done = proceed()
                ask_at_first_call(kernel)
                return done
            if len(offered) == 1 and not self._is_decision(kernel):
                return proceed()
            self._answers.miss(key_or_name(key, kernel), answer, str(winner_of(kernel, offered[0])))
            return self._compile_first(kernel, offered, proceed)

        return precompile

    def _is_decision(self, kernel: Any) -> bool:
        """Whether there is a choice for *kernel*, for which inductor lists a single config."""
        is_searched = "launch" in self._answers.searches and is_searchable(kernel)
        return is_searched or was_tuned(kernel) or uses_coordinate_descent(kernel)

    def _compile_first(
        self, kernel: Any, offered: Sequence[Any], proceed: Callable[[], Any]
    ) -> Any:
        """Keep the first config that compiles as the only config, without measuring."""
        for config in offered[:-1]:
            keep_only_config(kernel, config, None)
            if try_load(proceed):
                return None
        keep_only_config(kernel, offered[-1], None)
        return proceed()

    def _wrap_autotune(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def autotune_to_one_config(kernel: Any, *args: Any, **kw: Any) -> Any:
            if not self._handles(kernel):
                return original(kernel, *args, **kw)
            offered = offered_configs(kernel)
            key = key_of(kernel)
            answer = MissReason.NOT_DESCRIBED if key is None else self._answers.find(key)
            if isinstance(
                answer, Winner
            ):  # tuned for a kernel with the same key, or compiled before
                launcher = load_row(kernel, answer, offered)
                if launcher is not None:
                    kernel.launchers = [launcher]
                    self._answers.hit(str(key), answer)
                    return None
                answer = _REJECTED
            if self._answers.tunes and key is not None:
                choose = self._search if is_searchable(kernel) else self._choose
                keep_only_launcher(kernel, choose(kernel, key, kernel.launchers, args, kw))
                return None
            if self._answers.tunes:
                return original(kernel, *args, **kw)
            first = kernel.launchers[0]
            self._answers.miss(
                key_or_name(key, kernel), answer, str(winner_of(kernel, first.config))
            )
            kernel.launchers = [first]
            return None

        return autotune_to_one_config

    def _wrap_descent(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def coordinate_descent_tuning(kernel: Any, launcher: Any, *args: Any, **kw: Any) -> Any:
            if not self._handles(kernel) or not uses_coordinate_descent(kernel):
                return original(kernel, launcher, *args, **kw)
            key = key_of(kernel)
            answer = MissReason.NOT_DESCRIBED if key is None else self._answers.find(key)
            if self._answers.tunes and not isinstance(answer, Winner):
                if key is None:
                    return original(kernel, launcher, *args, **kw)
                if not was_looked_up(kernel):  # else the search was done, or gave no row
                    launcher = self._search(kernel, key, [launcher], args, kw)
            elif not was_looked_up(kernel):  # compiled before attaching: report its hit or miss now
                chosen = winner_of(kernel, launcher.config)
                row = answer if isinstance(answer, Winner) else None
                forced = None if row is None else load_row(kernel, row, offered_configs(kernel))
                if row is not None and forced is not None:
                    launcher = forced
                    self._answers.hit(str(key), row)
                else:
                    reason = _REJECTED if isinstance(answer, Winner) else answer
                    self._answers.miss(key_or_name(key, kernel), reason, str(chosen))
            launcher.config.found_by_coordesc = True  # else inductor tunes again at every call
            return launcher

        return coordinate_descent_tuning

    def _search(
        self,
        kernel: Any,
        key: str,
        launchers: Sequence[Any],
        args: Sequence[Any],
        kw: Mapping[str, Any],
    ) -> Any:
        """Search the configs of *kernel* and return the winner's launcher.

        Where no config could be measured, it is the first of *launchers*, as without a table.
        """
        search = LaunchSearch(kernel, offered_configs(kernel), args, kw, compile_configs)
        live = search.start()
        chosen = None if live is None else self._answers.measure_search(key, live)
        found = None if chosen is None else search.launcher_of(chosen)
        return launchers[0] if found is None else found

    def _choose(
        self,
        kernel: Any,
        key: str,
        launchers: Sequence[Any],
        args: Sequence[Any],
        kw: Mapping[str, Any],
    ) -> Any:
        """Time *launchers* and return the winner; the first one is the default."""
        offered = {
            winner: launcher
            for launcher in launchers
            if not spills(kernel, launcher) and (winner := winner_of(kernel, launcher.config))
        }
        if not offered:
            return launchers[0]
        own = OwnArguments(kernel, args, kw)
        calls = {winner: call_of(kernel, each, own) for winner, each in offered.items()}
        chosen = self._answers.measure_calls(key, next(iter(calls)), calls)
        return launchers[0] if chosen is None else offered[chosen]


def _unless_chosen(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return *original*, which times launchers, such that a hook's only launcher stays."""

    def autotune(kernel: Any, *args: Any, **kw: Any) -> Any:
        return None if len(kernel.launchers) == 1 else original(kernel, *args, **kw)

    return autotune
