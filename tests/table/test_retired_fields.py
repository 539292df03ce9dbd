"""Tables of an earlier warmup, with fields of features that have left, which are ignored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmup.cli.tables import spell_table
from warmup.core.device import CallCost
from warmup.core.errors import MissReason, TableFormatError
from warmup.core.events import Emitter
from warmup.core.method import Search
from warmup.keys.kind import ProblemOfKey
from warmup.table.codec import decode, digest_of, encode
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss
from warmup.table.store import TableWriter, read

# Written by warmup at commit cec4e474, with the forms of repeated layers, and a predicted
# row; also the cost of a call without two of its layers, which is still a field.
EARLIER = Path(__file__).parent / "data" / "with-retired-fields.json"
# Written by warmup at commit ead5a9b9, with a config that `warmup import` did not measure.
WITH_CONFIG = EARLIER.with_name("with-imported-configs.json")
IGNORED = ("/provenance/layers", "/rows/*/*/evidence/search")


def test_a_table_with_retired_fields_is_read_and_shown() -> None:
    """Its digest is the one in the file, and `warmup show` says once which fields are ignored."""
    table = read(EARLIER)
    stored = json.loads(EARLIER.read_text())["provenance"]["digest"]
    searches = [row.evidence.search for row in table.rows.values()]
    assert (digest_of(table), table.ignored) == (stored, IGNORED)
    assert searches == [Search.IMPORTED, Search.WIDE]
    assert ("Llama seqlen=32", CallCost(130.0, 48.5)) in table.provenance.calls
    assert any(cost.left_out == 2 for _, cost in table.provenance.calls)
    (line,) = (line for line in spell_table(table) if "ignored" in line)
    assert line.strip() == f"ignored, of features that left warmup: {', '.join(IGNORED)}"


def test_a_table_with_unmeasured_configs_is_read_without_them(tmp_path: Path) -> None:
    """Their key is an ordinary miss; the next build writes the rows alone."""
    table = read(WITH_CONFIG)
    (key,) = json.loads(WITH_CONFIG.read_text())["imported"]
    lookup = Lookup(table.rows, OnMiss.FALLBACK, Emitter([]))
    assert (table.ignored, lookup.find(ProblemOfKey(key))) == (
        ("/imported",),
        MissReason.NOT_IN_TABLE,
    )
    assert (digest_of(table), table.rows) == (
        json.loads(WITH_CONFIG.read_text())["provenance"]["digest"],
        read(EARLIER).rows,
    )
    (line,) = (line for line in spell_table(table) if "ignored" in line)
    assert line.strip() == "ignored, of features that left warmup: /imported"
    path = tmp_path / "t.json"
    path.write_bytes(WITH_CONFIG.read_bytes())
    TableWriter(path).fold()
    assert (read(path).ignored, "imported" in json.loads(path.read_text())) == ((), False)


def test_a_table_that_is_written_again_has_no_retired_fields(tmp_path: Path) -> None:
    """The next build writes the rows without them, under a digest of its own."""
    path = tmp_path / "t.json"
    path.write_bytes(EARLIER.read_bytes())
    before = read(path)
    TableWriter(path).fold()
    after = read(path)
    assert (after.ignored, after) == ((), before)
    assert digest_of(after) != digest_of(before)
    assert encode(decode(path.read_text(), "t.json")) == path.read_text()


def test_damage_beside_a_retired_field_is_damage() -> None:
    """The digest is checked over all bytes, and fields that no warmup had are refused."""
    text = EARLIER.read_text()
    for damaged, pointer in (
        (text.replace('"once"', '"whole"'), "/provenance/digest"),
        (text.replace('"predicted"', '"default"'), "/provenance/digest"),
        (text.replace('"layers"', '"players"'), "/provenance/players"),
        (text.replace('"earlier builds"', '"Llama seqlen=16"'), ""),
    ):
        assert damaged != text
        with pytest.raises(TableFormatError) as caught:
            decode(damaged, "t.json")
        assert caught.value.pointer == pointer
