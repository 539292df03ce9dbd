"""`BuildRequest`: every way in is the same `build`, and what does not go together is refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sample_tables import make_key, make_row, make_table

import warmup
from warmup.cli import main
from warmup.core.buckets import parse_buckets
from warmup.core.device import MachineState
from warmup.core.errors import BuildError, NothingRecordedError, SettingsError
from warmup.core.phases import BuildStage
from warmup.core.trial import Tuned
from warmup.serving.audit import AuditReport, encode_problems
from warmup.serving.run import RunReport
from warmup.table.store import write
from warmup.tuning import program
from warmup.tuning.build import BuildOptions, BuildRequest, ThisProcess, build, open_context
from warmup.tuning.devices import Devices
from warmup.tuning.model import ModelSource, _ModelWork
from warmup.tuning.problems import ProblemsSource, as_problems
from warmup.tuning.program import ProgramSource
from warmup.tuning.ray_build import Cluster, tune_share
from warmup.tuning.report import BuildPlan, BuildReport, DeviceShare, Observer

GEMM = make_key(64)
LAUNCH = "launch triton_poi_fused_mul x=16 args=*bf16 source=3f2a9c0d41b7e865"
Seen = list[tuple[str, BuildRequest]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Seen:
    """Every request that `build` checks, and that a runner gets; nothing is measured."""
    # The plan of a model has a GEMM and a launch config. Each runner tunes what it is asked for.
    found: Seen = []
    check = BuildRequest.check

    def checked(request: BuildRequest) -> None:
        found.append(("build", request))
        check(request)

    def tune(runner: Any, request: BuildRequest, _observer: Observer) -> BuildReport:
        found.append((type(runner).__name__, request))
        is_here = isinstance(runner, ThisProcess)
        path, keys = request.out or tmp_path / "t.json", [LAUNCH if is_here else GEMM]
        table, timings = make_table({}), tuple(Tuned(key, make_row(), ()) for key in keys)
        stages = {BuildStage.COMPILING: 1.0 if is_here else 2.0}
        machine = MachineState(measured=0 if is_here else 3)
        shares = () if is_here else (DeviceShare(name="cpu", problems=1, control_us=1.0),)
        report = BuildReport(
            path=path,
            table=table,
            digest="0" * 64,
            timings=timings,
            seconds=1.0,
            machine=machine,
            stages=stages,
            devices=shares,
        )
        if request.options.dry_run:
            plan = BuildPlan(buckets=(), known=(), missing=(GEMM, LAUNCH))
            return replace(report, timings=(), plan=plan, stages={})
        write(path, table)
        return report

    monkeypatch.setattr(BuildRequest, "check", checked)
    for runner in (ThisProcess, Devices, Cluster):
        monkeypatch.setattr(runner, "tune", tune)
    monkeypatch.chdir(tmp_path)
    return found


def command(*words: str) -> None:
    """Run ``warmup build``."""
    with pytest.raises(SystemExit):
        main(["build", "--out", "t.json", *words])


def run_by_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_node_id=lambda: "n")
    ray: Any = SimpleNamespace(
        get_runtime_context=lambda: context,
        get_gpu_ids=list,
        nodes=lambda: [{"NodeID": "n", "Resources": {}}],
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    asked = {"version": warmup.__version__, "keys": [GEMM], "table": None, "problem_limit_s": 9}
    answer = tune_share({**asked, "options": {"search": "wide"}})
    assert [one["key"] for one in answer["finished"]["timings"]] == [GEMM]


def test_every_way_in_is_one_build(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The function, the command, problems, a program, devices and Ray: a request each."""
    (tmp_path / "m.json").write_text(encode_problems({(GEMM, "not_in_table"): 1}, ()))

    def run(_command: Sequence[str], _settings: object, **_: object) -> RunReport:
        return RunReport(0, AuditReport(hits={GEMM: 1}))

    monkeypatch.setattr(program, "run_with", run)
    write(tmp_path / "rows.json", make_table({GEMM: make_row()}))
    of_model, of_problems = ("--model", "m.py", "--seqlens", "8"), ("--problems", "m.json")
    for name, begin, expected in (
        ("function", lambda: warmup.build("m.py", [8], "t.json"), [ModelSource, ThisProcess]),
        ("command", lambda: command(*of_model), [ModelSource, ThisProcess]),
        ("problems", lambda: command(*of_problems), [ProblemsSource, ThisProcess]),
        (
            "devices",
            lambda: command(*of_problems, "--devices", "cpu,cpu"),
            [ProblemsSource, Devices],
        ),
        ("cluster", lambda: command(*of_problems, "--cluster", "auto"), [ProblemsSource, Cluster]),
        ("Ray's task", lambda: run_by_ray(monkeypatch), [ProblemsSource, Devices]),
        (
            "program",
            lambda: command("--out", "rows.json", "--", "true"),
            [ProgramSource, ThisProcess],
        ),
    ):
        seen.clear()
        begin()
        way, request = seen[0]
        assert [way, type(request.source), type(request.runner)] == ["build", *expected], name
        assert all(one is request for kind, one in seen if kind != "build"), name


