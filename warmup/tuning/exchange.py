"""Torch's own files of tuned GEMMs, read into a table and written from one.

They are inductor's lookup table of configs and the results of TunableOp, which from torch 2.15 on
name algorithms of cuBLASLt. What is read is measured here before it is a row.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from warmup.core.device import Device, minor_of
from warmup.core.errors import ProblemError, SettingsError, TableFormatError
from warmup.core.files import open_regular
from warmup.core.roofline import dtype_name
from warmup.core.rows import ALGORITHM_CONFIG, MAX_INT, Algorithm, Family, Row, Winner, ranked
from warmup.core.strict_json import read_json
from warmup.core.text import counted, problem_in, shown
from warmup.keys.gemm import Dim, GemmProblem, bias_form, layout_of
from warmup.keys.registry import kind_of
from warmup.models.rebuilt import gemm_tensors, size_of
from warmup.table.schema import Table
from warmup.tuning.problems import ProblemsSource, as_problems

ASSUMED: Final = (
    "assumed, since torch's key does not say it: no epilogue, a result of the operands' dtype, "
    "reductions of f16 and bf16 in reduced precision, and f32 products in full precision, unless a "
    "template is allowed tf32"
)
_KNOWN_TORCH: Final = ("2.11", "2.12", "2.13", "2.14", "2.15")  # whose lookup table was read
_SLOWER_KERNEL: Final = (
    "torch's key lacks the epilogue, and over all rows of the key another kernel takes less time"
)
_MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_ENTRIES: Final = 100_000
_MAX_KEY: Final = 4096  # characters
_FILE_NAME: Final = 160  # characters of a file's name in an origin
_NODE: Final = r"\(torch\.[a-z0-9_]{1,32}, \[[0-9, ]{0,200}\], \[[0-9, ]{0,200}\]\)"
_ONE_NODE: Final = re.compile(r"\((torch\.\w+), \[([0-9, ]*)\], \[([0-9, ]*)\]\)")
_KEY: Final = re.compile(
    rf"(?:[^+(]{{1,100}}\+)?\((?P<nodes>{_NODE}(?:, {_NODE}){{0,7}}),?\)"
    r"(?:\+(?P<scalars>[a-z_]{1,32}=[^+]{1,64}))?\+(?P<op>[a-z][a-z0-9_]{0,63})"
)
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?")
_HASH: Final = re.compile(r"[0-9a-f]{8,64}")
_OPERANDS: Final = {"mm": 2, "bmm": 2, "int_mm": 2, "addmm": 3, "baddbmm": 3, "mm_plus_mm": 4}
_BATCHED: Final = frozenset({"bmm", "baddbmm"})
_BIASED: Final = frozenset({"addmm", "baddbmm"})
_SPLIT: Final = "decompose_k"
_KERNELS: Final = {  # that torch's table and a row can name, by the part of the name before ::
    "aten": frozenset({"mm", "addmm", "bias_addmm", "bmm", "baddbmm", "_int_mm", "_mm_plus_mm"}),
    "triton": frozenset(
        {
            *("mm", "bmm", "mm_plus_mm", "mm_persistent", "mm_persistent_tma"),
            "blackwell_ws_persistent_device_tma",
        }
    ),
    "": frozenset({_SPLIT}),
}
_MOST_SPLITS: Final = 4096

# Tuning kwargs of a template, each with its highest value and whether it is a power of two; torch
# derives all others from the operands.
_TUNED_KWARGS: Final[Mapping[str, tuple[int, bool]]] = {
    "BLOCK_M": (1024, True),
    "BLOCK_N": (1024, True),
    "BLOCK_K": (1024, True),
    "GROUP_M": (1024, False),
    "num_stages": (16, False),
    "num_warps": (32, True),
}

# TunableOp's names of dtypes and of products (ATen/cuda/tunable/TunableGemm.h of torch 2.15).
_TUNABLE_TORCH: Final = "2.15"  # TunableOp of an earlier torch has no algorithms of cuBLASLt
_TUNABLE_DTYPES: Final = {"bf16": "BFloat16", "f16": "Half"}
_TUNABLE_OPS: Final = {"mm": "GemmTunableOp", "addmm": "GemmAndBiasTunableOp"}
_TUNABLE_LINE: Final = re.compile(
    r"(?P<op>Gemm(?:AndBias)?TunableOp)_(?P<dtype>BFloat16|Half)_[NT]{2},(?P<w>[nt])(?P<x>[nt])"
    + "".join(f"_(?:ld_)?(?P<{n}>[0-9]{{1,10}})" for n in ("n", "m", "k", "ldw", "ldx", "ldo"))
    + rf",Gemm_Cublaslt_(?P<algorithm>{ALGORITHM_CONFIG})(?:,.*)?"
)
_VALIDATOR: Final = "Validator,"
_CUBLASLT: Final = f"{_VALIDATOR}CUBLASLT_VERSION,"

Config = Mapping[str, Any]
Strided = tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides, in elements


@dataclass(frozen=True, slots=True)
class Entry:
    """A config of torch's file: the key of its GEMM and the kernel, or what is ``lacking``.

    ``origin`` is the file with the number of the key or line. ``key`` is None where no row answers
    such a GEMM, ``winner`` where no kernel can be made; of a template it has the tuning kwargs.
    """

    origin: str
    key: str | None = None
    winner: Winner | None = None
    lacking: str = ""


def read_configs(path: Path) -> list[Entry]:
    """Return an entry for each config in *path*, JSON of torch's lookup table or CSV of TunableOp.

    Raises:
        SettingsError: the file cannot be read, or is none of these.
    """
    try:
        with open_regular(path) as file:
            raw = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(path, problem_in(error)) from error
    if len(raw) > _MAX_BYTES:
        raise _unreadable(path, f"larger than {_MAX_BYTES} bytes")
    name = shown(path.name)[-_FILE_NAME:]
    if raw.startswith(_VALIDATOR.encode()):
        found = _tunable_entries(raw.decode(errors="replace"), name)
    else:
        try:
            document, _ = read_json(raw, dict[str, list[Any]], str(path))
        except TableFormatError as error:
            place = f" at {error.pointer}" if error.pointer else ""
            raise _unreadable(path, f"no lookup table of torch{place}: {error.reason}") from error
        found = itertools.chain.from_iterable(
            _entries(text, configs, f"{name}:entry {number}")
            for number, (text, configs) in enumerate(document.items(), 1)
        )
    entries = [*itertools.islice(found, _MAX_ENTRIES + 1)]
    if len(entries) > _MAX_ENTRIES:
        raise _unreadable(path, f"more than {_MAX_ENTRIES} configs")
    return entries


def _unreadable(path: Path, reason: str) -> SettingsError:
    return SettingsError(f"{shown(path)}: {shown(reason)}", "name torch's JSON or TunableOp's CSV")


def _tunable_entries(text: str, name: str) -> Iterator[Entry]:
    """Yield the entries of TunableOp's CSV, each read as a config of the lookup table."""
    version = re.search(rf"^{_CUBLASLT}([0-9]{{1,9}})$", text, re.MULTILINE)
    for number, line in enumerate(text.splitlines(), 1):
        match, origin = _TUNABLE_LINE.fullmatch(line), f"{name}:line {number}"
        if not line or line.startswith(_VALIDATOR):
            continue
        if match is None or version is None or match["ldo"] != match["n"]:
            yield Entry(origin, lacking="no product of 16 bits by an algorithm of a known cuBLASLt")
            continue
        op, m, n, k = (match[part] for part in ("op", "m", "n", "k"))
        x = f"[{match['ldx']}, 1]" if match["x"] == "n" else f"[1, {match['ldx']}]"
        w = f"[{match['ldw']}, 1]" if match["w"] == "n" else f"[1, {match['ldw']}]"
        nodes = [f"[{m}, {k}], {x}", f"[{k}, {n}], {w}"]
        op = next(own for own, tunable in _TUNABLE_OPS.items() if tunable == op)
        nodes[:0] = [f"[{m}, {n}], [0, 1]"] * (op in _BIASED)
        dtype = f"torch.{'bfloat16' if match['dtype'] == 'BFloat16' else 'float16'}"
        key = f"({', '.join(f'({dtype}, {node})' for node in nodes)})+{op}"
        kwargs = tuple(Algorithm(match["algorithm"], int(version[1]))._asdict().items())
        for entry in _entries(key, [{"template_id": f"aten::{op}"}], origin):
            yield replace(entry, winner=entry.winner and Winner(Family.BLAS, f"blas::{op}", kwargs))


