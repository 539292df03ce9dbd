"""A bf16 decoder of a real size is built without --tolerance. Needs a GPU and transformers.

Run with ``-s`` to see how far eager, default mode and the table are from float32.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.table.store import read

pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]
MODEL = f"{ROOT / 'docs/benchmarks/zoo_models/decoders.py'}:qwen2"
SIZES = (16, 512)
ERRORS = """
import json, sys, torch, warmup
from warmup.models.loading import Inputs, load_model
from warmup.models.outputs import output_errors
from warmup.models.outputs import run_wide
loaded = load_model(sys.argv[1])
model = loaded.module.eval().cuda()
sizes = [int(size) for size in sys.argv[3].split(",")]
torch.manual_seed(0)
calls = [torch.randint(0, 128, (1, size), device="cuda") for size in sizes]
def outputs():
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=False)
    return [compiled(ids) for ids in calls]
with torch.no_grad():
    wide = run_wide(model, [Inputs((ids,), {}) for ids in calls], torch.device("cuda:0"))
    found = {"eager": [model(ids) for ids in calls], "default": outputs()}
    handle = warmup.install(sys.argv[2], on_miss="fallback")
    found["table"] = outputs()
    misses = sum(handle.report().misses.values())
    handle.close()
errors = {name: output_errors(wide.outputs, each) for name, each in found.items()}
print("RESULT", json.dumps({"reference": wide.name, "errors": errors, "misses": misses}))
"""


def test_a_decoder_of_seven_billion_widths_is_built_by_default(
    start: Callable[..., subprocess.CompletedProcess[str]], run: Callable[..., str], tmp_path: Path
) -> None:
    """No row is rejected, and the served table is as near to float32 as the judgement demands."""
    path, sizes = tmp_path / "qwen.json", ",".join(map(str, SIZES))
    words = ("--model", MODEL, "--seqlens", sizes, "--input", "ids=[1,seqlen]:i64", "--json")
    done = start(tmp_path, "-m", "warmup", "build", *words, "--out", str(path))
    assert done.returncode in {0, 1, 4}, done.stderr[-6000:]  # 1: some problem was not tuned
    document = json.loads(done.stdout)
    assert done.returncode != 1 or document["not_tuned"]
    assert document["distrusted"] == {}
    assert [bucket["bucket"] for bucket in document["buckets"]] == [{"seqlen": n} for n in SIZES]
    assert {row.untrusted for row in read(path).rows.values()} == {None}
    result = json.loads(run(tmp_path, "-c", ERRORS, MODEL, str(path), sizes).split("RESULT ")[1])
    print(json.dumps({**result, "built": [each["judgement"] for each in document["buckets"]]}))  # noqa: T201  the numbers are what a reader wants
    for eager, default, table in zip(*result["errors"].values(), strict=True):
        assert table <= max(0.02, 1.5 * max(eager, default))
