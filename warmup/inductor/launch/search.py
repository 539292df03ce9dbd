"""`LaunchSearch`: the launch configs that a build tries for one generated Triton kernel.

They come in waves. The first has what inductor lists for the kernel in default mode; the second
what it lists under max-autotune, and a grid; then follow the configs that coordinate descent asks
for, until it asks for no more. Each wave is compiled in inductor's workers, and timed.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Final

from warmup.core.live_search import LiveSearch
from warmup.core.method import Search
from warmup.core.rows import Winner
from warmup.core.search import CandidateSource, SearchCounts
from warmup.core.trial import TimedCall
from warmup.inductor.launch.compiling import CompileConfigs, send_likely
from warmup.inductor.launch.configs import (
    default_list,
    grid_of,
    has_too_small_block,
    listed_by_inductor,
    make_config,
    refusal_reason,
    staged,
    winner_of,
)
from warmup.inductor.launch.kernels import OwnArguments, call_of, spills, written_by

# Of one kernel. Inductor's own lists, some ten configs, are never left out.
MOST_CONFIGS: Final = {CandidateSource.GRID: 48, CandidateSource.DESCENT: 64}
MOST_SECONDS: Final = 60.0  # from the first call until no more configs are compiled


class LaunchSearch:
    """The configs tried for *kernel*, which inductor *offered* some configs, on real arguments.

    *compile_configs* returns a launcher for each config that compiles and loads, or why not. Where
    no config of the lists and the grid takes at most *limit_us*, the search ends with them.
    """

    def __init__(
        self,
        kernel: Any,
        offered: Sequence[Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        compile_configs: CompileConfigs,
        limit_us: float = math.inf,
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
        self._deadline = time.monotonic() + MOST_SECONDS

    def start(self) -> LiveSearch | None:
        """Return the search, with the calls of the configs of default mode; None without any."""
        self._listed, _, _ = self._first_named()
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

    def ahead(self) -> list[Any]:
        """Return the configs of the lists and the grid, which are tried whatever the times are."""
        listed, longer, grid = self._first_named()
        most = MOST_CONFIGS[CandidateSource.GRID]
        return [make_config(one, self._offered) for one in (*listed, *longer, *grid[:most])]

    @property
    def first_failure(self) -> str:
        """Why the first config that was tried does not compile; empty where it does."""
        return next(iter(self._uncompiled.values()), "")

    def launcher_of(self, winner: Winner) -> Any | None:
        """Return the loaded kernel of a config, tried here or not; None if it does not load."""
        if winner not in self._launchers:
            self._calls([winner], source=None)
        return self._launchers.get(winner)

    def _more(self, times_us: Mapping[Winner, float]) -> Mapping[Winner, TimedCall]:
        """Return the calls of the next configs; none when the search is over."""
        if not self._listed_longer:
            _, longer, grid = self._first_named()
            self._listed_longer = [*self._listed, *longer]
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
        best = min(times_us, key=lambda winner: times_us[winner])
        stages = staged(self._kernel, make_config(best, self._offered))
        return self._calls(self._named(stages), CandidateSource.GRID)

    def _send_ahead(self, asked: Sequence[Winner], times_us: Mapping[Winner, float]) -> None:
        """Send *asked* to the workers, and behind it what may be asked for next.

        That is what descent asks for where one of *asked* is the fastest. Most waves have fewer
        configs than there are workers, and each takes as long as its slowest config.
        """
        known = self._launchers.keys() | self._uncompiled.keys()
        new = [winner for winner in asked if winner not in known]
        if not new:
            return
        faster_us = min(times_us.values()) / 2
        next_asked = (self._asked_by_descent({**times_us, one: faster_us}) for one in new)
        ring = dict.fromkeys(chain.from_iterable(zip_longest(*next_asked)))
        likely = [one for one in ring if one is not None and one not in known and one not in new]
        send_likely(
            self._kernel,
            [make_config(one, self._offered) for one in new],
            [make_config(one, self._offered) for one in likely],
        )

    def _first_named(self) -> tuple[list[Winner], list[Winner], list[Winner]]:
        """Return what default mode lists, what inductor lists in any mode, and a grid."""
        listed = default_list(self._kernel, self._offered)
        longer = (*self._offered, *listed_by_inductor(self._kernel, max_autotune=True))
        grid = grid_of(self._kernel, self._offered[0])
        return self._named(listed), self._named(longer), self._named(grid)

    def _asked_by_descent(self, times_us: Mapping[Winner, float]) -> list[Winner]:
        """Return what inductor's coordinate descent would time next.

        It begins at the fastest config of max-autotune's list, as inductor does, and at the fastest
        config of all. Once it asks for nothing, both have ended at a config that was timed.
        """

        def fastest(winners: Iterable[Winner]) -> Winner:
            return min(winners, key=lambda winner: times_us.get(winner, math.inf))

        asked: list[Winner] = []
        for start in dict.fromkeys((fastest(self._listed_longer), fastest(times_us))):
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
        """Return the winners of *configs* that serving can be forced to, once each."""
        winners = []
        for config in configs:
            winner = winner_of(self._kernel, config)
            if winner is None or has_too_small_block(self._kernel, config):
                continue
            if refusal_reason(winner, self._offered) is None:
                winners.append(winner)
        return list(dict.fromkeys(winners))

    def _calls(
        self, winners: Iterable[Winner], source: CandidateSource | None
    ) -> dict[Winner, TimedCall]:
        """Compile the configs of *winners* that were not tried before; return their calls."""
        known = self._launchers.keys() | self._uncompiled.keys()
        new = [winner for winner in dict.fromkeys(winners) if winner not in known]
        if source in MOST_CONFIGS:
            is_late = time.monotonic() > self._deadline
            room = 0 if is_late else max(MOST_CONFIGS[source] - self._sources[source], 0)
            self._left_out.update(new[room:])
            new = new[:room]
        if not new:
            return {}
        configs = [make_config(winner, self._offered) for winner in new]
        results = self._compile(self._kernel, configs)
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
