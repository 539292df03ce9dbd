"""Measures what the algorithms of cuBLASLt gain over torch's own call, for aligned products.

    python docs/benchmarks/blas_algorithms.py --out blas.json --limit 540

Up to 64 algorithms of each product, if their output is torch's, are timed in turn with torch's call
from a cold L2. The fastest is measured afresh, in two runs on new operands and one in CUDA graphs,
beside torch's call, cuBLASLt's first answer and that once more, whose ratio is the noise. torch's
call is `torch.mm` (by cuBLAS), `torch.addmm`, `torch._addmm_activation` or `torch._scaled_mm` (by
cuBLASLt). An activation is also timed as a compiled kernel after the product, and in the region
that max-autotune compiles; GELU is by tanh. What OUT has is not measured again.

With `--variations` algorithms like the fastest are also timed, with the changes of a build, as far
as cuBLASLt's check passes, and like the fastest of these until none is 1 % faster. The fastest of
all is measured as "varied" beside the others.
"""

import argparse
import itertools
import json
import math
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from ctypes import CDLL, Structure, byref, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from driver import add_options, numbers, say, write
from torch.nn.functional import gelu, relu

from warmup.core.rows import L2, Launch
from warmup.core.trial import TimedCall, geomean
from warmup.inductor.gemm.blas import CHANGES
from warmup.measuring.clock import Events, batch_of, run_rounds
from warmup.measuring.reference import judge_like

# Columns and sums. BERT-large and ViT-L share theirs; OPT-6.7B's are wide and have an activation.
WIDTHS = {
    "llama-qkv": (6144, 4096), "llama-o": (4096, 4096), "llama-gate-up": (28672, 4096),
    "llama-down": (4096, 14336), "qwen-qkv": (4608, 3584), "qwen-o": (3584, 3584),
    "qwen-gate-up": (37888, 3584), "qwen-down": (3584, 18944), "vit-l-qkv": (3072, 1024),
    "bert-o": (1024, 1024), "bert-up": (4096, 1024), "bert-down": (1024, 4096),
    "vit-b-qkv": (2304, 768), "vit-b-o": (768, 768), "vit-b-up": (3072, 768),
    "vit-b-down": (768, 3072), "opt-up": (16384, 4096),
}  # fmt: skip
ACTIVATIONS: Any = {"gelu": partial(gelu, approximate="tanh"), "relu": relu}
FORMS = {"none": tuple(WIDTHS)[:-1], "bias": ("qwen-qkv", *tuple(WIDTHS)[8:-1])}
FORMS |= dict.fromkeys(ACTIVATIONS, ("bert-up", "vit-b-up", "opt-up"))
ROWS, DTYPES = (1, 64, 1024, 16, 256, 4096, 8), "bf16,fp8,fp8-fast"  # a limit cuts off the last
DEVICE, BF16, FP8 = torch.device("cuda", 0), torch.bfloat16, torch.float8_e4m3fn
ASKED, TOP, GAIN, TOLERANCE, CYCLES = 64, 5, 1.03, 1e-2, 500_000
VARIED, STEPS, STEP_GAIN = 2, 4, 1.01  # algorithms that a step varies, steps, what a step must gain
# cublasLt.h and library_types.h of CUDA 13: types, epilogues, attributes with their sizes in bytes.
COMPUTE, TYPES = (68, 0), {BF16: 14, FP8: 28}
EPILOGUES = {"none": 1, "bias": 4, "gelu": 36, "relu": 6}
ATTRIBUTES = {
    "transa": (3, 4), "epilogue": (7, 4), "bias": (8, 8), "bias_type": (26, 4),
    "a_scale": (17, 8), "b_scale": (18, 8), "fast_accumulation": (25, 1),
    "workspace": (1, 8), "a": (5, 4), "b": (6, 4), "c": (7, 4), "d": (8, 4),  # of a preference
}  # fmt: skip
SIZES = {"inner": 2, "cluster": 2}  # bytes of a number of a config; others have 4
CONFIG = ("id", "tile", "splitk", "red", "swizzle", "custom", "stages", "inner", "cluster")
Problem = tuple[int, str, str, int, str]  # workspace in MiB, dtype, epilogue, rows, width