def _entries(text: str, configs: list[Any], origin: str) -> Iterator[Entry]:
    if not all(isinstance(config, dict) for config in configs):
        yield Entry(origin, lacking="a config is no object")
        return
    try:
        key = _problem_of(text, configs).key
    except ProblemError as error:
        yield Entry(origin, lacking=str(error))
        return
    if not configs:
        yield Entry(origin, key, lacking="it has no config")
    for config in configs:
        try:
            yield Entry(origin, key, winner_of(config))
        except ProblemError as error:
            yield Entry(origin, key, lacking=str(error))


def _problem_of(text: str, configs: Sequence[Config]) -> GemmProblem:
    match = _KEY.fullmatch(text) if len(text) <= _MAX_KEY else None
    if match is None:
        raise ProblemError("not a key of torch's lookup table")
    op, nodes = match["op"], _ONE_NODE.findall(match["nodes"])
    if op not in _OPERANDS:
        raise ProblemError(f"the key of {op} does not say all that the key of a row has")
    if len(nodes) != _OPERANDS[op]:
        raise ProblemError(f"{op} has {_OPERANDS[op]} operands, the key {len(nodes)}")
    operands = [(_numbers(sizes), _numbers(strides)) for _, sizes, strides in nodes]
    dtypes = {dtype_name(dtype) for dtype, _, _ in nodes}
    scalars = dict(part.partition("=")[::2] for part in (match["scalars"] or "").split("&") if part)
    if scalars.keys() - {"alpha", "beta"} or not all(map(_NUMBER.fullmatch, scalars.values())):
        raise ProblemError(f"scalars {shown(match['scalars'])}: only plain alpha and beta are read")
    bias, factors = (operands[:1], operands[1:]) if op in _BIASED else ([], operands)
    rank = 3 if op in _BATCHED else 2
    if any(len(sizes) != rank or len(strides) != rank for sizes, strides in factors):
        raise ProblemError(f"a factor of {op} has {rank} dims, the key another number")
    (a, b), pair = factors[:2], factors[2:]
    (m, k), (b_k, n) = a[0][-2:], b[0][-2:]
    if b_k != k or a[0][:-2] != b[0][:-2] or len(dtypes) != 1:
        raise ProblemError("the operands do not fit together")
    if any(one[0] != other[0] for one, other in zip((a, b), pair, strict=False)):
        raise ProblemError("the two products have other sizes")
    (dtype,) = dtypes
    layouts = [layout_of(list(size), list(step), int.__eq__, Dim.of) for size, step in factors]
    precision = "tf32" if any(each.get("ALLOW_TF32") is True for each in configs) else "ieee"
    return GemmProblem(
        op=op,
        batch=Dim.of(a[0][0]) if op in _BATCHED else None,
        m=Dim.of(m),
        n=Dim.of(n),
        k=Dim.of(k),
        dtype=dtype,
        a=layouts[0],
        b=layouts[1],
        a2=layouts[2] if pair else None,
        b2=layouts[3] if pair else None,
        bias=bias_form(rank, *bias[0]) if bias else None,
        out="i32" if op == "int_mm" else dtype,
        alpha=float(scalars.get("alpha", 1)),
        beta=float(scalars.get("beta", 1)),
        fp32=precision if dtype == "f32" else None,
    )


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) <= len(str(MAX_INT)) for part in parts):
        raise ProblemError(f"{text[:40]!r} are no sizes")
    if any(int(part) > MAX_INT for part in parts):
        raise ProblemError(f"a size or stride is larger than {MAX_INT}")
    return tuple(map(int, parts))


