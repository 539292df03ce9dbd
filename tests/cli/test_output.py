"""Grids and numbers as all commands print them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sample_tables import make_row, make_table

from warmup.cli import output
from warmup.cli.output import digits, fold, grid, spell_phases, times
from warmup.cli.tables import spell_table
from warmup.core.phases import Phase

HEAD = ("gemm", "epilogue", "winner", "us")
ROWS = (("mm m=16", "none", "aten::mm", "7.9"), ("mm m=1024", "gelu", "triton::mm w2", "12.0"))


def test_a_part_of_a_start_has_its_sum_and_its_phases() -> None:
    seconds = {phase: 1.5 for phase in Phase if phase is not Phase.AOT}
    lines = spell_phases("before", seconds, head=" " * 10)
    assert lines[0].startswith("          before 21.00: import 1.50, load 1.50, install 1.50, ")
    assert all(line.startswith(" " * 12) for line in lines[1:])
    assert max(map(len, lines)) <= 80
    assert "AOT" not in " ".join(lines)


def test_a_row_is_one_line_or_has_its_key_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are flush left, numbers flush right; on a narrow terminal keys fold between words."""
    for width, expected in (
        (
            None,
            [
                "gemm       epilogue  winner           us",
                "mm m=16    none      aten::mm        7.9",
                "mm m=1024  gelu      triton::mm w2  12.0",
            ],
        ),
        (
            39,
            ["mm m=16  none", "  aten::mm        7.9", "mm m=1024  gelu", "  triton::mm w2  12.0"],
        ),
        (12, ["mm m=1024", "    gelu", "  triton::mm w2  12.0"]),
    ):
        monkeypatch.setattr(output, "terminal_width", lambda width=width: width)
        assert list(grid(HEAD, ROWS, texts=3))[-len(expected) :] == expected
    monkeypatch.setattr(output, "terminal_width", lambda: 40)
    assert len(list(grid(HEAD, ROWS, texts=3))) == 3


def test_what_a_cell_could_do_to_a_terminal_is_escaped() -> None:
    assert "\\x1b[2J" in list(grid(("a", "b"), [("\x1b[2J", "1")], texts=1))[1]


def test_a_cell_that_a_row_lacks_is_a_dash() -> None:
    """A weight row that only makes features computes nothing in between: no `via`."""
    key = "weight n m=16 in=768 features=50257 bf16 bias=0"
    head, line = list(spell_table(make_table({key: make_row()})))[1:3]
    assert head.split()[:3] == ["weight", "via", "winner"]
    assert line.startswith("n m=16 in=768 features=50257 bf16 bias=0  -  ")
    assert line.index("-  ") == head.index("via")


def test_numbers_have_four_digits_and_text_is_folded_under_itself() -> None:
    """And never fewer than stand before the point; a dash where it is unknown."""
    for value, shown in ((None, "-"), (0.04999, "0.04999"), (99.994, "99.99"), (15990.2, "15990")):
        assert digits(value) == shown
    assert (times(None), times(1.234)) == ("-", "1.23x")
    assert fold("a bb ccc", "x ", width=6) == ["x a bb", "  ccc"]
    assert fold("a bb ccc", "x ", indent=4, width=7) == ["x a bb", "    ccc"]
    assert fold("word " * 40, width=None) == [("word " * 40).strip()]


def test_pages_that_commands_name_are_there(root: Path) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (root / "warmup/cli").glob("*.py")]
    pages = {page for text in sources for page in re.findall(r"docs/[\w./-]+\.md", text)}
    assert len(pages) > 3
    assert [page for page in pages if not (root / page).is_file()] == []
