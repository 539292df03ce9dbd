"""The trials that answer a question of inductor's: the GEMM bare, then with its region."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from warmup.core.dtypes import torch_name
from warmup.core.method import Method
from warmup.core.roofline import Work
from warmup.core.rows import Tuned, Winner
from warmup.core.trial import Candidate, Region, Step, TensorSpec, Trial, ViewSpec
from warmup.keys.gemm_text import at_upper_end
from warmup.keys.question import Question, RegionQuestion
from warmup.keys.registry import ingredients_of
from warmup.measuring.operands import dtype_named
from warmup.measuring.reference import NARROW_TOLERANCE

_ATEN_NAMES: Final = {
    "mm": "mm",
    "addmm": "addmm",
    "bmm": "bmm",
    "baddbmm": "baddbmm",
    "scaled_mm": "_scaled_mm",
}
_NARROW_INTEGERS: Final = ("int8", "uint8")
_NO_TENSOR: Final = TensorSpec((), (), 0, "float32")  # the output of a trial without one
_OTHER_GEMMS_SHARE: Final = 0.8  # of their estimated time, to be on the safe side


def bare_trial(
    question: Question, method: Method, tolerance: Mapping[str, float], seed: int
) -> Trial:
    """Return the trial of the bare GEMM, with every candidate."""
    problem = question.problem
    assert question.library is not None
    return Trial(
        key=problem.key,
        op=problem.op,
        device=question.device,
        operands=question.operands,
        views=question.views,
        out=question.out or _NO_TENSOR,
        candidates=question.candidates,
        library=question.library,
        method=method,
        alpha=problem.alpha,
        beta=problem.beta,
        tolerance=_tolerance(problem.out, tolerance),
        seed=seed,
        environment=question.environment,
    )


def region_trial(
    question: Question,
    region: Region,
    method: Method,
    tolerance: Mapping[str, float],
    seed: int,
) -> Trial:
    """Return the trial of *region* with the library's kernel as the only candidate."""
    assert question.library is not None
    return Trial(
        key=question.problem.at_upper_end().key,
        op=question.problem.op,
        device=question.device,
        operands=region.inputs,
        views=_whole(region.inputs),
        out=_NO_TENSOR,
        candidates=(Candidate(question.library),),
        library=question.library,
        method=method,
        tolerance=_tolerance(question.problem.out, tolerance),
        tolerances=_tolerances(region, question.problem.out, tolerance),
        seed=seed,
        environment=question.environment,
        region=region,
        known=tuple((at_upper_end(key), winner) for key, winner in question.known.items())
        if len(region.flops) > 1
        else (),
    )


def ways_trial(
    question: RegionQuestion,
    device: torch.device,
    method: Method,
    tolerance: Mapping[str, float],
    *,
    seed: int,
) -> Trial:
    """Return the trial of the region of *question*, compiled in each of its ways."""
    region, ingredients = question.region, ingredients_of(question.key)
    assert region is not None
    return Trial(
        key=question.key,
        op=ingredients["op"],
        device=str(device),
        operands=region.inputs,
        views=_whole(region.inputs),
        out=_NO_TENSOR,
        candidates=tuple(map(Candidate, question.ways)),
        library=question.library,
        method=method,
        tolerance=_tolerance(ingredients["dtype"], tolerance),
        tolerances=_tolerances(region, ingredients["dtype"], tolerance),
        seed=seed,
        region=region,
    )