def winner_of(config: Config) -> Winner:
    """Return the kernel of *config* with the kwargs that are tuned: torch derives the others again.

    Raises:
        ProblemError: *config* names no kernel of a row, or not all of its kwargs.
    """
    named, digest = config.get("template_id"), config.get("template_hash")
    if not isinstance(named, str):
        raise ProblemError("the config has no template_id")
    if not _is_known(named):
        raise ProblemError(f"{shown(named)} is no kernel that a row can name")
    if named.startswith("aten::"):
        return Winner(Family.EXTERN, named)
    if named == _SPLIT:
        splits = config.get("k_split")
        if type(splits) is not int or not 1 < splits <= _MOST_SPLITS:
            raise ProblemError("k_split is not given")
        return Winner(Family.SUBGRAPH, _SPLIT, (("k_split", splits),))
    if digest is not None and not (isinstance(digest, str) and _HASH.fullmatch(digest)):
        raise ProblemError("the hash of the template's source is no hash")
    tuned: list[tuple[str, int]] = []
    for kwarg, (most, is_power) in sorted(_TUNED_KWARGS.items()):
        value = config.get(kwarg)
        if type(value) is not int:
            raise ProblemError(f"{kwarg} is not given")
        if not 1 <= value <= most or (is_power and value & (value - 1)):
            raise ProblemError(f"{kwarg}={value} is no value that a template takes")
        tuned.append((kwarg, value))
    return Winner(Family.TEMPLATE, named, tuple(tuned), digest)


