"""`encode` and `digest_of`: a `Table` as canonical JSON text, and its digest.

Canonical form: sorted names, two-space indent, LF, ASCII, so that tables can be compared in review.
The digest is SHA-256 over the document without the digest, in compact form.
"""

from __future__ import annotations

import hashlib
from typing import Final

from warmup.core.method import Method
from warmup.core.peaks import peaks_to_json
from warmup.core.rows import Row
from warmup.keys.registry import kind_of
from warmup.table.calls import calls_to_json
from warmup.table.canonical import compact, spell
from warmup.table.evidence import evidence_to_json
from warmup.table.imported_json import imported_to_json
from warmup.table.schema import SCHEMA_VERSION, SEARCH_FIELDS, Policy, Provenance, Table
from warmup.table.winners import winner_to_json

# Names of members that hold text, counts and versions of a device and its runtime.
DEVICE_TEXT: Final = ("type", "vendor", "name", "arch")
DEVICE_COUNT: Final = ("sm_count", "memory_gib", "threads")
VERSIONS: Final = ("triton", "cuda", "driver", "cublas")
ASSUMPTIONS: Final = "assumptions"
CALLS: Final = "calls"
IMPORTED: Final = "imported"
MAX_REASON: Final = 512


def digest_of(table: Table) -> str:
    """Return the digest of the content: 64 hex digits that change when anything in *table* does.

    It is computed once for each table object; that of a table which was read is known already.
    """
    known = table._digest  # noqa: SLF001  kept for this function
    return known if known is not None else keep_digest(table, _spell(table, spells_text=False)[0])


def keep_digest(table: Table, digest: str) -> str:
    """Let `digest_of` return *digest*, which is that of *table*, without computing it."""
    object.__setattr__(table, "_digest", digest)
    return digest


def encode(table: Table) -> str:
    """Return the canonical text of *table*, digest included."""
    return "".join(encode_pieces(table))


def encode_pieces(table: Table) -> list[str]:
    """Return the canonical text of *table* in pieces, most of them a row."""
    return _spell(table, spells_text=True)[1]


def _spell(table: Table, *, spells_text: bool) -> tuple[str, list[str]]:
    """Return the digest of *table* and, where asked for, its canonical text in pieces."""
    kinds: dict[str, list[str]] = {}
    for key in sorted(table.rows):
        kinds.setdefault(kind_of(key).name, []).append(key)
    policy, provenance = spell(policy_to_json(table.policy), 1), _provenance(table.provenance)
    short, long = "", ""
    if table.imported:
        texts = spell(imported_to_json(table.imported), 1)
        short, long = f'"{IMPORTED}":{texts[0]},', f'  "{IMPORTED}": {texts[1]},\n'
    sha = hashlib.sha256(f'{{{short}"policy":{policy[0]},'.encode())
    sha.update(f'"provenance":{compact(provenance)},"rows":{{'.encode())
    pieces: list[str] = []
    winners: dict[int, tuple[str, str]] = {}  # rows that were read share their winners
    for comma, name in zip(("", *"," * len(kinds)), sorted(kinds), strict=False):
        sha.update(f'{comma}"{name}":{{'.encode())
        pieces.append(f'{comma}\n    "{name}": {{')
        for number, key in enumerate(kinds[name]):
            row = table.rows[key]
            texts = _spell_row(row, winners, spells_text=spells_text)
            quoted = compact(key)
            sha.update(f"{',' if number else ''}{quoted}:{texts[0]}".encode())
            if spells_text:
                pieces.append(f"{',' if number else ''}\n      {quoted}: {texts[1]}")
        sha.update(b"}")
        pieces.append("\n    }")
    sha.update(f'}},"schema":{SCHEMA_VERSION}}}'.encode())
    digest = sha.hexdigest()
    if spells_text:
        with_digest = spell({**provenance, "digest": digest}, 1)[1]
        head = f'{{\n{long}  "policy": {policy[1]},\n  "provenance": {with_digest},\n  "rows": {{'
        end = "\n  }" if kinds else "}"
        pieces = [head, *pieces, f'{end},\n  "schema": {SCHEMA_VERSION}\n}}\n']
    return digest, pieces


def _spell_row(
    row: Row, winners: dict[int, tuple[str, str]], *, spells_text: bool
) -> tuple[str, str]:
    """Return *row* in compact and, where asked for, in canonical text.

    *winners* has the winners that were spelled before, by their id.
    """
    members = row_to_json(row)
    winner = members.pop("winner")
    texts = winners.get(id(row.winner))
    if texts is None:
        texts = winners[id(row.winner)] = spell(winner, 4)
    pairs = {
        name: spell(value, 4) if spells_text else (compact(value), "")
        for name, value in members.items()
    }
    pairs["winner"] = texts
    names = sorted(pairs)
    short = ",".join([f'"{name}":{pairs[name][0]}' for name in names])
    if not spells_text:
        return f"{{{short}}}", ""
    long = ",\n        ".join([f'"{name}": {pairs[name][1]}' for name in names])
    return f"{{{short}}}", f"{{\n        {long}\n      }}"


def policy_to_json(policy: Policy) -> dict[str, object]:
    """Return *policy* as JSON values."""
    return {
        "mode": policy.mode,
        "options": dict(policy.options),
        "timing": _timing(policy.timing),
        "seed": policy.seed,
        "tolerance": {name: float(limit) for name, limit in policy.tolerance.items()},
        **{name: True for name in SEARCH_FIELDS if getattr(policy, name)},
    }


def _provenance(provenance: Provenance) -> dict[str, object]:
    runtime = provenance.runtime
    device = {name: getattr(runtime.device, name) for name in (*DEVICE_TEXT, *DEVICE_COUNT, "mig")}
    versions = {name: getattr(runtime, name) for name in ("torch", *VERSIONS)}
    document: dict[str, object] = {
        "device": device,
        "runtime": versions,
        "warmup": provenance.warmup,
        "created": provenance.created,
        **({} if provenance.peaks is None else {"peaks": peaks_to_json(provenance.peaks)}),
    }
    if provenance.assumptions:
        document[ASSUMPTIONS] = list(provenance.assumptions)
    if provenance.calls:
        document[CALLS] = calls_to_json(provenance.calls)
    return document


def row_to_json(row: Row) -> dict[str, object]:
    """Return *row* as JSON values."""
    return {
        "winner": winner_to_json(row.winner),
        "evidence": evidence_to_json(row.evidence),
        **({} if row.untrusted is None else {"untrusted": row.untrusted[:MAX_REASON]}),
    }


def _timing(method: Method) -> dict[str, object]:
    return {
        "launch": method.launch.value,
        "l2": method.l2.value,
        "near_tie": float(method.near_tie),
        "max_spread": float(method.max_spread),
        "fused_top_k": method.fused_top_k,
    }
