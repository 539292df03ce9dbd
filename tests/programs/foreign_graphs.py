"""Save compiled graphs of a batched matmul in every form that torch has, or load them again.

    python foreign_graphs.py save FOLDER TABLE
    python foreign_graphs.py load FOLDER TABLE|none [fallback|strict ...]
    python foreign_graphs.py call FILE

``save`` compiles under TABLE, and without a table. Each graph is saved in three forms: ``aot`` (a
file of `save_compiled_function`), ``caches`` (inductor's caches with warmup's tag taken out of
their keys, as in an engine with keys of its own) and ``artifacts`` (a file of
`torch.compiler.save_cache_artifacts`, keys as they are). ``load`` starts from empty caches for each
form; ``call`` loads one file of the form ``aot``, and knows nothing of warmup. What came of it is
printed as JSON; ``library_calls`` counts calls of aten::bmm.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor import config, select_algorithm
from torch.compiler._cache import CacheArtifactManager

import warmup
from warmup.inductor.options import CompileOptions
from warmup.table.store import read

TABLE, NONE = "table", "none"
A, B = torch.randn(4, 64, 32), torch.randn(4, 32, 48)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.bmm(a, b))


@contextlib.contextmanager
def caches_in(folder: Path) -> Iterator[None]:
    """Keep inductor's caches in *folder*, and nothing in memory."""
    torch.compiler.reset()
    with patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": str(folder)}):
        yield


def untagged() -> Any:
    """Take warmup's tag out of inductor's cache keys for tables that are installed meanwhile."""
    return patch.object(CompileOptions, "tag_caches", lambda *_: None)


def call(graph: Callable[..., Any]) -> int:
    """Check *graph* against eager mode, and return how often it called the library's kernel."""
    calls = 0
    library = select_algorithm.extern_kernels.bmm

    def count(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return library(*args, **kwargs)

    with patch.object(select_algorithm.extern_kernels, "bmm", count):
        torch.testing.assert_close(graph(A, B), multiply(A, B))
    return calls


def save_all(folder: Path, table: str) -> dict[str, Any]:
    """Save the graph under *table* and under no table; return the report of a frozen table."""
    for label, name in ((TABLE, table), (NONE, NONE)):
        into = folder / label
        into.mkdir()
        with using(name):
            with caches_in(into / "aot-caches"):
                save_ahead_of_time(into / "aot")
            with caches_in(into / "tagged"):
                CacheArtifactManager.clear()
                call(torch.compile(multiply, dynamic=False))
                saved = torch.compiler.save_cache_artifacts()
                assert saved is not None
                (into / "artifacts").write_bytes(saved[0])
        with untagged(), with_options(name, table), using(name), caches_in(into / "caches"):
            call(torch.compile(multiply, dynamic=False))
    frozen = read(Path(table))
    frozen = replace(
        frozen, policy=replace(frozen.policy, options={**frozen.policy.options, "freezing": True})
    )
    with (
        warnings.catch_warnings(record=True) as warned,
        warmup.install(frozen, freezing=True) as handle,
    ):
        warnings.simplefilter("always")
        with caches_in(folder / "frozen"):
            save_ahead_of_time(folder / "frozen.aot")
        said = [
            str(each.message) for each in warned if each.category is warmup.ContradictionWarning
        ]
        return {"hits": sum(handle.report().hits.values()), "warnings": said}


def save_ahead_of_time(path: Path) -> None:
    graph = torch.compile(multiply, fullgraph=True, dynamic=False).aot_compile(((A, B), {}))
    graph.save_compiled_function(str(path))


def using(name: str, on_miss: str = "fallback") -> Any:
    return contextlib.nullcontext() if name == NONE else warmup.install(name, on_miss=on_miss)


def with_options(name: str, table: str) -> Any:
    """Without a table, use the options of *table*: they are in the keys of inductor's caches."""
    return config.patch(read(Path(table)).policy.options if name == NONE else {})


def load_all(folder: Path, saved: str, name: str, on_miss: str) -> dict[str, Any]:
    """Load the graphs of *saved* in each form, with the table *name* installed or none."""
    forms: dict[str, Callable[[], int]] = {
        "aot": lambda: load_ahead_of_time(folder / saved / "aot"),
        "caches": lambda: call(torch.compile(multiply, dynamic=False)),
        "artifacts": lambda: load_artifacts(folder / saved / "artifacts"),
    }
    results: dict[str, Any] = {}
    for form, load in forms.items():
        # A copy: what is compiled here must not be found by the next case.
        here = folder / f"load-{saved}-{Path(name).stem}-{on_miss}-{form}"
        if form == "caches":
            shutil.copytree(folder / saved / "caches", here)
        with contextlib.ExitStack() as stack:
            stack.enter_context(caches_in(here))
            if form == "caches":
                stack.enter_context(untagged())
                stack.enter_context(with_options(name, (folder / "table.txt").read_text()))
            handle = stack.enter_context(using(name, on_miss))
            result: dict[str, Any] = {}
            try:
                result["library_calls"] = load()
            except warmup.ForeignGraphError as error:
                result["error"] = [error.compiled_under, error.installed]
            if handle is not None:
                report = handle.report()
                result |= {
                    "hits": sum(report.hits.values()),
                    "from_cache": report.from_cache,
                    "foreign": dict(report.foreign),
                }
        results[form] = result
    return results


def load_ahead_of_time(path: Path) -> int:
    """Load and call the graph that `save_ahead_of_time` saved."""
    with path.open("rb") as file:
        return call(torch.compiler.load_compiled_function(file))


def load_artifacts(path: Path) -> int:
    """Fill the caches with torch's saved artifacts, and compile."""
    torch.compiler.load_cache_artifacts(path.read_bytes())
    return call(torch.compile(multiply, dynamic=False))


def main() -> None:
    what, place, *words = sys.argv[1:]
    here = Path(place)
    with torch.no_grad():
        if what == "call":
            result: Any = {"library_calls": load_ahead_of_time(here)}
        elif what == "save":
            (here / "table.txt").write_text(words[0])
            result = save_all(here, words[0])
        else:
            name, *modes = words
            labels = (TABLE, NONE) if modes else (TABLE,)
            result = {
                mode: {label: load_all(here, label, name, mode) for label in labels}
                for mode in modes or ["fallback"]
            }
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