def _is_known(kernel: str) -> bool:
    family, _, name = kernel.rpartition("::")
    return name in _KERNELS.get(family, ())


def source_of(entries: Iterable[Entry]) -> ProblemsSource:
    """Return the problems of *entries*: their kernels and the library's are measured, and no other.

    The problem of each key is rebuilt. A row has the fastest of these kernels and its evidence.
    """
    configs: dict[str, list[Winner]] = {}
    for entry in entries:
        if entry.key is not None and entry.winner is not None:
            configs.setdefault(entry.key, []).append(entry.winner)
    return ProblemsSource(as_problems(configs), imported=configs)


def spell_entries(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield how many of *entries* name a kernel, why others do not, and what torch's key omits."""
    lacking = Counter(entry.lacking for entry in entries if entry.winner is None)
    yield f"{counted(len(entries), 'config')} read, {len(entries) - lacking.total()} complete"
    for reason, count in lacking.most_common():
        first = next(entry.origin for entry in entries if entry.lacking == reason)
        yield f"not taken: {counted(count, 'config')}: {reason} (first: {first})"
    yield ASSUMED


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """A file for torch: its text, how many ``entries`` it has, and what its rows lack.

    ``left_out`` has by reason the keys of the rows that torch's file cannot express.
    """

    text: str
    entries: int
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)


def export_lookup_table(table: Table) -> ExportedTable:
    """Return the GEMM rows of *table* as torch's own lookup table: one kernel for each key.

    A config has all kwargs of the row's kernel and the hash of its template, so that torch derives
    none of them for other blocks, and drops the config where the template has changed. Torch
    measures the kernels of a key that has several. Rows that differ in what torch's key does not
    have, such as the epilogue, share a key: it gets the kernel with the least time over all of
    them, and rows with another kernel are left out. On NVIDIA a key names the device.

    Raises:
        SettingsError: the form of the lookup table is not known for the torch of *table*.
    """
    runtime = table.provenance.runtime
    minor = minor_of(runtime.torch)
    if minor not in _KNOWN_TORCH:
        raise SettingsError(
            f"torch {runtime.torch} built the table, and torch's lookup table is known of "
            f"{_KNOWN_TORCH[0]} to {_KNOWN_TORCH[-1]}",
            "take a table of such a torch, or a newer inductor-warmup",
        )
    entries: dict[str, list[dict[str, Any]]] = {}
    kernels, left_out = _kernels_by(table, _lacks_in_lookup_table, _torch_text)
    for text, (problem, winner, _) in kernels.items():
        digest = winner.source_hash
        config = {"template_id": winner.uid, **({"template_hash": digest} if digest else {})}
        is_apart = problem.op == "addmm" and winner.family is Family.EXTERN and minor != "2.11"
        key = _torch_text(problem, bias_as_added=False) if is_apart else text
        name = f"{runtime.device.name}+" if runtime.device.vendor == "nvidia" else ""
        entries[name + key] = [{**config, **dict(winner.kwargs)}]
    return ExportedTable(json.dumps(entries, indent=1) + "\n", len(entries), left_out)


