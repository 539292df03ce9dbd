"""`OutputCheck`: which errors are accepted, and what is computed to decide that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from warmup.core.errors import BuildError
from warmup.models.outputs import WideRun
from warmup.tuning.output_check import OutputCheck
from warmup.tuning.report import CheckedOutput

EXACT = torch.tensor([3.0, 4.0], dtype=torch.float64)
FLOORS = {"f32": 0.02}


def away(error: float) -> list[torch.Tensor]:
    """Return outputs that are *error* away from the exact ones, always in the same direction."""
    return [(EXACT * (1 + error)).float()]


def make_check(
    eager: float, default: float | str, wide: str | None = None
) -> tuple[OutputCheck, list[str]]:
    """Return a check of outputs, and the list of what it has computed so far."""
    computed: list[str] = []

    def run_wide() -> WideRun:
        computed.append("wide")
        return WideRun([EXACT], "float64 eager on cpu") if wide is None else WideRun(None, wide)

    def run_default() -> Any:
        computed.append("default")
        if isinstance(default, str):
            raise BuildError(default)
        return away(default)

    check = OutputCheck(
        eager=away(eager), floors=FLOORS, run_wide=run_wide, run_default=run_default
    )
    return check, computed


def test_the_error_is_bounded_by_eager_and_default_mode() -> None:
    """1.5 times the larger error, or the floor; only what the decision needs is computed."""
    for eager, default, error, limit, computed in (
        (0.0, 0.0, 0.019, 0.02, []),  # within the floor of eager
        (-0.01, 0.0, 0.015, 0.02, ["wide"]),  # within the floor of the exact result
        (0.04, 0.0, -0.05, 0.06, ["wide"]),  # 1.5 times eager's error, and not more
        (0.01, 0.03, 0.044, 0.045, ["wide", "default"]),  # 1.5 times default mode's
        (0.01, 0.03, 0.046, None, ["wide", "default"]),
        (0.04, 0.01, -0.07, None, ["wide", "default"]),
        (0.0, 0.21, 0.1, None, ["wide", "default"]),  # default mode is wrong itself
        (1.0, 1.0, -1.0, None, ["wide", "default"]),  # eager is, or is random
        (0.0, 0.0, float("nan"), None, ["wide", "default"]),
    ):
        check, done = make_check(eager, default)
        judgement = check.compare(away(error))
        assert (judgement.is_right, done) == (limit is not None, computed), (
            eager,
            default,
            error,
            limit,
            computed,
        )
        if limit is not None:
            assert judgement.limit == pytest.approx(limit, rel=1e-4), (
                eager,
                default,
                error,
                limit,
                computed,
            )


def test_references_are_computed_once() -> None:
    """Bisection judges the same bucket several times."""
    check, computed = make_check(0.0, 0.0)
    assert [check.compare(away(error)).is_right for error in (1.0, 1.0, 0.03)] == [False] * 3
    assert computed == ["wide", "default"]


def test_without_a_wide_run_eager_and_default_mode_are_compared() -> None:
    """The outputs may be 1.5 times as far from eager as default mode is, and the reason is told."""
    check, _ = make_check(0.0, 0.04, wide="no float32 run: it needs 60.0 GiB, cuda:0 has 9.0 GiB")
    right, wrong = check.compare(away(-0.05)), check.compare(away(-0.07))
    assert (right.is_right, wrong.is_right) == (True, False)
    assert str(wrong) == (
        "7.00e-02 away from eager (relative L2), limit 6.00e-02 (default mode 4.00e-02); "
        "no float32 run: it needs 60.0 GiB, cuda:0 has 9.0 GiB"
    )


def test_a_default_mode_that_fails_bounds_nothing() -> None:
    """Eager's error remains as the bound, and the reason is told."""
    check, _ = make_check(0.04, "compiling failed")
    assert check.compare(away(-0.05)).is_right
    assert check.compare(away(-0.07)).remark == "default mode was not compared: compiling failed"


def test_the_tensor_that_is_judged_is_the_worst() -> None:
    """Each tensor has its own limit: a right one does not hide one that is wrong."""
    first, second = torch.tensor([1.0]), torch.tensor([100.0])
    check = OutputCheck(
        eager=[(first * 1.1, second)],
        floors=FLOORS,
        run_wide=lambda: WideRun([(first, second)], "wide"),
    )
    judgement = check.compare([(first * 1.12, second * 1.03)])
    assert not judgement.is_right
    assert judgement.error == pytest.approx(0.03, rel=1e-3)


def test_a_judgement_in_one_line() -> None:
    """The errors of eager and default mode stand beside the limit that they give."""
    judgement = CheckedOutput(
        error=0.0235, limit=0.0375, reference="float32 eager on cuda:0", eager=0.021, default=0.025
    )
    assert judgement.brief == (
        "error 2.4e-02 against float32 eager on cuda:0 (eager 2.10e-02, default mode 2.50e-02)"
    )
