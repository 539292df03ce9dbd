"""`encode` and `decode`: a `Table` as canonical JSON text, and back.

With `warmup.table.evidence` the only code that knows the file format. Canonical form: sorted names,
two-space indent, LF, ASCII, so that tables can be compared in review. The digest is SHA-256 over
the document without the digest, in compact form, which Python encodes much faster. Nothing in a
table is executable: kwargs are numbers, booleans, null and a closed set of words.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from warmup.core.errors import ProblemError, TableSchemaError
from warmup.core.method import L2, MAX_TOP_K, Launch, Method, OptionValue
from warmup.core.rows import MAX_INT, Family, KwargValue, Row, Winner
from warmup.core.runtime import Device, Runtime
from warmup.keys.kind import Kind
from warmup.keys.registry import KINDS, kind_of
from warmup.table.decode import Node, load_json
from warmup.table.evidence import evidence_from_json, evidence_to_json, plain_evidence
from warmup.table.schema import SCHEMA_VERSION, Policy, Provenance, Table

_UID_TEXT = re.compile(r"[A-Za-z0-9_.:]{1,128}")
_KWARG = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Inductor pastes template kwargs into kernel source: a text is a Triton dtype or a plain name.
_KWARG_WORD = re.compile(r"tl\.[a-z0-9]{1,24}|[A-Za-z0-9_]{0,32}")
_OPTION = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")
_TOLERANCE_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_HASH = re.compile(r"[0-9a-f]{8,64}")
_TIMING: Final = frozenset({"launch", "l2", "near_tie", "max_spread", "fused_top_k"})

_DEVICE_TEXT: Final = ("type", "vendor", "name", "arch")
_DEVICE_COUNT: Final = ("sm_count", "memory_gib", "threads")
_VERSIONS: Final = ("triton", "cuda", "driver", "cublas")

_TABLE_MEMBERS: Final = frozenset({"schema", "provenance", "policy", "rows"})
_PROVENANCE: Final = frozenset({"device", "runtime", "warmup", "created", "digest"})
_DEVICE_MEMBERS: Final = frozenset({*_DEVICE_TEXT, *_DEVICE_COUNT, "mig"})
_RUNTIME: Final = frozenset({"torch", *_VERSIONS})
_POLICY: Final = frozenset({"mode", "options", "timing", "seed", "tolerance"})
_ROW_MEMBERS: Final = frozenset({"winner", "evidence"})
_ROW_OPTIONAL: Final = frozenset({"untrusted"})  # of a row that must not be served
_MAX_REASON: Final = 512
_WINNER: Final = frozenset({"family", "uid", "kwargs", "source_hash"})


def digest_of(table: Table) -> str:
    """Return the digest of the content: 64 hex digits that change when anything in *table* does."""
    return _digest(_document(table))


def encode(table: Table) -> str:
    """Return the canonical text of *table*, digest included."""
    document = _document(table)
    digest = _digest(document)
    provenance = {**_provenance(table.provenance), "digest": digest}
    return json.dumps({**document, "provenance": provenance}, indent=2, sort_keys=True) + "\n"


def decode(text: str, path: str) -> Table:
    """Return the table in *text*, which is not trusted; *path* is for error texts only.

    Raises:
        TableFormatError: the text is not a table, or its digest does not match its content.
        TableSchemaError: the table has another schema than this warmup reads.
    """
    document = load_json(text, path)
    root = Node(document, path)
    if isinstance(document, dict) and isinstance(document.get("schema"), int):
        schema = document["schema"]
        if not isinstance(schema, bool) and schema > 0 and schema != SCHEMA_VERSION:
            raise TableSchemaError(path, schema, SCHEMA_VERSION)
    members = root.members(_TABLE_MEMBERS)
    members["schema"].integer(SCHEMA_VERSION, SCHEMA_VERSION)
    provenance, digest = _read_provenance(members["provenance"])
    policy = _read_policy(members["policy"])
    rows = _read_rows(members["rows"])
    content = _without_digest(document)
    # A file from `encode` is sorted already, which saves sorting it again.
    if digest.value != _digest(content, in_order=True) and digest.value != _digest(content):
        digest.fail("the content does not match the digest (damaged or edited by hand)")
    return Table(provenance, policy, rows)


def _digest(document: Mapping[str, object], *, in_order: bool = False) -> str:
    compact = json.dumps(document, sort_keys=not in_order, separators=(",", ":"))
    return hashlib.sha256(compact.encode()).hexdigest()


def _without_digest(document: Any) -> dict[str, object]:
    provenance = document["provenance"]
    others = {name: value for name, value in provenance.items() if name != "digest"}
    return {**document, "provenance": others}


def _document(table: Table) -> dict[str, object]:
    policy = table.policy
    return {
        "schema": SCHEMA_VERSION,
        "provenance": _provenance(table.provenance),
        "policy": {
            "mode": policy.mode,
            "options": dict(policy.options),
            "timing": _timing(policy.timing),
            "seed": policy.seed,
            "tolerance": {name: float(limit) for name, limit in policy.tolerance.items()},
        },
        "rows": _rows(table.rows),
    }


def _provenance(provenance: Provenance) -> dict[str, object]:
    runtime = provenance.runtime
    device = {
        name: getattr(runtime.device, name) for name in (*_DEVICE_TEXT, *_DEVICE_COUNT, "mig")
    }
    versions = {name: getattr(runtime, name) for name in ("torch", *_VERSIONS)}
    return {
        "device": device,
        "runtime": versions,
        "warmup": provenance.warmup,
        "created": provenance.created,
    }


def _rows(rows: Mapping[str, Row]) -> dict[str, dict[str, object]]:
    """Return *rows* by kind; a kind without rows is left out."""
    kinds: dict[str, dict[str, object]] = {}
    for key, row in rows.items():
        kinds.setdefault(kind_of(key).name, {})[key] = _row(row)
    return kinds


def _row(row: Row) -> dict[str, object]:
    return {
        "winner": {
            "family": row.winner.family.value,
            "uid": row.winner.uid,
            "kwargs": dict(row.winner.kwargs),
            "source_hash": row.winner.source_hash,
        },
        "evidence": evidence_to_json(row.evidence),
        **({} if row.untrusted is None else {"untrusted": row.untrusted[:_MAX_REASON]}),
    }


def _read_provenance(node: Node) -> tuple[Provenance, Node]:
    members = node.members(_PROVENANCE)
    device = members["device"].members(_DEVICE_MEMBERS)
    versions = members["runtime"].members(_RUNTIME)
    runtime = Runtime(
        device=Device(
            type=device["type"].string(32),
            vendor=device["vendor"].string(64),
            name=device["name"].string(256),
            arch=device["arch"].string(64),
            sm_count=device["sm_count"].optional(_count),
            memory_gib=device["memory_gib"].optional(_count),
            threads=device["threads"].optional(_count),
            mig=device["mig"].optional(_short),
        ),
        torch=_short(versions["torch"]),
        triton=versions["triton"].optional(_short),
        cuda=versions["cuda"].optional(_short),
        driver=versions["driver"].optional(_short),
        cublas=versions["cublas"].optional(_short),
    )
    warmup, created = _short(members["warmup"]), _short(members["created"])
    members["digest"].string(64)
    return Provenance(runtime, warmup, created), members["digest"]


def _read_policy(node: Node) -> Policy:
    members = node.members(_POLICY)
    options: dict[str, OptionValue] = {}
    for name, value in members["options"].items():
        if _OPTION.fullmatch(name) is None:
            value.fail("not the name of an inductor option")
        options[name] = _read_scalar(value)
    return Policy(
        mode=_short(members["mode"]),
        options=options,
        timing=_read_timing(members["timing"]),
        seed=members["seed"].integer(0, MAX_INT),
        tolerance=dict(_read_limit(*member) for member in members["tolerance"].items()),
    )


def _timing(method: Method) -> dict[str, object]:
    return {
        "launch": method.launch.value,
        "l2": method.l2.value,
        "near_tie": float(method.near_tie),
        "max_spread": float(method.max_spread),
        "fused_top_k": method.fused_top_k,
    }


def _read_timing(node: Node) -> Method:
    members = node.members(_TIMING)
    for name, words in (("launch", Launch), ("l2", L2)):
        if members[name].string(16) not in set(words):
            members[name].fail(f"expected one of {', '.join(words)}")
    return Method(
        launch=Launch(members["launch"].string(16)),
        l2=L2(members["l2"].string(16)),
        near_tie=members["near_tie"].number(0, 1),
        max_spread=members["max_spread"].number(0, 1),
        fused_top_k=members["fused_top_k"].integer(0, MAX_TOP_K),
    )


def _read_limit(name: str, node: Node) -> tuple[str, float]:
    if _TOLERANCE_DTYPE.fullmatch(name) is None:
        node.fail("not the name of a dtype")
    return name, node.number(0, 1)


def _read_scalar(node: Node) -> OptionValue:
    if node.value is None or type(node.value) is bool:
        return node.value
    if type(node.value) is str:
        return node.string(256)
    return node.integer(-MAX_INT, MAX_INT) if type(node.value) is int else node.number(-1e30, 1e30)


def _read_rows(node: Node) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for name, section in node.items():
        kind = KINDS.get(name)
        if kind is None:
            section.fail(f"not a row kind; expected any of {', '.join(KINDS)}")
        winners: dict[object, Winner] = {}
        rows |= {key: _read_row(kind, key, row, winners) for key, row in section.items()}
    return rows


def _read_row(kind: Kind, key: str, node: Node, winners: dict[object, Winner]) -> Row:
    """Return the row in *node*.

    Rows of the common form are read without nodes, since large tables have many rows: evidence by
    `plain_evidence`, and a winner that was checked before from *winners*. All others are checked
    value by value, which gives the JSON pointer of an error.
    """
    try:
        kind.check(key)
    except ProblemError:
        node.fail(f"the name of this row is not a {kind.name} key")
    value: Any = node.value
    try:
        identity = _identity(value["winner"])
        winner, evidence = winners.get(identity), plain_evidence(value["evidence"])
    except (AttributeError, KeyError, TypeError):
        identity = winner = evidence = None
    if winner is not None and evidence is not None and len(value) == len(_ROW_MEMBERS):
        return Row(winner, evidence)
    members = node.members(_ROW_MEMBERS, optional=_ROW_OPTIONAL)
    untrusted = members["untrusted"].string(_MAX_REASON) if "untrusted" in members else None
    row = Row(
        _read_winner(kind, members["winner"]), evidence_from_json(members["evidence"]), untrusted
    )
    winners[identity] = row.winner
    return row


def _identity(winner: Any) -> object:
    """Return a value that is equal for equal JSON winners only.

    Types count, because 1, 1.0 and True are equal.
    """
    kwargs = winner["kwargs"]
    values = tuple(kwargs.values())
    types = tuple(map(type, values))
    return (
        len(winner),
        winner["family"],
        winner["uid"],
        winner["source_hash"],
        *kwargs,
        values,
        types,
    )


def _read_winner(kind: Kind, node: Node) -> Winner:
    members = node.members(_WINNER)
    family = members["family"]
    if not isinstance(family.value, str) or family.value not in kind.families:
        family.fail(f"expected one of {', '.join(sorted(kind.families))}")
    uid = members["uid"].string(128)
    if _UID_TEXT.fullmatch(uid) is None:
        members["uid"].fail("not the uid of a template or kernel")
    kwargs = sorted((name, _read_kwarg(name, value)) for name, value in members["kwargs"].items())
    source_hash = members["source_hash"]
    if source_hash.value is not None and _HASH.fullmatch(source_hash.string(64)) is None:
        source_hash.fail("not a source hash")
    return Winner(
        Family(family.string(16)), uid, tuple(kwargs), source_hash.optional(lambda n: n.string(64))
    )


def _read_kwarg(name: str, node: Node) -> KwargValue:
    if _KWARG.fullmatch(name) is None:
        node.fail("not the name of a template parameter")
    value = node.value
    if value is None or type(value) is bool:
        return value
    if type(value) is not str:
        return node.integer(-MAX_INT, MAX_INT)
    if _KWARG_WORD.fullmatch(value) is None:
        node.fail("a word here may only be a Triton dtype or a plain name")
    return value


def _count(node: Node) -> int:
    return node.integer(1, MAX_INT)


def _short(node: Node) -> str:
    return node.string(64)