def export_tunable_ops(table: Table) -> ExportedTable:
    """Return the algorithms of cuBLASLt in *table* as a file of results for TunableOp.

    TunableOp refuses the file under another torch, cuBLASLt or GPU. Rows share a product as in
    `export_lookup_table`.

    Raises:
        SettingsError: TunableOp of the torch of *table* has no algorithms of cuBLASLt.
    """
    runtime, device = table.provenance.runtime, table.provenance.runtime.device
    if minor_of(runtime.torch) != _TUNABLE_TORCH:
        raise SettingsError(
            f"torch {runtime.torch} built the table, and TunableOp names algorithms of cuBLASLt in "
            f"torch {_TUNABLE_TORCH}",
            f"build with torch {_TUNABLE_TORCH} and --set backends=ATEN,TRITON,CUBLASLT",
        )
    algorithms = filter(None, (Algorithm.of(row.winner) for row in table.rows.values()))
    version = max((one.cublas for one in algorithms), default=0)

    def lacks(_: GemmProblem, row: Row) -> Mapping[str, bool]:
        named = Algorithm.of(row.winner)
        return {
            "the kernel is no algorithm of cuBLASLt": named is None,
            "the algorithm is of an older cuBLASLt": named is not None and named.cublas != version,
        }

    kernels, left_out = _kernels_by(table, lacks, _tunable_text)
    lines = [
        f"{_VALIDATOR}PT_VERSION,{runtime.torch.partition('+')[0]}",
        f"{_CUBLASLT}{version}",
        f"{_VALIDATOR}CUDA_DEVICE,{device.arch[3:-1]}.{device.arch[-1]}:{device.name}",
    ]
    for text, (_, winner, us) in kernels.items():
        lines.append(f"{text},Gemm_Cublaslt_{dict(winner.kwargs)['algorithm']},{us / 1000:.6f}")
    return ExportedTable("\n".join(lines) + "\n", len(kernels), left_out)


def _kernels_by(
    table: Table,
    lacks: Callable[[GemmProblem, Row], Mapping[str, bool]],
    text_of: Callable[[GemmProblem], str],
) -> tuple[dict[str, tuple[GemmProblem, Winner, float]], dict[str, list[str]]]:
    """Return by torch's text a product, its kernel and time, and by reason the keys left out."""
    left_out: dict[str, list[str]] = {}
    sharing: dict[str, dict[str, Row]] = {}
    for key, row in sorted(table.rows.items()):
        try:
            text = text_of(_expressible(key, row, table.provenance.runtime.device, lacks))
        except ProblemError as error:
            left_out.setdefault(str(error), []).append(key)
        else:
            sharing.setdefault(text, {})[key] = row
    kernels: dict[str, tuple[GemmProblem, Winner, float]] = {}
    for text, rows in sharing.items():
        winner = min(
            (row.winner for row in rows.values()),
            key=lambda winner: sum(_time_in(row, winner) for row in rows.values()),
        )
        for key, row in rows.items():
            if row.winner.choice != winner.choice:
                left_out.setdefault(_SLOWER_KERNEL, []).append(key)
        first, row = next(iter(rows.items()))
        kernels[text] = GemmProblem.of_key(first), winner, _time_in(row, winner)
    return kernels, left_out


def _time_in(row: Row, winner: Winner) -> float:
    """Return the time of *winner* in *row* where torch chooses it, which fuses what it can.

    A kernel that the evidence does not list was slower than all that it lists.
    """
    evidence = row.evidence
    times = {
        row.winner.short: evidence.time_us,
        **{text: time for time, text in ranked(evidence.ranking)},
    }
    for fused in (True, None, False):
        if (name := replace(winner, fused=fused).short) in times:
            return times[name]
    if winner.family is Family.EXTERN and evidence.library_us is not None:
        return evidence.library_us
    return max(times.values())


