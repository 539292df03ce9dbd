"""`plan_fleet`: the distinct problems of all models of a fleet, the largest expected gain first."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from warmup.core.miss_reasons import MissReason
from warmup.diagnostics.misses import MissedProblem
from warmup.keys.registry import kind_of, work_of
from warmup.tuning.cluster.fleet_file import Fleet, FleetModel
from warmup.tuning.cluster.ray_runner import RemoteDevice
from warmup.tuning.devices.runner import RunnerLostError

_FLOPS_PER_BYTE: Final = 200.0  # near what GPUs for servers do in 16 bits; it orders, no more
_MOST_PLANS: Final = 2
_PlanAnswer = tuple[FleetModel, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """What the models of a fleet ask for.

    ``keys`` are those of the distinct ``problems``, in the order in which they are tuned; a key may
    have several problems, by reason. ``asked`` counts all that was asked
    for. ``with_model`` are the keys that cannot be rebuilt without their model, and
    ``not_planned`` has, by model, why nothing is known of it.
    """

    keys: tuple[str, ...]
    problems: tuple[MissedProblem, ...]
    asked: int
    with_model: tuple[str, ...] = ()
    not_planned: dict[str, str] = field(default_factory=dict)


def plan_fleet(fleet: Fleet, remotes: Sequence[RemoteDevice], shared: Sequence[str]) -> FleetPlan:
    """Return the problems of *fleet*; each of its models is compiled on one of *remotes* for that.

    Nothing is measured. *shared* are options of `warmup build` for all models. A model whose
    device was lost is planned once more.
    """
    asked: list[tuple[MissedProblem, float]] = list(fleet.missed)
    not_planned: dict[str, str] = {}
    for model, answer in _answers(fleet, remotes, shared):
        if "failed" in answer:
            not_planned[f"{model.model} {' '.join(model.options)}"] = answer["failed"]
            continue
        for bucket in answer["buckets"]:
            asked += [(_problem(key), model.weight) for key in bucket["missing"]]
    return merged(asked, not_planned)


def _answers(
    fleet: Fleet, remotes: Sequence[RemoteDevice], shared: Sequence[str]
) -> list[_PlanAnswer]:
    """Return what the devices answer for each model of *fleet*, in the order of the answers."""
    if not fleet.models:
        return []
    archive, is_over = fleet.archive(), threading.Event()
    waiting = _WaitingModels(fleet.models, remotes)

    def plan_on(remote: RemoteDevice) -> list[_PlanAnswer]:
        done: list[_PlanAnswer] = []
        while (model := waiting.take(remote)) is not None:
            words, reason = [model.model, *model.options, *shared], None
            try:
                done.append((model, remote.plan(archive, words, is_over.is_set)))
            except RunnerLostError as lost:
                reason = f"its device {lost}"
            finally:
                is_last = waiting.give_back(remote, model, is_lost=reason is not None)
            if reason is not None and is_last:
                done.append((model, {"failed": reason}))
        return done

    with ThreadPoolExecutor(len(remotes)) as pool:
        try:
            return [each for done in pool.map(plan_on, remotes) for each in done]
        finally:
            is_over.set()  # before the pool waits for calls of an interrupted build


class _WaitingModels:
    """The models that wait to be planned, for the threads of all remotes.

    A remote that lost a model takes no further one while another is left: where it cannot work at
    all it fails at once, and would take every model that the others are too slow for.
    """

    def __init__(self, models: Iterable[FleetModel], remotes: Iterable[RemoteDevice]) -> None:
        self._waiting = [(model, 1) for model in models]
        self._under_way: dict[int, int] = {}  # tries, by the remote's id
        self._left = {id(remote) for remote in remotes}
        self._changed = threading.Condition()

    def take(self, remote: RemoteDevice) -> FleetModel | None:
        """Return the next model for *remote*; None where there is none for it, now or later."""
        with self._changed:
            while id(remote) in self._left or not self._left:
                if self._waiting:
                    model, self._under_way[id(remote)] = self._waiting.pop(0)
                    return model
                if not self._under_way:
                    return None
                self._changed.wait()  # another remote may lose what it plans
            return None

    def give_back(self, remote: RemoteDevice, model: FleetModel, *, is_lost: bool) -> bool:
        """Note that *remote* is done with *model*, or lost it; return whether it waits no more."""
        with self._changed:
            tries = self._under_way.pop(id(remote))
            is_again = is_lost and tries < _MOST_PLANS
            if is_lost:
                self._left.discard(id(remote))
            if is_again:
                self._waiting.append((model, tries + 1))
            self._changed.notify_all()
            return not is_again


def merged(
    asked: Iterable[tuple[MissedProblem, float]], not_planned: dict[str, str] | None = None
) -> FleetPlan:
    """Return the plan for the problems of *asked*, each with the weight of who asked.

    The expected gain of a problem is its calls, by their weights, times the time of a call. That is
    estimated from its operations and bytes, since nobody has measured it.
    """
    problems: dict[str, dict[MissedProblem, None]] = {}  # of a key: by reason
    calls, count = defaultdict[str, float](float), 0
    for problem, weight in asked:
        count += 1
        problems.setdefault(problem.key, {})[replace(problem, count=1)] = None
        calls[problem.key] += weight * problem.count
    alone = [key for key in problems if kind_of(key).rebuild is not None]
    order = sorted(alone, key=lambda key: (-calls[key] * _time_of(key), key))
    return FleetPlan(
        keys=tuple(order),
        problems=tuple(problem for key in order for problem in problems[key]),
        asked=count,
        with_model=tuple(key for key in problems if kind_of(key).rebuild is None),
        not_planned=not_planned or {},
    )


def _time_of(key: str) -> float:
    """Return what a call of *key* takes at least, in a unit that is the same for all keys."""
    work = work_of(key)
    return 0.0 if work is None else max(work.moved, (work.flops or 0) / _FLOPS_PER_BYTE)


def _problem(key: str) -> MissedProblem:
    return MissedProblem(key, kind_of(key).name, MissReason.NOT_IN_TABLE, 1)
