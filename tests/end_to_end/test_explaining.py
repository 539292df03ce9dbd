"""`warmup explain` in processes of its own: real guards of real models, compiled on this CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_processes import MODELS, ROOT, run_python

pytestmark = pytest.mark.long

EXPLAINED = str(MODELS / "explained.py")
_REPORTS = """
import torch
from torch._inductor import compile_fx, scheduler, utils
from torch._inductor.codecache import CacheBase
from torch.utils import _triton
from warmup.core.device import ASSUMED_DEVICES
from warmup.inductor.guards import AssumedGpu
from warmup.inductor.patches import Patches

owners = (torch.cuda, utils, scheduler, _triton, compile_fx)
before = [CacheBase.get_system(), *(dict(vars(owner)) for owner in owners)]
gpu, patches = AssumedGpu(ASSUMED_DEVICES["a100"]), Patches()
gpu.attach(patches)
with gpu._reported():
    print([torch.cuda.get_device_name(), utils.get_max_num_sms()] == [gpu.device.name, 108])
    a100_gbps = scheduler.get_gpu_dram_gbps()
with AssumedGpu(ASSUMED_DEVICES["h100"])._reported():
    print(a100_gbps < scheduler.get_gpu_dram_gbps() and before[0] != CacheBase.get_system())
patches.restore()
print(before == [CacheBase.get_system(), *(dict(vars(owner)) for owner in owners)])
"""
RunOnce = Callable[..., tuple[Path, str]]


def words_of(name: str) -> tuple[str, ...]:
    sizes = ("--seqlens", "16,64,256", "--device", "cpu")
    return ("-m", "warmup", "explain", "--model", f"{EXPLAINED}:{name}", *sizes)


def section_of(run_once: RunOnce, name: str) -> Any:
    _, said = run_once(f"explain-{name}", *words_of(name), "--no-grad", "--json")
    return json.loads(said)["sections"][0]


def test_a_comparison_in_the_model_is_found_with_its_line(run_once: RunOnce) -> None:
    """The ranges end at 100 and 101; 2 comes from 0/1 specialisation, in torch itself."""
    first, second = section_of(run_once, "Doubles")["graphs"][0]["spans"]
    assert (first["low"], first["high"], first["tuned_at"]) == (2, 100, 16)
    assert first["sizes"] == [16, 64]
    assert (second["low"], second["high"], second["tuned_at"]) == (101, None, 256)
    cause, least = first["high_cause"], first["low_cause"]
    assert cause["kind"] == second["low_cause"]["kind"] == "model"
    assert cause["user"]["path"] == EXPLAINED
    line = Path(EXPLAINED).read_text().splitlines()[cause["user"]["line"] - 1]
    assert "x.shape[0] > 100" in line
    assert least["kind"] == "limit"
    assert least["place"]["path"] == "torch/fx/experimental/symbolic_shapes.py"


def test_a_model_that_breaks_has_ranges_for_each_graph(run_once: RunOnce) -> None:
    """The graph behind a break is compiled for one size, then once more for all."""
    spans = [graph["spans"] for graph in section_of(run_once, "Breaks")["graphs"]]
    assert list(map(len, spans)) == [1, 2]
    fixed = next(span for span in spans[1] if span["low"] == span["high"])
    assert fixed["tuned_at"] == 16


def test_sizes_left_out_inside_a_range_are_found(run_once: RunOnce) -> None:
    """17, which nobody asked about, is compiled, since the first artifact takes multiples of 8."""
    section = section_of(run_once, "Blocks")
    assert section["tried"] == [16, 64, 256, 17]
    spans = section["graphs"][0]["spans"]
    found = {condition["expression"] for span in spans for condition in span["conditions"]}
    assert found == {"Eq(Mod(seqlen, 8), 0)", "Ne(Mod(seqlen, 8), 0)"}


def test_text_says_the_ranges(run_once: RunOnce) -> None:
    _, said = run_once("explain-both", *words_of("Doubles"))
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80 + len(EXPLAINED)  # a path is not folded
    assert "seqlen, inference: 2 artifacts; max-autotune tunes each on its own" in lines
    assert "--assume h200|h100|a100 explains a GPU without having it" in " ".join(said.split())
    assert any(line.startswith("seqlen, training: ") for line in lines)
    assert "  2..100        compiled at 16, its winners serve 16, 64" in lines


def test_a_size_that_the_model_refuses_is_named() -> None:
    said = "seqlen=256: the model does not compile or run (ValueError: too many rows)"
    one = ("-m", "warmup", "explain", "--model", f"{EXPLAINED}:Doubles", "--seqlens", "16")
    for words, text in ((words_of("Fails"), said), (one, "give two sizes or more")):
        done = run_python(*words, "--no-grad")
        assert (done.returncode, text in done.stderr) == (3, True), words


def test_a_gpu_that_is_not_here_is_explained(run_once: RunOnce) -> None:
    """Up to torch 2.11 training has the ranges 2..1280 and 1281..3419 on an assumed H200."""
    pytest.importorskip("triton")
    model = str(ROOT / "examples/mlp.py:VisionLinear")
    words = ("--model", model, "--seqlens", "560,1024,2048", "--assume", "h200", "--json")
    _, said = run_once("explain-assumed", "-m", "warmup", "explain", *words)
    assumed = json.loads(said)
    assert (assumed["device"], assumed["assumed"]["sm_count"]) == ("NVIDIA H200", 132)
    spans = assumed["sections"][1]["graphs"][0]["spans"]
    compares_symbols = tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 11)
    expected = [(2, 1280), (1281, 3419)] if compares_symbols else [(2, None)]
    assert [(span["low"], span["high"]) for span in spans] == expected


def test_torch_is_as_before_after_a_gpu_was_assumed() -> None:
    """Every attribute of torch reports this machine again, and no fact of a device is kept."""
    pytest.importorskip("triton")
    done = run_python("-c", _REPORTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True"]
