"""Close an installed table while another thread compiles under it.

    python close_while_compiling.py TABLE at STEP
    python close_while_compiling.py TABLE rounds COUNT

The table has rows for other sizes: every decision is a miss. With ``at``, the handle is closed when
the compile reaches *STEP*: ``deferred``, the candidates of a GEMM are listed and not yet selected,
or a number N, its N-th question. With ``rounds``, four threads compile small models without end
while the table is installed and closed *COUNT* times.

Prints as JSON: the errors of the compiles, how many compiles gave a wrong result, the misses that
the handles have counted, the miss events in the audit log, the mark of each graph, and whether
inductor is as it was before.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor import compile_fx
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.select_algorithm import AlgorithmSelectorCache

import warmup
from warmup.inductor import cached_graphs
from warmup.inductor.gemm import hooks
from warmup.table.lookup import Lookup

LOG = Path("audit.jsonl")
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
    """Start *work* in a thread."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def compile_once(size: int, layers: int) -> None:
    """Compile and call a model, and note what went wrong."""
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(layers))).eval()
    x = torch.randn(size, 16)
    try:
        with torch.no_grad():
            found = torch.compile(model, dynamic=False)(x)
            wrong.extend([size] if not torch.allclose(found, model(x), atol=1e-4) else [])
    except Exception as error:  # noqa: BLE001  it is what is looked for
        errors.append(f"{type(error).__name__}: {error}"[:500])


def install() -> Any:
    """Install the table, and keep the handle."""
    handles.append(warmup.install(sys.argv[1], audit_log=LOG))
    return handles[-1]


def close_at(step: str) -> None:
    """Compile a model of three layers, and close the table at *step*."""
    handle = install()

    def close_elsewhere() -> None:
        in_thread(handle.close).join()

    if step == "deferred":
        listed = hooks.DeferredCppChoices

        def close_then_list(*args: Any) -> Any:
            close_elsewhere()
            return listed(*args)

        hooks.DeferredCppChoices = close_then_list  # type: ignore[assignment,misc]
    else:
        find, calls = Lookup.find, iter(range(1, 100))

        def find_then_close(lookup: Lookup, key: str) -> Any:
            answer = find(lookup, key)
            if next(calls) == int(step):
                close_elsewhere()
            return answer

        Lookup.find = find_then_close  # type: ignore[method-assign]
    compile_once(8, 3)


def close_in_rounds(count: int) -> None:
    """Install and close *count* times while four threads compile."""
    done = threading.Event()

    def compile_on(first: int) -> None:
        size = first
        while not done.is_set():
            compile_once(size, 1)
            size += 4
            torch._dynamo.reset_code_caches() if size % 40 == 0 else None

    threads = [in_thread(lambda first=first: compile_on(first)) for first in range(8, 12)]
    for number in range(count):
        handle = install()
        done.wait(0.02 * (number % 5))
        closers = [in_thread(handle.close) for _ in range(2)]
        for closer in closers:
            closer.join()
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
    if sys.argv[2] == "at":
        close_at(sys.argv[3])
    else:
        close_in_rounds(int(sys.argv[3]))
    events = [json.loads(line) for line in LOG.read_text().splitlines() if line]
    result = {
        "errors": errors,
        "wrong": wrong,
        "counted": sum(sum(handle.report().misses.values()) for handle in handles),
        "logged": sum(event["event"] == "lookup.missed" for event in events),
        "marks": marks,
        "restored": originals() == before,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
