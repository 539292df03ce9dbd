"""`fit`: the device model of a training set. Needs torch; the same timings give the same model."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warmup.prediction.device_model import (
    RESIDUAL_UNIT,
    DeviceModel,
    MeasuredProblem,
)
from warmup.prediction.features import LIBRARY_CONFIG, CandidateConfig
from warmup.prediction.formula import CONSTANT_NAMES, Constants, combine, terms_of, time_us
from warmup.prediction.training import TrainingProblem, TrainingSet
from warmup.prediction.tree import features_of, grow_tree

MAX_COVERING: Final = 16
_LEAST_COVERED: Final = 0.001  # by how much another config must lower the mean regret
_FEW_TIMES: Final = 3  # a config with fewer measured problems has no offset of its own
_FIT_STEPS: Final = 80
_RIDGE: Final = 0.02  # pulls offsets to zero
_PRIOR: Final = 0.002  # pulls constants to their first guess, where times do not decide them
_HUBER: Final = 0.2  # of a logarithm of a time: beyond, an error counts by its size
_MAX_RESIDUAL: Final = 400
_NOT_MEASURED: Final = 3.0  # the loss of a config where neither measured nor predicted


def fit(training: TrainingSet, problems: Sequence[TrainingProblem] | None = None) -> DeviceModel:
    """Return the device model of *problems*, all of *training* without them.

    Its leaves have no evidence yet; see `warmup.prediction.held_out`.
    """
    used = training.problems if problems is None else tuple(problems)
    sms = training.on.sm_count
    constants: dict[tuple[str, str], Constants] = {}
    offsets: dict[tuple[CandidateConfig, str], float] = {}
    for (uid, rate), observed in _by_template(used).items():
        constants[uid, rate], found = _fit_constants(observed, sms)
        offsets |= {(config, rate): value for config, value in found.items() if value}
    covering = choose_covering(used)
    categories = tuple(sorted({one.sizes.category for one in used}))
    numbers = {name: number for number, name in enumerate(categories)}
    measured = tuple(
        MeasuredProblem(
            (one.sizes.batch, one.sizes.m, one.sizes.n, one.sizes.k),
            numbers[one.sizes.category],
            _residuals(one, covering, constants, offsets, sms),
        )
        for one in used
    )
    losses = [_losses(one, covering, constants, offsets, sms) for one in used]
    return DeviceModel(
        on=training.on,
        method=training.method,
        problems=len(used),
        models=tuple(sorted({one.source for one in used} & set(training.models))),
        templates=training.templates,
        categories=categories,
        constants=constants,
        offsets=offsets,
        covering=covering,
        measured=measured,
        tree=grow_tree([features_of(one.sizes) for one in used], losses),
    )


def choose_covering(problems: Sequence[TrainingProblem]) -> tuple[CandidateConfig, ...]:
    """Return at most 16 configs of which some config is near the best, chosen greedily.

    Each adds most to the mean logarithm of the best covered time over the best time of a template;
    the first config of each rate and number of rows counts from ten times the best.
    """
    best = [
        min((us for config, us in one.times_us.items() if not config.is_library), default=None)
        for one in problems
    ]
    open_ = [(one, math.log(us)) for one, us in zip(problems, best, strict=True) if us is not None]
    covered = [math.log(10.0)] * len(open_)
    ratios: dict[CandidateConfig, dict[int, float]] = defaultdict(dict)
    for place, (one, least) in enumerate(open_):
        for config, us in one.times_us.items():
            if not config.is_library:
                ratios[config][place] = math.log(us) - least
    chosen: list[CandidateConfig] = []
    names = sorted(ratios, key=str)
    while names and len(chosen) < MAX_COVERING:
        gains = {
            config: sum(max(covered[i] - value, 0.0) for i, value in ratios[config].items())
            for config in names
        }
        config = max(names, key=gains.__getitem__)
        if gains[config] < _LEAST_COVERED * len(open_):
            break
        chosen.append(config)
        names.remove(config)
        for i, value in ratios[config].items():
            covered[i] = min(covered[i], value)
    return tuple(chosen)


Observed = list[tuple[TrainingProblem, CandidateConfig, float]]


def _by_template(problems: Sequence[TrainingProblem]) -> Mapping[tuple[str, str], Observed]:
    groups: dict[tuple[str, str], Observed] = defaultdict(list)
    for one in problems:
        for config in sorted(one.times_us, key=str):
            groups[config.uid, one.sizes.rate].append((one, config, one.times_us[config]))
    return dict(sorted(groups.items()))


def _fit_constants(observed: Observed, sms: int) -> tuple[Constants, dict[CandidateConfig, float]]:
    """Return the constants of one template, and the offset of each of its configs.

    They minimise the errors of logarithms of times; large errors count by their size.
    """
    import torch

    rows = [terms_of(one.sizes, config, sms) for one, config, _ in observed]
    terms: Any = torch.tensor(rows, dtype=torch.float64).permute(2, 0, 1)
    times = torch.tensor([us for *_, us in observed], dtype=torch.float64)
    configs = sorted({config for _, config, _ in observed}, key=str)
    counts = Counter(config for _, config, _ in observed)
    numbers = {config: number for number, config in enumerate(configs)}
    which = torch.tensor([numbers[config] for _, config, _ in observed])
    # A template's only config needs no offset: the constants say the same.
    is_free = [len(configs) > 1 and counts[config] >= _FEW_TIMES for config in configs]
    free = torch.tensor(is_free, dtype=torch.float64)
    guess = _first_guess(terms, times).log()
    logs = guess.clone().requires_grad_()
    offsets = torch.zeros(len(configs), dtype=torch.float64, requires_grad=True)
    target, optimizer = (
        times.log(),
        torch.optim.LBFGS([logs, offsets], max_iter=_FIT_STEPS, line_search_fn="strong_wolfe"),
    )

    def loss() -> Any:
        optimizer.zero_grad()
        values = logs.exp()
        found = combine([*values], [*terms]).unbind(1)
        found = functools.reduce(torch.minimum, found).log() + (offsets * free)[which]
        error = torch.nn.functional.huber_loss(found, target, delta=_HUBER)
        value = (
            error
            + _RIDGE * (offsets**2).sum() / len(observed)
            + _PRIOR * ((logs - guess) ** 2).mean()
        )
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    constants = Constants(*(float(f"{value:.6g}") for value in logs.detach().exp().tolist()))
    shifts = (offsets.detach() * free).tolist()
    return constants, dict(zip(configs, (round(one, 4) for one in shifts), strict=True))


def _first_guess(terms: Any, times: Any) -> Any:
    """Return constants as if each resource were the only one at the fastest candidate for it."""
    import torch

    rates = [(terms[i].min(dim=1).values / times).max() for i in range(3)]
    launch = times.min() * 0.7
    per_iteration = (times / terms[3].min(dim=1).values.clamp(min=1)).min() * 0.5
    one = torch.ones((), dtype=torch.float64)
    guess = [rates[0] * 1.2, rates[1] * 1.2, rates[2] * 1.2, launch, per_iteration, one, one * 1.5]
    assert len(guess) == len(CONSTANT_NAMES)
    return torch.stack(guess)


def _residuals(
    one: TrainingProblem,
    covering: Sequence[CandidateConfig],
    constants: Mapping[tuple[str, str], Constants],
    offsets: Mapping[tuple[CandidateConfig, str], float],
    sms: int,
) -> tuple[int | None, ...]:
    rate = one.sizes.rate
    found = {
        config: math.log(us)
        - math.log(time_us(constants[config.uid, rate], one.sizes, config, sms))
        - offsets.get((config, rate), 0.0)
        for config, us in one.times_us.items()
    }
    columns = (LIBRARY_CONFIG, *covering)
    others = [value for config, value in found.items() if config not in columns]
    mean = sum(others) / len(others) if others else None
    return tuple(map(_in_units, (*(found.get(config) for config in columns), mean)))


def _in_units(value: float | None) -> int | None:
    if value is None:
        return None
    return max(-_MAX_RESIDUAL, min(_MAX_RESIDUAL, round(value / RESIDUAL_UNIT)))


def _losses(
    one: TrainingProblem,
    covering: Sequence[CandidateConfig],
    constants: Mapping[tuple[str, str], Constants],
    offsets: Mapping[tuple[CandidateConfig, str], float],
    sms: int,
) -> list[float]:
    """Return the logarithm of each config's time over the best; calculated if not measured."""
    rate, losses = one.sizes.rate, []
    for config in covering:
        us = one.times_us.get(config)
        if us is None and (known := constants.get((config.uid, rate))) is not None:
            us = time_us(known, one.sizes, config, sms) * math.exp(offsets.get((config, rate), 0))
        losses.append(_NOT_MEASURED if us is None else math.log(us / one.best_us))
    return losses
