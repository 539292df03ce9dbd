"""`LaunchConfigs`: the hooks of the row kind ``launch``, for configs of generated Triton kernels.

Inductor compiles every config that its heuristics offer for a pointwise or reduction kernel, and
times them all at the kernel's first call, in every mode (runtime/triton_heuristics.py). Hooks:

- ``AsyncCompile.triton`` sends a kernel's source to a compile worker: the hook adds the row's
  config (``config.autotune_lookup_table``), so that the worker compiles only this config. While
  workers start, inductor compiles kernels in this process, one after the other: at serving the hook
  lets templates, which take seconds each, wait for the workers (``AsyncCompile.use_process_pool``).
- ``CachingAutotuner.precompile`` loads the kernel in this process: the hook drops all configs but
  one and reports the hit or miss. This hook decides; the worker's config only saves time.
- ``CachingAutotuner.autotune_to_one_config`` and ``coordinate_descent_tuning`` measure: in a build
  the hooks record the winner; at serving they choose without measuring.
"""

from __future__ import annotations

import copy
import functools
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Final

from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import (
    CachingAutotuner,
    generate_lookup_hash_from_source_code,
)

from warmup.core.errors import MissReason, ProblemError
from warmup.core.events import Hit, Missed
from warmup.core.rows import CandidateSource, Search, SearchCounts, Winner
from warmup.core.trial import LiveSearch, TimedCall
from warmup.inductor.launch.compiling import (
    CompileConfigs,
    compile_configs,
    forget_configs,
    keep_configs,
    load_row,
    note_search,
    send_ahead,
    send_likely,
)
from warmup.inductor.launch.kernels import (
    OwnArguments,
    ask_at_first_call,
    call_of,
    default_list,
    fixed_config,
    grid_of,
    has_too_small_block,
    is_block,
    is_left_to_inductor,
    is_searchable,
    keep_only_config,
    keep_only_launcher,
    listed_by_inductor,
    make_config,
    named_problem,
    offered_configs,
    problem_of,
    read_kernel,
    refusal_reason,
    spills,
    staged,
    try_load,
    uses_coordinate_descent,
    was_looked_up,
    was_tuned,
    winner_of,
    written_by,
)
from warmup.inductor.listing import backlog
from warmup.inductor.patches import Function, KindHooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.launch import LaunchProblem, unnumbered
from warmup.keys.question import Answers, CallsQuestion, SearchQuestion

# Of one kernel. Inductor's own lists, some ten configs, are never left out.
MOST_CONFIGS: Final = {CandidateSource.GRID: 48, CandidateSource.DESCENT: 64}
MOST_SECONDS: Final = 60.0  # from the first call until no more configs are compiled


