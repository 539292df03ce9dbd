"""Close an installed table while another thread compiles under it.

    python close_while_compiling.py TABLE ROUNDS

TABLE has rows for other sizes: every decision is a miss. First the handle is closed when the
candidates of the second of three linear layers are listed and not yet selected. Then three threads
compile batched products without end, while the table is installed and closed *ROUNDS* times, from
two threads, some time after a compile has begun.

C++ candidates are offered but not compiled: their time is said to be an hour.

Prints as JSON, for both parts: the errors of the compiles; how many gave a wrong result; the misses
that the handles have counted, and those in the audit log; decisions and misses in the mark of each
graph; whether inductor's functions are its own again.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor import compile_fx
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.codegen.cpp_template_kernel import CppTemplateCaller
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.select_algorithm import AlgorithmSelectorCache

import warmup
from warmup.inductor import cached_graphs
from warmup.inductor.gemm import hooks as listing
from warmup.table.lookup import Lookup

LOG = Path(sys.argv[1]).with_name("audit.jsonl")
errors: list[str] = []
wrong: list[int] = []
marks: list[tuple[int, int]] = []
handles: list[Any] = []


def originals() -> list[object]:
    """Return the functions of inductor that a table replaces."""
    return [
        vars(CppGemmTemplate)["add_choices"],
        vars(AlgorithmSelectorCache)["__call__"],
        vars(compile_fx)["fx_codegen_and_compile"],
        vars(compile_fx)["compile_fx"],
    ]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def compile_once(function: Callable[..., Any], *args: torch.Tensor) -> None:
    try:
        with torch.no_grad():
            found = torch.compile(function, dynamic=False)(*args)
            wrong.extend([0] if not torch.allclose(found, function(*args), atol=1e-4) else [])
    except Exception as error:  # noqa: BLE001  it is what is looked for
        errors.append(f"{type(error).__name__}: {error}"[:500])


def install() -> Any:
    handles.append(warmup.install(sys.argv[1], audit_log=LOG, freezing=True))
    return handles[-1]


def close_at_selection() -> None:
    """Compile three layers, and close the table when the candidates of the second are listed."""
    handle = install()
    listed, calls = listing.DeferredCppChoices, itertools.count()

    def list_and_close(*args: Any) -> Any:
        if next(calls) == 1:
            in_thread(handle.close).join()
        return listed(*args)

    listing.DeferredCppChoices = list_and_close  # type: ignore[assignment,misc]
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3))).eval()
    compile_once(model, torch.randn(8, 16))
    listing.DeferredCppChoices = listed  # type: ignore[misc]


def close_in_rounds(count: int) -> None:
    """Install and close *count* times while three threads compile."""
    done, begun = threading.Event(), threading.Semaphore(0)
    find = Lookup.find

    def find_and_tell(lookup: Lookup, key: str) -> Any:
        begun.release()
        return find(lookup, key)

    Lookup.find = find_and_tell  # type: ignore[method-assign]

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)

    def compile_on(first: int) -> None:
        for number in itertools.count(first, 3):
            if done.is_set():
                break
            code = multiply.__code__.replace(co_name=f"multiply{number}")  # compiled for itself
            compile_once(
                types.FunctionType(code, globals()), torch.ones(2, 4, 8), torch.ones(2, 8, 4)
            )

    threads = [in_thread(lambda first=first: compile_on(first)) for first in range(3)]
    for number in range(count):
        handle = install()
        begun.acquire()
        done.wait(0.002 * (number % 10))
        closers = [in_thread(handle.close) for _ in range(2)]
        for closer in closers:
            closer.join()
        while begun.acquire(blocking=False):
            pass
    done.set()
    for thread in threads:
        thread.join()


def main() -> None:
    before = originals()
    post_compile = CompiledFxGraph.post_compile

    @functools.wraps(post_compile)  # install checks its parameters
    def read_mark(graph: Any, *args: Any, **kwargs: Any) -> Any:
        mark = getattr(graph, cached_graphs._GRAPH_MARK, None)
        if mark is not None:
            marks.append(tuple(mark[-2:]))
        return post_compile(graph, *args, **kwargs)

    CompiledFxGraph.post_compile = read_mark
    CppTemplateCaller.precompile = lambda _caller: None  # type: ignore[method-assign]
    CppTemplateCaller.benchmark = lambda _caller, *_, **__: 3600e3  # type: ignore[method-assign]
    results = []
    for part in (close_at_selection, lambda: close_in_rounds(int(sys.argv[2]))):
        LOG.unlink(missing_ok=True)
        for noted in (errors, wrong, marks, handles):
            noted.clear()
        part()
        events = [json.loads(line) for line in LOG.read_text().splitlines() if line]
        results.append(
            {
                "errors": [*errors],
                "wrong": len(wrong),
                "counted": sum(sum(handle.report().misses.values()) for handle in handles),
                "logged": sum(event["event"] == "lookup.missed" for event in events),
                "marks": [*marks],
                "restored": originals() == before,
            }
        )
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
