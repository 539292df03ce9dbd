"""`bench layers`: what is compared, what follows from its times, and how failures are told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from warmup.bench.layers import backends, run, table_column, timing
from warmup.bench.layers.built_in import LAYERS
from warmup.bench.layers.files import charts_of, document
from warmup.bench.layers.layer import LayerShape, OpenLayer, open_layer, parse_layer_shapes
from warmup.bench.layers.operands import LayerOperands
from warmup.bench.layers.report import LayerCell, LayersReport, Pass
from warmup.bench.layers.table_column import LayerTable
from warmup.cli import main
from warmup.cli.bench_layers import spell
from warmup.core.errors import BuildError, OutputMismatchError, SettingsError
from warmup.core.method import L2, Launch
from warmup.core.roofline import Peaks
from warmup.core.samples import Samples
from warmup.measuring.clock import Batch
from warmup.measuring.rounds import run_rounds

CPU = torch.device("cpu")
OWN = """
import torch

class GeGlu:
    title = "GeGLU"
    shapes = ((8, 16), (2, 32))

    def inputs(self, shape):
        return torch.randn(shape), torch.randn(shape)

    def eager(self, gate, up):
        return torch.nn.functional.gelu(gate) * up

    def flops(self, shape):
        return 10 * shape[0] * shape[1]

    def bytes(self, shape, item):
        return 3 * shape[0] * shape[1] * item

    def wrong(self, gate, up):
        return self.eager(gate, up) * 1.1

class NoInputs:
    shapes = ((8, 16),)

    def eager(self, x):
        return x

class NoShapes:
    pass

class Named(GeGlu):
    def compiled(self, gate, up):
        return gate

class Detached(GeGlu):
    def eager(self, gate, up):
        return super().eager(gate, up).detach()

class Zero(GeGlu):
    def flops(self, shape):
        return 0
"""


def shape_of(*sizes: int) -> LayerShape:
    return LayerShape(sizes)


def built_in(name: str) -> OpenLayer:
    return OpenLayer.of(LAYERS[name](), name)


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """A user's file of layers."""
    path = tmp_path / "own_layers.py"
    path.write_text(OWN, encoding="utf-8")
    return path


def within_a_fifth(own_file: Path) -> LayersReport:
    """Return the times of GeGlu and of a method that is off by a tenth, tolerance 0.2."""
    return run.bench_layers(
        own=[f"{own_file}:GeGlu"],
        backends="wrong",
        shapes="4x4",
        dtype="f32",
        rounds=2,
        device="cpu",
        backward=False,
        tolerance=0.2,
    )


def cell(backend: str, time_us: float | None, **changes: object) -> LayerCell:
    made = LayerCell(
        layer="rmsnorm",
        shape=shape_of(4096, 16384),
        step=Pass.FORWARD,
        backend=backend,
        moved=4_000_000,
        flops=2_000_000,
        samples=None if time_us is None else Samples((time_us,) * 3),
        error=None if time_us is None else 1e-3,
        reason="" if time_us is not None else "it fell over",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def report(*cells: LayerCell) -> LayersReport:
    names = ("device", "torch", "triton", "warmup", "date")
    return LayersReport(
        provenance=dict.fromkeys(names, "x"),
        dtype="bf16",
        launch=Launch.CUDAGRAPH,
        l2=L2.COLD,
        rounds=3,
        backends=("eager", "compiled", "liger"),
        missing={"quack": "cannot be imported: ModuleNotFoundError: No module named 'quack'"},
        versions={"liger": "0.8.5"},
        options={"custom": {"max_autotune_pointwise": True}},
        tolerance=2e-2,
        titles={"rmsnorm": ("RMSNorm", "hidden size")},
        peaks=Peaks(tflops={}, gbps=4000.0, clock_mhz=None, measured="2026-01-02"),
        cells=cells,
    )


FOUND = report(
    cell("eager", 4.0),
    cell("compiled", 2.0),
    cell("liger", None),
    cell("eager", 9.0, shape=shape_of(8, 8)),
    cell("compiled", 18.0, shape=shape_of(8, 8)),
    cell("liger", 3.0, shape=shape_of(8, 8)),
)


def test_shapes_are_parsed_and_told_when_they_cannot_be() -> None:
    """Sizes joined by x, in the order given; anything else, or a shape twice, is an error."""
    assert parse_layer_shapes("64x128, 8x9") == (shape_of(64, 128), shape_of(8, 9))
    for wrong in ("x64", "0x8", "8x-8", "8x8,8x8", ""):
        with pytest.raises(SettingsError, match="--shapes"):
            parse_layer_shapes(wrong)


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("rmsnorm", 2 * 32 + 4, 3 * 32 + 2 * 4),
        ("layernorm", 2 * 32 + 2 * 4, 3 * 32 + 4 * 4),
        ("softmax", 2 * 32, 3 * 32),
        ("swiglu", 3 * 32, 5 * 32),
    ],
)
def test_least_bytes_count_each_operand_once(name: str, forward: int, backward: int) -> None:
    """An 8 x 4 layer reads its operands and writes its output; backward the gradients too."""
    operands = LayerOperands(built_in(name), shape_of(8, 4), torch.bfloat16, CPU, warm=True)
    assert (operands.forward.moved, operands.backward.moved) == (2 * forward, 2 * backward)


