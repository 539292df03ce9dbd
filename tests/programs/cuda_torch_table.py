"""Fill torch's own lookup table, with a table of warmup's or without, and print what came of both.

    echo '{"op": "mm", "m": 512, "winner": "triton", "theirs": [{"BLOCK_M": 32}]}' \
        | python cuda_torch_table.py

One case a line on stdin, one result a line on stdout; device and cases as for cuda_lowering.py.
``theirs`` are the entries of torch's table, each what it changes of the first config that torch
lists for the plain GEMM template; ``short`` entries hold no more than that. ``handler`` false
leaves torch's handler out. ``mode`` may be ``tune``, to list the candidates that a build would
measure. ``alone`` does without warmup, and prints torch's keys, the number of choices left to
inductor, and the constants of the first one. ``ranked`` lets AutoHeuristic rank the candidates
while the case is served. ``exported`` fills torch's table with the export of the case's row instead
of ``theirs``, and prints torch's own keys beside the export's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

# First, since it pretends the device before inductor looks for one.
from cuda_lowering import EVIDENCE, OPTIONS, SPARE, answer_each, list_candidates, lower, serve
from cuda_search import Silent
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.virtualized import V

from warmup.core.events import Emitter
from warmup.core.rows import Row, Winner
from warmup.inductor import connect
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss
from warmup.table.store import read
from warmup.tuning.problems import export_lookup_table

H100 = Path(__file__).resolve().parents[2] / "tables/nvidia-h100-80gb-hbm3/zoo.t5.bf16.json"
TEMPLATES = {"bmm": "triton::bmm", "baddbmm": "triton::bmm", "mm_plus_mm": "triton::mm_plus_mm"}


def answer(case: dict[str, Any], generated: list[str]) -> dict[str, Any]:
    """Lower the case with torch's table filled."""
    case = {"winner": "none", "theirs": [], "handler": True, **case}
    rows = {} if case["winner"] == "none" else list_candidates(case)
    table = export(rows) if case.get("exported") else fill(case)
    handler = LookupTableChoices() if case["handler"] else InductorChoices()
    with V.set_choices_handler(handler), config.patch({"lookup_table.table": table}):
        if case.get("alone"):
            own = {"torch_keys": sorted(fill(case))} if case.get("exported") else {}
            return {"keys": sorted(table), **own, **select_first(case)}
        if case["mode"] == "tune":
            return {"measured": list_measured(case)}
        if case.get("ranked"):
            with autoheuristic_for("mm"):
                return serve(case, rows, generated)
        return serve(case, rows, generated)


def export(rows: dict[str, Winner]) -> dict[str, Any]:
    """Return the export of *rows* in a table for an H100, as a program reads it from its JSON."""
    tuned = {key: Row(winner, EVIDENCE) for key, winner in rows.items()}
    exported = export_lookup_table(replace(read(H100), rows=tuned))
    assert not exported.left_out, exported.left_out
    loaded: dict[str, Any] = json.loads(json.dumps(exported.entries))
    return loaded


def fill(case: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return torch's table for the case, under the key that torch itself makes for the template."""
    table: dict[str, list[dict[str, Any]]] = {}

    class Filling(LookupTableChoices):
        def _finalize_template_configs(
            self,
            template_choices: Any,
            kernel_inputs: Any,
            templates: Any,
            op_name: str,
            kw: Any = None,
        ) -> Any:
            if not (config.max_autotune or config.max_autotune_gemm):
                return super()._finalize_template_configs(
                    template_choices, kernel_inputs, templates, op_name, kw
                )
            template = TEMPLATES.get(case["op"], "triton::mm")
            if template in template_choices:
                key = self.make_lookup_key(kernel_inputs, op_name)
                assert key is not None
                first = next(template_choices[template]).params.to_kwargs()
                base = {} if case.get("short") else first
                table[key] = [
                    {"template_id": template, **base, **changes} for changes in case["theirs"]
                ]
            library = [uid for uid in template_choices if uid.startswith("aten::")]
            return [next(template_choices[uid]) for uid in library if uid not in SPARE]

    with V.set_choices_handler(Filling()), config.patch(OPTIONS):
        lower(case)
    return table


def select_first(case: dict[str, Any]) -> dict[str, Any]:
    """Return among how many choices inductor selects, and the constants of the first one.

    Inductor measures the choices unless there is one; here the first is taken.
    """
    counts: list[int] = []
    select = AlgorithmSelectorCache.__call__

    def count(cache: Any, name: str, choices: list[Any], *args: Any, **kw: Any) -> Any:
        counts.append(len(choices))
        return select(cache, name, choices[:1], *args, **kw)

    with patch.object(AlgorithmSelectorCache, "__call__", count), config.patch(OPTIONS):
        code, _ = lower(case)
    (number,) = counts
    constants = dict(re.findall(r"(EVEN_K|BLOCK_K)\s*:\s*tl\.constexpr\s*=\s*(\w+)", code))
    return {"choices": number, "constants": constants}


def list_measured(case: dict[str, Any]) -> list[str]:
    """Return the candidates that a build of the case would measure."""
    tuner = Silent()
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]), tuner=tuner)
    attachment = connect().attach(lookup, OPTIONS, "test", quiet=True)
    try:
        lower(case)
    finally:
        attachment.detach()
    return [str(one.winner) for question in tuner.questions for one in question.candidates]


@contextmanager
def autoheuristic_for(op: str) -> Iterator[None]:
    """Let AutoHeuristic rank the candidates of *op*, as its environment variable does."""
    option = {"autoheuristic_use": op}  # torch 2.11 reads the variable when it is imported
    with (
        patch.dict(os.environ, {"TORCHINDUCTOR_AUTOHEURISTIC_USE": op}),
        config.patch(option if isinstance(config.autoheuristic_use, str) else {}),
    ):
        yield


if __name__ == "__main__":
    answer_each(answer)
