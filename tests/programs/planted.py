"""Run a program while every hook of warmup raises, and print what came of that as the last line.

    python planted.py before|after PROGRAM.py [ARGUMENT...]

The hooks raise ``before`` they do anything, or ``after`` all their work, torch's own included. The
line has the names of all hooks, and how often each was reached and its exception reported.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warmup.inductor.firewall import Firewall

hooks: set[str] = set()
reached: Counter[str] = Counter()
reported: Counter[str] = Counter()


def plant(when: str) -> None:
    """Let every hook that is put in place from now on raise."""
    guard, report = Firewall.guard, Firewall._report

    def guard_faulty(
        self: Firewall, place: str, function: Any, make: Callable[[Any], Any], plain: Any = None
    ) -> Callable[..., Any]:
        hooks.add(place)

        def make_faulty(original: Any) -> Callable[..., Any]:
            hook = make(original)

            def faulty(*args: Any, **kwargs: Any) -> Any:
                reached[place] += 1
                if when == "after":
                    hook(*args, **kwargs)
                raise RuntimeError(f"planted in {place}")

            return faulty

        return guard(self, place, function, make_faulty, plain)

    def count(self: Firewall, place: str, error: Exception) -> None:
        reported[place] += 1
        report(self, place, error)

    Firewall.guard = guard_faulty  # type: ignore[method-assign]  the test's own faults
    Firewall._report = count  # type: ignore[method-assign]  as above


if __name__ == "__main__":
    _, when, program, *arguments = sys.argv
    plant(when)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")
    found = {"hooks": sorted(hooks), "reached": reached, "reported": reported}
    print(f"PLANTED {json.dumps(found)}")  # noqa: T201  the result