def test_least_bytes_of_cross_entropy_include_targets() -> None:
    """Logits and eight bytes for each target in, one number out; then the logits' gradient."""
    layer = built_in("cross-entropy")
    operands = LayerOperands(layer, shape_of(8, 4), torch.bfloat16, CPU, warm=True)
    assert operands.forward.moved == 64 + 64 + 2
    assert operands.backward.moved == 2 + 64 + 64 + 64


@pytest.mark.parametrize("name", list(LAYERS))
def test_eager_agrees_with_its_reference(name: str) -> None:
    """Each layer in float32 and in bf16 passes its own check, outputs and gradients."""
    for dtype, limit in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        layer = built_in(name)
        operands = LayerOperands(layer, shape_of(16, 24), dtype, CPU, warm=True)
        assert operands.check_forward(layer.eager, limit) <= limit
        assert operands.check_both(layer.eager, limit) <= limit


def test_a_wrong_output_or_gradient_is_found() -> None:
    """A scaled output fails; so does a right output whose gradient is wrong, or one of NaN."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x, -1)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    layer = built_in("softmax")
    operands = LayerOperands(layer, shape_of(16, 24), torch.float32, CPU, warm=True)
    with pytest.raises(OutputMismatchError, match="its output is wrong"):
        operands.check_forward(lambda x: layer.eager(x) * 1.1, 1e-3)
    with pytest.raises(OutputMismatchError, match="its output is wrong"):
        operands.check_forward(lambda x: x * float("nan"), 1e-3)
    with pytest.raises(OutputMismatchError, match="its output has sizes"):
        operands.check_forward(lambda x: x[:1], 1e-3)
    with pytest.raises(OutputMismatchError, match="its gradient 1 is wrong"):
        operands.check_both(Wrong.apply, 1e-3)


def test_the_reference_of_a_module_has_its_buffers_in_float32() -> None:
    """A module without parameters, whose buffer was cast with it, has a reference too."""

    class Projected(torch.nn.Module):
        shapes = ((4, 8),)

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(8, 8))

        def inputs(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
            return (torch.randn(shape),)

        def eager(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.get_buffer("weight"))

    layer = OpenLayer.of(Projected(), "projected")
    layer.move_to(CPU, "bf16")
    operands = LayerOperands(layer, shape_of(4, 8), torch.bfloat16, CPU, warm=True)
    assert operands.expected[0].dtype == torch.float32
    assert operands.check_both(layer.eager, 2e-2) <= 2e-2


def test_operands_that_were_written_over_are_put_back() -> None:
    """A backend that spoils its operands spoils nothing for the next."""
    layer = built_in("swiglu")
    operands = LayerOperands(layer, shape_of(8, 8), torch.float32, CPU, warm=True)

    def spoiling(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        out = layer.eager(gate, up)
        gate.detach().zero_()
        return out

    operands.sets[0].forward(spoiling)
    assert operands.check_both(layer.eager, 1e-6) < 1e-6


def test_speedups_are_over_eager_at_the_same_place() -> None:
    """2x at one shape and half at the other make 1; a shape without times does not count."""
    assert [FOUND.speedup(one) for one in FOUND.cells] == [1.0, 2.0, None, 1.0, 0.5, 3.0]
    mean = FOUND.mean_speedup("compiled", Pass.FORWARD, "rmsnorm")
    assert mean is not None
    assert (mean.mean, mean.shapes) == (pytest.approx(1.0), 2)
    alone = FOUND.mean_speedup("liger", Pass.FORWARD)
    assert alone is not None
    assert (alone.mean, alone.shapes) == (pytest.approx(3.0), 1)
    assert FOUND.mean_speedup("liger", Pass.BOTH) is None


def test_the_mean_speedup_has_an_interval_over_rounds() -> None:
    """Each round has a mean over both shapes; a drift common to eager and backend cancels."""
    drift = (1.0, 1.02, 1.04)
    cells = [
        cell(name, 4.0, samples=Samples(tuple(us * share for share in drift)), shape=shape)
        for shape, times in ((shape_of(8, 8), (4.0, 2.0)), (shape_of(8, 16), (9.0, 1.125)))
        for name, us in zip(("eager", "compiled"), times, strict=True)
    ]
    mean = report(*cells).mean_speedup("compiled", Pass.FORWARD)
    assert mean is not None
    assert mean.mean == pytest.approx(4.0)
    assert mean.interval == (pytest.approx(4.0), pytest.approx(4.0))


def test_a_busy_machine_has_no_speedup() -> None:
    """Where eager varies by 70 %, no backend has a speed-up there, and the text says so."""
    drifting = Samples(tuple(4.0 * share for share in (1.0, 1.1, 1.3, 1.6, 1.2, 1.4, 1.5, 1.7)))
    made = report(cell("eager", 4.0, samples=drifting), cell("compiled", 2.0))
    assert made.speedup(made.cells[1]) is None
    assert made.mean_speedup("compiled", Pass.FORWARD) is None
    assert "no verdict: this machine is too busy" in " ".join(spell(made))


def test_with_a_warm_cache_no_share_of_the_bandwidth_is_said() -> None:
    """The bytes may come from the cache, which is faster than the memory."""
    assert FOUND.share(FOUND.cells[0]) is not None
    assert replace(FOUND, l2=L2.WARM).share(FOUND.cells[0]) is None


def test_text_fits_80_columns_and_tells_every_failure() -> None:
    """No line is wider than 80; missing backends and dropped cells are there with reasons."""
    text = "\n".join(spell(FOUND))
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "quack: cannot be imported: ModuleNotFoundError" in text
    assert "4096x16384 forward liger: it fell over" in text
    assert "50%" in text  # 2000 of 4000 GB/s
    assert "FLOPs per byte forward 0.5000" in text
    assert "eager 1.00x 1.00-1.00 (2), compiled 1.00x 1.00-1.00 (2)" in text


def test_flops_per_byte_are_ordered_as_numbers() -> None:
    """9.8 is less than 10.2, though its text stands behind."""
    cells = [cell("eager", 4.0, flops=flops, moved=10) for flops in (102, 98)]
    assert any("FLOPs per byte forward 9.800 to 10.20" in line for line in spell(report(*cells)))


def test_the_document_has_every_cell() -> None:
    """Times, rates and reasons of all cells, and the means by layer and over all."""
    found = document(FOUND)
    assert [one["time_us"] for one in found["cells"]] == [4.0, 2.0, None, 9.0, 18.0, 3.0]
    assert found["cells"][1]["gbps"] == pytest.approx(2000.0)
    assert found["cells"][1]["share_of_peak"] == pytest.approx(0.5)
    assert found["cells"][2]["reason"] == "it fell over"
    assert {one["layer"] for one in found["speedup_over_eager"]} == {"rmsnorm", None}


def test_the_roofline_has_each_cell_at_its_flops_per_byte() -> None:
    """2 MFLOP over 4 MB at half a FLOP per byte, 1 TFLOP/s in 2 us; peaks as the roof."""
    chart = charts_of(document(FOUND))["roofline-x"]
    assert chart.roof is not None
    assert chart.roof.positions == (0.5, 0.5)
    assert chart.roof.gbps == pytest.approx(4000.0)
    compiled = next(series for series in chart.series if series.name == "compiled")
    assert compiled.values[0] == pytest.approx(1.0)


def test_a_layer_called_roofline_and_another_device_keep_their_charts() -> None:
    """The roofline has the device's name, which no class can have; each chart is there."""
    own = [replace(each, layer="roofline") for each in FOUND.cells]
    titles = {"roofline": ("Roof line", "size")}
    found = replace(FOUND, cells=tuple(own), titles=titles)
    charts = [
        charts_of(document(replace(found, provenance={**found.provenance, "device": device})))
        for device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
    ]
    assert [list(each) for each in charts] == [
        ["roofline", "roofline-nvidia-h200"],
        ["roofline", "roofline-nvidia-h100-80gb-hbm3"],
    ]


