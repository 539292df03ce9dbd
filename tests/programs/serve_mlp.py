"""Serve a small model from a table in this process and print, as JSON, everything that happened.

    python serve_mlp.py '{"table": "t.json", "seqlens": [16]}'

Keys: ``thread`` (bare, pool or main), ``mode`` (of torch.compile), ``options``, ``on_miss`` and
``after_close`` (compile and run after close as well).
"""

from __future__ import annotations

import concurrent.futures
import json
import logging
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._inductor import select_algorithm
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from mlp import MLP

import warmup
from warmup.core.errors import warmup_error_in
from warmup.inductor import connect


def count_candidates() -> list[str]:
    generated: list[str] = []
    original = CppGemmTemplate.generate

    def generate(self: Any, **kwargs: Any) -> Any:
        generated.append(self.name)
        return original(self, **kwargs)

    CppGemmTemplate.generate = generate
    return generated


def call_in(kind: str, work: Any) -> None:
    if kind == "pool":
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            pool.submit(work).result()
    elif kind == "bare":
        thread = threading.Thread(target=work)  # what raises shows as missing errors
        thread.start()
        thread.join()
    else:
        work()


def serve(case: dict[str, Any], model: torch.nn.Module) -> list[float]:
    errors: list[float] = []
    torch.compiler.reset()
    settings: dict[str, Any] = {"options": case["options"]} if "options" in case else {}
    settings = settings or {"mode": case.get("mode", "max-autotune")}

    def work() -> None:
        with torch.no_grad():
            compiled = torch.compile(model, dynamic=False, **settings)
            for seqlen in case["seqlens"]:
                x = torch.randn(seqlen, 256)
                expected = model(x)
                distance = (compiled(x) - expected).norm() / expected.norm()
                errors.append(distance.item())

    call_in(case.get("thread", "main"), work)
    return errors


def main() -> None:
    case: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="server %(name)s: %(message)s"
    )
    select_algorithm.PRINT_AUTOTUNE = False
    torch.manual_seed(0)
    model = MLP().eval()
    result: dict[str, Any] = {}
    generated = count_candidates()
    with connect().count_benchmarks() as sites, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        on_miss = case.get("on_miss", "fallback")
        handle = warmup.install(case["table"], on_miss=on_miss, freezing=True)
        try:
            result["errors"] = serve(case, model)
        except Exception as error:  # noqa: BLE001  reported below
            own = warmup_error_in(error)
            result["error"] = f"{type(own or error).__name__}: {own or error}"
        result["benchmarks"] = dict(sites)
        result["generated"] = list(generated)
        report = handle.report()
        result |= {
            "hits": dict(report.hits),
            "misses": dict(report.misses),
            "reasons": dict(report.miss_reasons),
            "unused": list(report.unused),
        }
        handle.close()
        if case.get("after_close"):
            sites.clear()
            torch._inductor.config.freezing = True
            serve(case, model)
            result["benchmarks_after_close"] = dict(sites)
            result["tag_after_close"] = torch.compiler.config.cache_key_tag
    result["warnings"] = [
        str(w.message) for w in warned if isinstance(w.message, warmup.WarmupWarning)
    ]
    sys.stdout.write("RESULT " + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
