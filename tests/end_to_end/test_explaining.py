"""`warmup explain` in processes of its own: real guards of real models, compiled on this CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_processes import run_python

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MODELS = str(ROOT / "tests/programs/models/explained.py")
_REPORTS = """
import torch
from torch._inductor import compile_fx, scheduler, utils
from torch.utils import _triton
from warmup.core.device import ASSUMED_DEVICES
from warmup.inductor.guards import AssumedGpu
from warmup.inductor.patches import Patches

owners = (torch.cuda, utils, scheduler, _triton, compile_fx)
before = [dict(vars(owner)) for owner in owners]
gpu, patches = AssumedGpu(ASSUMED_DEVICES["a100"]), Patches()
gpu.attach(patches)
with gpu._reported():
    print([torch.cuda.get_device_name(), utils.get_max_num_sms()] == [gpu.device.name, 108])
    a100_gbps = scheduler.get_gpu_dram_gbps()
with AssumedGpu(ASSUMED_DEVICES["h100"])._reported():
    print(a100_gbps < scheduler.get_gpu_dram_gbps())
patches.restore()
print(before == [dict(vars(owner)) for owner in owners])
"""
RunOnce = Callable[..., tuple[Path, str]]
Explain = Callable[..., Any]


@pytest.fixture
def explain(run_once: RunOnce) -> Explain:
    """``explain("Doubles")``: the first section without gradients, as JSON."""

    def run(name: str, *words: str) -> Any:
        _, said = run_once(f"explain-{name}", *_words(name), "--no-grad", "--json", *words)
        return json.loads(said)["sections"][0]

    return run


def _words(name: str) -> tuple[str, ...]:
    target = f"{MODELS}:{name}"
    asked = ("--seqlens", "16,64,256", "--device", "cpu")
    return ("-m", "warmup", "explain", "--model", target, *asked)


def spans_of(section: Any, graph: int = 0) -> list[Any]:
    spans: list[Any] = section["graphs"][graph]["spans"]
    return spans


def test_a_comparison_in_the_model_is_found_with_its_line(explain: Explain) -> None:
    """The ranges end at 100 and 101, for the line of the model that compares."""
    first, second = spans_of(explain("Doubles"))
    assert (first["low"], first["high"], first["tuned_at"], first["sizes"]) == (
        2,
        100,
        16,
        [16, 64],
    )
    assert (second["low"], second["high"], second["tuned_at"]) == (101, None, 256)
    cause = first["high_cause"]
    assert cause["kind"] == second["low_cause"]["kind"] == "model"
    assert cause["user"]["path"] == MODELS
    line = Path(MODELS).read_text().splitlines()[cause["user"]["line"] - 1]
    assert "x.shape[0] > 100" in line


def test_the_smallest_dynamic_size_is_a_hard_limit(explain: Explain) -> None:
    """2 comes from 0/1 specialisation, and names the function in torch that says so."""
    cause = spans_of(explain("Doubles"))[0]["low_cause"]
    assert cause["kind"] == "limit"
    assert cause["place"]["path"] == "torch/fx/experimental/symbolic_shapes.py"


def test_a_model_that_breaks_has_ranges_for_each_graph(explain: Explain) -> None:
    """The graph behind a break is compiled for one size, then once more for all."""
    section = explain("Breaks")
    assert [len(graph["spans"]) for graph in section["graphs"]] == [1, 2]
    fixed = next(span for span in spans_of(section, 1) if span["low"] == span["high"])
    assert fixed["tuned_at"] == 16


def test_sizes_left_out_inside_a_range_are_found(explain: Explain) -> None:
    """17, which nobody asked about, is compiled, since the first artifact takes multiples of 8."""
    section = explain("Blocks")
    assert section["tried"] == [16, 64, 256, 17]
    conditions = {
        condition["expression"] for span in spans_of(section) for condition in span["conditions"]
    }
    assert conditions == {"Eq(Mod(seqlen, 8), 0)", "Ne(Mod(seqlen, 8), 0)"}


def test_a_dim_that_turns_out_static_is_told(run_once: RunOnce) -> None:
    """Every size has an artifact of its own, whose guard is named, and the search ends."""
    code = (
        "import dataclasses, json; from warmup.diagnostics.explain import explain; "
        f"found = explain('{MODELS}:Each', seqlens='16,64,256', device='cpu', grad=False, "
        "max_compiles=5); print(json.dumps(dataclasses.asdict(found.sections[0])))"
    )
    section = json.loads(run_once("explain-Each", "-c", code)[1])
    spans = spans_of(section)
    assert [(span["low"], span["high"]) for span in spans] == [
        (size, size) for size in (16, 17, 18, 64, 256)
    ]
    assert section["uncovered"] == 19
    assert {span["low_cause"]["kind"] for span in spans} == {"model"}


def test_text_and_picture_say_the_ranges(run_once: RunOnce) -> None:
    """Inference and training are both explained by default, in 80 columns."""
    _, said = run_once("explain-both", *_words("Doubles"))
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80 + len(MODELS)  # a path is not folded
    assert "seqlen, inference: 2 artifacts; max-autotune tunes each on its own" in lines
    assert "--assume h200|h100|a100 explains a GPU without having it" in " ".join(said.split())
    assert any(line.startswith("seqlen, training: ") for line in lines)
    assert "  2..100        compiled at 16, its winners serve 16, 64" in lines


def test_one_size_is_an_error() -> None:
    """A single size asks about no range."""
    done = run_python("-m", "warmup", "explain", "--model", f"{MODELS}:Each", "--seqlens", "16")
    assert done.returncode == 3
    assert "give two sizes or more" in done.stderr


def test_a_size_that_the_model_refuses_is_named() -> None:
    """The error says at which size the model failed, and with what."""
    done = run_python(*_words("Fails"), "--no-grad")
    assert done.returncode == 3
    assert (
        "seqlen=256: the model does not compile or run (ValueError: too many rows)" in done.stderr
    )


def test_a_gpu_that_is_not_here_is_explained(run_once: RunOnce) -> None:
    """Up to torch 2.11 training has the ranges 2..1280 and 1281..3419 on an assumed H200."""
    pytest.importorskip("triton")
    model = str(ROOT / "examples/mlp.py:VisionLinear")
    words = ("--model", model, "--seqlens", "560,1024,2048", "--assume", "h200", "--json")
    _, said = run_once("explain-assumed", "-m", "warmup", "explain", *words)
    assumed = json.loads(said)
    assert (assumed["device"], assumed["assumed"]["sm_count"]) == ("NVIDIA H200", 132)
    found = [(span["low"], span["high"]) for span in spans_of(assumed["sections"][1])]
    compares_symbols = tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 11)
    assert found == ([(2, 1280), (1281, 3419)] if compares_symbols else [(2, None)])


def test_torch_is_as_before_after_a_gpu_was_assumed() -> None:
    """Every attribute of torch reports this machine again, and no fact of a device is kept."""
    pytest.importorskip("triton")
    done = run_python("-c", _REPORTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True"]
