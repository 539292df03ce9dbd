"""What the wide search misses of the exhaustive search, for GEMMs that were measured in both.

    python search_regret.py WIDE.jsonl.gz EXHAUSTIVE.jsonl.gz OUT.json

The times of each problem are those of the exhaustive build alone, so that one build's noise is not
compared with another's: the regret of the wide search is the time of the fastest candidate that it
tries too, over that of the fastest of all. Candidates are timed without what is fused into them.
OUT has for each problem its key, its model, how many candidates either search timed, the fastest of
each with their times in us, and the library's; times that scatter count nowhere. Its summary is
that of all problems, of those with at most 16 rows, and of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from driver import say, write
from predicted_problems import rows_of

from warmup.core.json_node import Node
from warmup.core.rows import Family
from warmup.core.samples import geomean
from warmup.prediction.timing_lines import TimedProblem, candidates_of, read_lines, read_timings

FEW_ROWS = 16


def main(wide: str, exhaustive: str, out: str) -> None:
    """Compare both searches at each problem of the exhaustive one, and write what came of it."""
    tried = dict(read_lines([wide], "gemm", choices_of))
    searched = [one for one in read_timings([exhaustive]) if one.key in tried]
    problems = [regret_of(one, tried[one.key]) for one in searched]
    problems.sort(key=lambda problem: -problem["regret"])
    on = searched[0].on
    assert on is not None
    few = [problem for problem in problems if rows_of(problem["key"]) <= FEW_ROWS]
    summary = {
        **summary_of(problems),
        "few_rows": summary_of(few),
        "more_rows": summary_of([problem for problem in problems if problem not in few]),
    }
    say(summary)
    origin = {"device": on.device, "torch": on.torch, "triton": on.triton}
    write(Path(out), {**origin, "method": searched[0].method, **summary, "by_problem": problems})


def summary_of(problems: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the regrets of *problems*: of the wide search, and of the library alone."""
    regrets = [problem["regret"] for problem in problems]
    if not regrets:
        return {"problems": 0}
    return {
        "problems": len(problems),
        "without_regret": regrets.count(1.0),
        "regret": {"geometric_mean": round(geomean(regrets), 4), "worst": max(regrets)},
        "library": round(geomean([problem["library_regret"] for problem in problems]), 4),
    }


def choices_of(key: str, members: Mapping[str, Node]) -> tuple[str, frozenset[str]]:
    """Return the key of a line and all choices that its search tried, timed or not."""
    return key, frozenset(one["choice"].string() for one in candidates_of(members, "choice"))


def regret_of(timed: TimedProblem, in_wide: Collection[str]) -> dict[str, Any]:
    """Return what the search with the candidates *in_wide* misses at the problem *timed*."""
    times = timed.times_us
    fastest = min(times, key=times.__getitem__)
    of_wide = min((one for one in times if str(one) in in_wide), key=times.__getitem__)
    library_us = min(times[one] for one in times if one.family is Family.EXTERN)
    return {
        "key": timed.key,
        "source": timed.source,
        "timed": len(times),
        "timed_in_wide": sum(str(one) in in_wide for one in times),
        "fastest": fastest.short,
        "fastest_us": times[fastest],
        "fastest_in_wide": of_wide.short,
        "fastest_in_wide_us": times[of_wide],
        "library_us": library_us,
        "regret": round(times[of_wide] / times[fastest], 4),
        "library_regret": round(library_us / times[fastest], 4),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
