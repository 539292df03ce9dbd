"""The rows of a table on a terminal of 80 columns, and the ranking of candidates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_tables import make_key, make_outcome, make_row, make_table

from warmup.cli import output
from warmup.cli import tables as show_render
from warmup.cli.tables import spell_candidates, spell_table
from warmup.core.device import CallCost
from warmup.core.errors import TableFormatError
from warmup.core.method import Launch
from warmup.core.rows import MAX_RANKED, Rejection, Scope, ranked
from warmup.core.trial import Tuned, ranking_of
from warmup.table.codec import decode, digest_of, encode
from warmup.table.store import read


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (output, show_render):
        monkeypatch.setattr(module, "terminal_width", lambda: 80)


@pytest.mark.usefixtures("on_terminal")
def test_no_line_is_longer_than_the_terminal() -> None:
    long = ",".join(f"mul(bf16[560,{n}])" for n in range(1, 12))
    keys = [make_key(560), make_key(1024), make_key(560, epilogue=long)]
    lines = list(spell_table(make_table({key: make_row() for key in keys})))
    assert max(map(len, lines)) <= 80
    assert "".join(line.strip() for line in lines).count(long) == 1
    two = list(spell_table(make_table({key: make_row() for key in keys[:2]})))
    assert len(two[two.index(next(line for line in two if line[:4] == "gemm")) + 2 : -1]) <= 2 * 2


@pytest.mark.usefixtures("on_terminal")
def test_what_all_rows_share_is_printed_once() -> None:
    rows = {make_key(m): make_row() for m in (16, 560)}
    text = "\n".join(spell_table(make_table(rows)))
    assert "all gemm rows: bf16 a=row b=col bias=1d out=bf16 epilogue=none\n" in text
    assert (text.count("bf16"), text.count("n=1280 k=3420")) == (2, 2)
    lines = list(spell_table(make_table({make_key(560): make_row()})))  # a row alone has it all
    assert not any(line.startswith("all ") for line in lines)


def test_a_ranking_has_the_ten_fastest_that_were_timed_alike() -> None:
    """A time of the GEMM alone is not compared with one of the GEMM and its epilogue.

    The ranking survives the file and is in the digest; anything but times with names is refused.
    """
    for fused, numbers in (
        ({}, (0, 1, 2, 4, 5, 6, 7, 8, 9, 10)),
        ({"triton_05": 21.5, "triton_01": 20.25}, (1, 5)),
    ):
        row, key = make_row(), make_key()
        winners = [replace(row.winner, uid=f"triton_{number:02}") for number in range(14)]
        timings = [
            make_outcome(one, 10.0 + number, fused=make_outcome(one, fused.get(one.uid)))
            for number, one in enumerate(winners)
        ]
        timings[3] = replace(timings[3], rejection=Rejection.WRONG)
        scope = Scope.FUSED if fused else Scope.BARE
        plain = replace(row, evidence=replace(row.evidence, scope=scope))
        ranking = ranking_of(Tuned(key, plain, tuple(timings)))
        evidence = replace(plain.evidence, ranking=ranking)
        names = [name.split()[0] for _, name in ranked(evidence)]
        assert names == [f"triton_{number:02}" for number in numbers], fused
        table = make_table({key: replace(row, evidence=evidence)})
        assert decode(encode(table), "t").rows[key].evidence == evidence
        assert digest_of(table) != digest_of(make_table({key: plain}))
        for wrong in ("x aten::mm", "1.5", "1.5 \x1b[2J", "; ".join(["1 a"] * (MAX_RANKED + 1))):
            damaged = replace(row, evidence=replace(evidence, ranking=wrong))
            with pytest.raises(TableFormatError, match="ranking"):
                decode(encode(make_table({key: damaged})), "t")


def test_candidates_are_ranked_with_us_and_percent() -> None:
    """The best time as a share of each, as inductor's log has it; the winner is marked.

    Tables of before have the winner and the runner-up alone.
    """
    row, key = make_row(time_us=10.0), make_key()
    ranking = f"10 {row.winner.short}; 12.5 aten::mm"
    table = make_table({key: replace(row, evidence=replace(row.evidence, ranking=ranking))})
    assert list(spell_candidates(table, [key]))[2:6] == [
        key,
        "  20 candidates tried, timed alone at 1980 MHz",
        "  10.0 us  100.0%  winner  triton_mm 64x128 w4",
        "  12.5 us   80.0%          aten::mm",
    ]
    lines = list(spell_candidates(make_table({key: make_row()}), [key]))
    assert lines[3].endswith("; the ranking was not kept, only these")
    assert [line.split()[-1] for line in lines[4:6]] == ["w4", "bias_addmm"]


@pytest.mark.usefixtures("on_terminal")
def test_shipped_tables_fit_the_terminal(root: Path) -> None:
    for path in sorted((root / "tables").rglob("*.json")):
        table = read(path)
        lines = [*spell_table(table), *spell_candidates(table, [*table.rows][:5])]
        assert (path.name, max(map(len, lines)) <= 80) == (path.name, True)


@pytest.mark.usefixtures("on_terminal")
def test_what_the_host_limits_is_shown() -> None:
    costs = [("MLP n_128", CallCost(121.0, 210.5)), ("MLP n_16", CallCost(120.04, 38.0))]
    for launch, advice in (
        (Launch.EAGER, "have no such limit: build for them with --launch cudagraph"),
        (Launch.CUDAGRAPH, "winners were chosen for CUDA graphs, which have no such limit"),
    ):
        table = make_table()
        policy = replace(table.policy, timing=replace(table.policy.timing, launch=launch))
        named = replace(table, provenance=table.provenance.costing(costs), policy=policy)
        lines = list(spell_table(named))
        first = lines.index("MLP n_16: host 120.0 us, device 38.00 us: the host limits it")
        assert lines[first + 1] == "MLP n_128: host 121.0 us, device 210.5 us: the device limits it"
        text = " ".join(line.strip() for line in lines)
        assert "launched one by one, 1 of 2 buckets is limited by the host" in text
        assert advice in text
        assert max(map(len, lines)) <= 80
