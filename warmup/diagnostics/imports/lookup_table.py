"""`read_lookup_table`: torch's own lookup table (torch/_inductor/lookup_table/choices.py) as JSON.

    {"((torch.bfloat16, [512, 640], [640, 1]), ...)+mm": [{"template_id": "triton::mm", ...}, ...]}

A key may begin with the device's name and have scalars before the op.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from warmup.core.error_text import shown
from warmup.core.errors import ProblemError
from warmup.core.imported_config import ImportedConfig
from warmup.core.rows import Winner
from warmup.diagnostics.imports.entry import Entry, ImportedEntry, Unmapped, origin_of
from warmup.diagnostics.imports.kernel_config import library_winner, template_winner
from warmup.diagnostics.imports.operand_shape import SCALAR_TEXT, OperandShape, key_of

_KEY_NODE: Final = r"\(torch\.[a-z0-9_]{1,32}, \[[0-9, ]{0,200}\], \[[0-9, ]{0,200}\]\)"
_LOOKUP_KEY: Final = re.compile(
    rf"(?:(?P<device>[^+(]{{1,100}})\+)?\((?P<nodes>{_KEY_NODE}(?:, {_KEY_NODE}){{0,7}}),?\)"
    r"(?:\+(?P<scalars>[a-z_]{1,32}=[^+]{1,64}))?\+(?P<op>[a-z][a-z0-9_]{0,63})"
)
_ONE_NODE: Final = re.compile(r"\((torch\.\w+), \[([0-9, ]*)\], \[([0-9, ]*)\]\)")
_NUMBER: Final = re.compile(SCALAR_TEXT)
_FACTORS: Final = frozenset({"alpha", "beta"})
_TF32: Final = "ALLOW_TF32"
_MAX_KEY_LETTERS: Final = 4096


def is_lookup_table(document: object) -> bool:
    """Whether *document* has the form of a lookup table: arrays of objects with a template."""
    return isinstance(document, dict) and any(
        isinstance(configs, list)
        and any(isinstance(each, dict) and "template_id" in each for each in configs)
        for configs in document.values()
    )


def read_lookup_table(document: Mapping[str, Any], file: str) -> Iterator[Entry]:
    """Yield an entry for each config of the lookup table *document*, which was in *file*."""
    for number, (text, configs) in enumerate(document.items(), 1):
        origin = origin_of(file, f"entry {number}")
        if not isinstance(configs, list) or not all(isinstance(one, dict) for one in configs):
            yield Unmapped(origin, shown(text), "its value is no array of objects")
            continue
        try:
            key = _key_of(text, configs)
        except ProblemError as error:
            yield Unmapped(origin, shown(text), str(error))
            continue
        if not configs:
            yield ImportedEntry(key, origin, None, "the entry has no config")
        for config in configs:
            winner = _winner(config)
            if isinstance(winner, str):
                yield ImportedEntry(key, origin, None, winner)
            else:
                yield ImportedEntry(key, origin, ImportedConfig(winner, origin))


def _key_of(text: str, configs: list[dict[str, object]]) -> str:
    match = _LOOKUP_KEY.fullmatch(text) if len(text) <= _MAX_KEY_LETTERS else None
    if match is None:
        raise ProblemError("not a key of a lookup table")
    operands = [
        OperandShape.of(dtype, _numbers(sizes), _numbers(strides))
        for dtype, sizes, strides in _ONE_NODE.findall(match["nodes"])
    ]
    scalars = dict(part.partition("=")[::2] for part in (match["scalars"] or "").split("&") if part)
    if scalars.keys() - _FACTORS or not all(map(_NUMBER.fullmatch, scalars.values())):
        raise ProblemError(f"scalars {shown(match['scalars'])}: only plain alpha and beta are read")
    uses_tf32 = any(config.get(_TF32) is True for config in configs)
    return key_of(
        match["op"],
        operands,
        precision="tf32" if uses_tf32 else "ieee",
        alpha=float(scalars.get("alpha", 1)),
        beta=float(scalars.get("beta", 1)),
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) <= len("2147483647") for part in parts):
        raise ProblemError(f"{text[:40]!r} are no sizes")
    return tuple(map(int, parts))


def _winner(config: Mapping[str, object]) -> Winner | str:
    named = config.get("template_id")
    if not isinstance(named, str):
        return "the config has no template_id"
    family, _, name = named.rpartition("::")
    if family == "aten":
        return library_winner(name) or f"{shown(named)} is no kernel that a row can name"
    if family not in ("", "triton"):
        return f"{shown(named)} is no kernel that a row can name"
    return template_winner(name, config, config.get("template_hash"))
