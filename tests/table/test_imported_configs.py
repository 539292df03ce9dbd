"""Imported configs: kept in a table with where they come from, and never served unasked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from warmup.cli.show_render import spell_table
from warmup.core.errors import MissError, TableFormatError
from warmup.core.events import Emitter, Event
from warmup.core.imported_config import ImportedConfig
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Family, Row, Winner
from warmup.serving.check import check
from warmup.table import Table
from warmup.table.cache_tags import cache_tag
from warmup.table.codec import decode, encode
from warmup.table.imported_answers import ImportedAnswers
from warmup.table.lookup import Lookup, OnMiss
from warmup.table.merge import combine, diff, merge
from warmup.table.store import add_imported, add_rows, read, write

KEY = "mm m=16 n=2 k=3 f32 a=row b=row out=f32 | epilogue=none"
OTHER = KEY.replace("m=16", "m=32")
LIBRARY = Winner(Family.EXTERN, "aten::mm")
KWARGS = {
    "BLOCK_K": 64,
    "BLOCK_M": 64,
    "BLOCK_N": 64,
    "GROUP_M": 8,
    "num_stages": 3,
    "num_warps": 4,
}
TILE = Winner(Family.TEMPLATE, "triton::mm", tuple(KWARGS.items()))
CONFIG = ImportedConfig(LIBRARY, "a.log:3", 5.0, 5.0)
MakeRow = Callable[..., Row]
MakeTable = Callable[..., Table]


@pytest.fixture
def table(make_table: MakeTable, make_row: MakeRow) -> Table:
    """A table with a row for OTHER and an imported config for KEY."""
    return dataclasses.replace(make_table(rows={OTHER: make_row()}), imported={KEY: (CONFIG,)})


def lookup_of(table: Table, on_miss: OnMiss) -> tuple[Lookup, list[Event]]:
    events: list[Event] = []
    imported = ImportedAnswers(table.imported)
    emitter = Emitter([events.append])
    lookup = Lookup(table.rows, on_miss, emitter, imported=imported)
    return lookup, events


@pytest.mark.parametrize("on_miss", [OnMiss.FALLBACK, OnMiss.STRICT, OnMiss.TUNE])
def test_an_imported_config_is_a_miss(table: Table, on_miss: OnMiss) -> None:
    """Its key has a reason of its own, whatever is done at misses."""
    lookup, _ = lookup_of(table, on_miss)
    assert lookup.find(KEY) is MissReason.UNVERIFIED


@pytest.mark.parametrize("on_miss", [OnMiss.FALLBACK, OnMiss.STRICT, OnMiss.TUNE])
def test_a_template_is_not_picked_unasked(table: Table, on_miss: OnMiss) -> None:
    """Only where the user asks for unverified configs is a template compiled."""
    tile = ImportedAnswers({KEY: (dataclasses.replace(CONFIG, winner=TILE),)})
    lookup, asked = (
        Lookup(table.rows, each, Emitter([]), imported=tile)
        for each in (on_miss, OnMiss.UNVERIFIED)
    )
    assert lookup.unverified(KEY, MissReason.UNVERIFIED) is None
    assert asked.unverified(KEY, MissReason.UNVERIFIED) is not None


def test_strict_names_the_config_and_where_it_comes_from(table: Table) -> None:
    """The error of the miss has the config and its origin."""
    lookup, _ = lookup_of(table, OnMiss.STRICT)
    with pytest.raises(MissError, match=r"unverified.*\n?.*a\.log:3"):
        lookup.miss(KEY, MissReason.UNVERIFIED, "aten::mm")


def test_served_unverified_is_reported_as_a_miss_and_no_hit(table: Table) -> None:
    """Where the user asks for it, the library's kernel is served; the event is a miss with it."""
    lookup, events = lookup_of(table, OnMiss.UNVERIFIED)
    answer = lookup.find(KEY)
    assert answer == LIBRARY
    lookup.hit(KEY, LIBRARY)
    (event,) = events
    assert (event.name, event.fields["reason"]) == ("lookup.missed", "unverified")
    assert event.fields["choice"] == "aten::mm"


def test_a_row_is_a_hit_beside_imported_configs(table: Table) -> None:
    """With unverified configs served, measured rows still are hits."""
    lookup, events = lookup_of(table, OnMiss.UNVERIFIED)
    lookup.hit(OTHER, table.rows[OTHER].winner)
    assert [event.name for event in events] == ["lookup.hit"]


