"""`Judge`: whether compiled outputs are as near to the exact result as eager's and default mode's.

Neither eager nor default mode is the exact result: in a narrow dtype their errors grow with the
depth of the model. Both are compared with a run in higher precision, and bound the error of what is
judged. What an ordinary build does not need is not computed: outputs within the floor of eager's
are right, and default mode is compiled only for outputs that are further from the run in higher
precision than eager's are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warmup.core.errors import WarmupError
from warmup.models.outputs import output_errors, output_limits, worst_tensor
from warmup.models.wide_run import WideRun
from warmup.table.policy import MOST_DEFAULT, MOST_TIMES
from warmup.tuning.report import Judgement

MOST_ERROR: Final = 0.5  # no output is right with a larger error, whatever eager's: it is random


@dataclass(kw_only=True)
class Judge:
    """Judges the outputs of variants of one model, all for the same calls.

    ``eager`` are its outputs uncompiled, ``floors`` the error that is always accepted, by dtype of
    the output. ``run_wide`` runs the model in higher precision, ``run_default`` in default mode
    without a table (None: eager alone bounds the error). Each is called once at most, when its
    outputs are first needed.
    """

    eager: Sequence[Any]
    floors: Mapping[str, float]
    run_wide: Callable[[], WideRun]
    run_default: Callable[[], Sequence[Any]] | None = None
    _wide: WideRun | None = None
    _default: Sequence[Any] | str | None = None

    def judge(self, outputs: Sequence[Any]) -> Judgement:
        """Return how far *outputs* are from the exact result, and how far they may be."""
        floors = output_limits(self.eager, self.floors)
        distances = output_errors(self.eager, outputs)
        near = _judgement(distances, floors)
        if near.is_right:
            return near
        if self._wide is None:
            self._wide = self.run_wide()
        wide = self._wide
        if wide.outputs is None:  # eager and default mode are held against each other
            of_default, remark = self._default_errors(self.eager)
            remark = "; ".join(filter(None, (wide.name, remark)))
            return _judgement(distances, floors, default=of_default, remark=remark)
        errors = output_errors(wide.outputs, outputs)
        of_eager = output_errors(wide.outputs, self.eager)
        judged = _judgement(errors, floors, reference=wide.name, eager=of_eager)
        if judged.is_right:
            return judged
        of_default, remark = self._default_errors(wide.outputs)
        return _judgement(
            errors, floors, reference=wide.name, eager=of_eager, default=of_default, remark=remark
        )

    def _default_errors(self, reference: Sequence[Any]) -> tuple[list[float] | None, str]:
        """Return the errors of default mode over *reference*; None with the reason if it failed."""
        if self.run_default is None:
            return None, ""
        if self._default is None:
            try:
                self._default = self.run_default()
            except WarmupError as error:
                self._default = f"default mode was not compared: {error}"
        if isinstance(self._default, str):
            return None, self._default
        return output_errors(reference, self._default), ""


def _judgement(
    errors: list[float],
    floors: list[float],
    *,
    eager: list[float] | None = None,
    default: list[float] | None = None,
    reference: str = "eager",
    remark: str = "",
) -> Judgement:
    """Return the judgement of the tensor with the largest of *errors* over its limit."""
    nothing = [0.0] * len(floors)
    limits = [
        _limit(*each) for each in zip(floors, eager or nothing, default or nothing, strict=True)
    ]
    worst = worst_tensor(errors, limits)
    if worst is None:  # no output is a tensor
        return Judgement(error=0.0, limit=0.0)
    return Judgement(
        error=errors[worst],
        limit=limits[worst],
        reference=reference,
        eager=None if eager is None else eager[worst],
        default=None if default is None else default[worst],
        remark=remark,
    )


def _limit(floor: float, eager: float, default: float) -> float:
    """Return the largest error of a tensor that is right, from the errors of eager and default."""
    counted = default if default <= MOST_DEFAULT * max(floor, eager) else 0.0
    return max(floor, min(MOST_ERROR, MOST_TIMES * max(eager, counted)))
