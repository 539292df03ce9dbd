"""`encode` and `decode`: a `Table` as canonical JSON, and back. Tables are not trusted.

Canonical form: sorted names, two-space indent, LF, ASCII, so that tables can be compared in review.
The digest is SHA-256 over the document without the digest and without whitespace.

A table that is read is held to one rule, row by row: ``encode(decode(text)) == text``. So no name
is there twice, and a large table takes memory for its rows alone. A file that breaks the rule is
damaged, of another schema, reformatted, or has fields of features that warmup no longer has: it is
read at once, each error with its JSON pointer, and its names are compared one by one.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import msgspec

from warmup.core.errors import ProblemError, TableFormatError, TableSchemaError
from warmup.core.rows import Row, Winner
from warmup.core.strict_json import decode_json, pointer_of, read_json, repeated_name, repetition
from warmup.keys.kind import Kind
from warmup.keys.registry import KINDS, kind_of
from warmup.table.schema import MAX_TABLE_BYTES, SCHEMA_VERSION, Table
from warmup.table.wire import (
    MAX_ROW_BYTES,
    EvidenceJson,
    Refusal,
    RowJson,
    TableJson,
    WinnerJson,
    evidence_from,
    policy_from,
    policy_json,
    provenance_from,
    provenance_json,
    row_json,
    winner_from,
    winner_json,
)

# `without_retired`: a table without what it has of features that warmup no longer has.


@dataclass(frozen=True, slots=True)
class _Retired:
    """The members behind *names*, ``*`` for any, which are ignored.

    With *words* a member is kept where it is one of these, as the word that takes its place.
    """

    names: tuple[str, ...]
    words: Mapping[bytes, bytes] | None = None

    @property
    def pointer(self) -> str:
        return "/" + "/".join(self.names)


_RETIRED: Final[Sequence[_Retired]] = (
    _Retired(("imported",)),  # configs that nobody had measured
    _Retired(("provenance", "layers")),  # in which forms repeated layers were compiled
    # A build that searches such a row again then tries more candidates, as before.
    _Retired(("rows", "*", "*", "evidence", "search"), words={b'"predicted"': b'"imported"'}),
)


def without_retired(data: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return the table *data* without retired fields, and the JSON pointers of these, if any."""
    pointers = []
    for retired in _RETIRED:
        changed = _changed(data, retired.names, retired)
        if changed is not None:
            data = changed
            pointers.append(retired.pointer)
    return data, tuple(pointers)


def _changed(data: bytes, names: tuple[str, ...], retired: _Retired) -> bytes | None:
    """Return *data* without what is *retired* behind *names*; None where it has nothing of it."""
    members = _members(data)
    is_changed = False
    for name in list(members) if names[0] == "*" else names[:1]:
        if name not in members:
            continue
        raw = bytes(members[name])
        if names[1:]:
            new = _changed(raw, names[1:], retired)
        elif retired.words is not None:
            new = retired.words.get(raw)
        else:
            del members[name]
            is_changed = True
            continue
        if new is not None:
            members[name] = msgspec.Raw(new)
            is_changed = True
    return msgspec.json.encode(members) if is_changed else None


