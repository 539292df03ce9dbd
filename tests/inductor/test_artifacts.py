"""`own_cache_entries`: the artifacts of ranges have their own entries in inductor's caches."""

from __future__ import annotations

import torch

from warmup.core.events import Emitter
from warmup.inductor import connect
from warmup.inductor.artifacts import own_cache_entries
from warmup.table.lookup import Lookup, OnMiss


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
