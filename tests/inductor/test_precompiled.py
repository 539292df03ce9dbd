"""Graphs that ``torch.compiler.precompile`` captured (torch 2.15) say under which table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from warmup.core.errors import ForeignGraphError, warmup_error_in
from warmup.core.events import Emitter, Event, EventName
from warmup.inductor import connect
from warmup.table.lookup import Lookup
from warmup.table.schema import BUILD_MODES, OnMiss, Uncovered

precompile: Any = pytest.importorskip("torch.compiler.precompile")

Arguments = tuple[torch.nn.Module, torch.Tensor, torch.Tensor]


class Batched(torch.nn.Module):
    """A product without weights, of which inductor lists several kernels."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.bmm(a, b))


@contextmanager
def attached(tag: str, word: Uncovered = Uncovered.LIBRARY) -> Iterator[list[Event]]:
    events: list[Event] = []
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([events.append]), on_uncovered=word)
    inductor = connect()
    options = {**inductor.quiet_switches(), **BUILD_MODES["max-autotune"]}
    attachment = inductor.attach(lookup, options, tag, quiet=True)
    try:
        yield events
    finally:
        attachment.detach()


def test_a_capture_is_loaded_under_its_table_and_foreign_under_another(tmp_path: Path) -> None:
    """A capture without a table is foreign too; where foreign graphs are refused, loading fails."""
    arguments: Arguments = (Batched(), torch.randn(4, 8, 32), torch.randn(4, 32, 48))

    def capture(name: str) -> tuple[Path, Path]:
        paths = tmp_path / f"{name}.py", tmp_path / f"{name}.cache"
        made = precompile.capture(
            lambda model, a, b: model(a, b), artifact_path=paths[0], cache_path=paths[1]
        )
        with torch.no_grad(), made as call:
            call(*arguments)
        return paths

    with attached("of-a-table"):
        own = capture("own")
    plain = capture("plain")
    for tag, paths, name in (
        ("of-a-table", own, EventName.CACHED),
        ("of-another", own, EventName.FOREIGN),
        ("of-a-table", plain, EventName.FOREIGN),
    ):
        with attached(tag) as events:
            loaded = precompile.load(*paths)
            assert [event.name for event in events] == [name], (tag, paths)
        torch.testing.assert_close(loaded(*arguments), arguments[0](*arguments[1:]))
    with attached("of-another", Uncovered.FORBID), pytest.raises(Exception) as caught:  # noqa: PT011  torch may wrap it
        precompile.load(*own)
    assert isinstance(warmup_error_in(caught.value), ForeignGraphError)