def test_graphs_with_unverified_configs_have_a_cache_of_their_own() -> None:
    """A later server, which does not serve them, finds none of these graphs."""
    assert cache_tag("0" * 64, unverified=True) != cache_tag("0" * 64)


def test_a_measured_row_takes_the_place_of_the_config(
    tmp_path: Path, table: Table, make_row: MakeRow
) -> None:
    """When a build adds the key's row, the imported config is gone."""
    path = tmp_path / "t.json"
    write(path, table)
    after = add_rows(path, table.provenance, table.policy, {KEY: make_row()})
    assert (after.imported, read(path).imported) == ({}, {})


def test_a_key_with_a_row_gets_no_config(tmp_path: Path, table: Table) -> None:
    """Importing never puts a config beside a row; of equal ones the fastest is kept."""
    path = tmp_path / "t.json"
    write(path, table)
    slower = dataclasses.replace(CONFIG, winner=TILE, time_us=9.0)
    again = dataclasses.replace(CONFIG, origin="b.log:9")
    disturbed = dataclasses.replace(slower, time_us=90.0)
    after = add_imported(path, table, {OTHER: (CONFIG,), KEY: (slower, disturbed, again)})
    assert after.imported == {KEY: (CONFIG, slower)}


def test_merge_and_combine_keep_configs_of_keys_without_a_row(
    table: Table, make_row: MakeRow
) -> None:
    """A row of the other table wins over the imported config."""
    with_row = dataclasses.replace(table, rows={KEY: make_row()}, imported={})
    plain = dataclasses.replace(table, imported={})
    assert merge(table, plain).imported == table.imported
    assert merge(table, with_row).imported == {}
    assert combine([plain, table])[0].imported == table.imported
    assert not diff(table, plain).is_empty


def test_show_and_check_say_what_is_unverified(tmp_path: Path, table: Table) -> None:
    """Show names the key and the origin, check has a remark, and the table stays ready."""
    path = tmp_path / "t.json"
    write(path, table)
    text = " ".join(" ".join(spell_table(table)).split())
    assert f"imported, unverified, not served: {KEY}: aten::mm from a.log:3" in text
    report = check(path, here=table.provenance.runtime)
    assert any(
        remark.startswith("imported, unverified: configs of 1 key") for remark in report.remarks
    )
    assert report.state.exit_code == 0


def template(**changes: int) -> dict[str, object]:
    """Return a winner of a template with *changes* to its kwargs, as JSON."""
    kwargs = {**KWARGS, **changes}
    return {"family": "template", "uid": "triton::mm", "kwargs": kwargs, "source_hash": None}


def _with_config(table: Table, **changes: object) -> str:
    document = json.loads(encode(table))
    document["imported"][KEY][0].update(changes)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"origin": "a\x1b[2J"}, "printable"),
        ({"origin": "a" * 300}, "256"),
        ({"time_us": -1}, "expected a number >= 1e-06"),
        ({"time_us": True}, "expected a number"),
        ({"winner": {"family": "launch", "uid": "x", "kwargs": {}, "source_hash": None}}, "family"),
        ({"other": 1}, "unknown field"),
        ({"winner": template(BLOCK_M=0)}, "BLOCK_M=0 is no value"),
        ({"winner": template(BLOCK_M=2**30)}, "no value that a template takes"),
        ({"winner": template(num_warps=3)}, "num_warps=3 is no value"),
        ({"winner": template(EVEN_K=True)}, "EVEN_K: no kwarg for tuning"),
    ],
)
def test_a_damaged_config_is_refused_with_its_place(
    table: Table, changes: dict[str, object], why: str
) -> None:
    """The table is not read, and the error has the JSON pointer."""
    with pytest.raises(TableFormatError, match=why) as found:
        decode(_with_config(table, **changes), "t.json")
    assert found.value.pointer.startswith("/imported/mm m=16")


def test_a_config_under_no_key_is_refused(table: Table) -> None:
    """The name of a config is a key of a row kind."""
    text = encode(table).replace(KEY, "mm m=16")
    with pytest.raises(TableFormatError, match="not a key"):
        decode(text, "t.json")