def _members(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return {}


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
_EVIDENCE_DECODER: Final = msgspec.json.Decoder(EvidenceJson)
_compact: Final = msgspec.json.Encoder(order="deterministic").encode


class _NotCanonicalError(Exception):
    """A text is not what `encode` would write."""


def encode(table: Table) -> str:
    """Return the canonical text of *table*, digest included."""
    return b"".join(encode_pieces(table)[1]).decode("ascii")


def encode_pieces(table: Table) -> tuple[str, list[bytes]]:
    """Return the digest of *table*, and its canonical text in pieces, most of them a row."""
    digest, pieces = _spell_table(table, spells_text=True)
    if table._digest is None:  # noqa: SLF001  kept for `digest_of`
        _keep(table, digest)
    return digest, pieces


def digest_of(table: Table) -> str:
    """Return the digest of the content: 64 hex digits that change when anything in *table* does.

    It is computed once for each table object; that of a table which was read is known already.
    """
    known = table._digest  # noqa: SLF001  kept for this function
    if known is None:
        known = _spell_table(table, spells_text=False)[0]
        _keep(table, known)
    return known


def _keep(table: Table, digest: str, ignored: tuple[str, ...] = ()) -> None:
    object.__setattr__(table, "_digest", digest)
    object.__setattr__(table, "_ignored", ignored)


def decode(text: str, path: str) -> Table:
    """Return the table in *text*, which is not trusted; *path* is for error texts only.

    Raises:
        TableFormatError: the text is not a table, or its digest does not match its content.
        TableSchemaError: the table has another schema than this warmup reads.
    """
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
        sections.setdefault(kind_of(key).name, {})[key] = row_json(row, winner_json(row.winner))
    return sections


def rows_from(sections: Mapping[str, Mapping[str, RowJson]], path: str) -> dict[str, Row]:
    """Return the rows in *sections*, by kind and key, of the file *path*.

    Raises:
        TableFormatError: a kind, a key or a row is none.
    """
    rows = _Rows(path)
    for name, section in sections.items():
        kind = rows.kind(name)
        for key, row in section.items():
            rows.add(kind, key, row)
    return rows.rows


# Writing.


def _spell_table(table: Table, *, spells_text: bool) -> tuple[str, list[bytes]]:
    """Return the digest of *table* and, where asked for, its canonical text in pieces."""
    document: dict[str, Any] = {
        "policy": msgspec.to_builtins(policy_json(table.policy)),
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
    winners: dict[int, WinnerJson] = {}  # rows that were read share their winners
    section = ""
    for name, key in sorted((kind_of(key).name, key) for key in table.rows):
        comma = b"," if name == section else b""
        if not comma:
            opening = f'{"}," if section else ""}"{name}":{{'
            sha.update(opening.encode())
            pieces.append(f'{_after(section)}\n    "{name}": {{'.encode())
            section = name
        row = table.rows[key]
        winner = winners.get(id(row.winner))
        if winner is None:
            winner = winners[id(row.winner)] = winner_json(row.winner)
        compact, quoted = _spell(row_json(row, winner)), _dumps(key)
        sha.update(b"%b%b:%b" % (comma, quoted, compact))
        if spells_text:
            pieces.append(b"%b\n      %b: %b" % (comma, quoted, _indented(compact, 3)))
    sha.update(b"}" + after if section else after)
    digest = sha.hexdigest()
    if spells_text:
        document["provenance"]["digest"] = digest
        text = json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"
        head, tail = _halves(text, b'\n  "rows": {')
        pieces = [head, *pieces, b"\n    }\n  " + tail if section else tail]
    return digest, pieces


def _after(section: str) -> str:
    return "\n    }," if section else ""


def _halves(text: bytes, end: bytes) -> tuple[bytes, bytes]:
    """Return *text* up to the last *end*, and what is behind: no text of a table has quotes."""
    at = text.rindex(end) + len(end)
    return text[:at], text[at:]


def _spell(value: RowJson | EvidenceJson | WinnerJson) -> bytes:
    """Return *value* in canonical JSON without whitespace.

    msgspec writes a small number in another form than Python, which writes tables: 0.00001 and 1e-7
    for 1e-05 and 1e-07. It also leaves letters beyond ASCII as they are.
    """
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
            evidence = evidence_from(row.evidence)
        except Refusal as error:
            place = pointer_of(*at, part, *error.parts)
            raise TableFormatError(self.path, place, error.reason) from None
        if row.untrusted is not None and not row.untrusted.isprintable():
            place = pointer_of(*at, "untrusted")
            raise TableFormatError(self.path, place, "expected printable characters")
        self.rows[key] = Row(winner, evidence, row.untrusted)

    def add_text(self, kind: Kind, key: str, text: bytes) -> bytes:
        """Add the row with the canonical *text*, and return it without whitespace.

        Many rows have one of a few winners, whose text is read once.

        Raises:
            _NotCanonicalError: `encode` would write the row in another way.
            TableFormatError: as `add` does.
        """
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
        self.rows[key] = Row(known[0], evidence_from(json))
        return b'{"evidence":%b,"winner":%b}' % (compact, known[1])

    def _check_key(self, kind: Kind, key: str) -> None:
        try:
            kind.check(key)
        except ProblemError:
            place = pointer_of("rows", kind.name, key)
            reason = f"the name of this row is not a {kind.name} key"
            raise TableFormatError(self.path, place, reason) from None

    def _winner(self, kind: Kind, winner: WinnerJson) -> Winner:
        text = _compact(winner)
        known = self._winners.get((kind.name, text))
        if known is None:
            if len(text) > MAX_ROW_BYTES:
                raise Refusal(f"a value of more than {MAX_ROW_BYTES} characters")
            known = self._winners[kind.name, text] = winner_from(winner, kind)
        return known


def _read_canonical(file: BinaryIO, path: str) -> Table:
    """Return the table in *file*; a _NotCanonicalError where `encode` would write another text."""
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
        document, compact = read_json(head[:at] + b"}" + tail, TableJson, path)
        sha.update(compact[compact.rindex(b'"rows":{') + len(b'"rows":{') :])
        table = _table(document, rows.rows, path)
    except (msgspec.MsgspecError, TableFormatError, ValueError, RecursionError):
        raise _NotCanonicalError from None
    if sha.hexdigest() != document.provenance.digest:
        raise _NotCanonicalError
    _keep(table, document.provenance.digest)
    return table


def _row_texts(file: BinaryIO, rest: bytes) -> Iterator[bytes]:
    """Yield the text before the first row in *rest* and in *file*, then that of each row."""
    size = 0
    while block := file.read(_BLOCK_BYTES):
        size += len(block)
        if len(rest) > MAX_ROW_BYTES + _BLOCK_BYTES or size > MAX_TABLE_BYTES:
            raise _NotCanonicalError
        *whole, rest = (rest + block).split(_ROW_BEGIN)
        yield from whole
    yield from rest.split(_ROW_BEGIN)


def _read_rows(texts: Iterator[bytes], rows: _Rows, sha: hashlib._Hash) -> bytes:
    """Add the rows in *texts* to *rows* and to *sha*; return the text behind them."""
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
    """Return the kind whose section begins with *text*, behind the section *before*."""
    match = _SECTION_BEGIN.fullmatch(text)
    name = match[1].decode() if match else ""
    if name <= before or text.startswith(b",") != bool(before):
        raise _NotCanonicalError
    sha.update(f'{"}," if before else ""}"{name}":{{'.encode())
    return rows.kind(name)


def _read_whole(data: bytes, path: str) -> Table:
    """Return the table in *data*, in whatever form; raises as `decode` does."""
    ignored: tuple[str, ...] = ()
    try:
        document = decode_json(data, TableJson, path)
    except TableFormatError:
        _check_schema(data, path)
        kept, ignored = without_retired(data)
        if not ignored:
            raise
        document = decode_json(kept, TableJson, path)
    compact = msgspec.json.format(data, indent=-1)
    name = repeated_name(compact)
    if name is not None:
        raise TableFormatError(path, "", repetition(name))
    table = _table(document, rows_from(document.rows, path), path)
    digest = document.provenance.digest
    is_same = digest == hashlib.sha256(_without_digest(compact)).hexdigest()
    # Another order of names and other spellings of numbers are not content.
    if not is_same and (ignored or digest != digest_of(table)):
        reason = "the content does not match the digest (damaged or edited by hand)"
        raise TableFormatError(path, "/provenance/digest", reason)
    _keep(table, digest, ignored)
    return table


class _SchemaOnly(msgspec.Struct):
    schema: int


def _check_schema(data: bytes, path: str) -> None:
    """Raise a TableSchemaError for a table of another schema, which may differ in all else."""
    try:
        schema = msgspec.json.decode(data, type=_SchemaOnly).schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if schema > 0 and schema != SCHEMA_VERSION:
        raise TableSchemaError(path, schema, SCHEMA_VERSION)


def _table(document: TableJson, rows: Mapping[str, Row], path: str) -> Table:
    provenance = provenance_from(document.provenance, path)
    return Table(provenance, policy_from(document.policy, path), rows)


def _without_digest(compact: bytes) -> bytes:
    return _DIGEST.sub(b"", compact, count=1)
