"""Serve and search with a device model on the stated H100; print, as JSON, what inductor made.

    echo '{"op": "addmm", "m": 1376, "n": 768, "k": 3072, "on_miss": "predict"}' \
        | python cuda_predicted.py

One case a line on stdin, one result a line on stdout; cases as for cuda_lowering.py. The device
model is fitted to the timings of a ViT on an H100; the category of its problems is that of the
case, whose weight is stored by rows. ``search`` says that the case is tuned; ``gain`` replaces the
library's predicted time by so many times the config's; ``hash`` is that of the template.
``imported`` is a description of a kernel as inductor's autotune log has it: the table's imported
config for the case.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# First, since it pretends the device before inductor looks for one.
from cuda_lowering import OPTIONS, answer_each, lower
from cuda_search import Silent

from warmup.core.events import Emitter, Event
from warmup.core.imported_config import ImportedConfig
from warmup.core.method import Search
from warmup.core.predicted_config import PredictedConfig
from warmup.core.rows import Winner
from warmup.diagnostics.imports.autotune_log import read_autotune_log
from warmup.diagnostics.imports.entry import ImportedEntry
from warmup.inductor import connect
from warmup.prediction.device_model import DeviceModel
from warmup.prediction.fitting import fit
from warmup.prediction.predictions import Predictions
from warmup.prediction.timing_lines import read_timings
from warmup.prediction.training import training_set
from warmup.table.imported_answers import ImportedAnswers
from warmup.table.lookup import Lookup, OnMiss

ROOT = Path(__file__).resolve().parents[2]
TIMINGS = ROOT / "docs/benchmarks/results/timings/h100-vit.jsonl.gz"
CATEGORY = "bf16 addmm bf16 row row bf16 1d"


def _fitted() -> DeviceModel:
    model = fit(training_set(read_timings([TIMINGS])))
    (measured,) = model.categories
    assert measured == "bf16 addmm bf16 row col bf16 1d"
    return replace(model, categories=(CATEGORY,))


MODEL = _fitted()


@dataclass(frozen=True)
class AnyKey:
    """The one imported config, for every key."""

    config: ImportedConfig

    def __getitem__(self, _key: str) -> tuple[ImportedConfig, ...]:
        return (self.config,)

    def __contains__(self, _key: str) -> bool:
        return True

    def __len__(self) -> int:
        return 1

    def get(self, key: str, _default: Any) -> tuple[ImportedConfig, ...]:
        return self[key]


def imported_of(case: dict[str, Any]) -> ImportedAnswers:
    """Return the imported config that *case* describes, read as a line of a log."""
    if "imported" not in case:
        return ImportedAnswers()
    lines = [
        f"AUTOTUNE mm({case['m']}x{case['k']}, {case['k']}x{case['n']})",
        f"strides: [{case['k']}, 1], [{case['n']}, 1]",
        "dtypes: torch.bfloat16, torch.bfloat16",
        f"  {case['imported']}",
    ]
    (entry,) = read_autotune_log(lines, "a.log")
    assert isinstance(entry, ImportedEntry)
    assert entry.config is not None, entry.lacks
    return ImportedAnswers(AnyKey(entry.config))  # type: ignore[arg-type]  # what is asked of it


@dataclass(frozen=True)
class Stated:
    """Predictions whose gain, and whose template, a case states."""

    predictions: Predictions
    gain: float | None
    template: str | None

    def promising(self, key: str, candidates: Sequence[Winner]) -> Collection[Winner] | None:
        return self.predictions.promising(key, candidates)

    def predict(self, key: str) -> PredictedConfig | None:
        if self.gain is None:
            return self.predictions.predict(key)
        config = MODEL.covering[0]
        return PredictedConfig(
            uid=config.uid,
            kwargs=(
                *(("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n)),
                *(("BLOCK_K", config.block_k), ("GROUP_M", config.group_m)),
                *(("num_stages", config.stages), ("num_warps", config.warps)),
            ),
            source_hash=self.template,
            time_us=10.0,
            library_us=10.0 * self.gain,
            gain=self.gain,
            bound=self.gain,
        )


def answer(case: dict[str, Any], generated: list[str]) -> dict[str, Any]:
    """Lower one case without rows, and return what came of it."""
    events: list[Event] = []
    tuner = Silent()
    is_search = "search" in case
    imported = imported_of(case)
    lookup = Lookup(
        {},
        OnMiss.TUNE if is_search else OnMiss(case["on_miss"]),
        Emitter([events.append]),
        tuner=tuner if is_search else None,
        search=Search(case.get("search", "default")),
        predictor=imported
        or Stated(Predictions.of(MODEL, case.get("top", 8)), case.get("gain"), case.get("hash")),
        imported=imported,
    )
    generated.clear()
    attachment = connect().attach(lookup, OPTIONS, "test", quiet=True)
    try:
        code, _ = lower({"winner": "none", **case})
    finally:
        attachment.detach()
    result: dict[str, Any] = {
        "generated": list(generated),
        "library": code.count("extern_kernels."),
        "events": [{"name": event.name, **event.fields} for event in events],
    }
    if is_search:
        (question,) = tuner.questions
        assert question.searched is not None
        result |= {
            "search": question.searched.search,
            "tried": question.searched.tried,
            "left_out": question.searched.left_out,
            "candidates": [str(one.winner.uid) for one in question.candidates],
            "configs": [one.winner.short for one in question.candidates],
        }
    return result


if __name__ == "__main__":
    answer_each(answer)
