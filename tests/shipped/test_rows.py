"""Shipped rows: each key and each winner is spelled as warmup would spell it today."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warmup.core.errors import ProblemError
from warmup.core.rows import Family, Winner
from warmup.keys.gemm import GEMM, GemmProblem, ProductProblem, parse_epilogue
from warmup.keys.grouped import GROUPED, GroupedProblem
from warmup.keys.kind import Kind
from warmup.keys.pad import PAD, PadProblem
from warmup.keys.reduction import SPLIT
from warmup.keys.registry import ingredients_of, kind_of
from warmup.keys.weight import WEIGHT, features_of, parse_weight, winner_of
from warmup.table.schema import Table

Claim = Callable[[str, Winner], Iterator[str]]


@dataclass(frozen=True)
class Form:
    """What winners of a family look like: uid, kwargs that each has, and whether it is hashed."""

    uid: str
    kwargs: frozenset[str] = frozenset()
    is_hashed: bool = False


_TILE = frozenset({"BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps"})
FORMS = {
    Family.EXTERN: Form(r"aten::\w+"),
    Family.TEMPLATE: Form(r"triton::\w+", _TILE, is_hashed=True),
    Family.SUBGRAPH: Form("decompose_k", frozenset({"k_split"})),
    Family.CPP: Form(r"cpp::\w+", frozenset({"block_m", "block_n", "block_k", "num_threads"})),
    Family.LAUNCH: Form(
        "pointwise|reduction|persistent_reduction|split_scan",
        frozenset({"XBLOCK", "num_stages", "num_warps"}),
    ),
    Family.PAD: Form("padded|as_is"),
    Family.REDUCTION: Form("persistent|looped"),
    Family.WEIGHT: Form("padded|as_is", frozenset({"features"})),
}
PRODUCTS: Mapping[Kind, type[ProductProblem]] = {
    GEMM: GemmProblem,
    PAD: PadProblem,
    GROUPED: GroupedProblem,
}
SPLIT_FORM = Form("split", frozenset({"parts"}))


def key_is_canonical(key: str, winner: Winner) -> Iterator[str]:
    """The key, parsed by its kind, spells itself; kernels have a hash of what is not in the key."""
    kind = kind_of(key)
    try:
        if kind is GEMM and "~" not in ingredients_of(key)["epilogue"]:
            parse_epilogue(ingredients_of(key)["epilogue"])  # a hash is of what is too long
        if kind in PRODUCTS and PRODUCTS[kind].of_key(key).key != key:
            yield f"would be spelled {PRODUCTS[kind].of_key(key).key}"
        if kind is WEIGHT:
            parse_weight(key)
    except ProblemError as error:
        yield str(error)


def winner_is_whole(key: str, winner: Winner) -> Iterator[str]:
    """The winner has the uid, the parameters and the hash that its family has."""
    form = SPLIT_FORM if kind_of(key) is SPLIT else FORMS[winner.family]
    named = {name for name, _ in winner.kwargs}
    if winner.family not in kind_of(key).families:
        yield f"a {winner.family} choice answers no {kind_of(key).name} key"
    if re.fullmatch(form.uid, winner.uid) is None:
        yield f"{winner.uid} is no uid of a {winner.family} choice"
    if missing := form.kwargs - named:
        yield f"without {', '.join(sorted(missing))}"
    if named and not form.kwargs:
        yield f"a {winner.family} choice has no parameters"
    if (winner.source_hash is not None) != form.is_hashed:
        yield f"source hash {winner.source_hash} of a {winner.family} choice"


def what_is_said_of_k_is_true(key: str, winner: Winner) -> Iterator[str]:
    """K is a multiple of ``k_split``, and of ``BLOCK_K`` where ``EVEN_K`` says so."""
    named, k = dict(winner.kwargs), ingredients_of(key).get("k", "")
    divisor = named.get("BLOCK_K") if named.get("EVEN_K") is True else named.get("k_split")
    if divisor is not None and (not k.isdecimal() or int(k) % int(divisor)):
        yield f"k={k} is no multiple of {divisor}"


def features_were_tried(key: str, winner: Winner) -> Iterator[str]:
    """Weights are padded to a size that a build tries, or stay as they are."""
    if kind_of(key) is WEIGHT:
        structure, _ = parse_weight(key)
        try:
            features = features_of(structure, winner)
        except ProblemError as error:
            yield str(error)
            return
        if winner != winner_of(structure, features):
            yield f"{winner} for {structure.features} features"


CLAIMS: tuple[Claim, ...] = (
    key_is_canonical,
    winner_is_whole,
    what_is_said_of_k_is_true,
    features_were_tried,
)

TILED = Winner(
    Family.TEMPLATE,
    "triton::mm",
    (
        *(("BLOCK_K", 64), ("BLOCK_M", 64), ("BLOCK_N", 128), ("EVEN_K", True)),
        *(("num_stages", 3), ("num_warps", 4)),
    ),
    "d4b90a54b960e7b3",
)
ADDMM = (
    "addmm m=560 n=3420 k=1280 bf16 a=row/3456 b=col bias=1d out=bf16"
    " | epilogue=silu,mul(bf16[560,3420])"
)
POINTWISE = (
    "launch triton_poi_fused_mul_silu x=8388608 args=*bf16,*bf16,i32 source=3f2a9c0d41b7e865"
)
CHAIN = "weight chain m=560 in=1280,1280 features=3420 out=1280 bf16 bias=111 via=mul(silu(p0),p1)"
CONFIG = (("XBLOCK", 1024), ("num_stages", 1), ("num_warps", 4))
SOUND: dict[str, tuple[str, Winner]] = {
    "template": (ADDMM, TILED),
    "extern": (ADDMM, Winner(Family.EXTERN, "aten::addmm")),
    "split": (
        "mm m=16 n=64 k=16384 bf16 a=row b=col out=bf16 | epilogue=none",
        Winner(Family.SUBGRAPH, "decompose_k", (("k_split", 16),)),
    ),
    "launch": (POINTWISE, Winner(Family.LAUNCH, "pointwise", CONFIG)),
    "pad": (
        "pad addmm m=560 n=1280 k=3420 bf16 a=row b=col bias=1d free=a",
        Winner(Family.PAD, "padded"),
    ),
    "weight": (CHAIN, Winner(Family.WEIGHT, "padded", (("features", 3424),))),
}


def respelled(old: str, new: str) -> Callable[[str, Winner], tuple[str, Winner]]:
    return lambda key, winner: (key.replace(old, new), winner)


def rewon(**changes: Any) -> Callable[[str, Winner], tuple[str, Winner]]:
    return lambda key, winner: (key, replace(winner, **changes))


DAMAGES = [
    ("template", key_is_canonical, respelled("m=560 ", "m=0560 ")),
    ("template", key_is_canonical, respelled(" a=", " dtype_b=bf16 a=")),
    ("template", key_is_canonical, respelled("3420])", "3420]")),
    ("pad", key_is_canonical, respelled("k=3420", "k=03420")),
    ("weight", key_is_canonical, respelled("bias=111", "bias=11")),
    ("template", winner_is_whole, rewon(source_hash=None)),
    ("template", winner_is_whole, rewon(kwargs=TILED.kwargs[1:])),
    ("extern", winner_is_whole, rewon(uid="mm")),
    ("extern", winner_is_whole, rewon(family=Family.PAD, uid="padded")),
    ("split", winner_is_whole, rewon(kwargs=())),
    ("template", what_is_said_of_k_is_true, respelled("k=1280", "k=1281")),
    ("split", what_is_said_of_k_is_true, rewon(kwargs=(("k_split", 15),))),
    ("weight", features_were_tried, rewon(kwargs=(("features", 3425),))),
    ("weight", features_were_tried, rewon(uid="as_is")),
]


def test_every_shipped_row_is_canonical(shipped: Mapping[Path, Table]) -> None:
    for path, table in shipped.items():
        rows = [(key, row.winner) for key, row in table.rows.items()]
        for claim in CLAIMS:
            said = [f"{key}: {said}" for key, winner in rows for said in claim(key, winner)]
            assert said == [], (path.name, claim)


def test_a_damaged_row_is_told_and_a_sound_one_is_not() -> None:
    """One damaged word of a sound row makes its claim complain; every claim has a damage."""
    assert {claim for _, claim, _ in DAMAGES} == set(CLAIMS)
    for claim in CLAIMS:
        assert [said for key, winner in SOUND.values() for said in claim(key, winner)] == [], claim
    for name, claim, damage in DAMAGES:
        damaged = damage(*SOUND[name])
        assert damaged != SOUND[name], (name, claim, damage)
        assert list(claim(*damaged)) != [], (name, claim, damage)