def test_the_chart_has_a_gap_where_a_backend_failed() -> None:
    """One group for each shape and pass, the peak as reference, None for the failed cell."""
    chart = charts_of(document(FOUND))["rmsnorm"]
    assert chart.groups == ("4096x16384 forward", "8x8 forward")
    assert [series.name for series in chart.series] == ["eager", "compiled", "liger 0.8.5"]
    assert chart.series[2].values[0] is None
    assert chart.reference == ("measured peak", 4000.0)


def test_a_backend_that_fails_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that raises, one that is wrong, and one that cannot be imported; eager stays."""

    def broken(_x: torch.Tensor) -> NoReturn:
        raise ValueError("no such kernel\nand a long story")

    known = {"compiled": broken, "custom": lambda x: x}
    real = backends.operator_of
    monkeypatch.setattr(
        timing, "operator_of", lambda name, *rest: known.get(name) or real(name, *rest)
    )
    found = run.bench_layers(
        layers="softmax",
        backends="compiled,custom,liger,table",
        shapes="8x16",
        dtype="f32",
        rounds=2,
        device="cpu",
        backward=False,
    )
    reasons = {one.backend: one.reason for one in found.cells}
    assert list(reasons) == ["eager", "compiled", "custom"]
    assert reasons["eager"] == ""
    assert reasons["compiled"] == "ValueError: no such kernel"
    assert reasons["custom"].startswith("its output is wrong: relative L2 error")
    assert [one.backend for one in found.wrong] == ["custom"]
    assert found.missing["liger"] == "its kernels are for GPUs"
    assert "constant weights" in found.missing["table"]


def test_a_library_that_cannot_be_imported_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the reason is the error of its import."""
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    reason = backends.missing("liger", torch.device("cuda"))
    assert reason is not None
    assert "ModuleNotFoundError" in reason


