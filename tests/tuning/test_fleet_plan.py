"""The problems of a fleet: each once, in the order of the expected gain."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from warmup.diagnostics.misses import MissedProblem
from warmup.tuning.cluster.fleet_file import Fleet, FleetModel
from warmup.tuning.cluster.fleet_plan import merged, plan_fleet
from warmup.tuning.devices.runner import RunnerLostError
from warmup.tuning.missed_keys import missed_keys

MakeKey = Callable[..., str]


def _missed(key: str, count: int = 1, **changes: Any) -> MissedProblem:
    return MissedProblem(key, "gemm", changes.pop("reason", "not_in_table"), count, **changes)


def test_a_problem_of_several_models_is_tuned_once(make_key: MakeKey) -> None:
    """All askings count, and the key is there once."""
    plan = merged([(_missed(make_key()), 1.0), (_missed(make_key()), 1.0)])
    assert (plan.keys, plan.asked, len(plan.problems)) == ((make_key(),), 2, 1)


def test_what_takes_longest_in_all_calls_comes_first(make_key: MakeKey) -> None:
    """A large matmul stands before a small one, unless the small one is called often enough."""
    small, large = make_key(256), make_key(4096)
    assert merged([(_missed(small), 1.0), (_missed(large), 1.0)]).keys == (large, small)
    assert merged([(_missed(small), 100.0), (_missed(large), 1.0)]).keys == (small, large)
    assert merged([(_missed(small, 100), 1.0), (_missed(large), 1.0)]).keys == (small, large)


def test_stale_rows_are_kept(make_key: MakeKey) -> None:
    """A key that one model finds stale, and another asks for without a row, is stale."""
    stale = _missed(make_key(), reason="untrusted")
    problems = merged([(_missed(make_key()), 1.0), (stale, 1.0)]).problems
    assert missed_keys(problems) == {make_key(): True}


class _Device:
    """A device that answers with stored plans, and is lost as often as it is told."""

    def __init__(self, answers: dict[str, Any], losses: int = 0) -> None:
        self.answers, self.losses = answers, losses
        self.asked: list[Sequence[str]] = []

    def plan(self, archive: bytes, words: Sequence[str], is_stopped: object) -> dict[str, Any]:
        self.asked.append(words)
        if len(self.asked) <= self.losses:
            raise RunnerLostError("was lost")
        return dict(self.answers[words[0]])


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Two models, of which the second is called five times as often."""
    models = (
        FleetModel(model="a.py", options=("--seqlens", "8")),
        FleetModel(model="b.py", options=(), weight=5.0),
    )
    return Fleet(folder=tmp_path, models=models)


def _plan(fleet: Fleet, *devices: _Device) -> Any:
    remotes: Any = devices
    return plan_fleet(fleet, remotes, ["--mode", "max-autotune"])


def test_each_model_is_planned_on_a_device(fleet: Fleet, make_key: MakeKey) -> None:
    """A bucket asks once for each of its keys, with the weight of its model."""
    bucket = {"missing": [make_key(256), make_key(272)]}
    other = {"missing": [make_key(256)]}
    device = _Device({"a.py": {"buckets": [bucket]}, "b.py": {"buckets": [other]}})
    plan = _plan(fleet, device)
    assert plan.keys == (make_key(256), make_key(272))
    assert (plan.asked, plan.not_planned) == (3, {})
    assert device.asked[0] == ["a.py", "--seqlens", "8", "--mode", "max-autotune"]


def test_a_model_that_cannot_be_compiled_is_named(fleet: Fleet, make_key: MakeKey) -> None:
    """The others are planned all the same."""
    bucket = {"missing": [make_key()]}
    plan = _plan(
        fleet, _Device({"a.py": {"failed": "no such file"}, "b.py": {"buckets": [bucket]}})
    )
    assert plan.keys == (make_key(),)
    assert plan.not_planned == {"a.py --seqlens 8": "no such file"}


@pytest.mark.parametrize(("losses", "lost"), [(1, []), (3, ["a.py --seqlens 8"])])
def test_a_plan_whose_device_is_lost_is_made_once_more(
    fleet: Fleet, make_key: MakeKey, losses: int, lost: list[str]
) -> None:
    """The second loss with a model is the last."""
    bucket = {"missing": [make_key()]}
    answers = {name: {"buckets": [bucket]} for name in ("a.py", "b.py")}
    plan = _plan(fleet, _Device(answers, losses))
    assert list(plan.not_planned) == lost
    assert plan.keys == (make_key(),)


class _SlowDevice(_Device):
    """A device that plans more slowly than another one fails."""

    def plan(self, archive: bytes, words: Sequence[str], is_stopped: object) -> dict[str, Any]:
        time.sleep(0.02)
        return super().plan(archive, words, is_stopped)


def test_a_device_that_always_fails_costs_no_model(tmp_path: Path, make_key: MakeKey) -> None:
    """It takes a single model, which another device plans with all the rest."""
    names = [f"{letter}.py" for letter in "abcdefgh"]
    models = tuple(FleetModel(model=name, options=()) for name in names)
    bucket = {"missing": [make_key()]}
    answers = {name: {"buckets": [bucket]} for name in names}
    dead, alive = _Device(answers, losses=100), _SlowDevice(answers)
    plan = _plan(Fleet(folder=tmp_path, models=models), dead, alive)
    assert (plan.not_planned, plan.asked) == ({}, 8)
    assert (len(dead.asked), len(alive.asked)) == (1, 8)


def test_a_model_that_was_lost_last_is_planned_by_a_device_that_waits(
    tmp_path: Path, make_key: MakeKey
) -> None:
    """A device without further models waits for those that others still plan."""
    models = (FleetModel(model="a.py", options=()),)
    answers = {"a.py": {"buckets": [{"missing": [make_key()]}]}}
    devices = [_SlowDevice(answers, losses=1), _Device(answers)]
    plan = _plan(Fleet(folder=tmp_path, models=models), *devices)
    assert (plan.not_planned, plan.keys) == ({}, (make_key(),))
