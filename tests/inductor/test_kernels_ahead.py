"""A build sends the candidates of all questions of a graph to the workers before it measures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from warmup.core.method import CompileOrder
from warmup.inductor import listing
from warmup.inductor.launch import compiling as kernels_ahead
from warmup.inductor.launch.compiling import KernelsAhead
from warmup.inductor.listing import note_sent, wait_for_sent

Conversation = Callable[[str, Path], Any]
Found = dict[str, Any]
AHEAD = [CompileOrder.BESIDE, CompileOrder.BEFORE]


@pytest.fixture(scope="module")
def found(
    conversation: Conversation, tmp_path_factory: pytest.TempPathFactory
) -> dict[CompileOrder, Found]:
    """What came of a graph of two matmuls and a norm, compiled in each order."""
    with conversation("cuda_ahead.py", tmp_path_factory.mktemp("ahead")) as ask:
        return {order: ask(order=order) for order in CompileOrder}


def _measured(found: Found) -> list[int]:
    """Return the positions of the questions in the order of what happened."""
    return [at for at, line in enumerate(found["lines"]) if line.startswith("measured")]


def _sent(found: Found) -> list[str]:
    return [line for line in found["lines"] if line.startswith("sent")]


def test_kernels_are_sent_before_they_are_measured(found: dict[CompileOrder, Found]) -> None:
    for order in AHEAD:
        kernels = {line.split()[1] for line in _sent(found[order])}
        assert {"triton_mm", "triton_mm_persistent_tma", "triton_"} <= kernels, order
        assert _measured(found[order]) == [len(_sent(found[order])) + at for at in range(3)]
    # Kernels that are asked for are sent question by question.
    asked = found[CompileOrder.AS_ASKED]
    first, second, third = _measured(asked)
    for begin, end in ((first, second), (second, third)):
        assert any(line.startswith("sent") for line in asked["lines"][begin:end])
    # The lowering that measures takes what the first lowering sent.
    for order in AHEAD:
        assert len(_sent(found[order])) == len(set(_sent(found[order])))


def test_the_same_kernels_are_compiled(found: dict[CompileOrder, Found]) -> None:
    """Compiling ahead neither adds nor leaves out a candidate."""
    for order in AHEAD:
        assert sorted(_sent(found[order])) == sorted(_sent(found[CompileOrder.AS_ASKED]))


def test_what_is_compiled_and_reported_is_the_same(found: dict[CompileOrder, Found]) -> None:
    """The first lowering reports no event, counts no kernel and changes no code."""
    for order, what in product(AHEAD, ("events", "kernels", "code")):
        assert found[CompileOrder.AS_ASKED][what], (order, what)
        assert found[order][what] == found[CompileOrder.AS_ASKED][what]


@pytest.mark.parametrize("order", AHEAD)
def test_only_a_build_for_the_host_waits_for_what_it_sent(
    order: CompileOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order "before" the lowering that measures begins when all workers are idle."""
    task: Future[None] = Future()

    class Twin:
        def __init__(self, _module: object) -> None:
            self.sizevars = SimpleNamespace(shape_env=ShapeEnv())

        def run(self) -> None:
            note_sent(task)
            threading.Timer(0.05, task.set_result, [None]).start()

        def codegen(self) -> None:
            pass

    monkeypatch.setattr(kernels_ahead, "GraphLowering", Twin)
    monkeypatch.setattr(kernels_ahead.AsyncCompile, "use_process_pool", lambda: True)
    module = torch.fx.symbolic_trace(torch.nn.Identity())
    reported: list[tuple[int, int]] = []
    KernelsAhead(order, lambda *counts: reported.append(counts))._list((module,), {}, ())
    is_waited = task.done()
    wait_for_sent()
    assert is_waited is (order is CompileOrder.BEFORE)
    assert reported == ([(1, 1)] if is_waited else [])


def test_workers_are_waited_for_before_caches_are_removed() -> None:
    task: Future[None] = Future()
    note_sent(task)
    threading.Timer(0.05, task.set_result, [None]).start()
    wait_for_sent()
    assert task.done()


def test_workers_are_waited_for_as_long_as_kernels_are_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listing, "_WAIT_SECONDS", 0.5)
    tasks = [Future[None]() for _ in range(4)]
    for number, task in enumerate(tasks, start=1):
        note_sent(task)
        threading.Timer(0.2 * number, task.set_result, [None]).start()
    wait_for_sent()
    assert all(task.done() for task in tasks)
    assert not caplog.records


def test_a_task_that_another_thread_sends_while_one_waits_is_not_forgotten() -> None:
    first: Future[None] = Future()
    second: Future[None] = Future()
    note_sent(first)

    def send_and_end() -> None:
        note_sent(second)
        first.set_result(None)

    threading.Timer(0.05, send_and_end).start()
    wait_for_sent()
    assert not second.done()
    threading.Timer(0.05, second.set_result, [None]).start()
    wait_for_sent()
    assert second.done()


def test_the_first_lowering_adds_no_guard_on_the_symbols_of_the_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A comparison of a dynamic size in the twin's lowering leaves the shared symbols as before."""
    symbols = ShapeEnv()
    size = FakeTensorMode(shape_env=symbols).from_tensor(
        torch.empty(8), symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC])
    )
    compared: list[bool] = []

    class Twin:
        def __init__(self, _module: object, *, shape_env: ShapeEnv) -> None:
            self.sizevars = SimpleNamespace(shape_env=shape_env)

        def run(self) -> None:
            compared.append(bool(size.shape[0] > 4))

        def codegen(self) -> None:
            pass

    monkeypatch.setattr(kernels_ahead, "GraphLowering", Twin)
    monkeypatch.setattr(kernels_ahead.AsyncCompile, "use_process_pool", lambda: True)
    before = len(symbols.guards)
    module = torch.fx.symbolic_trace(torch.nn.Identity())
    KernelsAhead()._list((module,), {"shape_env": symbols}, ())
    assert compared == [True]
    assert len(symbols.guards) == before


def test_a_worker_that_does_not_end_is_said_and_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says that host times may be too long; the next bucket does not wait again."""
    monkeypatch.setattr(listing, "_WAIT_SECONDS", 0.01)
    note_sent(Future())
    wait_for_sent()
    wait_for_sent()
    (record,) = caplog.records
    assert record.getMessage().startswith("after 0 s workers still compile 1 kernel:")