class LaunchSearch:
    """The configs tried for *kernel*, which inductor *offered* some configs, on real arguments.

    Where no config of the lists and the grid takes at most *limit_us*, the search ends with them.
    With *fixes_rows* a kernel that reduces has one config, which `fixed_config` says.
    """

    def __init__(
        self,
        kernel: Any,
        offered: Sequence[Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        compile_configs: CompileConfigs,
        limit_us: float = math.inf,
        *,
        fixes_rows: bool = False,
    ) -> None:
        self._kernel, self._offered = kernel, tuple(offered)
        self._compile, self._limit_us = compile_configs, limit_us
        self._arguments = OwnArguments(kernel, args, kwargs)
        self._launchers: dict[Winner, Any] = {}
        self._uncompiled: dict[Winner, str] = {}
        self._sources: Counter[CandidateSource] = Counter()
        self._left_out: set[Winner] = set()
        self._listed: list[Winner] = []
        self._listed_longer: list[Winner] = []
        self._is_staged = self._is_cut = False
        self._fixed = fixed_config(kernel, self._offered[0]) if fixes_rows else None
        self._deadline = time.monotonic() + MOST_SECONDS

    def start(self) -> LiveSearch | None:
        """Return the search, with the calls of the configs of default mode; None without any."""
        note_search(problem_of(self._kernel))
        self._listed, _, _ = self._first_named
        calls = self._calls(self._listed, source=None)
        if not calls:
            return None
        return LiveSearch(
            listed=tuple(winner for winner in self._listed if winner in calls),
            calls=calls,
            more=self._more,
            written=self._written,
            uncompiled=self._uncompiled,
            counts=self._counts,
            is_cut=lambda: self._is_cut,
        )

    @property
    def first_failure(self) -> str:
        return next(iter(self._uncompiled.values()), "")

    def launcher_of(self, winner: Winner) -> Any | None:
        """Return the loaded kernel of a config, tried here or not; None if it does not load."""
        if winner not in self._launchers:
            self._calls([winner], source=None)
        return self._launchers.get(winner)

    def _more(self, times_us: Mapping[Winner, float]) -> Mapping[Winner, TimedCall]:
        if self._fixed is not None:
            return {}
        if not self._listed_longer:
            _, longer, grid = self._first_named
            self._listed_longer = [*self._listed, *longer]
            send_likely(self._kernel, self.first_configs(), ())
            calls = self._calls(self._listed_longer, CandidateSource.LISTED_LONGER)
            if calls := {**calls, **self._calls(grid, CandidateSource.GRID)}:
                return calls
        if min(times_us.values()) > self._limit_us:
            self._is_cut = True
            return {}
        asked = self._asked_by_descent(times_us)
        self._send_ahead(asked, times_us)
        if calls := self._calls(asked, CandidateSource.DESCENT):
            return calls
        if self._is_staged:
            return {}
        self._is_staged = True
        return self._calls(self._more_stages(times_us), CandidateSource.GRID)

    def _more_stages(self, times_us: Mapping[Winner, float]) -> list[Winner]:
        best = min(times_us, key=lambda winner: times_us[winner])
        return self._named(staged(self._kernel, make_config(best, self._offered)))

    def _send_ahead(self, asked: Sequence[Winner], times_us: Mapping[Winner, float]) -> None:
        # Those depend on whether a config of *asked* is fastest: both lists are sent. Most waves
        # have fewer configs than there are workers, and each takes as long as its slowest.
        known = self._launchers.keys() | self._uncompiled.keys()
        new = [winner for winner in asked if winner not in known]

        def likely() -> Iterator[Any]:
            faster_us = min(times_us.values()) / 2
            descents = (self._asked_by_descent({**times_us, one: faster_us}) for one in new)
            stages = [] if self._is_staged else self._more_stages(times_us)
            ring = dict.fromkeys(chain.from_iterable(zip_longest(stages, *descents)))
            yield from self._configs(one for one in ring if one and one not in {*known, *new})

        send_likely(self._kernel, self._configs(new), likely())

    def first_configs(self) -> list[Any]:
        """Return the configs of the lists and the grid that are tried before any descent."""
        listed, longer, grid = self._first_named
        lists = dict.fromkeys((*listed, *longer))
        new = [winner for winner in grid if winner not in lists]
        return self._configs((*lists, *new[: MOST_CONFIGS.get(CandidateSource.GRID)]))

    @functools.cached_property
    def _first_named(self) -> tuple[list[Winner], list[Winner], list[Winner]]:
        """What default mode lists, what inductor lists in any mode, and a grid."""
        if self._fixed is not None:
            return self._named([self._fixed]), [], []
        listed = default_list(self._kernel, self._offered)
        longer = (*self._offered, *listed_by_inductor(self._kernel, max_autotune=True))
        grid = grid_of(self._kernel, self._offered[0])
        return self._named(listed), self._named(longer), self._named(grid)

    def _asked_by_descent(self, times_us: Mapping[Winner, float]) -> list[Winner]:
        # It begins at the fastest config of max-autotune's list, as inductor does, and at the
        # fastest of all; both have ended once it asks for nothing.
        asked: list[Winner] = []
        lists: tuple[Iterable[Winner], ...] = self._listed_longer, times_us
        starts = (min(one, key=lambda each: times_us.get(each, math.inf)) for one in lists)
        for start in dict.fromkeys(starts):
            configs: list[Any] = []
            tuner = copy.copy(self._kernel.coordesc_tuner)
            tuner.cached_benchmark_results = {}

            def time_of(config: Any, configs: list[Any] = configs) -> float:
                winner = winner_of(self._kernel, config)
                if winner is not None and winner in times_us:
                    return times_us[winner]
                configs.append(copy.deepcopy(config))
                return math.inf

            if math.isfinite(times_us.get(start, math.inf)):
                tuner.autotune(time_of, make_config(start, self._offered))
            asked += self._named(configs)
        return asked

    def _named(self, configs: Iterable[Any]) -> list[Winner]:
        roomy = (one for one in configs if not has_too_small_block(self._kernel, one))
        winners = filter(None, (winner_of(self._kernel, one) for one in roomy))
        forced = (one for one in winners if refusal_reason(one, self._offered) is None)
        return list(dict.fromkeys(forced))

    def _calls(
        self, winners: Iterable[Winner], source: CandidateSource | None
    ) -> dict[Winner, TimedCall]:
        known = self._launchers.keys() | self._uncompiled.keys()
        new = [winner for winner in dict.fromkeys(winners) if winner not in known]
        if source in MOST_CONFIGS:
            is_late = time.monotonic() > self._deadline
            room = 0 if is_late else max(MOST_CONFIGS[source] - self._sources[source], 0)
            self._left_out.update(new[room:])
            new = new[:room]
        if not new:
            return {}
        results = self._compile(self._kernel, self._configs(new))
        calls = {}
        for winner, result in zip(new, results, strict=True):
            if isinstance(result, str):
                self._uncompiled[winner] = result
            else:
                self._launchers[winner] = result
                calls[winner] = call_of(self._kernel, result, self._arguments)
        if source is not None:
            self._sources[source] += len(new)
        return calls

    def _configs(self, winners: Iterable[Winner]) -> list[Any]:
        return [make_config(winner, self._offered) for winner in winners]

    def _written(self, winner: Winner) -> list[Any]:
        call = call_of(self._kernel, self._launchers[winner], self._arguments)
        return written_by(call, self._arguments)

    def _counts(self) -> SearchCounts:
        tried = self._launchers.keys() | self._uncompiled.keys()
        return SearchCounts(
            search=Search.DEFAULT,
            listed=len(tried & set(self._listed)),
            added=tuple(sorted(self._sources.items())),
            spilling=sum(spills(self._kernel, one) for one in self._launchers.values()),
            left_out=len(self._left_out - tried),
        )


_REJECTED: Final = MissReason.CHOICE_REJECTED
_TEMPLATE: Final = "@triton_heuristics.template("
_BLOCK_ARGUMENT = re.compile(r"(\w+)\s*:\s*tl\.constexpr")


class LaunchConfigs(KindHooks):
    """Answers launch configs from *answers* while attached."""

    def __init__(self, version: Version, answers: Answers) -> None:
        super().__init__(version, answers)
        self._measures = self._settings.measures and self._settings.times_kernels
        self._touched: set[str] = set()
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        if self._measures:
            keep_configs()
            patches.on_restore(forget_configs)
        patches.hook(AsyncCompile, "triton", self._submit)
        if not self._settings.measures:
            patches.hook(AsyncCompile, "use_process_pool", self._use_process_pool)
        patches.hook(CachingAutotuner, "precompile", self._precompile)
        patches.hook(CachingAutotuner, "autotune_to_one_config", self._autotune, _unless_chosen)
        patches.hook(CachingAutotuner, "coordinate_descent_tuning", self._coordinate_descent_tuning)

    def _deactivate(self) -> None:
        super()._deactivate()
        # A loaded kernel keeps its config; when loaded again, it starts from inductor's configs.
        for file in tuple(self._touched):
            PyCodeCache.modules_no_attr.pop(file, None)

    def _handles(self, kernel: Any) -> bool:
        is_users = kernel.heuristic_type is HeuristicType.USER_AUTOTUNE  # of another row kind
        if not self._active or is_users or is_left_to_inductor(kernel):
            return False
        if kernel.filename is not None:
            self._touched.add(kernel.filename)
        return True

    def _use_process_pool(self, original: Function, compiler: Any) -> bool:
        is_ready: bool = original(compiler)
        waits = self._active and getattr(self._local, "waits", False)
        return is_ready or (waits and compiler._ready_future is not None)

    def _submit(
        self,
        original: Function,
        compiler: Any,
        kernel_name: str,
        source_code: str,
        *args: Any,
        **kw: Any,
    ) -> Any:
        if _TEMPLATE in source_code:
            self._local.waits = True
            try:
                return original(compiler, kernel_name, source_code, *args, **kw)
            finally:
                self._local.waits = False
        # Without workers the entry would hide inductor's other configs from `precompile`.
        uses_worker = self._active and compiler.use_process_pool()
        entry = self._lookup_entry(kernel_name, source_code) if uses_worker else {}
        if not entry:
            return original(compiler, kernel_name, source_code, *args, **kw)
        table = {**inductor_config.autotune_lookup_table, **entry}
        with inductor_config.patch({"autotune_lookup_table": table}):
            return original(compiler, kernel_name, source_code, *args, **kw)

    def _lookup_entry(self, kernel_name: str, source_code: str) -> dict[str, dict[str, Any]]:
        # Before torch 2.15 that table drops everything but block sizes: other rows are left to
        # `precompile`.
        try:
            read = read_kernel(kernel_name, source_code)
            answer = None if read is None else self._answers.find(read[0])
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
        entry = {generate_lookup_hash_from_source_code(sizes, code): kwargs}
        return {} if refusal_reason(answer, None) else entry

    def _precompile(self, original: Function, kernel: Any, *args: Any, **kw: Any) -> Any:
        proceed = functools.partial(original, kernel, *args, **kw)
        only_warms_cache = args[0] if args else kw.get("warm_cache_only", False)
        if not self._handles(kernel) or only_warms_cache:
            return proceed()
        offered = offered_configs(kernel)
        problem, answer = self._look_up(kernel)
        if isinstance(answer, Winner):
            reload_kernel = kw.get("reload_kernel", args[1] if len(args) > 1 else None)
            refused = refusal_reason(answer, offered)
            if refused is None:
                keep_only_config(kernel, make_config(answer, offered), reload_kernel)
                if try_load(proceed):
                    self._report_hit(problem, answer)
                    return None
                refused = _REJECTED
                if reload_kernel is not None:  # the worker compiled the row's config only
                    offered = offered_configs(reload_kernel())
            answer = refused
        if self._measures:
            done = proceed()
            ask_at_first_call(kernel)
            if problem is not None and "launch" in self._settings.searched:
                search = self._search_of(kernel, offered, (), {})
                send_ahead(kernel, problem, search.first_configs)
            return done
        if len(offered) == 1 and not self._is_decision(kernel):
            return proceed()
        self._report_miss(kernel, problem, answer, offered[0])
        return self._compile_first(kernel, offered, proceed)

    def _look_up(self, kernel: Any) -> tuple[LaunchProblem | None, Winner | MissReason]:
        problem = problem_of(kernel)
        if problem is None:
            return None, MissReason.NOT_DESCRIBED
        return problem, self._answers.find(problem)

    def _report_hit(self, problem: LaunchProblem | None, winner: Winner) -> None:
        assert problem is not None
        self._answers.emit(Hit(problem.key, str(winner)))

    def _report_miss(
        self, kernel: Any, problem: LaunchProblem | None, reason: MissReason, config: Any
    ) -> None:
        key, choice = named_problem(problem, kernel).key, str(winner_of(kernel, config))
        self._answers.emit(Missed(key, reason, choice))

    def _is_decision(self, kernel: Any) -> bool:
        is_searched = "launch" in self._settings.searched and is_searchable(kernel)
        return is_searched or was_tuned(kernel) or uses_coordinate_descent(kernel)

    def _compile_first(self, kernel: Any, offered: Any, proceed: Callable[[], Any]) -> Any:
        for config in offered[:-1]:
            keep_only_config(kernel, config, None)
            if try_load(proceed):
                return None
        keep_only_config(kernel, offered[-1], None)
        return proceed()

    def _autotune(self, original: Function, kernel: Any, *args: Any, **kw: Any) -> Any:
        if not self._handles(kernel):
            return original(kernel, *args, **kw)
        offered = offered_configs(kernel)
        problem, answer = self._look_up(kernel)
        # Tuned for a kernel with the same key, or compiled before.
        if isinstance(answer, Winner):
            launcher = load_row(kernel, answer, offered)
            if launcher is not None:
                kernel.launchers = [launcher]
                self._report_hit(problem, answer)
                return None
            answer = _REJECTED
        if self._measures and problem is not None:
            choose = self._search if is_searchable(kernel) else self._choose
            keep_only_launcher(kernel, choose(kernel, problem, kernel.launchers, args, kw))
            return None
        if self._measures:
            return original(kernel, *args, **kw)
        kernel.launchers = kernel.launchers[:1]
        self._report_miss(kernel, problem, answer, kernel.launchers[0].config)
        return None

    def _coordinate_descent_tuning(
        self, original: Function, kernel: Any, launcher: Any, *args: Any, **kw: Any
    ) -> Any:
        if not self._handles(kernel) or not uses_coordinate_descent(kernel):
            return original(kernel, launcher, *args, **kw)
        problem, answer = self._look_up(kernel)
        if self._measures and not isinstance(answer, Winner):
            if problem is None:
                return original(kernel, launcher, *args, **kw)
            if not was_looked_up(kernel):  # else the search was done, or gave no row
                launcher = self._search(kernel, problem, [launcher], args, kw)
        elif not was_looked_up(kernel):  # compiled before attaching: report its hit or miss now
            row = answer if isinstance(answer, Winner) else None
            forced = None if row is None else load_row(kernel, row, offered_configs(kernel))
            if row is not None and forced is not None:
                launcher = forced
                self._report_hit(problem, row)
            else:
                reason = _REJECTED if isinstance(answer, Winner) else answer
                self._report_miss(kernel, problem, reason, launcher.config)
        launcher.config.found_by_coordesc = True  # else inductor tunes again at every call
        return launcher

    def _search(
        self, kernel: Any, problem: LaunchProblem, launchers: Sequence[Any], args: Any, kw: Any
    ) -> Any:
        search = self._search_of(kernel, offered_configs(kernel), args, kw)
        live = search.start()
        chosen = None if live is None else self._answers.measure(SearchQuestion(problem, live))
        found = None if chosen is None else search.launcher_of(chosen)
        backlog.drop(until=kernel.filename)
        return launchers[0] if found is None else found

    def _search_of(self, kernel: Any, offered: Sequence[Any], args: Any, kw: Any) -> LaunchSearch:
        fixes = self._settings.fixes_rows
        return LaunchSearch(kernel, offered, args, kw, compile_configs, fixes_rows=fixes)

    def _choose(
        self, kernel: Any, problem: LaunchProblem, launchers: Sequence[Any], args: Any, kw: Any
    ) -> Any:
        offered = {
            winner: launcher
            for launcher in launchers
            if not spills(kernel, launcher) and (winner := winner_of(kernel, launcher.config))
        }
        if not offered:
            return launchers[0]
        own = OwnArguments(kernel, args, kw)
        calls = {winner: call_of(kernel, each, own) for winner, each in offered.items()}
        chosen = self._answers.measure(CallsQuestion(problem, next(iter(calls)), calls))
        return launchers[0] if chosen is None else offered[chosen]


def count_launches(call: Callable[[], object]) -> Counter[str]:
    """Return how often *call*, compiled before, launches each kernel, named without its number."""
    counts = Counter[str]()

    def count(original: Function, kernel: Any, *args: Any, **kw: Any) -> Any:
        counts[unnumbered(kernel.fn.__name__)] += 1
        return original(kernel, *args, **kw)

    with Patches() as patches:
        patches.hook(CachingAutotuner, "run", count)
        call()
    return counts


def _unless_chosen(original: Function, kernel: Any, *args: Any, **kw: Any) -> Any:
    return None if len(kernel.launchers) == 1 else original(kernel, *args, **kw)
