"""`own_cache_entries`: the artifacts of ranges have their own entries in inductor's caches."""

from __future__ import annotations

import torch

from warmup.core.events import Emitter
from warmup.inductor import connect
from warmup.inductor.caches import count_graphs, own_cache_entries, with_own_code
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss


def test_a_tag_of_ranges_does_not_outlive_its_table() -> None:
    """The name is appended to the attached table's tag only; the next table's tag is unchanged."""
    before, seen = torch.compiler.config.cache_key_tag, []
    for table in ("first", "second"):
        attachment = connect().attach(Lookup({}, OnMiss.FALLBACK, Emitter([])), {}, table)
        with own_cache_entries("x[0]=2..16"):
            seen.append(torch.compiler.config.cache_key_tag)
        seen.append(torch.compiler.config.cache_key_tag)
        attachment.detach()
    assert seen == ["first+x[0]=2..16", "first", "second+x[0]=2..16", "second"]
    assert torch.compiler.config.cache_key_tag == before


def test_graphs_are_counted_as_torch_makes_them() -> None:
    """One for a whole model; two around a break, however often they are called."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    counts = []
    for function in (torch.relu, broken):
        torch._dynamo.reset()
        before = count_graphs()
        compiled = torch.compile(with_own_code(function, "f"), backend="eager")
        compiled(torch.ones(3))
        compiled(torch.ones(3))
        counts.append(count_graphs() - before)
    torch._dynamo.reset()
    assert counts == [1, 2]
