"""Launch configs on a GPU: the searched table against default mode and max-autotune with descent.

`python tests/programs/launch_race.py OUT.json` prints the same comparison for more kernels.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "launch_race.py"
CASES = [
    "add, LayerNorm 10960 x 768",
    "GELU 10960 x 3072",
    "add, RMSNorm 2048 x 4096",
    "transpose 4096 x 4096",
]


@pytest.fixture(scope="module")
def raced(run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("race")
    out = folder / "race.json"
    run(folder, str(PROGRAM), str(out), "600", *CASES)
    found: dict[str, Any] = json.loads(out.read_text())["kernels"]
    return found


@pytest.mark.parametrize("case", CASES)
def test_serving_forces_what_the_build_chose(raced: dict[str, Any], case: str) -> None:
    """Every kernel is a hit with the config of its row, and inductor measures nothing."""
    result = raced[case]
    served = result["variants"]["table"]
    assert served["events"] == {"lookup.hit": len(result["rows"])}
    assert served["benchmarks"] == {}
    assert result["variants"]["build"]["events"] == {"problem.tuned": len(result["rows"])}


@pytest.mark.parametrize("case", CASES)
def test_the_search_has_more_than_either_list(raced: dict[str, Any], case: str) -> None:
    """Configs were tried that inductor lists nowhere, none of them wrote something wrong."""
    for row in raced[case]["rows"]:
        assert "descent" in row["searched"]
        assert row["rejected"].keys() <= {"launch", "compile"}, row["said"]


@pytest.mark.parametrize("case", CASES)
def test_the_result_is_as_near_to_eager_as_default_modes(raced: dict[str, Any], case: str) -> None:
    """Another order of a reduction is no larger error."""
    errors = {name: one["error"] for name, one in raced[case]["variants"].items()}
    assert errors["table"] <= 1.5 * errors["default"] + 1e-6, errors