class Answer(Structure):
    """cublasLtMatmulHeuristicResult_t; the first of the rest is its status."""

    _fields_ = (("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("rest", c_uint32 * 6))


LETTERS: Any = {"p": c_void_p, "i": c_int, "z": c_size_t, "u": c_uint64}
FUNCTIONS = {  # which all return a cublasStatus_t, an int
    "Create": "p", "MatmulDescCreate": "pii", "MatmulDescSetAttribute": "pipz",
    "MatrixLayoutCreate": "piuuu", "MatmulPreferenceCreate": "p",
    "MatmulPreferenceSetAttribute": "pipz", "MatmulAlgoGetHeuristic": "pppppppipp",
    "MatmulAlgoConfigGetAttribute": "pipzp", "MatmulAlgoConfigSetAttribute": "pipz",
    "MatmulAlgoCheck": "pppppppp", "Matmul": "ppppppppppppppzp",
}  # fmt: skip


class Lt:
    """The cuBLASLt at *path*. What is made lives as long as this process."""

    def __init__(self, path: str) -> None:
        library = CDLL(path)
        library.cublasLtGetVersion.restype = c_size_t
        self.version: int = library.cublasLtGetVersion()
        self.functions = {name: library[f"cublasLt{name}"] for name in FUNCTIONS}
        for name, function in self.functions.items():  # without more words a result is an int
            function.argtypes = [LETTERS[letter] for letter in FUNCTIONS[name]]
        self.handle = self.new("")

    def call(self, name: str, *words: Any) -> None:
        if status := self.functions[name](*words):
            raise RuntimeError(f"cublasLt{name}: status {status} of cublasStatus_t")

    def new(self, name: str, *words: Any, **values: int) -> c_void_p:
        made = c_void_p()
        self.call(f"{name}Create", byref(made), *words)
        for attribute, value in values.items():
            number, size = ATTRIBUTES[attribute]
            self.call(f"{name}SetAttribute", made, number, byref(c_uint64(value)), size)
        return made

    def config(self, answer: Answer) -> dict[str, int]:
        held = {name: c_uint64(0) for name in CONFIG}
        for number, (name, one) in enumerate(held.items()):
            words = (number, byref(one), SIZES.get(name, 4), byref(c_size_t()))
            self.call("MatmulAlgoConfigGetAttribute", byref(answer), *words)
        return {name: one.value for name, one in held.items()}

    def neighbours(self, answer: Answer, tiles: set[int]) -> Iterator[tuple[str, Answer]]:
        """Yield copies of *answer* with another number of its config, and that number's name."""
        own = self.config(answer)
        for change in (*CHANGES, *({"tile": tile} for tile in tiles)):
            if all(own[name] == value for name, value in change.items()):
                continue
            made = Answer.from_buffer_copy(answer)
            try:
                for name, value in change.items():
                    words = (CONFIG.index(name), byref(c_uint64(value)), SIZES.get(name, 4))
                    self.call("MatmulAlgoConfigSetAttribute", byref(made), *words)
            except RuntimeError:
                continue
            yield next(iter(change)), made


class Operands:
    """Sets for a batch of calls from a cold L2; cuBLASLt computes out.t() = w @ x.t()."""

    def __init__(self, problem: Problem, lt: Lt, seed: int) -> None:
        mib, dtype, self.form, m, width = problem
        self.lt, kind, (n, k) = lt, BF16 if dtype == "bf16" else FP8, WIDTHS[width]
        size = (m * k + n * k) * kind.itemsize + 2 * m * n
        floor_us = max(size / 4e6, m * n * k * kind.itemsize / 8e8)  # below an H200's
        self.count = max(2, min(64, math.ceil(1000 / floor_us) + 1, 2**33 // size))
        source, root = torch.Generator(DEVICE).manual_seed(seed), k**-0.5

        def drawn(*sizes: int, to: torch.dtype = BF16, scale: float = 1.0) -> list[torch.Tensor]:
            one = torch.empty(sizes, dtype=BF16, device=DEVICE).normal_(generator=source)
            return [(one * scale).to(to) for _ in range(self.count)]

        self.x, self.bias, self.out = drawn(m, k, to=kind), drawn(n), drawn(m, n)
        self.w = drawn(n, k, to=kind, scale=root if kind is BF16 else 1.0)
        self.scales = [torch.tensor(scale, device=DEVICE) for scale in (1.0, root)]
        is_fast: Any = dtype == "fp8-fast"
        self.scaled_mm: Any = partial(torch._scaled_mm, out_dtype=BF16, use_fast_accum=is_fast)
        layouts = ((TYPES[kind], k, n, k), (TYPES[kind], k, m, k), (TYPES[BF16], n, m, n))
        self.layouts = [lt.new("MatrixLayout", *sizes) for sizes in layouts]
        self.room, self.kept = torch.empty(mib * 2**18, device=DEVICE), dict[int, Any]()
        aligned = dict.fromkeys("abcd", 256)  # torch's allocator aligns to 512
        self.preference = lt.new("MatmulPreference", workspace=self.room.nbytes, **aligned)
        values, self.descriptors = {"transa": 1, "epilogue": EPILOGUES[self.form]}, []
        if kind is FP8:
            of_x, of_w = (scale.data_ptr() for scale in self.scales)
            values |= {"a_scale": of_w, "b_scale": of_x, "fast_accumulation": int(is_fast)}
        for bias in self.bias:
            if self.form != "none":
                values |= {"bias": bias.data_ptr(), "bias_type": TYPES[BF16]}
            self.descriptors.append(lt.new("MatmulDesc", *COMPUTE, **values))

    def answers(self, count: int) -> list[Answer]:
        made, found = (Answer * count)(), c_int()
        words = (self.descriptors[0], *self.layouts, self.layouts[2], self.preference)
        self.lt.call("MatmulAlgoGetHeuristic", self.lt.handle, *words, count, made, byref(found))
        return [answer for answer in made[: found.value] if not answer.rest[0]]

    def passes(self, answer: Answer) -> bool:
        """Say whether cuBLASLt can compute these operands so; its workspace is then known."""
        checked, layouts = Answer(), (*self.layouts, self.layouts[2])
        words = (self.lt.handle, self.descriptors[0], *layouts, byref(answer), byref(checked))
        if self.lt.functions["MatmulAlgoCheck"](*words) or checked.rest[0]:
            return False
        answer.workspace = checked.workspace
        return bool(checked.workspace <= self.room.nbytes)

    def by_answer(self, answer: Answer, number: int) -> torch.Tensor:
        one, (w_layout, x_layout, layout) = number % self.count, self.layouts
        w, x, out = (each[one].data_ptr() for each in (self.w, self.x, self.out))
        into = (byref(c_float(0.0)), out, layout, out, layout, byref(answer), self.room.data_ptr())
        words = (self.descriptors[one], byref(c_float(1.0)), w, w_layout, x, x_layout, *into)
        stream = torch.cuda.current_stream().cuda_stream
        self.lt.call("Matmul", self.lt.handle, *words, self.room.nbytes, stream)
        return self.out[one]

    def by_torch(self, form: str, number: int) -> Any:
        one, scaled_mm = number % self.count, self.scaled_mm
        x, w, bias, out = self.x[one], self.w[one].t(), self.bias[one], self.out[one]
        if w.dtype is FP8:
            return scaled_mm(x, w, *self.scales, bias=None if form == "none" else bias, out=out)
        if form in ACTIVATIONS:
            return torch._addmm_activation(bias, x, w, use_gelu=form == "gelu", out=out)
        return torch.mm(x, w, out=out) if form == "none" else torch.addmm(bias, x, w, out=out)

    def by_pointwise(self, pointwise: Any, number: int) -> Any:
        return pointwise(self.by_torch("bias", number))

    def by_region(self, region: Any, number: int) -> Any:
        one = number % self.count  # its output is kept, and so in memory of its own
        self.kept[one] = region(self.x[one], self.w[one], self.bias[one])
        return self.kept[one]


def compiled(form: str) -> tuple[Any, Any]:
    """Return what inductor compiles for an activation: its own kernel, and the region."""
    torch._dynamo.reset()
    act, made = ACTIVATIONS.get(form), partial[Any](torch.compile, dynamic=False)
    region = made(lambda x, w, b: act(torch.addmm(b, x, w.t())), mode="max-autotune-no-cudagraphs")
    return made(lambda out: out.copy_(act(out))), region


def check(call: Any, sets: Operands, expected: torch.Tensor) -> None:
    """Raise a ValueError if *call* does not write all that is *expected*."""
    sets.out[0].fill_(math.nan)
    if judge_like(call(0), expected, TOLERANCE)[1] is not None:
        raise ValueError("wrong output")


def timed(calls: Any, sets: Operands, rounds: int, launch: Launch = Launch.EAGER) -> Any:
    """Return *rounds* times of each of *calls* from a cold L2, in turn, in microseconds."""
    batches = {n: batch_of(c, DEVICE, L2.COLD, sets.count, launch) for n, c in calls.items()}
    return {n: [round(t, 3) for t in s.times_us] for n, s in run_rounds(batches, rounds).items()}


def keep_right(
    answers: Mapping[int, Answer], sets: Operands, expected: torch.Tensor
) -> tuple[dict[int, TimedCall], Counter[str]]:
    """Return the calls by *answers* whose output is *expected*, and counts of others' errors."""
    right, dropped = dict[int, TimedCall](), Counter[str]()
    for index, answer in answers.items():
        call: TimedCall = partial(sets.by_answer, answer)
        try:
            check(call, sets, expected)
            right[index] = call
        except (RuntimeError, ValueError) as error:
            dropped[str(error)[:80]] += 1
    return right, dropped


def screen(calls: Mapping[int, TimedCall], sets: Operands) -> dict[int, float]:
    return {index: median(us) for index, us in timed(calls, sets, 3).items()}


def fastest_of(calls: Mapping[int, TimedCall], screened: dict[int, float], sets: Operands) -> int:
    """Return the fastest of the *calls*, of those that were the fastest when *screened*."""
    near = sorted(calls, key=screened.__getitem__)[:TOP]
    finals = timed({index: calls[index] for index in near}, sets, 9)
    return min(near, key=lambda index: median(finals[index]))


def vary(
    sets: Operands,
    expected: torch.Tensor,
    answers: list[Answer],
    right: dict[int, TimedCall],
    screened: dict[int, float],
) -> dict[str, list[int]]:
    """Add what is around the fastest *answers*; return by name how many are right, and faster.

    A faster one is faster than the fastest before its step.
    """
    counts = {name: [0, 0] for name in ("wrong", *CONFIG)}
    seen = {bytes(one.algorithm) for one in answers}
    for _ in range(STEPS):
        before, names = min(screened[index] for index in right), dict[int, str]()
        tiles = {sets.lt.config(answers[index])["tile"] for index in right}
        for near in sorted(right, key=screened.__getitem__)[:VARIED]:
            for name, made in sets.lt.neighbours(answers[near], tiles):
                if bytes(made.algorithm) not in seen and sets.passes(made):
                    seen.add(bytes(made.algorithm))
                    names[len(answers)] = name
                    answers.append(made)
        fresh, _ = keep_right({index: answers[index] for index in names}, sets, expected)
        counts["wrong"][0] += len(names) - len(fresh)
        if not fresh:
            break
        times = screen(fresh, sets)
        for index, us in times.items():
            counts[names[index]][0] += 1
            counts[names[index]][1] += us * STEP_GAIN < before
        right |= fresh
        screened |= times
        if min(times.values()) * STEP_GAIN > before:
            break
    return counts


def measure(problem: Problem, lt: Lt, *, compiles: bool, varies: bool) -> dict[str, Any]:
    """Return the figures of *problem*; its region is compiled, its algorithms varied, if so."""
    begun, sets = time.monotonic(), Operands(problem, lt, 1)
    own, answers = partial(sets.by_torch, sets.form), sets.answers(ASKED)
    expected = own(0).clone()
    right, dropped = keep_right(dict(enumerate(answers)), sets, expected)
    screened, first = screen({-1: own, **right}, sets), min(right)
    figures = {"returned": len(answers), "dropped": dropped, "screened_us": dict(screened)}
    chosen, runs = {"first": first, "again": first}, list[dict[str, Any]]()
    chosen["best"] = fastest_of(right, screened, sets)
    if varies:
        figures["varied"] = vary(sets, expected, answers, right, screened)
        chosen["varied"] = fastest_of(right, screened, sets)
    pointwise, region = compiled(sets.form)
    for launch in (Launch.EAGER, Launch.EAGER, Launch.CUDAGRAPH):
        sets = Operands(problem, lt, len(runs) + 2)
        race: dict[str, TimedCall] = {"torch": partial(sets.by_torch, sets.form)}
        race |= {name: partial(sets.by_answer, answers[n]) for name, n in chosen.items()}
        if sets.form in ACTIVATIONS and launch is Launch.EAGER:
            race["pointwise"] = partial(sets.by_pointwise, pointwise)
            race |= {"compiled": partial(sets.by_region, region)} if compiles else {}
        expected = sets.by_torch(sets.form, 0).clone()
        for call in race.values():
            check(call, sets, expected)
        us = timed(race, sets, 12, launch)
        with (events := Events()):
            torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        runs.append({"launch": launch.value, "mhz": round(CYCLES / events.elapsed_us), "us": us})
    kept = {name: answers[index] for name, index in chosen.items() if name != "again"}
    alone = sets.answers(1)[0]
    return {
        **figures, "chosen": chosen, "runs": runs,
        "configs": {name: lt.config(one) for name, one in kept.items()},
        "algorithms": {name: [*one.algorithm, one.workspace] for name, one in kept.items()},
        "is_first_alone": bytes(alone.algorithm) == bytes(answers[0].algorithm),
        "sets": sets.count, "seconds": round(time.monotonic() - begun, 2),
    }  # fmt: skip


def gains(result: Any, over: str, launch: Launch = Launch.EAGER, own: str = "best") -> list[float]:
    """Return how many times faster *own* is than *over* in each run, by the median of rounds."""
    runs = [run["us"] for run in result["runs"] if run["launch"] == launch]
    runs = [us for us in runs if over in us and own in us]
    return [median(a / b for a, b in zip(us[over], us[own], strict=True)) for us in runs]


def line_of(name: str, results: Sequence[Any]) -> str:
    """Return a line on *results*; a gain counts as 3 % if both runs have it."""
    us = geomean([median(one["runs"][0]["us"]["torch"]) for one in results])
    parts = [f"{name:26} {len(results):3}: torch {us:.1f} us"]
    races = [("best", over) for over in ("torch", "first", "pointwise", "compiled")]
    for own, over in (*races, ("varied", "torch")):
        if pairs := [pair for one in results if (pair := gains(one, over, own=own))]:
            share = sum(min(pair) >= GAIN for pair in pairs) / len(pairs)
            mean = geomean([gain for pair in pairs for gain in pair])
            parts.append(f"{own} over {over} {mean:.3f}, {share:.0%} gain 3 %")
    graphs = geomean([gain for one in results for gain in gains(one, "torch", Launch.CUDAGRAPH)])
    taken = geomean([b if a >= GAIN else 1 for a, b in (gains(one, "torch") for one in results)])
    noise = [gain for one in results for gain in gains(one, "first", own="again")]
    clocks = [run["mhz"] for one in results for run in one["runs"]]
    ends = f"noise {min(noise):.3f}-{max(noise):.3f}; {min(clocks)}-{max(clocks)} MHz"
    return "; ".join((*parts, f"graphs {graphs:.3f}; as rows {taken:.3f}", ends))


def summary(problems: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines on each dtype, workspace and epilogue, its rows and widths, and its winners."""
    done = {tuple(key.split("/")): one for key, one in problems.items() if "runs" in one}
    for kind in dict.fromkeys(key[:size] for size in (3, 0) for key in done):
        own = {key: one for key, one in done.items() if key[: len(kind)] == kind}
        yield line_of("/".join(kind) or "all", [*own.values()])
        for part, value in dict.fromkeys((part, key[part]) for part in (3, 4) for key in own):
            yield line_of(f"  {value}", [one for key, one in own.items() if key[part] == value])
        ranks = dict(Counter(one["chosen"]["best"] for one in own.values()))
        dropped = dict(sum((Counter(one["dropped"]) for one in own.values()), Counter[str]()))
        returned = sorted(one["returned"] for one in own.values())
        yield f"  {returned} answers, winners {ranks}, dropped {dropped}"
        counts = Counter[str]()
        for one in own.values():
            for name, (right, faster) in one.get("varied", {}).items():
                counts.update({f"{name} right": right, f"{name} faster": faster})
        if counts:
            yield f"  varied: {dict(+counts)}"
        for key, one in own.items():
            if kind and min(gains(one, "torch")) >= GAIN:
                configs = [[*config.values()] for config in one["configs"].values()]
                yield f"  {'/'.join(key[3:])}: {configs} of {', '.join(CONFIG)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    add_options(parser, "limit")
    for name, default in (("workspaces", [32, 256]), ("compiled", [16, 256, 4096])):
        parser.add_argument(f"--{name}", type=numbers, default=default, help="MiB, or rows")
    parser.add_argument("--variations", action="store_true", help="also vary the fastest")
    for name, words in (("dtypes", DTYPES), ("epilogues", ",".join(FORMS)), ("shapes", "")):
        parser.add_argument(f"--{name}", default=words, help="of shapes the names begin so")
    asked, begun = parser.parse_args(), time.monotonic()
    text = asked.out.read_text(encoding="utf-8") if asked.out.exists() else "{}"
    document: dict[str, Any] = {"machines": {}, "problems": {}, **json.loads(text)}
    if asked.limit:
        torch.mm(*torch.ones(2, 16, 16, device=DEVICE))  # loads cuBLASLt
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        lt = Lt(next(line.split()[-1] for line in maps.splitlines() if "/libcublasLt.so" in line))
        gpu = torch.cuda.get_device_properties(DEVICE)
        document["machines"][str(gpu.uuid)] = [gpu.name, str(torch.__version__), lt.version]
    kinds = asked.workspaces, asked.dtypes.split(","), asked.epilogues.split(",")
    for problem in itertools.product(*kinds, ROWS, WIDTHS):
        _, dtype, form, m, width = problem
        key, is_activated = "/".join(map(str, problem)), form in ACTIVATIONS
        is_asked = width in FORMS[form] and width.startswith(tuple(asked.shapes.split(",")))
        is_asked &= dtype == "bf16" or not is_activated  # of fp8 torch has no such call
        compiles = is_activated and m in asked.compiled
        seconds = (60 if compiles else 20 if is_activated else 6) + 6 * asked.variations
        ends = time.monotonic() - begun + seconds
        if key in document["problems"] or not is_asked or ends > asked.limit:
            continue
        try:
            result = measure(problem, lt, compiles=compiles, varies=asked.variations)
            say(line_of(key, [result]))
        except (RuntimeError, ValueError):
            result = {"failure": traceback.format_exc()[-900:]}
            say(key, result["failure"])
        document["problems"][key] = {**result, "machine": str(gpu.uuid)}
        write(asked.out, document)
        torch.cuda.synchronize()  # a lost device ends this program
    say(*summary(document["problems"]), sep="\n")


if __name__ == "__main__":
    main()
