"""A build sends the candidates of all GEMMs of a graph to the workers before it measures."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from warmup.inductor.launch import compiling as kernels_ahead
from warmup.inductor.launch.compiling import KernelsAhead

PROGRAM = "cuda_ahead.py"

Ask = Callable[..., dict[str, Any]]


def _measured(lines: list[str]) -> list[int]:
    """Return the positions of the questions in the order of what happened."""
    return [at for at, line in enumerate(lines) if line.startswith("measured")]


def _sent(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("sent")]


def test_the_same_kernels_are_sent_once_before_they_are_measured(ask: Ask) -> None:
    """Of a graph of two matmuls and a norm, whose own kernels go with its question either way.

    The first lowering reports no event, counts no kernel and changes no code.
    """
    asked = ask(ahead=False)
    first, second, third = _measured(asked["lines"])
    for begin, end in ((first, second), (second, third)):
        assert _sent(asked["lines"][begin:end])
    found = ask(ahead=True)
    sent, (first, second, third) = _sent(found["lines"]), _measured(found["lines"])
    ahead = {line.split()[1] for line in _sent(found["lines"][:first])}
    assert {"triton_mm", "triton_mm_persistent_tma"} <= ahead
    assert second == first + 1
    assert {line.split()[1] for line in found["lines"][second + 1 : third]} == {"triton_"}
    assert len(sent) == len(set(sent))
    assert sorted(sent) == sorted(_sent(asked["lines"]))
    for what in ("events", "kernels", "code"):
        assert found[what] == asked[what] != [], what


@pytest.mark.long
def test_configs_of_later_reductions_are_sent_before_the_first_has_its_row(ask: Ask) -> None:
    """Of three reductions, without a config sent twice; they have the keys that serving has."""
    found, served = ask(ahead=False, sorts=True), ask(ahead=False, sorts=True, serves=True)
    first, *_ = _measured(found["lines"])
    sent = [line.split() for line in _sent(found["lines"]) if "XBLOCK" in line]
    kernels = [words[-1] for words in map(str.split, _sent(found["lines"][:first]))]
    assert len({*kernels}) >= 3  # each reduction has two
    assert len(sent) == len({*map(tuple, sent)})
    assert len({words[-1] for words in sent}) == 6
    keys = [event["key"] for event in found["events"]]
    assert keys == [event["key"] for event in served["events"]]
    assert found["code"] == served["code"] != []


def list_ahead(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], **words: Any) -> None:
    """Lower a graph ahead, where *run* takes the place of the lowering."""

    class Twin:
        def __init__(self, _module: object, *, shape_env: Any = None) -> None:
            self.sizevars = SimpleNamespace(shape_env=shape_env or ShapeEnv())

        def run(self) -> None:
            run()

    monkeypatch.setattr(kernels_ahead, "GraphLowering", Twin)
    monkeypatch.setattr(kernels_ahead.AsyncCompile, "use_process_pool", lambda: True)
    module = torch.fx.symbolic_trace(torch.nn.Identity())
    KernelsAhead()._list((module,), words, ())


def test_the_first_lowering_adds_no_guard_on_the_symbols_of_the_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A comparison of a dynamic size in the twin's lowering leaves the shared symbols as before."""
    symbols = ShapeEnv()
    size = FakeTensorMode(shape_env=symbols).from_tensor(
        torch.empty(8), symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC])
    )
    compared: list[bool] = []
    before = len(symbols.guards)
    list_ahead(monkeypatch, lambda: compared.append(bool(size.shape[0] > 4)), shape_env=symbols)
    assert (compared, len(symbols.guards)) == ([True], before)
