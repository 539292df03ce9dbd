"""Which tables `install` refuses, and how it warns of the others."""

from __future__ import annotations

import warnings

import pytest
from sample_tables import make_runtime, make_table

from warmup.core.device import compare_runtimes
from warmup.core.errors import StaleTableWarning, TableMismatchError
from warmup.serving.install import admit
from warmup.table.schema import OnMiss
from warmup.table.store import FoundTable


def admitted(
    on_miss: OnMiss = OnMiss.STRICT, *, is_allowed: bool = False, **changes: str | int
) -> list[str]:
    """``admitted(is_allowed=True, sm_count=78)``: the warnings of a table on such a machine."""
    found, here = FoundTable(make_table(), ()), make_runtime(**changes)
    mismatches = compare_runtimes(found.table.provenance.runtime, here)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refused = admit(found, here, mismatches, on_miss=on_miss, is_allowed=is_allowed)
    assert all(each.category is StaleTableWarning for each in caught)
    return [str(each.message) for each in caught] + ([refused] if refused else [])


def test_another_device_or_runtime_is_refused() -> None:
    """One sentence says what the table was tuned on and what is here: an error but in fallback."""
    said = (
        "the table: tuned on NVIDIA H200 (sm_90, 132 SMs, 140 GiB) with torch 2.13.0 and "
        "triton 3.7.0, and here is NVIDIA H200 (sm_90, "
    )
    for changes in ({"sm_count": 78}, {"torch": "2.12.0"}, {"triton": "3.5.0"}):
        with pytest.raises(TableMismatchError) as caught:
            admitted(OnMiss.STRICT, **changes)
        assert str(caught.value).startswith(said), changes
        assert len(caught.value.mismatches) == 1, changes
        (refused,) = admitted(OnMiss.FALLBACK, **changes)
        assert refused.startswith(said), changes


def test_a_refused_table_can_be_allowed() -> None:
    """One warning says that every lookup is a miss, however many fields differ."""
    (said,) = admitted(is_allowed=True, sm_count=78, arch="sm_80", torch="2.12.0")
    assert said.endswith(": every lookup is a miss")


def test_another_driver_is_a_warning() -> None:
    """Soft differences are named in one sentence, and refuse nothing."""
    (said,) = admitted(driver="581", cuda="12.9")
    assert said == (
        "the table: cuda: table 13.0, here 12.9; driver: table 580.65, here 581: timings may be off"
    )


def test_the_same_machine_is_admitted_without_a_word() -> None:
    assert admitted() == []
