"""`read_device_model` and `write_device_model`: a device model as JSON of at most 64 KiB.

The file is read without trust: it is data, and a damaged one is refused with its JSON pointer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

from warmup.core.errors import DeviceModelError, TableFormatError
from warmup.core.files import open_regular, write_output
from warmup.core.json_node import Node
from warmup.core.runtime import Runtime, minor_of
from warmup.core.strict_json import JsonError, parse_json
from warmup.prediction.device_model import DeviceModel, MeasuredProblem
from warmup.prediction.features import CandidateConfig
from warmup.prediction.formula import CONSTANT_NAMES, Constants
from warmup.prediction.pad.pad_section import PAD_SECTION, pad_model_to_json, read_pad_model
from warmup.prediction.timing_lines import MeasuredOn
from warmup.prediction.tree import LEAF_FEATURES, MAX_LEAVES, Fork, Leaf, LeafEvidence, Tree

DEVICE_MODEL_SCHEMA: Final = 2
_SCHEMA_WITH_NULLS: Final = 1  # has a null for each residual that was not measured
MAX_BYTES: Final = 64 * 1024
_GEMM_SECTION: Final = "gemm"
_MAX_ITEMS: Final = 20_000
_LARGEST: Final = 1e15
_LARGEST_SIZE: Final = 2**40
_LARGEST_RESIDUAL: Final = 1000
_MODEL_FIELDS: Final = frozenset({"schema", "device", "torch", "triton", "method", _GEMM_SECTION})
_FIELDS: Final = frozenset(
    {
        *("problems", "models", "templates", "categories", "constants", "configs", "offsets"),
        *("covering", "measured", "tree", "chooser"),
    }
)


def write_device_model(path: Path, model: DeviceModel) -> None:
    """Write *model* to *path*.

    Raises:
        SettingsError: the file cannot be written, or *model* does not fit into 64 KiB.
    """
    write_output(path, encode_device_model(model), "out")


def encode_device_model(model: DeviceModel) -> str:
    """Return *model* as text, the same for the same model.

    Raises:
        DeviceModelError: the text is longer than 64 KiB.
    """
    configs = sorted({*model.covering, *(config for config, _ in model.offsets)}, key=str)
    numbers = {config: number for number, config in enumerate(configs)}
    section = {
        "problems": model.problems,
        "models": list(model.models),
        "templates": dict(sorted(model.templates.items())),
        "categories": list(model.categories),
        "constants": [
            [uid, dtype, *astuple(constants)]
            for (uid, dtype), constants in sorted(model.constants.items())
        ],
        "configs": [list(astuple(config)) for config in configs],
        "offsets": [
            [numbers[config], dtype, value]
            for (config, dtype), value in sorted(model.offsets.items(), key=str)
        ],
        "covering": [numbers[config] for config in model.covering],
        "measured": [_measured_to_json(one) for one in model.measured],
        "tree": _tree_to_json(model.tree),
        "chooser": model.chooser,
    }
    on = model.on
    document = {
        "schema": DEVICE_MODEL_SCHEMA,
        "device": {"name": on.device, "sm_count": on.sm_count, "arch": on.arch},
        "torch": on.torch,
        "triton": on.triton,
        "method": model.method,
        _GEMM_SECTION: section,
    }
    if model.pad is not None:
        document[PAD_SECTION] = pad_model_to_json(model.pad)
    text = json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n"
    if len(text) > MAX_BYTES:
        raise DeviceModelError(
            "the device model", f"{len(text)} bytes, more than {MAX_BYTES}", "fit to fewer problems"
        )
    return text


def read_device_model(
    path: str | Path, here: Runtime | None = None, *, needs_times: bool = True
) -> DeviceModel:
    """Return the device model in the file *path*, for use *here*.

    A model that knows pad decisions alone is refused unless *needs_times* is false.

    Raises:
        DeviceModelError: the file cannot be read, is damaged, was trained on too little, or is for
            another device, torch or triton than *here*.
    """
    path = Path(path)
    advice = "fit it with `warmup fit`"
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DeviceModelError(str(path), f"cannot be read: {reason}", advice) from error
    if len(content) > MAX_BYTES:
        raise DeviceModelError(str(path), f"more than {MAX_BYTES} bytes", advice)
    try:
        model = _read(Node(parse_json(content.decode()), str(path)))
    except TableFormatError as error:
        reason = f"damaged at {error.pointer}: {error.reason}"
        raise DeviceModelError(str(path), reason, advice) from None
    except (JsonError, UnicodeDecodeError) as error:
        raise DeviceModelError(str(path), f"damaged: {error}", advice) from None
    if model.pad is not None and (reason := model.pad.too_little) is not None:
        raise DeviceModelError(str(path), reason, "collect more with `warmup pad collect`")
    is_of_pads = model.pad is not None and not model.problems and not needs_times
    if not is_of_pads and (reason := model.too_little) is not None:
        raise DeviceModelError(str(path), reason, "fit it to the timings of more problems")
    if here is not None and (other := origin_difference(model.on, MeasuredOn.of(here))) is not None:
        raise DeviceModelError(str(path), other, "fit one from timings of this machine")
    return model


def origin_difference(on: MeasuredOn, found: MeasuredOn) -> str | None:
    """Return why a model made of times taken *on* is not for *found*; None where it is."""
    pairs = (
        ("device", f"{on.arch}, {on.sm_count} SMs", f"{found.arch}, {found.sm_count} SMs"),
        ("device", on.device, found.device),
        ("torch", minor_of(on.torch), minor_of(found.torch)),
        ("triton", minor_of(on.triton), minor_of(found.triton)),
    )
    for name, wanted, actual in pairs:
        if wanted != actual:
            return f"for another {name}: {wanted}, here {actual}"
    return None


def _measured_to_json(one: MeasuredProblem) -> list[int]:
    """Return *one* as numbers; of its residuals a bit for each that follows, the first lowest."""
    known = {place: each for place, each in enumerate(one.residuals) if each is not None}
    return [*one.sizes, one.category, sum(1 << place for place in known), *known.values()]


def _tree_to_json(tree: Tree) -> list[Any]:
    if isinstance(tree, Fork):
        return [tree.feature, tree.limit, _tree_to_json(tree.low), _tree_to_json(tree.high)]
    evidence = [] if tree.evidence is None else astuple(tree.evidence)
    return [tree.config, tree.problems, *evidence]


def _read(root: Node) -> DeviceModel:
    members = dict(root.items())
    if "schema" not in members:
        root.fail("missing: schema")
    schema = members["schema"].integer(_SCHEMA_WITH_NULLS, DEVICE_MODEL_SCHEMA)
    missing = ", ".join(sorted(_MODEL_FIELDS - members.keys()))
    if missing:
        root.fail(f"missing: {missing}")
    device = members["device"].members(frozenset({"name", "sm_count", "arch"}))
    on = MeasuredOn(
        device=device["name"].string(),
        sm_count=device["sm_count"].integer(1, 100_000),
        arch=device["arch"].string(),
        torch=members["torch"].string(),
        triton=members["triton"].string(),
    )
    section = members[_GEMM_SECTION].members(_FIELDS)
    configs = tuple(_read_config(one) for one in _list(section["configs"]))
    covering = tuple(
        configs[one.integer(0, len(configs) - 1)] for one in _list(section["covering"])
    )
    categories = tuple(one.string() for one in _list(section["categories"]))
    leaves: list[Leaf] = []
    chooser = section["chooser"].string()
    if chooser not in {"formula", "tree"}:
        section["chooser"].fail("expected formula or tree")
    return DeviceModel(
        on=on,
        method=members["method"].string(),
        problems=section["problems"].integer(0, _MAX_ITEMS),
        models=tuple(one.string() for one in _list(section["models"])),
        templates={uid: one.string() for uid, one in section["templates"].items()},
        categories=categories,
        constants=_read_constants(section["constants"]),
        offsets=_read_offsets(section["offsets"], configs),
        covering=covering,
        measured=_read_measured(section["measured"], len(categories), len(covering), schema),
        tree=_read_tree(section["tree"], len(covering), leaves),
        chooser=chooser,
        pad=read_pad_model(members[PAD_SECTION]) if PAD_SECTION in members else None,
    )


def _list(node: Node, length: int | None = None) -> list[Node]:
    """Return the elements of the array *node*, which may be empty."""
    if node.value == [] and not length:
        return []
    elements = node.elements(_MAX_ITEMS)
    if length is not None and len(elements) != length:
        node.fail(f"expected {length} elements")
    return elements


def _read_config(node: Node) -> CandidateConfig:
    uid, *numbers, parts = _list(node, 8)
    block_m, block_n, block_k, group_m, stages, warps = (one.integer(0, 2**20) for one in numbers)
    split = parts.integer(1, 2**20)
    return CandidateConfig(uid.string(), block_m, block_n, block_k, group_m, stages, warps, split)


def _read_constants(node: Node) -> Mapping[tuple[str, str], Constants]:
    found = {}
    for one in _list(node):
        uid, dtype, *values = _list(one, 2 + len(CONSTANT_NAMES))
        numbers = [value.number(1e-9, _LARGEST) for value in values]
        found[uid.string(), dtype.string()] = Constants(*numbers)
    return found


def _read_offsets(
    node: Node, configs: tuple[CandidateConfig, ...]
) -> Mapping[tuple[CandidateConfig, str], float]:
    found = {}
    for one in _list(node):
        number, dtype, value = _list(one, 3)
        config = configs[number.integer(0, len(configs) - 1)]
        found[config, dtype.string()] = value.number(-20, 20)
    return found


def _read_measured(
    node: Node, categories: int, covering: int, schema: int
) -> tuple[MeasuredProblem, ...]:
    """Return the problems in *node*, each with a residual or None for each of its columns."""
    count = covering + 2
    head = [(1, _LARGEST_SIZE)] * 4 + [(0, categories - 1)]
    residual = -_LARGEST_RESIDUAL, _LARGEST_RESIDUAL
    ranges = [*head, (0, 2**count - 1), *[residual] * count]

    def read(one: Node) -> MeasuredProblem:
        residuals: list[int | None]
        if schema == _SCHEMA_WITH_NULLS:
            parts = _list(one, len(head) + count)
            row = [part.integer(*limits) for part, limits in zip(parts, head, strict=False)]
            found = parts[len(head) :]
            residuals = [part.optional(lambda each: each.integer(*residual)) for part in found]
        else:
            row = one.integers(ranges)
            if len(row) <= len(head):
                one.fail(f"expected at least {len(head) + 1} elements")
            bits, known = row[len(head)], row[len(head) + 1 :]
            if bits.bit_count() != len(known):
                one.fail(f"expected {bits.bit_count()} residuals, as there are bits")
            rest = iter(known)
            residuals = [next(rest) if bits >> place & 1 else None for place in range(count)]
        b, m, n, k, category = row[: len(head)]
        return MeasuredProblem((b, m, n, k), category, tuple(residuals))

    return tuple(read(one) for one in _list(node))


def _read_tree(node: Node, configs: int, leaves: list[Leaf], depth: int = 1) -> Tree:
    """Return the tree in *node*, whose leaves are added to *leaves*: at most 64."""
    parts = _list(node)
    if depth > MAX_LEAVES:  # no tree of so few leaves is as deep
        node.fail(f"expected at most {MAX_LEAVES} leaves")
    if len(parts) == 4 and type(parts[2].value) is list:  # noqa: PLR2004  a fork
        return Fork(
            parts[0].integer(0, len(LEAF_FEATURES) - 1),
            parts[1].number(-_LARGEST, _LARGEST),
            _read_tree(parts[2], configs, leaves, depth + 1),
            _read_tree(parts[3], configs, leaves, depth + 1),
        )
    if len(parts) not in {2, 6} or len(leaves) == MAX_LEAVES:
        node.fail(f"expected a fork or one of at most {MAX_LEAVES} leaves")
    evidence = None
    if len(parts) > 2:  # noqa: PLR2004  a leaf with its evidence
        regret, worst, bound = (one.number(0, _LARGEST) for one in parts[3:])
        evidence = LeafEvidence(parts[2].integer(0, _MAX_ITEMS), regret, worst, bound)
    leaf = Leaf(parts[0].integer(0, max(configs - 1, 0)), parts[1].integer(0, _MAX_ITEMS), evidence)
    leaves.append(leaf)
    return leaf
