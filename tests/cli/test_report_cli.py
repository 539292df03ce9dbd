"""`warmup report`: a page that stands alone, whatever its files say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from warmup.cli.report_page import ReportParts, report_page
from warmup.core.rows import Row
from warmup.table import Table
from warmup.table.codec import encode

ROOT = Path(__file__).resolve().parents[2]
COMPARED = ROOT / "docs/benchmarks/results/compare-llama-h200.json"
HOSTILE = "</td><script>alert(1)</script><img src=//x onerror=alert(2)>\x1b[2J"
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "pre", "div"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "code", "small", "br"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "scope", "style", "data-name"),
}
RunMain = Callable[..., subprocess.CompletedProcess[str]]


@dataclass
class Page(HTMLParser):
    """The tags, attributes and cells of a page."""

    tags: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    policy: str = ""
    cells: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note *tag* and its attributes."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        """Add *data* to the last cell."""
        if self.cells:
            self.cells[-1] += data

    @classmethod
    def of(cls, path: Path) -> Page:
        """Return the page in the file *path*."""
        page = cls()
        page.feed(path.read_text())
        return page


@pytest.fixture
def write_page(
    run_main: RunMain,
    tmp_path: Path,
    make_table: Callable[..., Table],
    make_row: Callable[..., Row],
    make_key: Callable[..., str],
) -> Callable[..., Page]:
    """Write the report of a table whose second row is not trusted, with more options."""
    doubted = replace(make_row(time_us=24.5), untrusted="was </td><script>wrong</script>")
    rows = {make_key(560): make_row(), make_key(1024): doubted}
    (tmp_path / "t.json").write_text(encode(make_table(rows)))

    def write(*words: str) -> Page:
        done = run_main("report", "t.json", *words, "--out", "page.html")
        assert done.returncode == 0, done.stderr
        return Page.of(tmp_path / "page.html")

    return write


def test_figures_of_rows_starts_and_logs_are_on_the_page(
    write_page: Callable[..., Page], tmp_path: Path, make_key: Callable[..., str]
) -> None:
    """A row's times and speed-up, the start of each variant, and the counts of the audit."""
    record = {"event": "lookup.hit", "schema": 1, "run": "r", "pid": 1, "seq": 0}
    (tmp_path / "log").write_text(json.dumps({**record, "key": make_key(560), "winner": "w"}))
    cells = write_page("--compare", str(COMPARED), "--audit", "log").cells
    row = cells.index("1.17x")
    assert cells[row - 1 : row + 5] == ["1.750", "1.17x", "10.5", "12.2", "2.0%", "near_tie"]
    table = next(v for v in json.loads(COMPARED.read_text())["variants"] if v["name"] == "table")
    start = cells[cells.index("table") :][:6]
    assert start[1] == f"{table['start']['process_seconds']:.1f}"
    assert start[3:] == ["0", str(table["start"]["hits"]), "0"]
    assert cells[-7:-5] == ["1", "1"]  # runs and hits


def test_hostile_files_cannot_add_to_the_page(
    write_page: Callable[..., Page], tmp_path: Path
) -> None:
    """Texts of a table, a comparison and a log become no tag, attribute or control character."""
    document = json.loads(COMPARED.read_text())
    document["origin"]["model"] = document["variants"][0]["name"] = HOSTILE
    document["remarks"] = [HOSTILE]
    (tmp_path / "c.json").write_text(json.dumps(document))
    record = {"event": "lookup.missed", "schema": 1, "run": HOSTILE, "pid": 1, "seq": 0}
    line = json.dumps({**record, "key": HOSTILE, "reason": HOSTILE})
    (tmp_path / "<b>log").write_text(f"{line}\n")
    page = write_page("--compare", "c.json", "--audit", "<b>log")
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    text = (tmp_path / "page.html").read_text()
    assert text.count("alert(1)") >= 4  # shown, as text
    assert text.replace("\n", "").isprintable()


def test_the_page_may_load_and_run_nothing(write_page: Callable[..., Page]) -> None:
    """The browser is told so, too: the policy allows the page's own style and no more."""
    policy = dict(one.split(" ", 1) for one in write_page().policy.split("; "))
    assert policy.pop("default-src") == "'none'"
    assert policy.pop("style-src") == "'unsafe-inline'"
    assert set(policy.values()) == {"'none'"}


def test_a_large_table_shows_the_rows_that_save_most(write_page: Callable[..., Page]) -> None:
    """With --top 1 the slower row is left out, and the page says of how many rows."""
    page = write_page("--top", "1")
    assert "1.17x" in page.cells
    assert not any("wrong" in cell for cell in page.cells)


def _with_time(time_us: str) -> str:
    """Return the document of a comparison whose first latency is *time_us*, a number in JSON."""
    document = json.loads(COMPARED.read_text())
    document["buckets"][0]["variants"][0]["median_us"] = "TIME"
    return json.dumps(document).replace('"TIME"', time_us)


def test_rows_that_are_not_trusted_gain_nothing(write_page: Callable[..., Page]) -> None:
    """They are not served: of two rows one has a time in the sums."""
    cells = write_page().cells
    assert cells[:4] == ["gemm", "1", "1", "1"]


def test_a_log_without_events_says_nothing(write_page: Callable[..., Page], tmp_path: Path) -> None:
    """The page says that no event was found, besides counts of 0."""
    (tmp_path / "log").write_text("no event\n")
    write_page("--audit", "log")
    assert "No event of warmup is in these logs" in (tmp_path / "page.html").read_text()


def test_the_page_does_not_depend_on_a_terminal(
    make_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin of the table is one paragraph, however narrow the terminal is."""
    parts = ReportParts(
        name="t.json",
        table=make_table(),
        doubts=(),
        comparisons=(),
        profiles=(),
        audit=None,
        command="",
    )
    wide = report_page(parts, 9)
    monkeypatch.setattr("warmup.cli.show_render.terminal_width", lambda: 20)
    assert report_page(parts, 9) == wide


@pytest.mark.parametrize("option", ["table", "--compare", "--audit"])
def test_a_file_that_is_read_is_not_overwritten(
    run_main: RunMain, tmp_path: Path, make_table: Callable[..., Table], option: str
) -> None:
    """--out with the name of a file that is read is an error, and the file stays."""
    text = encode(make_table())
    (tmp_path / "t.json").write_text(text)
    words = ["t.json"]
    if option != "table":
        (tmp_path / "other").write_text(text)
        words += [option, "other"]
    done = run_main("report", *words, "--out", words[-1])
    assert done.returncode == 3
    assert "is read for the page" in done.stderr
    assert (tmp_path / words[-1]).read_text() == text


@pytest.mark.parametrize(
    "text",
    ["{}", '{"variants": 3}', '{"variants": [], "origin": {}}', "x", _with_time("1e400")],
)
def test_a_damaged_comparison_is_named(
    run_main: RunMain, tmp_path: Path, make_table: Callable[..., Table], text: str
) -> None:
    """One line says which file, and nothing is written."""
    (tmp_path / "t.json").write_text(encode(make_table()))
    (tmp_path / "c.json").write_text(text)
    done = run_main("report", "t.json", "--compare", "c.json", "--out", "page.html")
    assert done.returncode == 3
    assert "c.json" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()
