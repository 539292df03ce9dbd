"""`encode` and `decode`: a `Table` as canonical JSON, and back. Tables are not trusted.

Canonical form: sorted names, two-space indent, LF, ASCII, so that tables can be compared in review.
The digest is SHA-256 over the document without the digest and without whitespace. Structs say which
members each object has, and the bounds of each value. Nothing in a table is executable: kwargs are
numbers, booleans, null and a closed set of words.

A table that is read is held to one rule, row by row: ``encode(decode(text)) == text``, but for
three fields of earlier builds. So no name is there twice, and a large table takes memory for its
rows alone. A file that breaks the rule is damaged, of another schema, reformatted, or has fields of
features that warmup no longer has: it is read at once, each error with its JSON pointer, and its
names are compared one by one.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, BinaryIO, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from warmup.core.device import CallCost, Device, Runtime
from warmup.core.errors import ProblemError, TableFormatError, TableSchemaError
from warmup.core.roofline import PeaksJson
from warmup.core.rows import (
    KWARG_WORD,
    L2,
    MAX_INT,
    MAX_RANKED,
    MAX_TOP_K,
    Evidence,
    Family,
    Flag,
    Launch,
    Method,
    Rejection,
    Row,
    Scope,
    Search,
    Winner,
)
from warmup.core.strict_json import (
    check_texts,
    decode_json,
    pointer_of,
    read_json,
    repeated_name,
    repetition,
)
from warmup.keys.kind import Kind
from warmup.keys.registry import KINDS, kind_of
from warmup.table.schema import (
    MAX_ASSUMPTION,
    MAX_ASSUMPTIONS,
    MAX_COSTS,
    MAX_REASON,
    MAX_TABLE_BYTES,
    SCHEMA_VERSION,
    SEARCH_FIELDS,
    Policy,
    Provenance,
    Table,
)

_MAX_ROW_BYTES: Final = 256 * 1024  # of a winner without whitespace
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
    str, Meta(max_length=2048, pattern=rf"\A{_ENTRY}(?:; {_ENTRY}){{0,{MAX_RANKED - 1}}}\Z")
]
_Uid = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:]{1,128}\Z")]
_KwargName = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
_KwargWord = Annotated[str, Meta(pattern=rf"\A(?:{KWARG_WORD})\Z")]
_Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8,64}\Z")]
_OptionName = Annotated[
    str, Meta(max_length=4096, pattern=r"\A[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)?\Z")
]
_OptionNumber = Annotated[float, Meta(ge=-1e30, le=1e30)]
_DtypeName = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]{0,31}\Z")]
_Along = tuple[_Count, _Ratio | None]


_J = TypeVar("_J", bound="Json")
_ABSENT: Final[Any] = None  # the default of a member that is left out and that may not be null


class Json(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """An object of a table; a member without a default is always there."""


class _DeviceJson(Json, kw_only=True):
    arch: _Short
    memory_gib: _Count | None
    mig: _Short | None
    name: Annotated[str, Meta(max_length=256)]
    sm_count: _Count | None
    threads: _Count | None
    type: Annotated[str, Meta(max_length=32)]
    vendor: _Short


class _RuntimeJson(Json, kw_only=True):
    cublas: _Short | None
    cuda: _Short | None
    driver: _Short | None
    torch: _Short
    triton: _Short | None


class _CallJson(Json):
    device_us: _CallUs
    host_us: _CallUs
    left_out: _Count = _ABSENT


class ProvenanceJson(Json, kw_only=True):
    """A `Provenance`, with the digest of the table."""

    assumptions: Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=MAX_ASSUMPTIONS)] = ()
    calls: Annotated[dict[_Text, _CallJson], Meta(max_length=MAX_COSTS)] = {}
    created: _Short
    device: _DeviceJson
    digest: _Short
    peaks: PeaksJson = _ABSENT
    runtime: _RuntimeJson
    warmup: _Short


class _TimingJson(Json, kw_only=True):
    fused_top_k: Annotated[int, Meta(ge=0, le=MAX_TOP_K)]
    l2: L2
    launch: Launch = _ABSENT  # retired, see `_EvidenceJson`
    max_spread: _Share
    near_tie: _Share


class _PolicyJson(Json, kw_only=True):
    grouped_search: bool | UnsetType = UNSET
    invariant: bool | UnsetType = UNSET
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
    timing: _TimingJson
    tolerance: Annotated[dict[_DtypeName, _Share], Meta(max_length=_MAX_OPTIONS)]


class _EvidenceJson(Json, kw_only=True):
    """Null is a value that is unknown; a value that was not measured is left out.

    Earlier builds wrote ``host_us``, ``library_host_us`` and, in the policy's timing, ``launch``:
    they are read and dropped, and the digest of a table that has them holds.
    """

    along: Annotated[tuple[_Along, ...], Meta(min_length=1, max_length=8)] = ()
    band: _Excess | None
    bare_ranking: _Ranking = ""
    bare_us: _Us | None
    bits: _Hash = _ABSENT
    clock_mhz: _Count | None
    compile_s: _Us = _ABSENT
    error: _Excess | None
    flags: Annotated[tuple[Flag, ...], Meta(max_length=len(Flag))]
    gbps: _Rate | None
    host_us: _Us = _ABSENT
    kernels: _Kernels = _ABSENT
    library_host_us: _Us = _ABSENT
    library_kernels: _Kernels = _ABSENT
    library_us: _Us | None
    peak_share: _Excess | None
    ranking: _Ranking = ""
    registers: _Registers = _ABSENT
    rejected: dict[Rejection, _Tried]
    runner_up: _Choice | None
    runner_up_us: _Us | None
    scope: Scope
    search: Search
    spills: _Spills = _ABSENT
    spread: _Excess | None
    tflops: _Rate | None
    time_us: _Us
    tried: _Tried


class _WinnerJson(Json, kw_only=True):
    family: Family
    fused: bool = _ABSENT
    kwargs: dict[_KwargName, bool | _Integer | _KwargWord | None]
    source_hash: _Hash | None
    uid: _Uid


class RowJson(Json, kw_only=True):
    """A `Row`."""

    evidence: _EvidenceJson
    untrusted: Annotated[str, Meta(max_length=MAX_REASON)] = _ABSENT
    winner: _WinnerJson


class _TableJson(Json, kw_only=True):
    policy: _PolicyJson
    provenance: ProvenanceJson
    rows: dict[str, dict[str, RowJson]]
    schema: Annotated[int, Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]


_EVIDENCE_NAMES: Final = tuple(name for name in Evidence.__slots__ if name != "rejected")
_evidence_values: Final = attrgetter(*_EVIDENCE_NAMES)
# A frozen dataclass fills its slots three times as slowly.
_SLOTS: Final = tuple(getattr(Evidence, name).__set__ for name in (*_EVIDENCE_NAMES, "rejected"))
_FLOATS: Final = frozenset(
    name
    for name, kind in _EvidenceJson.__annotations__.items()
    if name in _EVIDENCE_NAMES and kind.split(" ")[0] in {"_Us", "_Rate", "_Excess"}
)


class _Refusal(Exception):  # noqa: N818  becomes a TableFormatError, which knows the file
    """A value is refused that its struct allows; ``parts`` lead to it within the struct."""

    def __init__(self, reason: str, *parts: str | int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.parts = parts


def _evidence_from(json: _EvidenceJson) -> Evidence:
    for number, ((before, _), (after, _)) in enumerate(itertools.pairwise(json.along), start=1):
        if after <= before:
            raise _Refusal(f"expected a size above {before}", "along", number, 0)
    if json.runner_up is not None and not json.runner_up.isprintable():
        raise _Refusal("expected printable characters", "runner_up")
    evidence = object.__new__(Evidence)
    rejected = tuple(sorted(json.rejected.items()))
    for fill, value in zip(_SLOTS, (*_evidence_values(json), rejected), strict=True):
        fill(evidence, value)
    return evidence


def _evidence_json(evidence: Evidence) -> _EvidenceJson:
    values: dict[str, Any] = dict(zip(_EVIDENCE_NAMES, _evidence_values(evidence), strict=True))
    for name in _FLOATS:
        if type(value := values[name]) is int:
            values[name] = float(value)
    if evidence.along:
        values["along"] = tuple(
            (size, None if ratio is None else float(ratio)) for size, ratio in evidence.along
        )
    return _EvidenceJson(rejected=dict(evidence.rejected), **values)


def _winner_from(json: _WinnerJson, kind: Kind) -> Winner:
    if json.family not in kind.families:
        raise _Refusal(f"expected one of {', '.join(sorted(kind.families))}", "family")
    if json.fused is not None and json.family is not Family.TEMPLATE:
        raise _Refusal("only a winner of the family template is fused or not", "fused")
    kwargs = tuple(sorted(json.kwargs.items()))
    return Winner(json.family, json.uid, kwargs, json.source_hash, json.fused)


def _winner_json(winner: Winner) -> _WinnerJson:
    fused: Any = winner.fused
    return _WinnerJson(
        family=winner.family,
        fused=fused,
        kwargs=dict(winner.kwargs),
        source_hash=winner.source_hash,
        uid=winner.uid,
    )


def _row_json(row: Row, winner: _WinnerJson) -> RowJson:
    untrusted: Any = None if row.untrusted is None else row.untrusted[:MAX_REASON]
    return RowJson(evidence=_evidence_json(row.evidence), untrusted=untrusted, winner=winner)


def provenance_from(json: ProvenanceJson, path: str) -> Provenance:
    """Return the provenance in *json*, a part of the table *path*, or a TableFormatError."""
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
            name: _CallJson(float(cost.device_us), float(cost.host_us), cost.left_out or _ABSENT)
            for name, cost in provenance.calls
        },
        created=provenance.created,
        device=_with_fields_of(runtime.device, _DeviceJson),
        digest=digest,
        peaks=peaks,
        runtime=_with_fields_of(runtime, _RuntimeJson),
        warmup=provenance.warmup,
    )


def _with_fields_of(value: object, json: type[_J]) -> _J:
    """Return a *json* with the fields of *value*; a version of torch is more than a string."""
    values = {name: getattr(value, name) for name in json.__struct_fields__}
    return json(
        **{name: str(each) if isinstance(each, str) else each for name, each in values.items()}
    )


def _policy_from(json: _PolicyJson, path: str) -> Policy:
    check_texts(json, path, "policy")
    said = {name: getattr(json, name) for name in (*SEARCH_FIELDS.values(), "invariant")}
    for name, value in said.items():
        if value is False:
            reason = "expected true; without the field it is false"
            raise TableFormatError(path, pointer_of("policy", name), reason)
    return Policy(
        mode=json.mode,
        options=json.options,
        timing=Method(**{name: getattr(json.timing, name) for name in Method.__slots__}),
        seed=json.seed,
        tolerance=json.tolerance,
        searches=frozenset(kind for kind, name in SEARCH_FIELDS.items() if said[name] is True),
        invariant=json.invariant is True,
    )


def _policy_json(policy: Policy) -> _PolicyJson:
    timing = policy.timing
    return _PolicyJson(
        invariant=policy.invariant or UNSET,
        mode=policy.mode,
        options=dict(policy.options),
        seed=policy.seed,
        timing=_TimingJson(
            fused_top_k=timing.fused_top_k,
            l2=timing.l2,
            max_spread=float(timing.max_spread),
            near_tie=float(timing.near_tie),
        ),
        tolerance={name: float(limit) for name, limit in policy.tolerance.items()},
        **{name: True for kind, name in SEARCH_FIELDS.items() if kind in policy.searches},
    )


_BLOCK_BYTES: Final = 256 * 1024
_MAX_HEAD_BYTES: Final = 16 * 1024 * 1024
_ROWS_BEGIN: Final = b'\n  "rows": {\n'
_ROW_BEGIN: Final = b'\n      "'  # six spaces: no other line of a canonical table begins so
_EVIDENCE_BEGIN: Final = b'{\n        "evidence": '
_WINNER_BEGIN: Final = b',\n        "winner": '
_UNTRUSTED: Final = b'\n        "untrusted": '
_SECTION_BEGIN: Final = re.compile(rb',?\n    "([a-z_]+)": \{')
_SECTION_END: Final = b"\n    }"
_ROWS_END: Final = b"\n  },\n"
_DIGEST: Final = re.compile(rb',"digest":"[^"\\]*"(?=\})|"digest":"[^"\\]*",?')
_ROW: Final = msgspec.json.Decoder(RowJson)
_EVIDENCE_DECODER: Final = msgspec.json.Decoder(_EvidenceJson)
_compact: Final = msgspec.json.Encoder(order="deterministic").encode


class _NotCanonicalError(Exception):
    """A text is not what `encode` would write."""


def encode(table: Table) -> str:
    """Return the canonical text of *table*, digest included."""
    return b"".join(encode_pieces(table)[1]).decode("ascii")


def encode_pieces(table: Table) -> tuple[str, list[bytes]]:
    """Return the digest of *table*, and its canonical text in pieces, most of them a row."""
    digest, pieces = _spell_table(table)
    if table._digest is None:  # noqa: SLF001  kept for `digest_of`
        _keep(table, digest)
    return digest, pieces


def digest_of(table: Table) -> str:
    """Return the digest of the content: 64 hex digits that change when anything in *table* does."""
    known = table._digest  # noqa: SLF001  kept for this function
    if known is None:
        known = _spell_table(table)[0]
        _keep(table, known)
    return known


def _keep(table: Table, digest: str) -> None:
    object.__setattr__(table, "_digest", digest)


def decode(text: str, path: str) -> Table:
    """Return the table in *text*, which is not trusted; *path* is for error texts only."""
    # A TableFormatError: it is no table, or its digest does not match its content. A
    # TableSchemaError: it has another schema than this warmup reads.
    return decode_file(io.BytesIO(text.encode("utf-8", "surrogatepass")), path)


def decode_file(file: BinaryIO, path: str) -> Table:
    """Return the table in *file*, from its beginning; otherwise as `decode`."""
    try:
        return _read_canonical(file, path)
    except _NotCanonicalError:
        file.seek(0)
        data = file.read(MAX_TABLE_BYTES + 1)
        if len(data) > MAX_TABLE_BYTES:
            raise TableFormatError(path, "", f"larger than {MAX_TABLE_BYTES} bytes") from None
    return _read_whole(data, path)


def row_sections(rows: Mapping[str, Row]) -> dict[str, dict[str, RowJson]]:
    """Return *rows* as they are written, by kind and key."""
    sections: dict[str, dict[str, RowJson]] = {}
    for key, row in rows.items():
        sections.setdefault(kind_of(key).name, {})[key] = _row_json(row, _winner_json(row.winner))
    return sections


def rows_from(sections: Mapping[str, Mapping[str, RowJson]], path: str) -> dict[str, Row]:
    """Return the rows in *sections*, by kind and key, of the file *path*, or a TableFormatError."""
    rows = _Rows(path)
    for name, section in sections.items():
        kind = rows.kind(name)
        for key, row in section.items():
            rows.add(kind, key, row)
    return rows.rows


# Writing.


def _spell_table(table: Table) -> tuple[str, list[bytes]]:
    document: dict[str, Any] = {
        "policy": msgspec.to_builtins(_policy_json(table.policy)),
        "provenance": msgspec.to_builtins(provenance_json(table.provenance, "")),
        "rows": {},
        "schema": SCHEMA_VERSION,
    }
    without_digest = {
        name: value for name, value in document["provenance"].items() if name != "digest"
    }
    before, after = _halves(_dumps({**document, "provenance": without_digest}), b'"rows":{')
    sha = hashlib.sha256(before)
    pieces: list[bytes] = []
    winners: dict[int, _WinnerJson] = {}  # rows that were read share their winners
    section = ""
    for name, key in sorted((kind_of(key).name, key) for key in table.rows):
        comma = b"," if name == section else b""
        if not comma:
            opening = f'{"}," if section else ""}"{name}":{{'
            sha.update(opening.encode())
            ending = "\n    }," if section else ""
            pieces.append(f'{ending}\n    "{name}": {{'.encode())
            section = name
        row = table.rows[key]
        winner = winners.get(id(row.winner))
        if winner is None:
            winner = winners[id(row.winner)] = _winner_json(row.winner)
        compact, quoted = _spell(_row_json(row, winner)), _dumps(key)
        sha.update(b"%b%b:%b" % (comma, quoted, compact))
        pieces.append(b"%b\n      %b: %b" % (comma, quoted, _indented(compact, 3)))
    sha.update(b"}" + after if section else after)
    digest = sha.hexdigest()
    document["provenance"]["digest"] = digest
    text = json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"
    head, tail = _halves(text, b'\n  "rows": {')
    return digest, [head, *pieces, b"\n    }\n  " + tail if section else tail]


def _halves(text: bytes, end: bytes) -> tuple[bytes, bytes]:
    """Return *text* up to the last *end*, and what is behind: no text of a table has quotes."""
    at = text.rindex(end) + len(end)
    return text[:at], text[at:]


def _spell(value: RowJson | _EvidenceJson | _WinnerJson) -> bytes:
    # msgspec writes a small number in another form than Python, which writes tables: 0.00001 and
    # 1e-7 for 1e-05 and 1e-07. It also leaves letters beyond ASCII as they are.
    text = _compact(value)
    if b"e-" in text or b"0.0000" in text or not text.isascii():
        return _dumps(msgspec.to_builtins(value))
    return text


def _dumps(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _indented(compact: bytes, depth: int) -> bytes:
    return msgspec.json.format(compact, indent=2).replace(b"\n", b"\n" + depth * b"  ")


# Reading.


@dataclass
class _Rows:
    """Rows that are read from the file *path*; equal winners are one object."""

    path: str
    rows: dict[str, Row] = field(default_factory=dict)
    _winners: dict[tuple[str, bytes], Winner] = field(default_factory=dict)
    _texts: dict[tuple[str, bytes], tuple[Winner, bytes]] = field(default_factory=dict)

    def kind(self, name: str) -> Kind:
        if name not in KINDS:
            reason = f"not a row kind; expected any of {', '.join(KINDS)}"
            raise TableFormatError(self.path, pointer_of("rows", name), reason)
        return KINDS[name]

    def add(self, kind: Kind, key: str, row: RowJson) -> None:
        """Add *row*; a TableFormatError where it is no row of *kind*, or *key* no key of it."""
        at = "rows", kind.name, key
        self._check_key(kind, key)
        part = "winner"
        try:
            winner = self._winner(kind, row.winner)
            part = "evidence"
            evidence = _evidence_from(row.evidence)
        except _Refusal as error:
            place = pointer_of(*at, part, *error.parts)
            raise TableFormatError(self.path, place, error.reason) from None
        if row.untrusted is not None and not row.untrusted.isprintable():
            place = pointer_of(*at, "untrusted")
            raise TableFormatError(self.path, place, "expected printable characters")
        self.rows[key] = Row(winner, evidence, row.untrusted)

    def add_text(self, kind: Kind, key: str, text: bytes) -> bytes:
        """Add the row with the canonical *text*, and return it without whitespace."""
        # Many rows have one of a few winners, whose text is read once. A _NotCanonicalError:
        # `encode` would write another text.
        evidence, _, winner = text.rpartition(_WINNER_BEGIN)
        known = self._texts.get((kind.name, winner))
        if known is None or _UNTRUSTED in evidence:
            row = _ROW.decode(text)
            compact = _spell(row)
            if _indented(compact, 3) != text:
                raise _NotCanonicalError
            self.add(kind, key, row)
            self._texts[kind.name, winner] = self.rows[key].winner, _spell(row.winner)
            return compact
        self._check_key(kind, key)
        json = _EVIDENCE_DECODER.decode(evidence[len(_EVIDENCE_BEGIN) :])
        compact = _spell(json)
        if evidence != _EVIDENCE_BEGIN + _indented(compact, 4):
            raise _NotCanonicalError
        self.rows[key] = Row(known[0], _evidence_from(json))
        return b'{"evidence":%b,"winner":%b}' % (compact, known[1])

    def _check_key(self, kind: Kind, key: str) -> None:
        try:
            kind.check(key)
        except ProblemError:
            place = pointer_of("rows", kind.name, key)
            reason = f"the name of this row is not a {kind.name} key"
            raise TableFormatError(self.path, place, reason) from None

    def _winner(self, kind: Kind, winner: _WinnerJson) -> Winner:
        text = _compact(winner)
        known = self._winners.get((kind.name, text))
        if known is None:
            if len(text) > _MAX_ROW_BYTES:
                raise _Refusal(f"a value of more than {_MAX_ROW_BYTES} characters")
            known = self._winners[kind.name, text] = _winner_from(winner, kind)
        return known


def _read_canonical(file: BinaryIO, path: str) -> Table:
    head = b""
    while (at := head.find(_ROWS_BEGIN)) < 0:
        block = file.read(_BLOCK_BYTES)
        if not block or len(head) > _MAX_HEAD_BYTES:
            raise _NotCanonicalError
        head += block
    at += len(_ROWS_BEGIN) - 1
    rows = _Rows(path)
    try:
        compact = msgspec.json.format(head[:at] + b"}}", indent=-1)
        sha = hashlib.sha256(_without_digest(compact[: -len(b"}}")]))
        tail = _read_rows(_row_texts(file, head[at:]), rows, sha)
        document, compact = read_json(head[:at] + b"}" + tail, _TableJson, path)
        sha.update(compact[compact.rindex(b'"rows":{') + len(b'"rows":{') :])
        table = _table(document, rows.rows, path)
    except (msgspec.MsgspecError, TableFormatError, ValueError, RecursionError):
        raise _NotCanonicalError from None
    if sha.hexdigest() != document.provenance.digest:
        raise _NotCanonicalError
    _keep(table, document.provenance.digest)
    return table


def _row_texts(file: BinaryIO, rest: bytes) -> Iterator[bytes]:
    size = 0
    while block := file.read(_BLOCK_BYTES):
        size += len(block)
        if len(rest) > _MAX_ROW_BYTES + _BLOCK_BYTES or size > MAX_TABLE_BYTES:
            raise _NotCanonicalError
        *whole, rest = (rest + block).split(_ROW_BEGIN)
        yield from whole
    yield from rest.split(_ROW_BEGIN)


def _read_rows(texts: Iterator[bytes], rows: _Rows, sha: hashlib._Hash) -> bytes:
    kind, comma = _begun(next(texts), "", rows, sha), b""
    last = b""
    for text in texts:
        key, _, body = text.partition(b'": ')
        behind = b""
        if body.endswith(b"},"):
            body = body[:-1]
        else:
            body, _, behind = body.partition(_SECTION_END)
        if key <= last:
            raise _NotCanonicalError
        compact = rows.add_text(kind, key.decode("ascii"), body)
        sha.update(b'%b"%b":%b' % (comma, key, compact))
        comma, last = b",", key
        if behind.startswith(_ROWS_END):
            sha.update(b"}")
            return behind[len(b"\n  }") :] + b"".join(texts)
        if behind:
            kind, comma, last = _begun(behind, kind.name, rows, sha), b"", b""
    raise _NotCanonicalError


def _begun(text: bytes, before: str, rows: _Rows, sha: hashlib._Hash) -> Kind:
    match = _SECTION_BEGIN.fullmatch(text)
    name = match[1].decode() if match else ""
    if name <= before or text.startswith(b",") != bool(before):
        raise _NotCanonicalError
    sha.update(f'{"}," if before else ""}"{name}":{{'.encode())
    return rows.kind(name)


def _read_whole(data: bytes, path: str) -> Table:
    try:
        document = decode_json(data, _TableJson, path)
    except TableFormatError:
        _check_schema(data, path)
        raise
    compact = msgspec.json.format(data, indent=-1)
    name = repeated_name(compact)
    if name is not None:
        raise TableFormatError(path, "", repetition(name))
    table = _table(document, rows_from(document.rows, path), path)
    digest = document.provenance.digest
    is_same = digest == hashlib.sha256(_without_digest(compact)).hexdigest()
    # Another order of names and other spellings of numbers are not content.
    if not is_same and digest != digest_of(table):
        reason = "the content does not match the digest (damaged or edited by hand)"
        raise TableFormatError(path, "/provenance/digest", reason)
    _keep(table, digest)
    return table


class _SchemaOnly(msgspec.Struct):
    schema: int


def _check_schema(data: bytes, path: str) -> None:
    try:
        schema = msgspec.json.decode(data, type=_SchemaOnly).schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if schema > 0 and schema != SCHEMA_VERSION:
        raise TableSchemaError(path, schema, SCHEMA_VERSION)


def _table(document: _TableJson, rows: Mapping[str, Row], path: str) -> Table:
    provenance = provenance_from(document.provenance, path)
    return Table(provenance, _policy_from(document.policy, path), rows)


def _without_digest(compact: bytes) -> bytes:
    return _DIGEST.sub(b"", compact, count=1)
