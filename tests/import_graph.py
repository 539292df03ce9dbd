"""The package's imports as a graph: modules, folders, circles, and a drawing of the folders.

`python tests/import_graph.py` writes the drawing into docs/explanation/layers.md.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "layers.md"
BEGIN, END = "<!-- drawing: begin -->\n", "<!-- drawing: end -->\n"

# From the ground up: a folder imports folders that stand before it.
FOLDERS = (
    *("core", "keys", "table", "inductor", "measuring"),
    *("models", "serving", "tuning", "diagnostics", "bench", "cli"),
)
# These three stand on one floor, and none of them imports another.
SIBLINGS = frozenset({"table", "inductor", "measuring"})
DOORS = frozenset({"", "__main__", "metrics"})  # doors of the package may import everything

# The start-up file of `warmup run` and of recorded programs: a door too, beside the module `run`.
START_UP = "warmup.serving.startup.sitecustomize"

Graph = Mapping[str, frozenset[str]]


def folder_of(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def sources(root: Path = ROOT) -> dict[str, str]:
    """Return the source of every module of the package, by its dotted name."""
    found = {}
    for path in sorted((root / "warmup").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def imports_of(source: str, module: str, known: frozenset[str]) -> Iterator[str]:
    """Yield the name of every module that *source* imports, at any depth, TYPE_CHECKING too.

    Raises:
        ValueError: an import is relative.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"{module}: relative import")
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def graph_of(texts: Mapping[str, str]) -> Graph:
    known = frozenset(texts)
    return {
        name: frozenset(imports_of(text, name, known)) & known - {name}
        for name, text in texts.items()
    }


def folders_of(graph: Graph) -> Graph:
    found: dict[str, set[str]] = {folder_of(name): set() for name in graph}
    for name, imported in graph.items():
        if name == START_UP:
            continue
        found[folder_of(name)] |= {folder_of(other) for other in imported}
    return {name: frozenset(others - {name}) for name, others in found.items()}


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Return each group of nodes that reach each other, sorted; empty when there is no circle."""
    reached = {name: _reach(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted(groups)


def _reach(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    ahead = [*graph[start]]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += graph.get(name, ())
    return found


def floors(graph: Graph) -> Iterator[list[str]]:
    """Yield the folders of *graph* without circles in floors: each imports lower floors only."""
    sorter = graphlib.TopologicalSorter(graph)
    sorter.prepare()
    while sorter.is_active():
        floor = sorted(sorter.get_ready())
        yield floor
        sorter.done(*floor)


def drawing(texts: Mapping[str, str]) -> str:
    """Return the folders of *texts* as Markdown: floors from the top, imports, circles."""
    graph = graph_of(texts)
    inner = {
        name: frozenset(others - DOORS)
        for name, others in folders_of(graph).items()
        if name not in DOORS
    }
    rows = [
        f"    {'' if place else number:>5}  {name:<12} "
        f"{' '.join(sorted(inner[name], key=FOLDERS.index)) or 'nothing'}"
        for number, floor in reversed([*enumerate(floors(inner), 1)])
        for place, name in enumerate(floor)
    ]
    arrows = sum(map(len, inner.values()))
    summary = (
        f"{len(inner)} folders, {arrows} arrows between them; circles between folders: "
        f"{len(circles(inner))}, between modules: {len(circles(graph))}."
    )
    head = f"    {'floor':>5}  {'folder':<12} imports"
    return "\n".join([head, *rows, "", summary, ""])


def page_with(text: str, drawn: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{drawn}{END}{after}"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page_with(page, drawing(sources())), encoding="utf-8")
