"""What measures beside inductor's benchmarker is seen, and nothing runs that no counter has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_processes import PROGRAMS, Built
from torch._inductor.runtime import triton_heuristics

import warmup
from warmup.core.errors import UncoveredError, warmup_error_in
from warmup.inductor.compile_watch import OnlineTunerWatch
from warmup.inductor.patches import Patches
from warmup.inductor.versions import VERSIONS

RunOnce = Callable[..., tuple[Path, str]]


@pytest.mark.long
def test_the_profiler_sees_no_product_that_default_mode_does_not_run(
    built: Built, run_once: RunOnce, variables: dict[str, str]
) -> None:
    """A compiling call runs as many products as default mode's; max-autotune's runs more."""
    found = {}
    for name, word in (("default",) * 2, ("tuned", "max-autotune"), ("table", str(built[0]))):
        words = (str(PROGRAMS / "watch_launches.py"), word, "cpu")
        found[name] = json.loads(run_once(f"watched-{name}", *words, **variables)[1])
    extra = {name: each["extra"] for name, each in found.items()}
    counted = found["table"]["counted"]
    assert sum(counted["hits"].values()) == 2
    assert counted["misses"] == counted["uncovered"] == {}
    for name, times in extra["table"].items():
        assert times <= extra["default"].get(name, 0), name
    assert sum(extra["tuned"].values()) > sum(extra["default"].values())
    assert sum(found["table"]["once"].values()) >= 2


class Incremental:
    """A plugin of inductor's kernels that would time real calls."""


def test_a_plugin_of_inductors_kernels_is_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plugins(_kernel: object) -> list[Any]:
        return [Incremental()]

    monkeypatch.setattr(triton_heuristics, "get_caching_autotuner_plugins", plugins, raising=False)
    patches, sites = Patches(), list[str]()
    OnlineTunerWatch(VERSIONS[2, 15], sites.append).attach(patches)
    made: Any = triton_heuristics.get_caching_autotuner_plugins
    assert [made(kernel) for kernel in "ab"] == [[], []]
    assert sites == ["plugin:Incremental"]
    patches.restore()
    assert triton_heuristics.get_caching_autotuner_plugins is plugins


def test_tuners_of_torch_that_are_switched_on_are_counted_once_or_refused(
    net: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the two switches of a process that uses a GPU, which this process only seems to do."""
    monkeypatch.setattr("warmup.inductor.compile_watch.tunable.is_enabled", lambda: True)
    monkeypatch.setattr("warmup.inductor.compile_watch.tunable.tuning_is_enabled", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    for is_used, sites in ((False, {}), (True, {"cudnn.benchmark": 1, "TunableOp": 1})):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda is_used=is_used: is_used)
        torch.compiler.reset()
        with warmup.install(net[0], freezing=True) as handle:
            for rows in (3, 5):
                torch.compile(torch.sin, dynamic=False)(torch.randn(rows))
            assert handle.report().uncovered == sites, is_used
    with (
        warmup.install(net[0], uncovered="forbid", freezing=True),
        pytest.raises(Exception, match=r"site cudnn\.benchmark") as caught,
    ):
        torch.compile(torch.cos, dynamic=False)(torch.randn(3))
    assert isinstance(warmup_error_in(caught.value), UncoveredError)
