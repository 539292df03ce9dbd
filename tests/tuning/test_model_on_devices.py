"""The build of a model on several devices: what is distributed, and what needs the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_table

from warmup.core.device import MachineState
from warmup.core.errors import NothingRecordedError, SettingsError
from warmup.core.phases import BuildStage
from warmup.core.rows import Tuned
from warmup.serving.audit import MissedProblem
from warmup.tuning import devices as model_build
from warmup.tuning.devices import build_model_on_devices
from warmup.tuning.report import BuildPlan, BuildReport, DeviceShare

LAUNCH = "launch triton_poi_fused_mul x=16 args=*bf16 source=3f2a9c0d41b7e865"
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every build that is begun, with its arguments; none of them measures anything."""
    seen: Calls = []
    gemm, path = make_key(64), Path("t.json")
    plan = BuildPlan(buckets=(), known=(), missing=(gemm, LAUNCH))
    tuned = (Tuned(gemm, make_row(), ()),), (Tuned(LAUNCH, make_row(), ()),)

    def build(_model: str, *, dry_run: bool = False, **words: Any) -> BuildReport:
        seen.append(("plan" if dry_run else "build", words))
        timings = () if dry_run else tuned[1]
        table = make_table({})
        stages = {BuildStage.COMPILING: 1.0}
        found = plan if dry_run else None
        return BuildReport(path, table, "0" * 64, (), timings, 1.0, plan=found, stages=stages)

    def spread(problems: list[MissedProblem], **words: Any) -> BuildReport:
        seen.append(("spread", {"problems": problems, **words}))
        machine, stages = MachineState(measured=3), {BuildStage.COMPILING: 2.0}
        share = DeviceShare(name="cpu", problems=1)
        report = BuildReport(path, make_table({}), "0" * 64, (), tuned[0], 1.0, machine=machine)
        return model_build.replace(report, stages=stages, devices=(share,))

    monkeypatch.setattr(model_build, "build", build)
    monkeypatch.setattr(model_build, "build_on_devices", spread)
    return seen


def test_what_needs_no_model_is_tuned_on_all_devices_first(calls: Calls) -> None:
    """The plan's GEMMs are distributed; its launch configs are left to the build that follows."""
    build_model_on_devices("m.py", devices="cpu,cpu", seqlens="8", mode="max-autotune")
    assert [name for name, _ in calls] == ["plan", "spread", "build"]
    (_, given), (_, last) = calls[1:]
    assert [problem.key for problem in given["problems"]] == [make_key(64)]
    assert (given["mode"], given["devices"]) == ("max-autotune", "cpu,cpu")
    assert given["out"] == last["out"] == Path("t.json")
    assert last["seqlens"] == "8"


@pytest.mark.usefixtures("calls")
def test_the_report_is_that_of_the_whole_build() -> None:
    """It has the problems of both parts, the share of each device, and the stages of both."""
    report = build_model_on_devices("m.py", devices="cpu,cpu", seqlens="8")
    assert [one.key for one in report.timings] == [make_key(64), LAUNCH]
    assert (report.devices[0].problems, report.machine.measured) == (1, 3)
    assert report.stages == {BuildStage.COMPILING: 3.0}


def test_without_a_problem_that_can_be_rebuilt_the_model_is_built(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model asks for every problem itself, so that nothing is lost."""

    def nothing(*_: object, **__: object) -> BuildReport:
        raise NothingRecordedError("none of 1 problems could be rebuilt", "")

    monkeypatch.setattr(model_build, "build_on_devices", nothing)
    assert build_model_on_devices("m.py", devices="cpu,cpu").devices == ()
    assert [name for name, _ in calls] == ["plan", "build"]


def test_what_would_measure_rows_twice_is_refused(calls: Calls) -> None:
    """`force` would tune on all devices, and then everything again with the model."""
    with pytest.raises(SettingsError, match="several devices has no force"):
        build_model_on_devices("m.py", devices="cpu", force=True)
    assert calls == []