def challengers(
    bare: Tuned, library: Winner, region: Region, whole_us: float | None
) -> list[Winner]:
    """Return the candidates that may be faster than *library* in *region*, fastest bare first.

    *whole_us* is the time of the region with *library*. A candidate can save at most the region's
    time outside its GEMMs, so a candidate whose bare time is above the limit is left out: the time
    of the region less that of its other GEMMs. Their time is estimated from their operations, and
    the estimate is not used where it would leave out *library* itself. A candidate with a smaller
    bare time than *library* is always returned: the device may have been slower in one trial.
    """
    times_us = {timing.winner: timing.time_us for timing in bare.timings}
    library_us = times_us.get(library)
    limit_us = math.inf
    if whole_us is not None and library_us is not None:
        others_us = library_us * sum(region.flops[1:]) / region.flops[0]
        limit_us = whole_us - _OTHER_GEMMS_SHARE * others_us
        if limit_us <= library_us:
            limit_us = max(whole_us, library_us)
    timed = [
        (time_us, str(winner), winner)
        for winner, time_us in times_us.items()
        if time_us is not None and winner != library and time_us < limit_us
    ]
    return [winner for _, _, winner in sorted(timed)]


def faster_alone(bare: Tuned, library: Winner, method: Method) -> list[Winner]:
    """Return the candidates that are faster than *library* without the region, near ties included.

    All candidates where *library* has no time.
    """
    times_us = {timing.winner: timing.time_us for timing in bare.timings}
    limit_us = (times_us.get(library) or math.inf) * (1 + method.near_tie)
    return [one for one, time_us in times_us.items() if time_us is not None and time_us <= limit_us]


def _whole(operands: Sequence[TensorSpec]) -> tuple[ViewSpec, ...]:
    """Return the views that show each of *operands* as a whole."""
    return tuple(
        ViewSpec(i, spec.sizes, spec.strides, spec.offset) for i, spec in enumerate(operands)
    )


def _tolerance(out: str, tolerance: Mapping[str, float]) -> float | None:
    """Return the tolerance of results of dtype *out*; None where the policy has none for it."""
    is_integer = out.startswith(("i", "u"))
    return 0.0 if is_integer else tolerance.get(out)


def _tolerances(region: Region, out: str, tolerance: Mapping[str, float]) -> dict[str, float]:
    """Return the tolerances of the outputs of *region* that differ from that of its GEMM, *out*.

    A result is as exact as the narrowest float of 16 bits or more that it passed through. Of the
    dtypes with 8 bits, floats have their own tolerance; integers are rounded results.
    """
    casts = {value["dtype"] for step in region.steps for value in _leaves(step) if "dtype" in value}
    limits = {torch_name(name): limit for name, limit in tolerance.items()}
    passed = [limits[name] for name in (*casts, torch_name(out)) if name in limits]
    least = max(passed, default=0.0)
    return {
        **{name: max(limit, least) for name, limit in limits.items()},
        **{torch_name(name): max(limit, least) for name, limit in NARROW_TOLERANCE.items()},
        **dict.fromkeys(_NARROW_INTEGERS, least),
    }


def _leaves(step: Step) -> Iterator[Mapping[str, Any]]:
    """Yield the arguments of *step* that are objects."""
    pending = [*step.args, *step.kwargs.values()]
    while pending:
        argument = pending.pop()
        if isinstance(argument, Mapping):
            yield argument
        elif isinstance(argument, list | tuple):
            pending.extend(argument)


def work_of(question: Question) -> Work | None:
    """Return the least work of the problem; None when its operands are unknown."""
    if question.out is None or not question.views:
        return None
    moved = sum(
        min(math.prod(view.sizes), spec.span) * dtype_named(spec.dtype).itemsize
        for view in question.views
        for spec in (question.operands[view.base],)
    )
    out, problem = question.out, question.problem
    moved += math.prod(out.sizes) * dtype_named(out.dtype).itemsize
    dtype = "tf32" if problem.fp32 == "tf32" else problem.dtype
    return Work(dtype, _flops(question), moved)


def _flops(question: Question) -> int | None:
    """Return the operations that torch's flop counter counts; None for an op it does not know."""
    from torch.utils.flop_counter import flop_registry

    name = _ATEN_NAMES.get(question.problem.op)
    formula = None if name is None else flop_registry.get(getattr(torch.ops.aten, name))
    if formula is None or question.out is None:
        return None
    shapes = [list(view.sizes) for view in question.views]
    return int(formula(*shapes, out_val=list(question.out.sizes)))
