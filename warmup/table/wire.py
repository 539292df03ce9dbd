"""Structs of a table's JSON, with the bounds of each value, and what they are in memory.

A struct has the members of its JSON object in the order of the text; a member that is left out has
its default. Nothing in a table is executable: kwargs are numbers, booleans, null and a closed set
of words.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import asdict

from warmup.core.device import CallCost, Device, Runtime
from warmup.core.errors import TableFormatError
from warmup.core.method import L2, MAX_TOP_K, Launch, Method, OptionValue, Search
from warmup.core.roofline import PeaksJson
from warmup.core.rows import (
    MAX_INT,
    MAX_RANKED,
    Evidence,
    Family,
    Flag,
    KwargValue,
    Rejection,
    Row,
    Scope,
    Winner,
)
from warmup.core.strict_json import check_texts, pointer_of
from warmup.keys.kind import Kind
from warmup.table.schema import (
    MAX_ASSUMPTION,
    MAX_ASSUMPTIONS,
    MAX_COSTS,
    MAX_REASON,
    SCHEMA_VERSION,
    SEARCH_FIELDS,
    Policy,
    Provenance,
)

MAX_ROW_BYTES: Final = 256 * 1024  # of a winner without whitespace
_MAX_OPTIONS: Final = 4096
_MAX_CANDIDATES: Final = 100_000
_ENTRY: Final = r"[0-9]{1,9}(?:\.[0-9]{1,9})?(?:e[+-][0-9]{1,2})? [!-:<-~][ -:<-~]{0,159}"

_Short = Annotated[str, Meta(max_length=64)]
_Text = Annotated[str, Meta(max_length=MAX_ASSUMPTION)]
_Count = Annotated[int, Meta(ge=1, le=MAX_INT)]
_Integer = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Ratio = Annotated[float, Meta(ge=1, le=1e6)]
_Excess = Annotated[float, Meta(ge=0, le=1e6)]
_Rate = Annotated[float, Meta(ge=0, le=1e9)]
_Us = Annotated[float, Meta(ge=1e-6, le=1e9)]
_CallUs = Annotated[float, Meta(ge=0, le=1e12)]
_Kernels = Annotated[int, Meta(ge=1, le=1000)]
_Tried = Annotated[int, Meta(ge=1, le=_MAX_CANDIDATES)]
_Registers = Annotated[int, Meta(ge=1, le=1024)]
_Spills = Annotated[int, Meta(ge=0, le=MAX_INT)]
_Choice = Annotated[str, Meta(max_length=512)]
_Ranking = Annotated[
    str,
    Meta(max_length=2048, pattern=rf"\A{_ENTRY}(?:; {_ENTRY}){{0,{MAX_RANKED - 1}}}\Z"),
]
_Uid = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:]{1,128}\Z")]
_KwargName = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
# Inductor pastes template kwargs into kernel source: a text is a Triton dtype or a plain name.
_KwargWord = Annotated[str, Meta(pattern=r"\A(?:tl\.[a-z0-9]{1,24}|[A-Za-z0-9_]{0,32})\Z")]
_Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8,64}\Z")]
_OptionName = Annotated[
    str, Meta(max_length=4096, pattern=r"\A[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)?\Z")
]
_OptionNumber = Annotated[float, Meta(ge=-1e30, le=1e30)]
_DtypeName = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]{0,31}\Z")]
_Along = tuple[_Count, _Ratio | None]


_ABSENT: Final[Any] = None  # the default of a member that is left out and that may not be null


class Json(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """An object of a table; a member without a default is always there."""


class DeviceJson(Json, kw_only=True):
    """A `Device`."""

    arch: _Short
    memory_gib: _Count | None
    mig: _Short | None
    name: Annotated[str, Meta(max_length=256)]
    sm_count: _Count | None
    threads: _Count | None
    type: Annotated[str, Meta(max_length=32)]
    vendor: _Short


class RuntimeJson(Json, kw_only=True):
    """The versions of a `Runtime`."""

    cublas: _Short | None
    cuda: _Short | None
    driver: _Short | None
    torch: _Short
    triton: _Short | None


class CallJson(Json, kw_only=True):
    """A `CallCost`."""

    device_us: _CallUs
    host_us: _CallUs
    left_out: _Count = field(default=_ABSENT)


class ProvenanceJson(Json, kw_only=True):
    """A `Provenance`, with the digest of the table."""

    assumptions: Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=MAX_ASSUMPTIONS)] = ()
    calls: Annotated[dict[_Text, CallJson], Meta(max_length=MAX_COSTS)] = field(
        default_factory=dict
    )
    created: _Short
    device: DeviceJson
    digest: _Short
    peaks: PeaksJson = field(default=_ABSENT)
    runtime: RuntimeJson
    warmup: _Short


class TimingJson(Json, kw_only=True):
    """A `Method`."""

    fused_top_k: Annotated[int, Meta(ge=0, le=MAX_TOP_K)]
    l2: L2
    launch: Launch
    max_spread: _Share
    near_tie: _Share


class PolicyJson(Json, kw_only=True):
    """A `Policy`; a search that was not made is left out."""

    grouped_search: bool | UnsetType = UNSET
    launch_search: bool | UnsetType = UNSET
    mode: _Short
    options: Annotated[
        dict[
            _OptionName,
            bool | _Integer | _OptionNumber | Annotated[str, Meta(max_length=256)] | None,
        ],
        Meta(max_length=_MAX_OPTIONS),
    ]
    reduction_search: bool | UnsetType = UNSET
    seed: Annotated[int, Meta(ge=0, le=MAX_INT)]
    split_search: bool | UnsetType = UNSET
    timing: TimingJson
    tolerance: Annotated[dict[_DtypeName, _Share], Meta(max_length=_MAX_OPTIONS)]


class EvidenceJson(Json, kw_only=True):
    """An `Evidence`; null is a value that is unknown, a value that was not measured is left out."""

    along: Annotated[tuple[_Along, ...], Meta(min_length=1, max_length=8)] = ()
    band: _Excess | None
    bare_ranking: _Ranking = ""
    bare_us: _Us | None
    clock_mhz: _Count | None
    error: _Excess | None
    flags: Annotated[tuple[Flag, ...], Meta(max_length=len(Flag))]
    gbps: _Rate | None
    host_us: _Us = field(default=_ABSENT)
    kernels: _Kernels = field(default=_ABSENT)
    library_host_us: _Us = field(default=_ABSENT)
    library_kernels: _Kernels = field(default=_ABSENT)
    library_us: _Us | None
    peak_share: _Excess | None
    ranking: _Ranking = ""
    registers: _Registers = field(default=_ABSENT)
    rejected: dict[Rejection, _Tried]
    runner_up: _Choice | None
    runner_up_us: _Us | None
    scope: Scope
    search: Search
    spills: _Spills = field(default=_ABSENT)
    spread: _Excess | None
    tflops: _Rate | None
    time_us: _Us
    tried: _Tried


class WinnerJson(Json, kw_only=True):
    """A `Winner`."""

    family: Family
    fused: bool = field(default=_ABSENT)
    kwargs: dict[_KwargName, bool | _Integer | _KwargWord | None]
    source_hash: _Hash | None
    uid: _Uid


class RowJson(Json, kw_only=True):
    """A `Row`."""

    evidence: EvidenceJson
    untrusted: Annotated[str, Meta(max_length=MAX_REASON)] = field(default=_ABSENT)
    winner: WinnerJson


class TableJson(Json, kw_only=True):
    """The document."""

    policy: PolicyJson
    provenance: ProvenanceJson
    rows: dict[str, dict[str, RowJson]]
    schema: Annotated[int, Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]


_EVIDENCE_NAMES: Final = tuple(name for name in Evidence.__slots__ if name != "rejected")
_evidence_values: Final = attrgetter(*_EVIDENCE_NAMES)
_FLOATS: Final = frozenset(
    name
    for name, kind in EvidenceJson.__annotations__.items()
    if kind.split(" ")[0] in {"_Us", "_Rate", "_Excess"}
)


class Refusal(Exception):  # noqa: N818  becomes a TableFormatError, which knows the file
    """A value is refused that its struct allows; ``parts`` lead to it within the struct."""

    def __init__(self, reason: str, *parts: str | int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.parts = parts


def evidence_from(json: EvidenceJson) -> Evidence:
    """Return the evidence in *json*.

    Raises:
        Refusal: its sizes do not ascend, or a text cannot be printed.
    """
    for number, ((before, _), (after, _)) in enumerate(itertools.pairwise(json.along), start=1):
        if after <= before:
            raise Refusal(f"expected a size above {before}", "along", number, 0)
    if json.runner_up is not None and not json.runner_up.isprintable():
        raise Refusal("expected printable characters", "runner_up")
    values: dict[str, Any] = dict(zip(_EVIDENCE_NAMES, _evidence_values(json), strict=True))
    rejected = tuple(sorted(json.rejected.items())) if json.rejected else ()
    return Evidence(rejected=rejected, **values)


def evidence_json(evidence: Evidence) -> EvidenceJson:
    """Return *evidence* as it is written."""
    values: dict[str, Any] = dict(zip(_EVIDENCE_NAMES, _evidence_values(evidence), strict=True))
    for name in _FLOATS:
        if type(value := values[name]) is int:
            values[name] = float(value)
    if evidence.along:
        values["along"] = tuple(
            (size, None if ratio is None else float(ratio)) for size, ratio in evidence.along
        )
    return EvidenceJson(rejected=dict(evidence.rejected), **values)


def winner_from(json: WinnerJson, kind: Kind) -> Winner:
    """Return the winner in *json*, of a row of *kind*.

    Raises:
        Refusal: rows of *kind* have no such winner.
    """
    if json.family not in kind.families:
        raise Refusal(f"expected one of {', '.join(sorted(kind.families))}", "family")
    if json.fused is not None and json.family is not Family.TEMPLATE:
        raise Refusal("only a winner of the family template is fused or not", "fused")
    kwargs: tuple[tuple[str, KwargValue], ...] = tuple(sorted(json.kwargs.items()))
    return Winner(json.family, json.uid, kwargs, json.source_hash, json.fused)


def winner_json(winner: Winner) -> WinnerJson:
    """Return *winner* as it is written."""
    fused: Any = winner.fused
    return WinnerJson(
        family=winner.family,
        fused=fused,
        kwargs=dict(winner.kwargs),
        source_hash=winner.source_hash,
        uid=winner.uid,
    )


def row_json(row: Row, winner: WinnerJson) -> RowJson:
    """Return *row* with its *winner* as it is written."""
    untrusted: Any = None if row.untrusted is None else row.untrusted[:MAX_REASON]
    return RowJson(evidence=evidence_json(row.evidence), untrusted=untrusted, winner=winner)


def provenance_from(json: ProvenanceJson, path: str) -> Provenance:
    """Return the provenance in *json*, a part of the table *path*.

    Raises:
        TableFormatError: a text cannot be printed.
    """
    check_texts(json, path, "provenance")
    return Provenance(
        runtime=Runtime(device=Device(**asdict(json.device)), **asdict(json.runtime)),
        warmup=json.warmup,
        created=json.created,
        peaks=None if json.peaks is None else json.peaks.peaks(),
        assumptions=json.assumptions,
        calls=tuple(
            (name, CallCost(call.host_us, call.device_us, call.left_out or 0))
            for name, call in json.calls.items()
        ),
    )


def provenance_json(provenance: Provenance, digest: str) -> ProvenanceJson:
    """Return *provenance*, of the table with *digest*, as it is written."""
    runtime = provenance.runtime
    peaks: Any = None if provenance.peaks is None else PeaksJson.of(provenance.peaks)
    return ProvenanceJson(
        assumptions=provenance.assumptions,
        calls={
            name: CallJson(
                host_us=float(cost.host_us),
                device_us=float(cost.device_us),
                left_out=cost.left_out or _ABSENT,
            )
            for name, cost in provenance.calls
        },
        created=provenance.created,
        device=DeviceJson(**_fields(runtime.device, DeviceJson)),
        digest=digest,
        peaks=peaks,
        runtime=RuntimeJson(**_fields(runtime, RuntimeJson)),
        warmup=provenance.warmup,
    )


def _fields(value: object, json: type[Json]) -> dict[str, Any]:
    """Return the fields of *value* that *json* has; a version of torch is more than a string."""
    values = {name: getattr(value, name) for name in json.__struct_fields__}
    return {name: str(each) if isinstance(each, str) else each for name, each in values.items()}


def policy_from(json: PolicyJson, path: str) -> Policy:
    """Return the policy in *json*, a part of the table *path*.

    Raises:
        TableFormatError: a text cannot be printed, or a search is false in place of left out.
    """
    check_texts(json, path, "policy")
    searches = {
        kind: value
        for kind, name in SEARCH_FIELDS.items()
        if (value := getattr(json, name)) is not UNSET
    }
    for kind, value in searches.items():
        if not value:
            reason = "expected true; without the field it is false"
            raise TableFormatError(path, pointer_of("policy", SEARCH_FIELDS[kind]), reason)
    options: Mapping[str, OptionValue] = json.options
    return Policy(
        mode=json.mode,
        options=options,
        timing=Method(**asdict(json.timing)),
        seed=json.seed,
        tolerance=json.tolerance,
        searches=frozenset(searches),
    )


def policy_json(policy: Policy) -> PolicyJson:
    """Return *policy* as it is written."""
    timing = policy.timing
    return PolicyJson(
        mode=policy.mode,
        options=dict(policy.options),
        seed=policy.seed,
        timing=TimingJson(
            fused_top_k=timing.fused_top_k,
            l2=timing.l2,
            launch=timing.launch,
            max_spread=float(timing.max_spread),
            near_tie=float(timing.near_tie),
        ),
        tolerance={name: float(limit) for name, limit in policy.tolerance.items()},
        **{name: True for kind, name in SEARCH_FIELDS.items() if kind in policy.searches},
    )
