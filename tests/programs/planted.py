"""Run a program while every hook of warmup raises, and print what came of that as the last line.

    python planted.py before|after|given PROGRAM.py [ARGUMENT...]

The hooks raise ``before`` they do anything, or ``after`` all their work, torch's own included; with
``given`` what they give to torch to call raises, and no hook does. PROGRAM ``warmup`` is the
command. The line has the names of all hooks, and how often each was reached and its exception
reported. A hook's name is that of torch's function, and of the method of warmup that makes it.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warmup.inductor.patches import Firewall

hooks: set[str] = set()
reached: Counter[str] = Counter()
reported: Counter[str] = Counter()


def plant(when: str) -> None:
    """Let every hook that is put in place from now on raise."""
    guard, attempt, report = Firewall.guard, Firewall.attempt, Firewall._report

    def guard_faulty(
        self: Firewall, place: str, function: Any, make: Callable[[Any], Any], plain: Any = None
    ) -> Callable[..., Any]:
        name = f"{place} {make.__qualname__}"
        hooks.add(name)

        def make_faulty(original: Any) -> Callable[..., Any]:
            hook = make(original)

            def faulty(*args: Any, **kwargs: Any) -> Any:
                if when == "given":
                    return hook(*args, **kwargs)
                if when == "after":
                    hook(*args, **kwargs)
                reached[name] += 1
                raise RuntimeError(f"planted in {place}")

            return faulty

        return guard(self, name, function, make_faulty, plain)

    def attempt_faulty(self: Firewall, place: str, call: Any, instead: Any) -> Any:
        hooks.add(place)

        def faulty() -> Any:
            if when == "after":
                call()
            reached[place] += 1
            raise RuntimeError(f"planted in {place}")

        return attempt(self, place, faulty, instead)

    def count(self: Firewall, place: str, error: Exception) -> None:
        reported[place] += 1
        report(self, place, error)

    Firewall.guard = guard_faulty  # type: ignore[method-assign]  the test's own faults
    Firewall.attempt = attempt_faulty  # type: ignore[method-assign]  as above
    Firewall._report = count  # type: ignore[method-assign]  as above


def state_times() -> None:
    """Let torch's own measurements, which follow a fault in a build, take no device and no time."""
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    own: Any = AlgorithmSelectorCache.make_benchmark_fn

    @functools.wraps(own.__func__)
    def make_benchmark_fn(*_args: Any, **_kwargs: Any) -> Callable[[list[Any]], dict[Any, float]]:
        return lambda choices: dict.fromkeys(choices, 1.0)

    AlgorithmSelectorCache.make_benchmark_fn = classmethod(make_benchmark_fn)
    pad_mm.get_do_bench = lambda: lambda _call: 1.0


def main() -> None:
    _, when, program, *arguments = sys.argv
    state_times()
    plant(when)
    sys.argv = [program, *arguments]
    if program == "warmup":
        try:
            runpy.run_module("warmup", run_name="__main__", alter_sys=True)
        except SystemExit as error:
            reached[f"exit code {error.code}"] = reported[f"exit code {error.code}"] = 1
    else:
        sys.path.insert(0, str(Path(program).parent))
        runpy.run_path(program, run_name="__main__")
    found = {"hooks": sorted(hooks), "reached": reached, "reported": reported}
    print(f"PLANTED {json.dumps(found)}")  # noqa: T201  the result


if __name__ == "__main__":
    main()