def test_a_recompile_while_it_is_timed_is_no_time() -> None:
    """A function that was dropped from dynamo's cache fails when timed."""
    layer = built_in("softmax")
    operands = LayerOperands(layer, shape_of(8, 16), torch.float32, CPU, warm=True)
    compiled = torch.compile(layer.eager, backend="eager")
    operands.check_forward(compiled, 1e-3)
    batch = timing._ready(Pass.FORWARD, compiled, operands, setup())
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="Detected recompile"):
        batch.time()


def test_a_backend_that_fails_while_it_is_timed_costs_no_other(
    own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cell has the reason, and eager is timed without it."""

    class Broken:
        calls = 1

        def time(self) -> NoReturn:
            raise RuntimeError("gone")

    def failing(batches: dict[str, Batch], *rest: Any) -> dict[str, Samples]:
        if "wrong" in batches:
            batches["wrong"] = Broken()
        return run_rounds(batches, *rest)

    monkeypatch.setattr(timing, "run_rounds", failing)
    found = within_a_fifth(own_file)
    assert [(one.backend, one.samples is None, one.reason) for one in found.cells] == [
        ("eager", False, ""),
        ("wrong", True, "while it was timed: RuntimeError: gone"),
    ]


def test_a_build_that_fails_costs_the_table_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the build raises is the reason of the backend `table`, and nothing was served."""

    def broken(*_args: object, **_options: object) -> NoReturn:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(table_column, "build", broken)
    layer = built_in("softmax")
    table = LayerTable(tmp_path / "none.json", torch.device("cuda"), "f32", Launch.EAGER, L2.WARM)
    table.build(layer, layer.shapes)
    operands = LayerOperands(layer, shape_of(8, 16), torch.float32, CPU, warm=True)
    with pytest.raises(BuildError, match="no table: RuntimeError: no such kernel"):
        table.operator(layer, layer.shapes[0], operands)
    assert table.digest is None


def test_a_shape_that_cannot_be_built_costs_no_other_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three shapes fails in the build of all and alone; only it has no table, and why."""
    built: list[list[str]] = []

    def broken_at_two(_target: str, *, dims: list[str], **_options: object) -> SimpleNamespace:
        if "d0=2;d1=8" in dims:
            raise RuntimeError("no such kernel")
        built.append(dims)
        return SimpleNamespace(table=f"rows of {len(built)} shapes")

    monkeypatch.setattr(table_column, "build", broken_at_two)
    table = LayerTable(tmp_path / "none.json", torch.device("cuda"), "f32", Launch.EAGER, L2.WARM)
    table.build(built_in("softmax"), [shape_of(rows, 8) for rows in (1, 2, 3)])
    assert table.missing == {
        ("softmax", shape_of(2, 8)): "no table: RuntimeError: no such kernel",
    }
    assert built == [["d0=1;d1=8"], ["d0=3;d1=8"]]
    assert table.table == "rows of 2 shapes"


def setup() -> timing.LayerSetup:
    return timing.LayerSetup(
        device=CPU,
        dtype="f32",
        launch=Launch.EAGER,
        l2=L2.WARM,
        rounds=2,
        steps=(Pass.FORWARD,),
        tolerance=1e-3,
        customs={},
        table=LayerTable(Path("none.json"), CPU, "f32", Launch.EAGER, L2.WARM),
    )


def test_a_users_layer_has_its_methods_as_backends(own_file: Path) -> None:
    """The file's shapes, FLOPs and bytes count; a method whose output is wrong has no time."""
    found = run.bench_layers(
        own=[f"{own_file}:GeGlu"],
        backends="eager,wrong",
        dtype="f32",
        rounds=2,
        device="cpu",
        backward=False,
    )
    assert [(str(one.shape), one.backend, one.is_wrong) for one in found.cells] == [
        (shape, name, name == "wrong") for shape in ("8x16", "2x32") for name in ("eager", "wrong")
    ]
    assert found.cells[0].flops_per_byte == pytest.approx(10 / 12)
    assert found.titles == {"GeGlu": ("GeGLU", "last size")}


def test_methods_of_torchs_own_classes_are_no_backends() -> None:
    """Of a subclass of nn.Linear that overrides some of them, only the added method is one."""

    class Projection(torch.nn.Linear):
        shapes = ((8, 16),)

        def __init__(self) -> None:
            super().__init__(16, 16)

        def inputs(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
            return (torch.randn(shape),)

        def eager(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward(x)

        def folded(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward(x)

        def train(self, mode: bool = True) -> Projection:
            return super().train(mode)

        def extra_repr(self) -> str:
            return ""

    assert list(OpenLayer.of(Projection(), "projection").backends) == ["eager", "folded"]


def test_the_tolerance_is_that_which_is_given(own_file: Path) -> None:
    """An output that is off by a tenth is right within 0.2."""
    found = within_a_fifth(own_file)
    assert found.wrong == ()
    assert found.cells[1].error == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoInputs", "NoInputs has no method 'inputs'"),
        ("NoShapes", "NoShapes has no shapes"),
        ("Missing", "has no 'Missing'"),
    ],
)
def test_a_file_that_is_no_layer_is_refused(own_file: Path, name: str, said: str) -> None:
    """What the class lacks is named, and the option."""
    with pytest.raises(SettingsError, match=said) as caught:
        open_layer(f"{own_file}:{name}")
    assert "--layer" in str(caught.value)


def test_a_method_with_the_name_of_a_backend_is_refused(own_file: Path) -> None:
    """``compiled`` is inductor's."""
    with pytest.raises(SettingsError, match="'compiled' has the name of a backend"):
        run.bench_layers(own=[f"{own_file}:Named"], device="cpu")


def test_flops_that_are_no_number_above_zero_cost_the_shape(own_file: Path) -> None:
    """The reason stands in each cell of the shape."""
    found = run.bench_layers(
        own=[f"{own_file}:Zero"], backends="eager", shapes="4x4", rounds=2, device="cpu"
    )
    assert ["flops of Zero returned 0" in one.reason for one in found.cells] == [True, True]


def test_a_layer_without_gradients_is_timed_forward(own_file: Path) -> None:
    """With backward it has no reference, and forward alone needs none of its gradients."""
    reasons = {
        backward: [
            one.reason
            for one in run.bench_layers(
                own=[f"{own_file}:Detached"],
                backends="eager",
                shapes="4x4",
                rounds=2,
                device="cpu",
                backward=backward,
            ).cells
        ]
        for backward in (False, True)
    }
    assert reasons[False] == [""]
    assert ["no operands: RuntimeError" in reason for reason in reasons[True]] == [True, True]


@pytest.mark.parametrize(
    ("layer", "backend", "code", "said"),
    [
        ("GeGlu", "wrong", 1, ""),
        ("Zero", "wrong", 1, "--fail-on accuracy: no output of a backend was compared"),
        ("GeGlu", "eager", 0, ""),
    ],
)
def test_fail_on_accuracy_needs_an_output_that_was_compared(
    *,
    own_file: Path,
    capsys: pytest.CaptureFixture[str],
    layer: str,
    backend: str,
    code: int,
    said: str,
) -> None:
    """A wrong output ends with 1; so does a run in which no output was compared, and says so."""
    words = ["bench", "layers", "--layer", f"{own_file}:{layer}", "--backends", backend]
    words += ["--shapes", "4x4", "--dtype", "f32", "--rounds", "2", "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--no-backward", "--fail-on", "accuracy"])
    assert ended.value.code == code
    lines = capsys.readouterr().err.splitlines()
    assert [line[: len(said)] for line in lines if "--fail-on" in line] == [said] * bool(said)


def test_custom_options_are_read_by_name() -> None:
    """Numbers, booleans and words; without any there is the built-in set."""
    text = "wide:max_autotune_pointwise=true,coordinate_descent_tuning=false"
    assert backends.parse_customs(["a:epilogue_fusion=false", text]) == {
        "a": {"epilogue_fusion": False},
        "wide": {"max_autotune_pointwise": True, "coordinate_descent_tuning": False},
    }
    assert list(backends.parse_customs([])) == ["custom"]
    for wrong in ("a", "a:", "a:b", "A:b=1", "compiled:epilogue_fusion=false"):
        with pytest.raises(SettingsError, match="--custom"):
            backends.parse_customs([wrong])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wide:max_autotune_pointwize=true", r"'max_autotune_pointwize'.*use max_autotune_point"),
        ("wide:zzzz=1", r"no option 'zzzz'.*list_options"),
        ("wide:max_autotune=3", r"max_autotune, got int should be bool"),
    ],
)
def test_an_option_that_inductor_does_not_have_is_one_line(text: str, said: str) -> None:
    """The option and near spellings are named; torch's list of all options is left out."""
    with pytest.raises(SettingsError, match=f"--custom wide: .*{said}") as caught:
        backends.parse_customs([text])
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_a_shape_that_does_not_fit_costs_that_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory at one shape is its reason; the other shapes are timed."""
    real = timing.LayerOperands

    def small(layer: OpenLayer, shape: LayerShape, *args: Any, **kwargs: Any) -> LayerOperands:
        if shape.rows > 8:
            raise RuntimeError("out of memory")
        return real(layer, shape, *args, **kwargs)

    monkeypatch.setattr(timing, "LayerOperands", small)
    found = run.bench_layers(
        layers="softmax", backends="eager", shapes="16x8,8x8", dtype="f32", rounds=2, device="cpu"
    )
    assert [one.reason for one in found.cells] == [
        *["no operands: RuntimeError: out of memory"] * 2,
        *["", ""],
    ]
    assert "16x8 fwd+bwd eager: no operands" in "\n".join(spell(found))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"layers": "rmsnorm,gelu"}, "--layers 'gelu' is unknown"),
        ({"backends": "cuda"}, "--backends 'cuda' is unknown"),
        ({"dtype": "i8"}, "--dtype 'i8' is unknown"),
        ({"launch": "graph"}, "--launch 'graph' is unknown"),
        ({"l2": "hot"}, "--l2 'hot' is unknown"),
        ({"rounds": 0}, "--rounds 0"),
        ({"shapes": "8y8"}, "--shapes"),
        ({"shapes": "8x8,8"}, "--shapes: 8 has 1 sizes, and shapes of rmsnorm have 2"),
        ({"tolerance": 0.0}, "--tolerance 0.0"),
        ({"tolerance": float("inf")}, "--tolerance inf"),
        ({"device": "tpu"}, "--device"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_timed(
    given: dict[str, object], said: str
) -> None:
    """An unknown name is a settings error that names the option and the choices."""
    with pytest.raises(SettingsError, match=said):
        run.bench_layers(**{"device": "cpu", **given})  # type: ignore[arg-type]


def test_the_command_module_imports_no_torch() -> None:
    """`warmup --help` lists the command without paying for torch."""
    code = "import sys, warmup.cli.bench_layers; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0
