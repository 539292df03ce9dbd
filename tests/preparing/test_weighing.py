"""Whether padding pays: what follows from times, and a build that measures it on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.choice import Flag, Row, Timing, Tuned, Winner
from warmup.preparing.weighing import _decided, _pays, _reversed
from warmup.weight import Structure, winner_of

ROOT = Path(__file__).resolve().parents[2]
MakeRow = Callable[..., Row]
STRUCTURE = Structure(inputs=(64,), features=99, outputs=(), dtype="bf16", biases=(True,))
AS_IS, PADDED = winner_of(STRUCTURE, 99), winner_of(STRUCTURE, 104)


@pytest.fixture
def tuned(make_row: MakeRow) -> Callable[..., Tuned]:
    """``tuned(10.0, 8.0)``: 10 us as it is, 8 us padded, whoever is nearer to winning."""

    def make(as_is_us: float, padded_us: float, *flags: Flag) -> Tuned:
        winner: Winner = AS_IS if as_is_us <= padded_us else PADDED
        evidence = replace(make_row().evidence, library_us=as_is_us, flags=flags)
        timings = (Timing(AS_IS, as_is_us), Timing(PADDED, padded_us))
        return Tuned("k", Row(winner, evidence), timings)

    return make


@pytest.mark.parametrize(
    ("times", "pays"),
    [
        ([(10.0, 8.0)], True),
        ([(10.0, 8.0), (10.0, 10.2)], True),
        ([(10.0, 8.0), (10.0, 10.4)], False),
        ([(10.0, 9.8)], False),
        ([(10.0, 12.0)], False),
    ],
)
def test_padding_pays_when_it_is_faster_somewhere_and_slower_nowhere(
    tuned: Callable[..., Tuned], times: list[tuple[float, float]], pays: bool
) -> None:
    """By more than the near-tie band, whatever the number of rows."""
    assert _pays([tuned(*pair) for pair in times], PADDED, AS_IS, 0.03) is pays


def test_times_that_shook_say_nothing(tuned: Callable[..., Tuned]) -> None:
    """A row that is unstable keeps the library default, here the weights as they are."""
    assert not _pays([tuned(10.0, 5.0, Flag.UNSTABLE)], PADDED, AS_IS, 0.03)


def test_a_row_tells_both_times_whoever_is_chosen(tuned: Callable[..., Tuned]) -> None:
    """Chosen for the sake of other numbers of rows, it is a near tie, with its own time."""
    found = _decided(tuned(10.0, 10.2), PADDED, AS_IS).row
    assert (found.winner, found.evidence.time_us, found.evidence.library_us) == (PADDED, 10.2, 10.0)
    assert (found.evidence.runner_up, found.evidence.runner_up_us) == (str(AS_IS), 10.0)
    assert Flag.NEAR_TIE in found.evidence.flags


def test_a_row_is_reversed_by_what_came_later(tuned: Callable[..., Tuned]) -> None:
    """Slower for another number of rows, the weights stay, and the row says what it costs here."""
    before = _decided(tuned(10.0, 8.0), PADDED, AS_IS).row
    after = _reversed(before, AS_IS, PADDED)
    assert (after.winner, after.evidence.time_us) == (AS_IS, 10.0)
    assert (after.evidence.runner_up, after.evidence.runner_up_us) == (str(PADDED), 8.0)


PROGRAM = """
import json, sys, torch, warmup
from warmup.choice import Family
from warmup.models import load_model
from warmup.preparing import weighing

weighing._pays = lambda *_: True  # timings decide no test
report = warmup.build(sys.argv[1], seqlens="8", out=sys.argv[2], device="cpu", pad_weights=True)
rows = {key: row for key, row in report.table.rows.items() if row.winner.family is Family.WEIGHT}
model = load_model(sys.argv[1]).module
inputs = torch.randn(8, 64)
with torch.no_grad():
    expected = model(inputs)
    with warmup.install(report.table, on_miss="strict", model=model) as handle:
        found = torch.compile(model)(inputs)
        said = handle.report()
print(json.dumps({
    "rows": {key: dict(row.winner.kwargs) for key, row in rows.items()},
    "error": ((found - expected).norm() / expected.norm()).item(),
    "padded": list(handle.prepared.padded.values()),
    "sizes": [list(one.shape) for one in model.state_dict().values()],
    "misses": sum(said.misses.values()), "hits": sum(said.hits.values()),
    "unused": [key for key in said.unused if key in rows],
    "built": [str(one) for one in report.prepared.padded],
}))
"""
MODEL = """
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 99)

    def forward(self, x):
        return self.head(x).relu()


def example_inputs(seqlen):
    return torch.randn(seqlen, 64)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a build with padding found, and a strict server with the prepared model after it."""
    folder = tmp_path_factory.mktemp("weighing")
    (folder / "head.py").write_text(MODEL, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"{folder / 'head.py'}:Head", str(folder / "head.json")],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        },
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_build_writes_a_row_for_each_number_of_rows(served: dict[str, Any]) -> None:
    """Its key is about sizes, and its winner names the padded one."""
    assert served["rows"] == {
        "weight n m=8 in=64 features=99 f32 bias=1 fp32=ieee": {"features": 100}
    }


def test_a_prepared_model_is_served_without_a_miss(served: dict[str, Any]) -> None:
    """What inductor asks about padded weights was tuned, and the weight row is not unused."""
    assert (served["misses"], served["unused"]) == (0, [])
    assert served["hits"] > 0


def test_a_prepared_model_gives_what_it_gave(served: dict[str, Any]) -> None:
    """Padded with zeros; its state dict has the sizes it had."""
    assert served["error"] < 1e-6
    assert (served["padded"], served["sizes"]) == ([100], [[99, 64], [99]])
    assert served["built"] == ["head"]
