"""Grids as all commands print them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from warmup.cli import output
from warmup.cli.output import grid

HEAD = ("gemm", "epilogue", "winner", "us")
ROWS = (("mm m=16", "none", "aten::mm", "7.9"), ("mm m=1024", "gelu", "triton::mm w2", "12.0"))


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


def test_pages_that_commands_name_are_there(root: Path) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (root / "warmup/cli").glob("*.py")]
    pages = {page for text in sources for page in re.findall(r"docs/[\w./-]+\.md", text)}
    assert len(pages) > 3
    assert [page for page in pages if not (root / page).is_file()] == []
