"""`build --layers once` with the frozen weights of a CPU, and a server of that very table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "build_frozen.py"
TOLERANCE = 1e-5  # float32, relative L2


@pytest.fixture(scope="module")
def found(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    """What the program printed."""
    printed = run_once("frozen-forms", str(PROGRAM), ".", **variables)[1]
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def test_a_table_of_frozen_layers_serves_them_strictly(found: dict[str, Any]) -> None:
    """The row of packed weights answers the layer that is compiled, and both layers share it."""
    served = found["once"]
    ((_, (key,)),) = found["build"]["keys"]
    assert found["freezing"]
    assert key.startswith("packed_linear ")
    assert (served["hits"], served["misses"], served["uncovered"]) == ({key: 1}, {}, {})
    assert served["shared"] == 2
    assert served["error"] <= TOLERANCE


def test_whole_graphs_with_frozen_weights_miss_for_the_form(found: dict[str, Any]) -> None:
    """They fuse the next layer's activation, so that their key is another one."""
    served = found["whole"]
    assert [key.partition("epilogue=")[2] for key in served["misses"]] == ["relu"]
    assert served["reasons"] == {"other_form": 2}
    assert served["error"] <= TOLERANCE
