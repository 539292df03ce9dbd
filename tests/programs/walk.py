"""Builds a table of one linear layer, serves it, and prints what one GEMM decision passes.

``walk.py FOLDER``: the JSON has, for ``built`` and ``served``, the ``modules`` of warmup in which a
function is called from inductor's selection to the row on disk, in the order in which they are
entered; the ``records`` made on the way, frozen dataclasses that name the problem or a winner; and
how often the problem was ``described`` and ``looked_up``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import torch

import warmup
from warmup.core.rows import Family, Winner
from warmup.inductor.caches import empty_caches
from warmup.inductor.gemm import key
from warmup.inductor.gemm.hooks import GemmChoices
from warmup.table.lookup import Lookup
from warmup.table.store import read, write

MODELS = Path(__file__).parent / "models"
sys.path.insert(0, str(MODELS))
from plain_linear import PlainLinear, example_inputs  # noqa: E402

PACKAGE = Path(warmup.__file__).parent


def is_record(made: Any) -> bool:
    """Return whether *made* is a frozen dataclass that names the problem, or a winner."""
    names = {"problem", "key", "winner", "outcomes", "rows"}
    has = hasattr(made, "key") or not names.isdisjoint(made.__dataclass_fields__)
    return bool(made.__dataclass_params__.frozen) and has


class Walk:
    """Notes calls while the first selection of a GEMM is under way in this thread."""

    def __init__(self) -> None:
        self.is_over = False
        self.modules: dict[str, None] = {}
        self.records: dict[str, None] = {}
        self.calls = {"described": 0, "looked_up": 0}
        self._counted: dict[CodeType, str] = {
            key.describe.__code__: "described",
            Lookup.find.__code__: "looked_up",
        }

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE):
            self.modules[".".join(path.relative_to(PACKAGE).with_suffix("").parts)] = None
        elif code.co_name == "__init__" and code.co_filename == "<string>":
            made: Any = type(frame.f_locals.get("self"))
            if made.__module__.startswith("warmup.") and is_record(made):
                self.records[made.__name__] = None
        if (counted := self._counted.get(code)) is not None:
            self.calls[counted] += 1


def watching(walk: Walk) -> Any:
    """Return a replacement of inductor's selection that is watched from its first line on."""
    select = GemmChoices._select

    def watched(*args: Any, **kwargs: Any) -> Any:
        if walk.is_over:
            return select(*args, **kwargs)
        walk.is_over = True
        sys.setprofile(walk.note)
        try:
            return select(*args, **kwargs)
        finally:
            sys.setprofile(None)

    return watched


def serve(built: Path) -> None:
    """Compile the model once from a table of *built*'s row, with the library as its winner."""
    # A C++ winner passes one module more, and which of them wins is up to the machine.
    table, served = read(built), built.with_name("served.json")
    library = Winner(Family.EXTERN, "aten::_mkl_linear")
    rows = {key: replace(row, winner=library) for key, row in table.rows.items()}
    write(served, replace(table, rows=rows))
    handle = warmup.install(served, on_miss="strict", freezing=True)
    with handle, empty_caches(), torch.no_grad():
        torch.compile(PlainLinear().float())(example_inputs(8).float())


def main() -> None:
    table = Path(sys.argv[1]) / "linear.json"
    noted = []
    for walked in (
        lambda: warmup.build(
            f"{MODELS}/plain_linear.py:PlainLinear",
            "8",
            table,
            options=warmup.BuildOptions(device="cpu", dtype="f32", wait_for_quiet=0),
        ),
        lambda: serve(table),
    ):
        walk = Walk()
        with mock.patch.object(GemmChoices, "_select", watching(walk)):
            walked()
        noted.append({"modules": [*walk.modules], "records": [*walk.records], **walk.calls})
    sys.stdout.write(json.dumps(dict(zip(("built", "served"), noted, strict=True))))


if __name__ == "__main__":
    main()