def test_a_model_on_several_devices_is_three_builds(seen: Seen) -> None:
    """A plan; its GEMMs on all devices; the model on the first one, which reports the whole."""
    options = BuildOptions(mode="max-autotune", pad_weights=False)
    source, runner = ModelSource("m.py", "8"), Devices(names="cpu,cpu")
    report = build(BuildRequest(source=source, runner=runner, options=options))
    requests = [request for name, request in seen if name != "build"]
    assert [name for name, _ in seen if name != "build"] == [
        "ThisProcess",
        "Devices",
        "ThisProcess",
    ]
    plan, spread, last = requests
    assert (plan.options.dry_run, plan.options.device, last.options.device) == (True, "cpu", "cpu")
    assert spread.source == ProblemsSource(as_problems([GEMM]))
    assert spread.options == BuildOptions(mode="max-autotune")
    assert spread.out == last.out == plan.out or spread.out == last.out
    assert [one.key for one in report.timings] == [GEMM, LAUNCH]
    assert (report.devices[0].problems, report.machine.measured) == (1, 3)
    assert report.stages == {BuildStage.COMPILING: 3.0}


def test_without_a_problem_that_can_be_rebuilt_the_model_is_built(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model asks for every problem itself, so that nothing is lost."""

    def nothing(*_: object) -> BuildReport:
        raise NothingRecordedError("none of 1 problems could be rebuilt", "")

    monkeypatch.setattr(Devices, "tune", nothing)
    request = BuildRequest(source=ModelSource("m.py", "8"), runner=Devices(names="cpu,cpu"))
    assert build(request).devices == ()
    assert len([name for name, _ in seen if name == "ThisProcess"]) == 2


def test_what_does_not_go_together_is_refused(seen: Seen) -> None:
    """Before anything is loaded: options of another source, or that measure rows twice."""
    model, problems = ModelSource("m.py", "8"), ProblemsSource(as_problems([GEMM]))
    runs = ProgramSource(["python", "serve.py"])
    devices, cluster = Devices(names="cpu,cpu"), Cluster(address="auto")
    for source, runner, options, said in (
        (problems, ThisProcess(), {"dtype": "bf16"}, "--problems cannot be combined with dtype"),
        (problems, devices, {"device": "cpu"}, "--devices cpu,cpu cannot be combined with device"),
        (model, devices, {"force": True}, "cannot be combined with force"),
        (model, cluster, {}, "--cluster cannot be combined with model"),
        (problems, cluster, {"dry_run": True}, "--cluster cannot be combined with dry_run"),
        (runs, ThisProcess(), {"bundle": True}, "'python', which was read .* with bundle"),
        (runs, devices, {}, "cannot be combined with devices"),
        (replace(problems, imported={}), devices, {}, "torch's file is measured on one device"),
        (model, ThisProcess(), {"policy": "near"}, "policy='near'"),
        (model, ThisProcess(), {"bundle_graphs": "fast"}, "bundle_graphs='fast'"),
        (model, ThisProcess(), {"search": "far"}, "--search 'far' is unknown"),
        (model, ThisProcess(), {"budget": "20 minutes"}, "is no time"),
        (problems, ThisProcess(), {"search": "far"}, "--search 'far' is unknown"),
    ):
        words: dict[str, Any] = options
        request = BuildRequest(source=source, runner=runner, options=BuildOptions(**words))
        with pytest.raises(SettingsError, match=said):
            build(request)
    assert {name for name, _ in seen} == {"build"}


def test_the_host_limits_no_bucket_of_a_server_that_replays_cuda_graphs() -> None:
    for words, replays in (
        ({}, False),
        ({"bundle_graphs": "reduce-overhead"}, True),
        ({"mode": "max-autotune"}, True),
        ({"mode": "max-autotune", "bundle_graphs": "default"}, False),
    ):
        given: dict[str, Any] = words
        options = BuildOptions(device="cpu", **given)
        source, runner = ModelSource("m.py", "8"), ThisProcess()
        request = BuildRequest(source=source, runner=runner, options=options)
        with open_context(request, Observer()) as context:
            assert context.tuner.replays_graphs is replays, words


def test_buckets_are_sizes_or_texts_that_bind_dims(seen: Seen) -> None:
    for buckets, seqlens, dims in (
        ("16,64", "16,64", ()),
        ([16, 64], "16,64", ()),
        ("batch=1;seqlen=8", None, ("batch=1;seqlen=8",)),
        (["n=8", "n=9"], None, ("n=8", "n=9")),
    ):
        seen.clear()
        warmup.build("m.py", buckets, "t.json")
        assert seen[0][1].source == ModelSource("m.py", seqlens, dims), buckets


def test_a_packed_start_shows_that_no_row_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a bucket that was not compiled once more; keys that were given up may be missing."""
    buckets, missed = parse_buckets([16, 64], None), list[str]()
    compiler = SimpleNamespace(
        state=SimpleNamespace(restore=lambda: None, changed_plain=list),
        model=SimpleNamespace(module=None),
        unshown={"seqlen=64"},
    )
    inputs = SimpleNamespace(args=(), kwargs={})
    tuner = SimpleNamespace(rows=SimpleNamespace(not_tuned={"given up": "no candidate"}))
    context = SimpleNamespace(options=BuildOptions(), tuner=tuner)
    session = SimpleNamespace(compiler=compiler, inputs=lambda _: inputs)
    work = _ModelWork(cast(Any, context), cast(Any, session), buckets, cast(Any, None))
    for asks, is_shown in ((["given up"], True), (["given up", "mm m=64"], False)):
        monkeypatch.setattr(
            "warmup.inductor.adapter.compile_model",
            lambda *_, asks=asks: partial(missed.extend, asks),
        )
        if is_shown:
            work._serve(None, missed)
            continue
        with pytest.raises(BuildError, match=r"bucket seqlen=64: .* \(such as mm m=64\)"):
            work._serve(None, missed)
