"""Calls that are captured into a CUDA graph, with torch's capture replaced: no GPU is needed."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Iterator

import pytest

from warmup.core.method import L2
from warmup.measuring import clock
from warmup.measuring import clock as headstart

torch = pytest.importorskip("torch")


class Operands:
    """What a call reads."""


def read(operands: Operands, number: int) -> object:
    """Read *operands*, in each call of a batch."""
    return operands, number


class NoGraph:
    """A CUDA graph that keeps nothing of what was captured, as torch's does."""

    def replay(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def no_capture(*_: object, **__: object) -> Iterator[None]:
    yield


def test_a_batch_keeps_the_operands_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands that the call alone refers to live until the batch is dropped.

    A graph reads their memory at each replay: were they freed, it would read what another call of
    the process has put there, such as an index that is out of range.
    """
    monkeypatch.setattr(torch.cuda, "CUDAGraph", NoGraph)
    monkeypatch.setattr(torch.cuda, "graph", no_capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: None)
    monkeypatch.setattr(headstart, "_cycles_per_us", lambda _: 1.0)
    operands = Operands()
    alive = weakref.ref(operands)
    device = torch.device("cuda")
    graph = clock._CapturedCalls(functools.partial(read, operands), device, 2)
    batch = clock._DeviceBatch(graph.replay, device, L2.COLD, 2, 1.0)
    del graph
    del operands
    gc.collect()
    assert alive() is not None
    del batch
    gc.collect()
    assert alive() is None
