"""Build a table with cuBLASLt's algorithms on a GPU, serve it in fresh processes, and check it.

    python docs/benchmarks/blas_rows.py [--rows 1,16,64,256,4096] [--backends ATEN,CUBLASLT]
        [--steps layouts,build,forced,cached,built,older] [--out FILE]

Prints a JSON line for each check, with ``ok`` where it may fail, and last a summary; exit code 1 if
a check failed. ``built`` is the table as a build leaves it. In ``forced`` each product's fastest
algorithm is the winner, near ties with the library or not, so that all that is served is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = ((4096, 14336, False), (14336, 4096, True), (4096, 3584, True), (3584, 4096, False))
BF16, TOLERANCE = torch.bfloat16, 1e-2


class Products(nn.Module):
    """Four linears in a row, two of them with a bias."""

    def __init__(self) -> None:
        super().__init__()
        made = [nn.Linear(k, n, bias=has_bias, dtype=BF16) for k, n, has_bias in WIDTHS]
        self.linears = nn.ModuleList(made)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        for linear in self.linears:
            hidden_states = linear(hidden_states)
        return hidden_states


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, WIDTHS[0][0], dtype=BF16)


def say(check: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"check": check, **facts}) + "\n")
    sys.stdout.flush()


def attempt(check: str, call: Callable[[], dict[str, Any]], **facts: Any) -> None:
    try:
        say(check, **facts, **call())
    except Exception as error:  # noqa: BLE001  a check reports whatever fails
        text = traceback.format_exc()[-1500:]
        say(check, **facts, ok=False, error=f"{type(error).__name__}: {error}"[:400], trace=text)


def apart(out: torch.Tensor, expected: torch.Tensor) -> float:
    wide = expected.double()
    return float((out.double() - wide).norm() / wide.norm())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


# -- the steps, each in a process of its own ---------------------------------------------------


def build(folder: Path, rows: str, backends: str) -> None:
    import warmup
    from warmup.core.rows import Family
    from warmup.table.store import write

    begun = time.monotonic()
    # For a server that replays CUDA graphs, where the host bars no algorithm.
    options = warmup.BuildOptions(backends=backends, effort="full", bundle_graphs="reduce-overhead")
    built = folder / "built.json"
    report = warmup.build(f"{__file__}:Products", rows, built, options=options)
    forced, ratios = {}, []
    for tuned in report.timings:
        if not tuned.key.startswith(("mm ", "addmm ")):
            continue
        us = {one.winner: one.time_us for one in tuned.timings if one.time_us}
        algorithms = {one: us[one] for one in us if one.family is Family.BLAS}
        if not algorithms:
            said = [f"{one.winner.short}: {one.rejection} {one.said}" for one in tuned.timings]
            say("candidates", key=tuned.key, ok=False, rejected=said[:12])
            continue
        best = min(algorithms, key=lambda one: algorithms[one])
        forced[tuned.key] = replace(report.table.rows[tuned.key], winner=best)
        library_us = tuned.row.evidence.library_us or 0.0
        ratios.append(library_us / algorithms[best])
        rejected = Counter(f"{one.rejection}: {one.said}" for one in tuned.timings if one.rejection)
        say(
            "row",
            ok=Family.BLAS in {one.family for one in us},
            key=tuned.key,
            winner=tuned.row.winner.short,
            library_us=library_us,
            us=[round(one, 3) for one in algorithms.values()],
            best_over_library=round(ratios[-1], 3),
            rejected=dict(rejected),
        )
    write(folder / "forced.json", replace(report.table, rows={**report.table.rows, **forced}))
    older = {
        key: replace(row, winner=replace(row.winner, kwargs=changed(row.winner)))
        for key, row in forced.items()
    }
    write(folder / "older.json", replace(report.table, rows={**report.table.rows, **older}))
    winners = Counter(str(row.winner.family) for row in report.table.rows.values())
    cublas = report.table.provenance.runtime.cublas
    say("built", ok=bool(forced), seconds=round(time.monotonic() - begun, 1), winners=winners)
    say("version", cublas=cublas, of_rows=dict(best.kwargs)["cublas"] if forced else None)


def changed(winner: Any) -> Any:
    kwargs = dict(winner.kwargs)
    return tuple(sorted({**kwargs, "cublas": int(kwargs["cublas"]) + 1}.items()))


class Served:
    """A linear with its input, as it is served from a table."""

    def __init__(self, linear: nn.Linear, rows: int, device: str = "cuda") -> None:
        torch._dynamo.reset()
        self.linear = linear.to(device)
        self.x = torch.randn(rows, linear.in_features, device=device, dtype=BF16)
        mode = "max-autotune-no-cudagraphs"
        self.call: Any = torch.compile(self.linear, mode=mode, dynamic=False)
        self.first = self.call(self.x)

    def values(self) -> dict[str, Any]:
        again = [self.call(self.x) for _ in range(3)]
        odd = self.x.clone()
        odd[0, 0], odd[-1, 1] = float("nan"), float("inf")
        out, expected = self.call(odd), self.linear(odd)
        is_same = all(same_bits(self.first, one) for one in again)
        propagates = torch.equal(out.isnan(), expected.isnan())
        propagates &= torch.equal(out.isinf(), expected.isinf())
        error = apart(self.first, self.linear(self.x))
        ok = is_same and propagates and error < TOLERANCE
        return {"ok": ok, "apart": error, "same": is_same, "nan_and_inf": propagates}

    def graph(self) -> dict[str, Any]:
        stream: Any = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            aside = self.call(self.x)
        torch.cuda.current_stream().wait_stream(stream)
        graph, x = torch.cuda.CUDAGraph(), self.x.clone()
        with torch.cuda.graph(graph):
            out = self.call(x)
        kept = []
        for seed in range(3):
            torch.manual_seed(seed)
            x.copy_(torch.randn_like(x))
            graph.replay()
            kept.append(same_bits(out, self.call(x)))
        return {"ok": all(kept) and same_bits(aside, self.first), "replays": kept}

    def threads(self) -> dict[str, Any]:
        wrong: list[str] = []

        def run(seed: int) -> None:
            try:
                stream: Any = torch.cuda.Stream()
                generator = torch.Generator("cuda").manual_seed(seed)
                with torch.no_grad(), torch.cuda.stream(stream):
                    x = torch.empty_like(self.x).normal_(generator=generator)
                    first = self.call(x)
                    if not all(same_bits(first, self.call(x)) for _ in range(50)):
                        wrong.append(f"other bits in thread {seed}")
                    if (error := apart(first, self.linear(x))) > TOLERANCE:
                        wrong.append(f"{error} in thread {seed}")
            except Exception as error:  # noqa: BLE001  of a thread
                wrong.append(f"{type(error).__name__}: {error}"[:300])

        threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"ok": not wrong, "wrong": wrong[:4]}

    def unaligned(self, winner: Any) -> dict[str, Any]:
        """Call the graph, which copies such an input, and the row's function, which falls back."""
        from warmup.inductor.gemm import blas

        before, linear = sum(blas.FALLBACKS.values()), self.linear
        whole = torch.randn(self.x.numel() + 8, device=self.x.device, dtype=BF16)
        x = whole[1 : 1 + self.x.numel()].view_as(self.x)
        expected, w = linear(x), linear.weight.t()
        out, bias = torch.full_like(expected, float("nan")), linear.bias
        call: Any = blas.CHOICES["mm" if bias is None else "addmm"].to_callable()
        words = (x, w) if bias is None else (bias, x, w)
        call(*words, **dict(winner.kwargs), out=out)
        errors = [apart(self.call(x), expected), apart(out, expected)]
        counted = sum(blas.FALLBACKS.values()) - before
        is_right = max(errors) < TOLERANCE
        return {"ok": is_right and counted == 1, "counted": counted, "apart": errors}

    def times(self, winner: Any) -> dict[str, Any]:
        from warmup.core.rows import L2, Launch
        from warmup.inductor.gemm import blas
        from warmup.measuring.clock import batch_of, run_rounds

        device, linear = self.x.device, self.linear
        count = max(2, min(16, 2**31 // (2 * linear.weight.numel()) + 1))
        weights = [linear.weight.detach().clone() for _ in range(count)]
        xs = [torch.randn_like(self.x) for _ in range(count)]
        outs = [torch.empty(len(self.x), len(weights[0]), device=device, dtype=BF16) for _ in xs]
        bias, kwargs = linear.bias, dict(winner.kwargs)
        call: Any = blas.CHOICES["mm" if bias is None else "addmm"].to_callable()

        def by_row(number: int) -> object:
            one = number % count
            words = (xs[one], weights[one].t())
            return call(*(words if bias is None else (bias, *words)), **kwargs, out=outs[one])

        def by_aten(number: int) -> object:
            one = number % count
            x, w, out = xs[one], weights[one].t(), outs[one]
            return torch.mm(x, w, out=out) if bias is None else torch.addmm(bias, x, w, out=out)

        calls, facts = {"blas": by_row, "aten": by_aten, "again": by_aten}, {}
        for launch in (Launch.EAGER, Launch.CUDAGRAPH):
            batches = {n: batch_of(c, device, L2.COLD, count, launch) for n, c in calls.items()}
            us = {name: one.median for name, one in run_rounds(batches, 12).items()}
            facts[str(launch)] = {name: round(one, 2) for name, one in us.items()}
            facts[f"{launch}_gain"] = round(us["aten"] / us["blas"], 4)
            facts[f"{launch}_noise"] = round(us["aten"] / us["again"], 4)
        host = {name: host_us(one) for name, one in calls.items() if name != "again"}
        return {**facts, "host_us": host}


def host_us(call: Callable[[int], object]) -> float:
    """Return what a call costs the host while the device does not hold it up."""
    taken = []
    for _ in range(20):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for number in range(100):
            call(number)
        taken.append((time.perf_counter() - begun) * 1e4)
    return round(sorted(taken)[len(taken) // 2], 2)


def serve(folder: Path, rows: str, table: str, *, is_first: bool) -> None:
    import warmup
    from warmup.inductor import connect
    from warmup.inductor.gemm import blas

    torch.manual_seed(0)
    sizes, model = [int(one) for one in rows.split(",")], Products()
    winners = {key: row.winner for key, row in warmup.load(folder / table).rows.items()}
    last: dict[bool, tuple[Served, Any]] = {}
    with connect().count_benchmarks() as sites, torch.no_grad():
        handle = warmup.install(folder / table, on_miss="strict")
        for m in sizes:
            for (k, n, has_bias), linear in zip(WIDTHS, model.linears, strict=True):
                name = f"{m}x{n}x{k}{' bias' if has_bias else ''}"
                try:
                    one = Served(linear, m)
                except Exception as error:  # noqa: BLE001  the next product may be served
                    said = f"{type(error).__name__}: {error}"[:600]
                    say("served", table=table, product=name, ok=False, error=said)
                    continue
                attempt("values", one.values, table=table, product=name)
                if not is_first:
                    continue
                attempt("graph", one.graph, product=name)
                attempt("threads", one.threads, product=name)
                start = f"{'addmm' if has_bias else 'mm'} m={m} n={n} k={k} "
                winner = next(one for key, one in winners.items() if key.startswith(start))
                attempt("times", lambda: one.times(winner), product=name)  # noqa: B023  at once
                last[has_bias] = one, winner
        used = dict(Counter({" ".join(key): count for key, count in blas.FALLBACKS.items()}))
        if is_first:
            for has_bias, (one, winner) in last.items():
                attempt("unaligned", lambda: one.unaligned(winner), bias=has_bias)  # noqa: B023  at once
            if torch.cuda.device_count() > 1:
                for linear in model.linears[:2]:
                    attempt("second device", lambda: Served(linear, sizes[-1], "cuda:1").values())  # noqa: B023
    report = handle.report()
    handle.close()
    ok = not sites and not report.misses and not used
    found = {"hits": sum(report.hits.values()), "from_cache": report.from_cache}
    if table == "forced.json":
        ok &= bool(found["hits"] if is_first else found["from_cache"])
    say(
        "strict",
        table=table,
        first=is_first,
        ok=ok,
        benchmarks=dict(sites),
        misses=dict(report.miss_reasons),
        fallbacks=used,
        **found,
    )


def refuse(folder: Path, rows: str) -> None:
    """Serve rows of another version of cuBLASLt: misses, and torch's own calls."""
    import warmup

    with torch.no_grad():
        handle = warmup.install(folder / "older.json", on_miss="fallback")
        linear: Any = Products().linears[0]
        one = Served(linear, min(map(int, rows.split(","))))
        values = one.values()
    reasons = dict(handle.report().miss_reasons)
    handle.close()
    ok = values["ok"] and list(reasons) == ["template_changed"]
    say("another version", ok=ok, reasons=reasons)


def layouts() -> None:
    """Multiply by each algorithm for both dtypes and all layouts, beside torch's own product."""
    from warmup.inductor.gemm import blas

    torch.manual_seed(0)
    counts, worst, wrong = Counter[str](), 0.0, []
    library = blas.library_on(0)
    assert library is not None, "cuBLASLt cannot be called"
    say("library", version=library.version, path=str(blas.LIBRARY))
    for dtype in (BF16, torch.float16):
        for m, x_by, w_by, gap, bias_dims in [
            (m, x_by, w_by, gap, bias_dims)
            for m in (1, 8, 64, 512)
            for x_by in ("rows", "columns")
            for w_by in ("rows", "columns")
            for gap in (0, 8)
            for bias_dims in (0, 1, 2)
        ]:
            k, n = 1024, 768

            def made(rows: int, columns: int, by: str, gap: int = gap, dtype: Any = dtype) -> Any:
                across = (columns if by == "rows" else rows) + gap
                down = rows if by == "rows" else columns
                whole = torch.randn(down, across, device="cuda", dtype=dtype)
                part = whole[:, : across - gap]
                return part if by == "rows" else part.t()

            x, w = made(m, k, x_by), made(k, n, w_by)
            bias = torch.randn(n, device="cuda", dtype=dtype) if bias_dims else None
            wide = bias.expand(m, n) if bias is not None and bias_dims > 1 else bias
            expected = x.float() @ w.float() + (0 if bias is None else bias.float())
            out = torch.empty(m, n, device="cuda", dtype=dtype)
            case = f"{dtype} {m} {x_by} {w_by} {gap} {bias_dims}"
            operands = [one for one in (x, w, out, wide) if one is not None]
            shapes = [(one.shape, one.stride()) for one in operands]
            try:
                product = blas.Product.of({dtype}, *shapes)
                answers = library.answers(product)
            except blas.AlgorithmError as error:
                wrong.append(f"{case}: {error}")
                continue
            counts[str(len(answers))] += 1
            if gap == 0 and m > 1:
                other = blas._ALIGNMENT
                blas._ALIGNMENT = 256  # type: ignore[misc]
                counts["other answers at 256 bytes"] += library.answers(product) != answers
                blas._ALIGNMENT = other  # type: ignore[misc]
            for algorithm in answers:
                out.fill_(float("nan"))
                try:
                    blas.multiply(x, w, wide, out, tuple(algorithm))
                except blas.AlgorithmError as error:
                    wrong.append(f"{case} {algorithm}: {error}")
                    continue
                error = apart(out, expected)
                worst = max(worst, error)
                if not error < TOLERANCE:
                    wrong.append(f"{case} {algorithm}: {error}")
    say("layouts", ok=not wrong, answers=counts, worst=worst, wrong=wrong[:8], wrongs=len(wrong))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,16,64,256,4096")
    parser.add_argument("--backends", default="ATEN,CUBLASLT")
    parser.add_argument("--steps", default="", help="of the steps in order; default all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--step", default="")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    steps: dict[str, Callable[[], None]] = {
        "layouts": layouts,
        "build": lambda: build(asked.folder, asked.rows, asked.backends),
        "forced": lambda: serve(asked.folder, asked.rows, "forced.json", is_first=True),
        "cached": lambda: serve(asked.folder, asked.rows, "forced.json", is_first=False),
        "built": lambda: serve(asked.folder, asked.rows, "built.json", is_first=False),
        "older": lambda: refuse(asked.folder, asked.rows),
    }
    if asked.step:
        steps[asked.step]()
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        sys.exit(run_all(asked.steps.split(",") if asked.steps else [*steps], made, asked))


def run_all(steps: list[str], folder: str, asked: argparse.Namespace) -> int:
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/i", "TRITON_CACHE_DIR": f"{folder}/t"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, **caches, "PYTHONPATH": path, "WARMUP_BUNDLE": "0"}
    lines: list[str] = []
    failed: list[str] = []
    for step in steps:
        own = env if step != "built" else {**env, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/other"}
        words = [sys.executable, __file__, "--step", step, "--folder", folder]
        words += ["--rows", asked.rows, "--backends", asked.backends]
        begun = time.monotonic()
        with subprocess.Popen(
            words, env=own, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            said: list[str] = []
            reader = threading.Thread(target=lambda: said.extend(child.stderr or ()))  # noqa: B023
            reader.start()
            for line in child.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                if line.startswith('{"check"'):
                    lines.append(line)
            reader.join()
        if child.returncode:
            failed.append(step)
            sys.stdout.write("".join(said)[-4000:] + "\n")
        say("step", step=step, seconds=round(time.monotonic() - begun, 1), rc=child.returncode)
    found = [json.loads(line) for line in lines]
    failed += [one["check"] for one in found if one.get("ok") is False]
    gains = [one["eager_gain"] for one in found if one["check"] == "times" and "eager_gain" in one]
    mean = round(float(torch.tensor(gains).log().mean().exp()), 4) if gains else None
    summary = {"ok": not failed, "failed": Counter(failed), "checks": len(found), "gain": mean}
    say("summary", **summary)
    if asked.out is not None:
        asked.out.write_text(json.dumps({"summary": summary, "lines": found}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    main()
