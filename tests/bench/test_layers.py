"""`bench layers`: what is compared, what follows from its times, and how failures are told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from warmup.bench.layers import backends, run, timing
from warmup.bench.layers.files import charts_of, document
from warmup.bench.layers.layers import LAYERS, Layer, Rows, parse_rows
from warmup.bench.layers.operands import LayerOperands
from warmup.bench.layers.report import LayerCell, LayersReport, Pass
from warmup.cli.bench_layers import spell
from warmup.core.errors import OutputMismatchError, SettingsError
from warmup.core.method import L2, Launch
from warmup.core.roofline import Peaks
from warmup.core.samples import Samples

CPU = torch.device("cpu")


def cell(backend: str, time_us: float | None, **changes: object) -> LayerCell:
    made = LayerCell(
        layer="rmsnorm",
        shape=Rows(4096, 16384),
        step=Pass.FORWARD,
        backend=backend,
        moved=4_000_000,
        samples=None if time_us is None else Samples((time_us,) * 3),
        error=None if time_us is None else 1e-3,
        reason="" if time_us is not None else "it fell over",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def report(*cells: LayerCell) -> LayersReport:
    names = ("device", "torch", "triton", "warmup", "date")
    return LayersReport(
        provenance=dict.fromkeys(names, "x"),
        device_type="cuda",
        dtype="bf16",
        launch=Launch.CUDAGRAPH,
        l2=L2.COLD,
        rounds=3,
        backends=("eager", "compiled", "liger"),
        missing={"quack": "cannot be imported: ModuleNotFoundError: No module named 'quack'"},
        versions={"liger": "0.8.5"},
        options={"max_autotune_pointwise": True},
        peaks=Peaks(tflops={}, gbps=4000.0, clock_mhz=None, measured="2026-01-02"),
        cells=cells,
    )


FOUND = report(
    cell("eager", 4.0),
    cell("compiled", 2.0),
    cell("liger", None),
    cell("eager", 9.0, shape=Rows(8, 8)),
    cell("compiled", 18.0, shape=Rows(8, 8)),
    cell("liger", 3.0, shape=Rows(8, 8)),
)


def test_shapes_are_parsed_and_told_when_they_cannot_be() -> None:
    """ROWSxCOLUMNS in the order given; anything else, or a shape twice, is a settings error."""
    assert parse_rows("64x128, 8x9") == (Rows(64, 128), Rows(8, 9))
    for wrong in ("64", "0x8", "8x8x8", "8x8,8x8", ""):
        with pytest.raises(SettingsError, match="--shapes"):
            parse_rows(wrong)


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
    layer, shape = LAYERS[name], Rows(8, 4)
    assert layer.forward_bytes(shape, 2) == 2 * forward
    assert layer.backward_bytes(shape, 2) == 2 * backward


def test_least_bytes_of_cross_entropy_include_targets() -> None:
    """Logits and eight bytes for each target in, one number out; then the logits' gradient."""
    layer, shape = LAYERS["cross-entropy"], Rows(8, 4)
    assert layer.forward_bytes(shape, 2) == 64 + 64 + 2
    assert layer.backward_bytes(shape, 2) == 2 + 64 + 64 + 64


@pytest.mark.parametrize("name", list(LAYERS))
def test_eager_agrees_with_its_reference(name: str) -> None:
    """Each layer in float32 and in bf16 passes its own check, outputs and gradients."""
    for dtype, limit in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        operands = LayerOperands(LAYERS[name], Rows(16, 24), dtype, CPU, warm=True)
        assert operands.check_forward(LAYERS[name].function, limit) <= limit
        assert operands.check_both(LAYERS[name].function, limit) <= limit


def test_a_wrong_output_or_gradient_is_found() -> None:
    """A scaled output fails; so does a right output whose gradient is wrong, or one of NaN."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x, -1)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    layer = LAYERS["softmax"]
    operands = LayerOperands(layer, Rows(16, 24), torch.float32, CPU, warm=True)
    with pytest.raises(OutputMismatchError, match="its output is wrong"):
        operands.check_forward(lambda x: layer.function(x) * 1.1, 1e-3)
    with pytest.raises(OutputMismatchError, match="its output is wrong"):
        operands.check_forward(lambda x: x * float("nan"), 1e-3)
    with pytest.raises(OutputMismatchError, match="its output has sizes"):
        operands.check_forward(lambda x: x[:1], 1e-3)
    with pytest.raises(OutputMismatchError, match="its gradient 1 is wrong"):
        operands.check_both(Wrong.apply, 1e-3)


def test_operands_that_were_written_over_are_put_back() -> None:
    """A backend that spoils its operands spoils nothing for the next."""
    layer = LAYERS["swiglu"]
    operands = LayerOperands(layer, Rows(8, 8), torch.float32, CPU, warm=True)

    def spoiling(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        out = layer.function(gate, up)
        gate.detach().zero_()
        return out

    operands.sets[0].forward(spoiling)
    assert operands.check_both(layer.function, 1e-6) < 1e-6


def test_speedups_are_over_eager_at_the_same_place() -> None:
    """2x at one shape and half at the other make 1; a shape without times does not count."""
    assert [FOUND.speedup(one) for one in FOUND.cells] == [1.0, 2.0, None, 1.0, 0.5, 3.0]
    assert FOUND.mean_speedup("compiled", Pass.FORWARD, "rmsnorm") == (pytest.approx(1.0), 2)
    assert FOUND.mean_speedup("liger", Pass.FORWARD) == (pytest.approx(3.0), 1)
    assert FOUND.mean_speedup("liger", Pass.BOTH) is None


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
    assert "rmsnorm       forward  eager 1.00x (2), compiled 1.00x (2), liger 3.00x (1)" in text


def test_the_document_has_every_cell() -> None:
    """Times, rates and reasons of all cells, and the means by layer and over all."""
    found = document(FOUND)
    assert [one["time_us"] for one in found["cells"]] == [4.0, 2.0, None, 9.0, 18.0, 3.0]
    assert found["cells"][1]["gbps"] == pytest.approx(2000.0)
    assert found["cells"][1]["share_of_peak"] == pytest.approx(0.5)
    assert found["cells"][2]["reason"] == "it fell over"
    assert {one["layer"] for one in found["speedup_over_eager"]} == {"rmsnorm", None}


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
        timing, "operator_of", lambda name, layer: known.get(name) or real(name, layer)
    )
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.delitem(sys.modules, "warmup.bench.layers.liger", raising=False)
    found = run.bench_layers(
        layers="softmax",
        backends="compiled,custom,liger",
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
    assert "ModuleNotFoundError" in found.missing["liger"]


def test_a_shape_that_does_not_fit_costs_that_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory at one shape is its reason; the other shapes are timed."""
    real = timing.LayerOperands

    def small(layer: Layer, shape: Rows, *args: Any, **kwargs: Any) -> LayerOperands:
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
        ({"shapes": "8"}, "--shapes"),
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
