"""Every hook raises: a compile goes on as torch alone would, and each exception is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from own_processes import PROGRAMS, ROOT, environment, python_in

WHEN = ("before", "after")
NORM: dict[str, Any] = {"case": "layer norm", "way": "looped"}
# Programs that lower for a GPU, serving and in a build: their cases.
LOWERED: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    (
        "cuda_selections.py",
        (
            {"case": "dilated"},  # without a hook that works, torch itself measures the others
            {"case": "narrow", "on_miss": "tune", "tile": {"BLOCK_M": 128}},
            {"case": "experts", "on_miss": "tune", "tile": {"BLOCK_M": 64}},
        ),
    ),
    ("cuda_reductions.py", ({**NORM, "on_miss": "fallback"},)),
    ("cuda_padding.py", ({"mode": "tune"}, {"mode": "fallback"})),
    ("cuda_ahead.py", ({"ahead": True},)),
    ("cuda_user_kernels.py", ({"where": "outside", "on_miss": "fallback"},)),
    ("cuda_kernels.py", ({"scenario": "unanswered"}, {"scenario": "descending"})),
)
# Hooks that no compile here reaches; tests/inductor/test_firewall.py calls each hook by itself.
# A graph with frozen weights is not loaded from a cache, and nothing is timed on a device here.
UNREACHED = {"FxGraphCache.cache_hit_post_compile CachedGraphs._cache_hit_post_compile"}
OF_A_DEVICE = "BenchmarkWatch._wrap"

pytestmark = pytest.mark.nightly


def planted_in(said: str) -> dict[str, Any]:
    """Return what a program printed of its planted faults, each of which was reported."""
    # Those of outer hooks are not where strict serving refuses the first inner one.
    found: dict[str, Any] = json.loads(said.partition("PLANTED ")[2])
    assert found.get("refused") or found["reached"].keys() == found["reported"].keys()
    return found


def errors_in(results: Any) -> list[str]:
    """Return every error in the *results* of a program that is no refusal of strict serving."""
    if isinstance(results, Mapping):
        error = results.get("error")
        own = [error] if error and not error.startswith("MissError") else []
        return [*own, *(error for value in results.values() for error in errors_in(value))]
    return []


@pytest.fixture(scope="module")
def reached() -> dict[str, set[str]]:
    """The hooks that the tests of this file have put in place, and those that raised."""
    return {"hooks": set(), "reached": set()}


def note(reached: dict[str, set[str]], found: Mapping[str, Iterable[str]]) -> None:
    for name, names in reached.items():
        names.update(found[name])


@pytest.mark.parametrize("when", WHEN)
def test_an_exception_of_a_hook_is_a_counted_miss(
    when: str, built: tuple[Path, Any], tmp_path: Path, reached: dict[str, set[str]]
) -> None:
    """Each hook that is reached is a miss ``internal``, and the output is right."""
    words = (str(PROGRAMS / "plant_faults.py"), str(built[0]), when)
    found = planted_in(python_in(tmp_path, *words, "fallback", cwd=ROOT).stdout)
    note(reached, found)
    assert len(found["reached"]) > 5
    assert found["misses"]["internal"] == sum(found["reached"].values())
    assert found["refused"] is None
    assert found["error"] < 1e-5
    refused = planted_in(python_in(tmp_path, *words, "strict", cwd=ROOT).stdout)["refused"]
    assert "MissError: no row answers `hook " in refused
    assert "the table has no row" not in refused


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("lowered", LOWERED, ids=[program for program, *_ in LOWERED])
def test_the_hooks_of_a_gpu_raise(
    lowered: tuple[str, tuple[dict[str, Any], ...]],
    when: str,
    tmp_path: Path,
    reached: dict[str, set[str]],
) -> None:
    """The code of kernels is generated all the same, and their configs are loaded."""
    program, cases = lowered
    caches = {name: str(tmp_path) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    words = (str(PROGRAMS / "planted.py"), when, str(PROGRAMS / program))
    done = subprocess.run(
        [sys.executable, *words],
        input="\n".join(map(json.dumps, cases)),
        env={**environment(), **caches},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    note(reached, planted_in(done.stdout))
    lines = done.stdout.partition("PLANTED ")[0].splitlines()
    results = [json.loads(line) for line in lines if line.startswith("{")]
    assert results
    assert [error for one in results for error in errors_in(one)] == []


def test_a_build_whose_measurements_raise_says_so(
    tmp_path: Path, reached: dict[str, set[str]]
) -> None:
    """What is given to torch raises: each choice is torch's, and no cause is made up."""
    model = ("--model", str(ROOT / "examples" / "mlp.py"), "--seqlens", "16")
    words = ("given", "warmup", "build", *model, "--device", "cpu", "--out", "mlp.json")
    done = python_in(tmp_path, str(PROGRAMS / "planted.py"), *words)
    found = planted_in(done.stdout)
    note(reached, found)
    assert "exit code 3" in found["reached"], done.stderr[-4000:]
    assert "error: no row could be measured in any bucket: hook Algorithm" in done.stderr
    assert "report it, with the traceback that WARMUP_DEBUG=1 prints" in done.stderr


def test_every_hook_was_reached(reached: dict[str, set[str]]) -> None:
    """By the tests above, which must have run: a new hook needs a compile that reaches it."""
    assert len(reached["hooks"]) > 40, "run the whole file"
    left = sorted(reached["hooks"] - reached["reached"] - UNREACHED)
    assert [name for name in left if not name.endswith(OF_A_DEVICE)] == []
