"""A table that is closed while other threads compile under it, on CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_table

from warmup.table.codec import encode

pytestmark = pytest.mark.long

ROUNDS = 60
PROGRAM = str(Path(__file__).resolve().parents[1] / "programs" / "close_while_compiling.py")


@pytest.fixture(scope="module")
def closed(
    tmp_path_factory: pytest.TempPathFactory, run_program: Callable[..., Any]
) -> list[dict[str, Any]]:
    """What `programs/close_while_compiling.py` printed: closed at a selection, and in rounds."""
    from warmup.inductor import connect

    folder = tmp_path_factory.mktemp("closing")
    table = make_table(runtime=connect().runtime("cpu"))
    options = {
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": "ATEN,CPP",
        "freezing": True,
    }
    table = replace(table, policy=replace(table.policy, options=options))
    (folder / "t.json").write_text(encode(table))
    program = (PROGRAM, str(folder / "t.json"), str(ROUNDS))
    found: list[dict[str, Any]] = run_program(
        folder, *program, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1"
    )
    return found


def test_compiles_that_outlive_the_table_are_right_and_in_the_log(
    closed: list[dict[str, Any]],
) -> None:
    """Neither where candidates are deferred when the table is closed, nor in any round.

    Decisions that were made before the end of a compile reach the audit log, and no wrapper stays,
    in whatever order tables were closed and compiles ended.
    """
    assert [(part["errors"], part["wrong"], part["restored"]) for part in closed] == [
        ([], 0, True)
    ] * 2
    at_selection, in_rounds = closed
    assert (at_selection["counted"], at_selection["logged"]) == (1, 1)
    assert in_rounds["counted"] == in_rounds["logged"] >= ROUNDS // 2


def test_a_graph_decided_in_part_without_the_table_has_a_miss_more(
    closed: list[dict[str, Any]],
) -> None:
    """Its mark, which stays with it in inductor's cache, says that not all of it is the table's."""
    assert closed[0]["marks"] == [[2, 2]]
