"""What a real build on a CPU measures: evidence, its method, and the same keys again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, warmup_in

from warmup.core.method import L2, Launch
from warmup.core.rows import Family
from warmup.table.store import read

Built = tuple[Path, dict[str, Any]]


def test_a_row_says_how_it_was_measured(built: Built) -> None:
    """Spread, band of near ties, error against the reference, and the time of the library's kernel.

    The winner is no slower than the library's kernel. A CPU claims no share of a peak, and every
    candidate is one that inductor listed.
    """
    table = read(built[0])
    assert (table.policy.timing.launch, table.policy.timing.l2) == (Launch.EAGER, L2.WARM)
    assert table.rows
    for key, row in table.rows.items():
        evidence = row.evidence
        found = (evidence.spread, evidence.band, evidence.error, evidence.library_us)
        assert None not in found, key
        assert (evidence.spread or 0) >= 0, key
        assert (evidence.band or 0) >= table.policy.timing.near_tie, key
        assert 0 <= (evidence.error or 0) <= 10 * max(table.policy.tolerance.values()), key
        assert evidence.tried > 1, key
        assert evidence.time_us <= (evidence.library_us or 0), key
        assert row.winner.family in {Family.EXTERN, Family.CPP}, key
        assert (evidence.peak_share, evidence.clock_mhz) == (None, None), key
    none = {"added": {}, "pruned": {}, "spilling": 0, "left_out": 0}
    for problem in built[1]["problems"]:
        listed = {"search": "default", "listed": len(problem["candidates"])}
        assert problem["searched"] == {**listed, **none}, problem["key"]


@pytest.mark.long
def test_a_forced_build_measures_the_same_keys(net: Built, tmp_path: Path) -> None:
    """--retry all tunes what is there again: the same questions, by the same method."""
    shutil.copy(net[0], tmp_path / "again.json")
    words = ("--model", f"{MODELS / 'plain_script.py'}:Net", "--input", "x=[seqlen,32]:f32")
    words += ("--seqlens", "8", "--device", "cpu", "--out", "again.json", "--retry", "all")
    report = json.loads(warmup_in(tmp_path, "build", *words, "--json").stdout)
    first, second = read(net[0]), read(tmp_path / "again.json")
    assert set(second.rows) == set(first.rows)
    assert second.policy == first.policy
    tuned = [sum(bucket["tuned"] for bucket in one["buckets"]) for one in (net[1], report)]
    assert tuned == [len(first.rows)] * 2