def _expressible(
    key: str, row: Row, device: Device, lacks: Callable[[GemmProblem, Row], Mapping[str, bool]]
) -> GemmProblem:
    """Return the product of *key*; a ProblemError where torch's file cannot express its *row*."""
    kind = kind_of(key).name
    if kind != "gemm":
        raise ProblemError(f"rows of the kind {kind}: torch's file is for GEMMs alone")
    problem = GemmProblem.of_key(key)
    reasons = {
        "the table is for a CPU: torch looks configs up on GPUs alone": device.type != "cuda",
        "the row is not trusted": row.untrusted is not None,
        f"torch's key of {problem.op} does not say the dtype of the result or the precision": (
            problem.op not in _OPERANDS
        ),
        "a range of sizes: torch's key has one size": not all(
            dim is None or dim.is_static for dim in (problem.batch, problem.m, problem.n, problem.k)
        ),
        "a result of another dtype: torch's key does not say it": (
            problem.op != "int_mm" and problem.out != problem.dtype
        ),
        "f32 products in tf32: torch's key does not say the precision": problem.fp32 == "tf32",
        "reductions in full precision: torch's key does not say it": problem.reduction is not None,
        "an alpha or beta other than 1: a key has six digits of it, torch's key all": (
            (problem.alpha, problem.beta) != (1, 1)
        ),
        **lacks(problem, row),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ProblemError(reason)
    return problem


def _lacks_in_lookup_table(problem: GemmProblem, row: Row) -> Mapping[str, bool]:
    winner, longest = row.winner, max(problem.m.low, problem.n.low)
    names = {name for _, name in ranked(row.evidence.ranking)}
    return {
        "the kernel is faster where nothing is fused into it: torch would fuse": (
            winner.fused is False and replace(winner, fused=True).short in names
        ),
        f"torch does not have the kernel {winner.uid}": not _is_known(winner.uid),
        "torch lists decompose_k from K = 32 max(M, N) on, and no tile from 64 max(M, N) on": (
            problem.op == "mm"
            and (
                (winner.uid == _SPLIT and problem.k.low < 32 * longest)
                or (winner.family is Family.TEMPLATE and problem.k.low >= 64 * longest)
            )
        ),
    }


def _tunable_text(problem: GemmProblem) -> str:
    """Return TunableOp's name and parameters of a product: out.t() = w.t() @ x.t(), by columns."""
    tensors = gemm_tensors(problem)
    (m, k), n = map(size_of, tensors["a"].sizes), size_of(tensors["b"].sizes[1])
    is_w, is_x = (tensors[name].strides[0] == 1 for name in ("b", "a"))  # transposed in torch
    letters = f"{'nt'[is_w]}{'nt'[is_x]}"
    pitches = "_".join(str(max(tensors[name].strides)) for name in ("b", "a"))
    op, dtype = _TUNABLE_OPS[problem.op], _TUNABLE_DTYPES[problem.dtype]
    return f"{op}_{dtype}_{letters.upper()},{letters}_{n}_{m}_{k}_ld_{pitches}_{n}"


def _torch_text(problem: GemmProblem, *, bias_as_added: bool = True) -> str:
    tensors = gemm_tensors(problem)
    names = [name for name in ("bias", "a", "b", "a2", "b2") if name in tensors]
    shapes = {
        name: (tuple(map(size_of, each.sizes)), each.strides) for name, each in tensors.items()
    }
    if "bias" in shapes and bias_as_added:
        out = (*shapes["a"][0][:-1], shapes["b"][0][-1])
        shapes["bias"] = _expanded(shapes["bias"], out)
    nodes = ", ".join(
        f"({tensors[name].dtype}, {list(shapes[name][0])}, {list(shapes[name][1])})"
        for name in names
    )
    scalars = "+alpha=1&beta=1" if problem.op in _BIASED else ""
    return f"({nodes}){scalars}+{problem.op}"


def _expanded(bias: Strided, out: tuple[int, ...]) -> Strided:
    sizes, strides = bias
    missing = len(out) - len(sizes)
    own = zip(out[missing:], sizes, strides, strict=True)
    return out, (*[0] * missing, *(stride if size == wanted else 0 for wanted, size, stride in own))
