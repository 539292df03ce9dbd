"""`decode`: a `Table` from JSON text, and with `encode` from `warmup.table.encoding` back.

With `warmup.table.encoding` and `warmup.table.evidence` the only code that knows the file format.
Nothing in a table is executable: kwargs are numbers, booleans, null and a closed set of words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

from warmup.core.errors import ProblemError, TableFormatError, TableSchemaError
from warmup.core.json_node import Node
from warmup.core.method import L2, MAX_TOP_K, Launch, Method, OptionValue
from warmup.core.peaks import peaks_from_json
from warmup.core.rows import MAX_INT, Row, Winner
from warmup.core.runtime import Device, Runtime
from warmup.core.strict_json import JsonError, JsonReader
from warmup.keys.kind import Kind
from warmup.keys.registry import KINDS
from warmup.table.calls import calls_from_json
from warmup.table.canonical import compact
from warmup.table.common_rows import CommonRows
from warmup.table.encoding import (
    ASSUMPTIONS,
    CALLS,
    DEVICE_COUNT,
    DEVICE_TEXT,
    IMPORTED,
    MAX_REASON,
    VERSIONS,
    digest_of,
    encode,
    encode_pieces,
    keep_digest,
)
from warmup.table.evidence import evidence_from_json
from warmup.table.imported_json import read_imported
from warmup.table.schema import (
    MAX_ASSUMPTIONS,
    SCHEMA_VERSION,
    SEARCH_FIELDS,
    Policy,
    Provenance,
    Table,
)
from warmup.table.winners import read_winner

__all__ = ["decode", "decode_pieces", "digest_of", "encode", "encode_pieces"]

_OPTION = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")
_TOLERANCE_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TIMING: Final = frozenset({"launch", "l2", "near_tie", "max_spread", "fused_top_k"})

_END_LENGTH: Final = 200
_SCHEMA_AT_END: Final = re.compile(r'"schema"\s*:\s*([0-9]{1,18})\s*\}\s*\Z')

_TABLE_MEMBERS: Final = frozenset({"schema", "provenance", "policy", "rows"})
_PROVENANCE: Final = frozenset({"device", "runtime", "warmup", "created", "digest"})
# "layers", the forms of repeated layers in a table of an earlier warmup, is read and ignored.
_PROVENANCE_OPTIONAL: Final = frozenset({"peaks", ASSUMPTIONS, CALLS, "layers"})
_DEVICE_MEMBERS: Final = frozenset({*DEVICE_TEXT, *DEVICE_COUNT, "mig"})
_RUNTIME: Final = frozenset({"torch", *VERSIONS})
_POLICY: Final = frozenset({"mode", "options", "timing", "seed", "tolerance"})
_ROW_MEMBERS: Final = frozenset({"winner", "evidence"})
_ROW_OPTIONAL: Final = frozenset({"untrusted"})  # of a row that must not be served


def decode(text: str, path: str) -> Table:
    """Return the table in *text*, which is not trusted; *path* is for error texts only.

    Raises:
        TableFormatError: the text is not a table, or its digest does not match its content.
        TableSchemaError: the table has another schema than this warmup reads.
    """
    return decode_pieces([text], path)


def decode_pieces(pieces: Iterable[str], path: str) -> Table:
    """Return the table in a text that arrives in *pieces*; otherwise as `decode`.

    Time is linear in the text, and memory that of the table.
    """
    reader = JsonReader(pieces)
    try:
        return _read_document(reader, path)
    except JsonError as error:
        raise TableFormatError(path, "", str(error)) from None
    except TableFormatError:
        # A canonical text ends with its schema. A newer one may differ in all that is before.
        found = _SCHEMA_AT_END.search(reader.last(_END_LENGTH))
        if found is not None:
            _check_schema(int(found[1]), path)
        raise


def _check_schema(schema: object, path: str) -> None:
    if type(schema) is int and schema > 0 and schema != SCHEMA_VERSION:
        raise TableSchemaError(path, schema, SCHEMA_VERSION)


def _read_document(reader: JsonReader, path: str) -> Table:
    """Return the table at *reader*; the text that `encode` makes is digested as it is read."""
    root = Node(None, path)
    if not reader.is_at_object():
        root.value = reader.value()
        root.items()
    found: dict[str, Any] = {}
    sections = {"rows": _read_rows, IMPORTED: read_imported}
    sha = hashlib.sha256()
    for name in reader.members():
        sha.update(f"{',' if found else '{'}{compact(name)}:".encode())
        node = Node(None, path, root, name)
        read_section = sections.get(name)
        if read_section is not None and reader.is_at_object():
            found[name] = read_section(reader, node, sha)
            continue
        value = node.value = reader.value()
        if name == "schema":
            _check_schema(value, path)
            found[name] = node.integer(SCHEMA_VERSION, SCHEMA_VERSION)
        elif name == "provenance":
            found[name] = _read_provenance(node)
            value = {part: value[part] for part in value if part != "digest"}
        elif name == "policy":
            found[name] = _read_policy(node)
        elif read_section is not None:
            node.items()
        else:
            node.fail("unknown field")
        sha.update(compact(value).encode())
    sha.update(b"}")
    reader.finish()
    root.value = found
    root.members(_TABLE_MEMBERS, optional=frozenset({IMPORTED}))
    provenance, digest = found["provenance"]
    table = Table(provenance, found["policy"], found["rows"], found.get(IMPORTED, {}))
    if digest.value == sha.hexdigest():
        keep_digest(table, digest.value)
    elif digest.value != digest_of(table):
        digest.fail("the content does not match the digest (damaged or edited by hand)")
    return table


def _read_provenance(node: Node) -> tuple[Provenance, Node]:
    members = node.members(_PROVENANCE, optional=_PROVENANCE_OPTIONAL)
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
    peaks = peaks_from_json(members["peaks"]) if "peaks" in members else None
    assumptions: tuple[str, ...] = ()
    if (listed := members.get(ASSUMPTIONS)) is not None:
        assumptions = tuple(each.string() for each in listed.elements(MAX_ASSUMPTIONS))
    calls = calls_from_json(members[CALLS]) if CALLS in members else ()
    return Provenance(runtime, warmup, created, peaks, assumptions, calls), members["digest"]


def _read_policy(node: Node) -> Policy:
    members = node.members(_POLICY, optional=frozenset(SEARCH_FIELDS))
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
        **{name: name in members and members[name].true() for name in SEARCH_FIELDS},
    )


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


def _read_rows(reader: JsonReader, node: Node, sha: hashlib._Hash) -> dict[str, Row]:
    """Return the rows at *reader*, and add their compact text to *sha* in the order of the text."""
    rows: dict[str, Row] = {}
    sha.update(b"{")
    for name in reader.members():
        section = Node(None, node.path, node, name)
        kind = KINDS.get(name)
        if kind is None or not reader.is_at_object():
            section.value = reader.value()
            if kind is None:
                section.fail(f"not a row kind; expected any of {', '.join(KINDS)}")
            section.items()
        assert kind is not None
        sha.update(f'{"," if rows else ""}"{name}":{{'.encode())
        _read_section(reader, kind, section, rows, sha)
        sha.update(b"}")
    sha.update(b"}")
    return rows


def _read_section(
    reader: JsonReader, kind: Kind, section: Node, rows: dict[str, Row], sha: hashlib._Hash
) -> None:
    """Add the rows of *kind* at *reader* to *rows*, and their compact text to *sha*."""

    def winner_at(key: str, value: object) -> Winner:
        row = Node(None, section.path, section, key)
        return read_winner(kind, Node(value, section.path, row, "winner"))

    common = CommonRows(winner_at)
    comma = ""
    for key in reader.members():
        try:
            kind.check(key)
        except ProblemError:
            node = Node(reader.value(), section.path, section, key)
            node.fail(f"the name of this row is not a {kind.name} key")
        found = common.read(reader, key)
        if found is None:
            value = reader.value()
            row = row_from_json(kind, Node(value, section.path, section, key))
            found = row, compact(value)
        rows[key] = found[0]
        sha.update(f'{comma}"{key}":{found[1]}'.encode())
        comma = ","


def row_from_json(kind: Kind, node: Node) -> Row:
    """Return the row of *kind* in *node*, checked value by value.

    Raises:
        TableFormatError: a value is missing, unknown, or out of its bounds.
    """
    members = node.members(_ROW_MEMBERS, optional=_ROW_OPTIONAL)
    untrusted = members["untrusted"].string(MAX_REASON) if "untrusted" in members else None
    return Row(
        read_winner(kind, members["winner"]), evidence_from_json(members["evidence"]), untrusted
    )


def _count(node: Node) -> int:
    return node.integer(1, MAX_INT)


def _short(node: Node) -> str:
    return node.string(64)
