"""A build sends the candidates of all questions of a graph to the workers before it measures.

No GPU is needed: inductor lowers for a stated H100, and the pool keeps what is sent to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from warmup.inductor import kernels_ahead, listing
from warmup.inductor.kernels_ahead import KernelsAhead
from warmup.inductor.listing import note_sent, wait_for_sent

Conversation = Callable[[str, Path], Any]
Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(
    conversation: Conversation, tmp_path_factory: pytest.TempPathFactory
) -> dict[bool, Found]:
    """What came of a graph of two matmuls and a norm, compiled ahead and not."""
    with conversation("cuda_ahead.py", tmp_path_factory.mktemp("ahead")) as ask:
        return {ahead: ask(ahead=ahead) for ahead in (False, True)}


def _measured(found: Found) -> list[int]:
    """Return the positions of the questions in the order of what happened."""
    return [at for at, line in enumerate(found["lines"]) if line.startswith("measured")]


def _sent(found: Found) -> list[str]:
    return [line for line in found["lines"] if line.startswith("sent")]


def test_everything_is_sent_before_the_first_question_is_measured(
    found: dict[bool, Found],
) -> None:
    """The workers have the kernels of all three questions when the first is measured."""
    kernels = {line.split()[1] for line in _sent(found[True])}
    assert {"triton_mm", "triton_mm_persistent_tma", "triton_"} <= kernels
    assert _measured(found[True]) == [len(_sent(found[True])) + at for at in range(3)]


def test_without_it_kernels_are_sent_question_by_question(found: dict[bool, Found]) -> None:
    """The candidates of a question are sent after the question before it was measured."""
    first, second, third = _measured(found[False])
    lines = found[False]["lines"]
    for begin, end in ((first, second), (second, third)):
        assert any(line.startswith("sent") for line in lines[begin:end])


def test_no_kernel_is_sent_twice(found: dict[bool, Found]) -> None:
    """The lowering that measures takes what the first lowering sent."""
    assert len(_sent(found[True])) == len(set(_sent(found[True])))


def test_the_same_kernels_are_compiled(found: dict[bool, Found]) -> None:
    """Compiling ahead neither adds nor leaves out a candidate."""
    assert sorted(_sent(found[True])) == sorted(_sent(found[False]))


@pytest.mark.parametrize("what", ["events", "kernels", "code"])
def test_what_is_compiled_and_reported_is_the_same(found: dict[bool, Found], what: str) -> None:
    """The first lowering reports no event, counts no kernel and changes no code."""
    assert found[False][what]
    assert found[True][what] == found[False][what]


def test_workers_are_waited_for_before_caches_are_removed() -> None:
    """What a worker still compiles when a bucket is done is waited for."""
    task: Future[None] = Future()
    note_sent(task)
    threading.Timer(0.05, task.set_result, [None]).start()
    wait_for_sent()
    assert task.done()


def test_a_task_that_another_thread_sends_while_one_waits_is_not_forgotten() -> None:
    """A task that is noted during a wait is waited for by the next call."""
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
