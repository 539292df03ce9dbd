"""`BuiltForms`: in which form of its layers a table was built, and what a miss says of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.cli.check_render import spell_file
from warmup.cli.show_render import spell_table
from warmup.core.errors import TableFormatError
from warmup.core.events import Emitter, Event
from warmup.core.layers_form import LayersForm, compiling, compiling_bucket
from warmup.core.miss_reasons import MissReason
from warmup.core.rows import Row
from warmup.serving.check import CheckReport, Readiness
from warmup.table import Table
from warmup.table.built_forms import EARLIER, OF_MISSES, BuiltForms
from warmup.table.codec import decode, encode
from warmup.table.lookup import Lookup, OnMiss
from warmup.table.merge import combine, merge
from warmup.table.store import add_rows, read, write

ONCE, WHOLE = LayersForm.ONCE, LayersForm.WHOLE
KEY = "mm m=16 n=2 k=3 f32 a=row b=row out=f32 | epilogue=none"
MakeTable = Callable[..., Table]


def in_forms(table: Table, **by_bucket: tuple[LayersForm, ...]) -> Table:
    """Return *table*, its buckets built in these forms."""
    origin = dataclasses.replace(table.provenance, forms=BuiltForms(by_bucket))
    return dataclasses.replace(table, provenance=origin)


def test_a_table_without_a_record_is_one_of_whole_graphs(make_table: MakeTable) -> None:
    """So are tables of an earlier warmup, and a whole build writes no record either."""
    table = make_table()
    assert '"layers"' not in encode(table)
    assert table.provenance.forms.all == (WHOLE,)
    assert table.provenance.forms.building("a", WHOLE, has_rows=True) == BuiltForms()


def test_a_build_of_layers_compiled_once_begins_the_record() -> None:
    """Rows of earlier builds stay on record as whole graphs, and a bucket may have both forms."""
    fresh = BuiltForms().building("a", ONCE, has_rows=False)
    assert fresh.by_bucket == {"a": (ONCE,)}
    assert fresh.building("a", WHOLE, has_rows=True).by_bucket == {"a": (ONCE, WHOLE)}
    completed = BuiltForms().building("a", ONCE, has_rows=True)
    assert completed.by_bucket == {"a": (ONCE,), EARLIER: (WHOLE,)}
    assert completed.all == (ONCE, WHOLE)


def test_a_writer_keeps_the_forms_on_disk(
    make_table: MakeTable, make_row: Callable[..., Row], tmp_path: Path
) -> None:
    """Adding rows unites the record of the writer with that of the file."""
    path, table = tmp_path / "t.json", make_table()
    write(path, in_forms(table, a=(ONCE,)))
    origin = in_forms(table, b=(WHOLE,)).provenance
    add_rows(path, origin, table.policy, {KEY: make_row("mm_b", 1.0)})
    assert read(path).provenance.forms.by_bucket == {"a": (ONCE,), "b": (WHOLE,)}


@pytest.mark.parametrize("unite", [lambda a, b: merge(a, b, "a"), lambda a, b: combine([a, b])[0]])
def test_tables_together_have_the_forms_of_both(
    make_table: MakeTable, unite: Callable[[Table, Table], Table]
) -> None:
    """A table without a record stands for whole graphs; two of them have none together."""
    plain, once = make_table(), in_forms(make_table(), a=(ONCE,))
    assert unite(plain, once).provenance.forms.by_bucket == {"a": (ONCE,), EARLIER: (WHOLE,)}
    assert unite(plain, plain).provenance.forms == BuiltForms()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, "expected 1 to 1024 buckets"),
        ([], "expected an object"),
        ({"a": []}, "expected an array of 1 to 2 elements"),
        ({"a": ["auto"]}, "expected some of once, whole"),
        ({"a": ["whole", "once"]}, "in this order"),
        ({"a": ["once", "once"]}, "each once"),
        ({"a\n": ["once"]}, "printable characters"),
    ],
)
def test_a_damaged_record_is_refused(make_table: MakeTable, record: Any, reason: str) -> None:
    """The error has the JSON pointer of the record."""
    document = json.loads(encode(make_table()))
    document["provenance"]["layers"] = record
    with pytest.raises(TableFormatError, match=reason) as raised:
        decode(json.dumps(document), "t.json")
    assert raised.value.pointer.startswith("/provenance/layers")


@pytest.mark.parametrize(
    ("built", "asked", "reason"),
    [
        ((WHOLE,), ONCE, MissReason.OTHER_FORM),
        ((ONCE,), WHOLE, MissReason.OTHER_FORM),
        ((ONCE,), ONCE, MissReason.NOT_IN_TABLE),
        ((ONCE, WHOLE), WHOLE, MissReason.NOT_IN_TABLE),
    ],
)
def test_a_miss_in_a_form_that_was_not_built_has_its_own_reason(
    built: tuple[LayersForm, ...], asked: LayersForm, reason: MissReason
) -> None:
    """The event names the form that asked. A form that was built misses as ever."""
    events: list[Event] = []
    forms = BuiltForms({"llama n=16": built})
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([events.append]), forms=forms)
    with compiling(asked):
        assert lookup.find(KEY) is reason
        lookup.miss(KEY, reason, "aten::mm")
    assert events[0].fields["layers"] == asked


@pytest.mark.parametrize(
    ("bucket", "asked", "reason"),
    [
        ("n=16", ONCE, MissReason.OTHER_FORM),
        ("n=16", WHOLE, MissReason.NOT_IN_TABLE),
        ("n=64", ONCE, MissReason.NOT_IN_TABLE),
        ("n=64", WHOLE, MissReason.OTHER_FORM),
        ("n=128", ONCE, MissReason.NOT_IN_TABLE),
        ("n=128", WHOLE, MissReason.NOT_IN_TABLE),
        ("n=1024", ONCE, MissReason.NOT_IN_TABLE),
    ],
)
def test_the_forms_of_the_bucket_decide(bucket: str, asked: LayersForm, reason: MissReason) -> None:
    """Those of all buckets decide for a bucket that the table has not, as for torch.compile."""
    forms = BuiltForms({"llama n=16": (WHOLE,), "llama n=64": (ONCE,), "b n=128": (ONCE, WHOLE)})
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]), forms=forms)
    with compiling(asked), compiling_bucket(bucket):
        assert lookup.find(KEY) is reason
    with compiling(asked):
        assert lookup.find(KEY) is MissReason.NOT_IN_TABLE


def test_an_earlier_build_may_have_built_any_bucket() -> None:
    """Its buckets are not on record, so each bucket has its form; rows of misses say nothing."""
    forms = BuiltForms({EARLIER: (WHOLE,), "llama n=16": (ONCE,)})
    assert forms.of("n=16") == (ONCE, WHOLE)
    assert BuiltForms({OF_MISSES: (WHOLE,), "llama n=16": (ONCE,)}).of("n=16") == (ONCE,)


def test_a_row_answers_whatever_form_asks(make_row: Callable[..., Row]) -> None:
    """Rows are keyed by problem: a row of whole graphs is a hit for layers compiled once."""
    row = make_row("mm_a", 1.0)
    lookup = Lookup({KEY: row}, OnMiss.STRICT, Emitter([]))
    with compiling(ONCE):
        assert lookup.find(KEY) == row.winner


def test_show_and_check_say_the_forms(make_table: MakeTable) -> None:
    """Each form has the number of its buckets; of a table without a record, `show` says nothing."""
    table = in_forms(make_table(), a=(ONCE,), b=(ONCE, WHOLE), **{EARLIER: (WHOLE,)})
    text = "layers compiled once (2 buckets), whole graphs (1 bucket, buckets of earlier builds)"
    report = CheckReport(state=Readiness.READY, path=Path("t.json"), table=table, digest="0")
    assert f"layers    {text}" in list(spell_file(report))
    assert f"built for {text}" in " ".join(" ".join(spell_table(table)).split())
    assert not any("built for" in line for line in spell_table(make_table()))
