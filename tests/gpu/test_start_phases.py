"""The phases of a start on a GPU: workers compile its kernels, and max-autotune measures."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PROGRAM = """
import json, torch
from warmup.core.phases import Phase, PhaseClock
from warmup.inductor import connect

def model(x):
    return torch.relu(x @ x) * 2

def call(mode):
    compiled = torch.compile(model, dynamic=False, mode=mode)
    clock.take()
    with clock.phase(Phase.FIRST_CALLS):
        compiled(x)
        torch.cuda.synchronize()
    return list(clock.take())

x = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
clock, found = PhaseClock(), {}
with connect().time_phases(clock), torch.no_grad():
    for name, mode in (
        ("default", None),
        ("warm", None),
        ("tuned", "max-autotune-no-cudagraphs"),
    ):
        torch.compiler.reset()
        found[name] = call(mode)
print("RESULT", json.dumps(found))
"""


@pytest.fixture(scope="module")
def entered(
    run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """The phases that a compile in default mode entered, another from its caches, and a tuned."""
    printed = run(tmp_path_factory.mktemp("phases"), "-c", PROGRAM)
    found: dict[str, list[str]] = json.loads(printed.split("RESULT ")[1])
    return found


def test_a_first_start_waits_for_its_kernels(entered: dict[str, list[str]]) -> None:
    """It is traced and lowered, and kernels are waited for, in whichever process they compile."""
    phases = {"tracing", "aot", "lowering", "scheduling", "code_generation", "waiting_for_kernels"}
    assert phases <= set(entered["default"])


def test_a_start_over_warm_caches_lowers_nothing(entered: dict[str, list[str]]) -> None:
    assert "tracing" in entered["warm"]
    assert set(entered["warm"]).isdisjoint({"lowering", "scheduling", "code_generation"})


def test_max_autotune_measures(entered: dict[str, list[str]]) -> None:
    assert {"lowering", "measuring"} <= set(entered["tuned"])
