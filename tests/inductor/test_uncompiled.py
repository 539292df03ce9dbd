"""Frames that torch.compile leaves uncompiled are reported with torch's reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from warmup import BuildOptions, build
from warmup.core.errors import BuildError, ModelError, NothingRecordedError
from warmup.core.events import Emitter, Tally
from warmup.diagnostics.explain import explain
from warmup.inductor.compile_watch import FrameWatch, count_matmuls_outside
from warmup.inductor.patches import Patches
from warmup.serving.check import check
from warmup.serving.prime import prime
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss, PolicyOptions
from warmup.table.store import write
from warmup.tuning.build import find_setup, open_table

RNN = "Dynamo does not support RNN, GRU, or LSTM"
PRINT = "Dynamo does not know how to trace builtin operator `print`"
GRU = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.gru, self.b = nn.Linear(16, 16), nn.GRU(16, 16), nn.Linear(16, 16)
    def forward(self, x):
        return self.b(self.gru(self.a(x))[0])
    @staticmethod
    def example_inputs(seqlen):
        return {"x": torch.zeros(seqlen, 16)}

class Outside(Model):
    @torch.compiler.disable
    def rest(self, x):
        return self.b(x)
    def forward(self, x):
        return self.rest(self.a(x))

class Counter(Model):
    def __init__(self):
        super().__init__()
        self.steps = 0
    def forward(self, x):
        self.steps += 1
        return self.a(x) * self.steps
"""


_Layers = nn.ModuleDict


def _layers() -> _Layers:
    torch.manual_seed(0)
    named = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8), "gru": nn.GRU(8, 8)}
    return nn.ModuleDict(named).eval()


def _whole(layers: _Layers, x: Any) -> Any:
    return layers["b"](torch.relu(layers["a"](x)))


def _gru(layers: _Layers, x: Any) -> Any:
    return layers["b"](layers["gru"](layers["a"](x))[0])


def _prints(layers: _Layers, x: Any) -> Any:
    y = layers["a"](x)
    print(end="")  # noqa: T201
    return layers["b"](y)


def _prints_in_a_loop(layers: _Layers, x: Any) -> Any:
    for _ in range(2):
        x = layers["a"](x)
        print(end="")  # noqa: T201
    return layers["b"](x)


@torch.compiler.disable
def _outside(layers: _Layers, x: Any) -> Any:
    return layers["b"](x)


def _disabled(layers: _Layers, x: Any) -> Any:
    return _outside(layers, layers["a"](x))


def _branches(layers: _Layers, x: Any) -> Any:
    y = layers["a"](x)
    if y.sum() > 0:
        y = y + 1
    return layers["b"](y)


@contextmanager
def watching() -> Iterator[Tally]:
    torch.compiler.reset()
    tally, patches = Tally(), Patches()
    FrameWatch(Lookup({}, OnMiss.FALLBACK, Emitter([tally]))).attach(patches)
    try:
        yield tally
    finally:
        patches.restore()


def test_each_frame_that_is_not_compiled_is_an_event_with_torchs_reason() -> None:
    """Whole frames, and parts; a model of one graph has none."""
    cases: tuple[tuple[Callable[..., Any], str, str], ...] = (
        (_whole, "", ""),
        (_gru, "_gru", RNN),
        (_prints, "a part of _prints", PRINT),
        (_prints_in_a_loop, "_prints_in_a_loop", PRINT),
        (_disabled, "a part of _disabled", "was wrapped with `torch.compiler.disable`"),
        (_branches, "a part of _branches", "a branch depends on a tensor's value"),
    )
    for function, frame, reason in cases:
        with watching() as tally, torch.no_grad():
            compiled, layers = torch.compile(function, backend="eager"), _layers()
            for _ in range(2):
                compiled(layers, torch.zeros(3, 8))
        assert list(tally.uncompiled.values()) == ([1] if frame else []), function
        for text in tally.uncompiled:
            assert text.startswith(f"{frame} (test_uncompiled.py:"), text
            assert reason in text, text
            assert " 0x" not in text, text


def test_a_recompile_limit_is_a_reason() -> None:
    """From then on the function runs uncompiled."""
    with watching() as tally, torch._dynamo.config.patch(recompile_limit=2):
        double = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
        for size in range(2, 6):
            double(torch.zeros(size))
    ((text, count),) = tally.uncompiled.items()
    assert "test_uncompiled.py:" in text
    assert "recompile_limit" in text
    assert count == 1


def test_matmuls_outside_of_graphs_are_counted() -> None:
    """Not those of a graph, whose library kernels have the same names."""
    torch.compiler.reset()
    for function, expected in ((_whole, 0), (_disabled, 1), (_gru, 2 + 1 + 3)):  # three steps
        call = partial(torch.compile(function), _layers(), torch.zeros(3, 8))
        with torch.no_grad():
            call()
            assert count_matmuls_outside(call) == expected, function


def test_a_build_without_a_decision_says_what_ran_uncompiled(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(GRU)
    model = f"{tmp_path / 'model.py'}:Model"
    with pytest.raises(NothingRecordedError) as caught:
        build(model, "3", tmp_path / "t.json", options=BuildOptions(device="cpu"))
    assert f"1 uncompiled frame: forward (model.py:9): {RNN}" in str(caught.value)
    assert "matmuls outside any graph: 6" in str(caught.value)
    assert "mm-like" not in str(caught.value)


def test_priming_and_explain_say_what_ran_uncompiled(tmp_path: Path) -> None:
    """A line for each frame, and for the matmuls outside; without a graph, in the error."""
    (tmp_path / "model.py").write_text(GRU)
    outside, path = f"{tmp_path / 'model.py'}:Outside", tmp_path / "t.json"
    table, _ = open_table(path, find_setup("cpu", PolicyOptions()), force=False)
    write(path, table)
    primed = prime(check(path), outside, seqlens="3", device="cpu", on_miss="fallback")
    frame, matmuls = primed.remarks[-2:]
    assert frame.startswith("bucket seqlen=3: uncompiled: a part of forward (model.py:"), frame
    assert "was wrapped with `torch.compiler.disable`" in frame
    assert matmuls.endswith("outside any graph, so without a row: 1")
    explained = explain(outside, seqlens="3,4", device="cpu", grad=False)
    assert explained.caveats[-1] == frame.removeprefix("bucket seqlen=3: ")
    with pytest.raises(ModelError, match="compiled no graph, with 1 uncompiled frame: forward"):
        explain(f"{tmp_path / 'model.py'}:Model", seqlens="3,4", device="cpu", grad=False)


def test_a_model_that_counts_its_calls_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """The attribute is named with its values; torch compiles again for each."""
    (tmp_path / "model.py").write_text(GRU)
    said = r"each call of the model changes its steps \("
    for sizes, policy in (("3", "exact"), ("3,6", "range")):
        options = BuildOptions(device="cpu", wait_for_quiet=0, policy=policy)
        with pytest.raises(BuildError, match=said) as caught:
            build(f"{tmp_path / 'model.py'}:Counter", sizes, tmp_path / "t.json", options=options)
        assert "Error" not in str(caught.value), policy
