"""Writes the GEMMs that a device model is fitted to, as a document for ``warmup build --problems``.

    python predicted_problems.py OUT.json [--rows M] [--first N] [--without EARLIER.jsonl.gz]
        [--share I/N]
    warmup build --problems OUT.json --out T.json --search wide --fused-top-k 0 --timings F.jsonl
    warmup fit F.jsonl --out DEVICE.model.json --report held-out

Each problem says of which model it is, or ``random``. Layers have the sizes of the published
models, rows are those of their inputs. The order is balanced: whatever number of problems comes
first has all models, random problems, small and large ones. The build may be stopped and started
again; problems that earlier timings have are left out. Of N shares, each for a GPU of its own, the
I-th has every N-th problem.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from driver import say

from warmup.keys.gemm import Dim, GemmProblem, Layout
from warmup.keys.gemm_text import parse_problem
from warmup.prediction.timing_lines import read_timings

SEED = 2311
OF_A_MODEL = 16
RANDOM_PROBLEMS = 144
MOST_OPERATIONS, MOST_ELEMENTS = 3e12, 4e8
RANDOM_POWERS = ((0, 13.5), (6, 16), (5, 14.5))  # of two, for M, N and K
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

# name: (rows of inputs, layers as N x K, bias, dtype). A bias makes an addmm; "conv1d" is GPT-2's
# linear, whose weight is stored by rows.
MODELS: dict[str, tuple[tuple[int, ...], tuple[tuple[int, int], ...], str, str]] = {
    "gpt2": (TOKENS, ((2304, 768), (768, 768), (3072, 768), (768, 3072)), "conv1d", "bf16"),
    "gpt2-head": (TOKENS, ((50257, 768),), "", "bf16"),
    "gpt2-xl": (TOKENS, ((4800, 1600), (1600, 1600), (6400, 1600), (1600, 6400)), "conv1d", "f16"),
    "bert-base": (TOKENS, ((768, 768), (3072, 768), (768, 3072)), "bias", "bf16"),
    "bert-large": (TOKENS, ((1024, 1024), (4096, 1024), (1024, 4096)), "bias", "f16"),
    "llama-3-8b": (
        TOKENS,
        ((4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096)),
        "",
        "bf16",
    ),
    "llama-2-7b": (TOKENS, ((4096, 4096), (11008, 4096), (4096, 11008), (32000, 4096)), "", "f16"),
    "qwen2.5-7b-attention": (TOKENS, ((3584, 3584), (512, 3584)), "bias", "bf16"),
    "qwen2.5-7b-mlp": (TOKENS, ((18944, 3584), (3584, 18944), (152064, 3584)), "", "bf16"),
    "qwen2.5-0.5b": (TOKENS, ((896, 896), (4864, 896), (896, 4864), (151936, 896)), "", "bf16"),
    "qwen2.5-vl-vision": (
        (64, 256, 560, 1024, 2116, 4096),
        ((3840, 1280), (1280, 1280), (3420, 1280), (1280, 3420)),
        "bias",
        "bf16",
    ),
    "phi-3-mini": (TOKENS, ((9216, 3072), (3072, 3072), (16384, 3072), (3072, 8192)), "", "bf16"),
    "gemma-2-2b": (TOKENS, ((2048, 2304), (1024, 2304), (9216, 2304), (2304, 9216)), "", "bf16"),
    "opt-1.3b": (TOKENS, ((2048, 2048), (8192, 2048), (2048, 8192)), "bias", "f16"),
    "t5-1.1-large": (TOKENS, ((1024, 1024), (2816, 1024), (1024, 2816)), "", "bf16"),
    "vit-base-224": (
        (197, 1576, 3152, 6304),
        ((2304, 768), (768, 768), (3072, 768), (768, 3072)),
        "bias",
        "bf16",
    ),
    "clip-vit-large-336": (
        (577, 1154, 4616),
        ((1024, 1024), (4096, 1024), (1024, 4096)),
        "bias",
        "f16",
    ),
    "whisper-large": (
        (1, 4, 16, 1500, 3000, 6000),
        ((1280, 1280), (5120, 1280), (1280, 5120)),
        "bias",
        "f16",
    ),
    "swin-base": (
        (196, 784, 3136, 6272, 25088),
        ((384, 128), (128, 512), (768, 256), (1024, 256), (1536, 512), (4096, 1024)),
        "bias",
        "bf16",
    ),
    "dit-xl-2": (
        (256, 512, 2048, 4096),
        ((3456, 1152), (1152, 1152), (4608, 1152), (1152, 4608)),
        "bias",
        "bf16",
    ),
    "sd-1.5-unet": (
        (77, 128, 512, 2048, 8192),
        ((320, 320), (2560, 320), (640, 640), (5120, 640), (1280, 1280), (10240, 1280)),
        "bias",
        "f16",
    ),
}
# name: (batch = heads x sequences, tokens, size of a head): scores, and values from scores.
ATTENTION = {
    "bert-base-attention": ((12, 96), (128, 384, 512), 64),
    "t5-1.1-large-attention": ((16, 128), (128, 512, 1024), 64),
}


def key_of(sizes: Sequence[int], bias: str, dtype: str, batch: int | None = None) -> str:
    """Return the key of a layer of the *sizes* M, N and K, or of a batched product."""
    is_addmm = bias in {"bias", "conv1d"}
    b = "row" if bias in {"conv1d", "row"} else "col"
    return GemmProblem(
        op="bmm" if batch else "addmm" if is_addmm else "mm",
        **{name: Dim.of(size) for name, size in zip("mnk", sizes, strict=True)},
        batch=Dim.of(batch) if batch else None,
        dtype=dtype,
        a=Layout("row"),
        b=Layout(b),
        bias="1d" if is_addmm else None,
        out=dtype,
    ).key


def of_models(source: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Yield each model with the keys of its layers, small and large rows in turn."""
    for name, (rows, layers, bias, dtype) in MODELS.items():
        pairs = [(m, n, k) for m in rows for n, k in layers if fits(1, m, n, k)]
        source.shuffle(pairs)
        yield name, [key_of(pair, bias, dtype) for pair in pairs[:OF_A_MODEL]]
    for name, (batches, tokens, head) in ATTENTION.items():
        products = [
            (key_of((t, *sizes), b, "bf16", batch))
            for batch in batches
            for t in tokens
            for *sizes, b in ((t, head, ""), (head, t, "row"))
            if fits(batch, t, *sizes)
        ]
        source.shuffle(products)
        yield name, products[:OF_A_MODEL]


def random_keys(source: random.Random) -> list[str]:
    """Return keys of every category of the models: sizes uniform in their logarithms.

    Three of four sizes are multiples of 8; few rows are as frequent as many.
    """
    ways = [(way, dtype) for way in ("", "bias", "conv1d", "bmm") for dtype in ("bf16", "f16")]
    found: dict[str, None] = {}
    while len(found) < RANDOM_PROBLEMS:
        way, dtype = ways[len(found) % len(ways)]
        batch = round(2 ** source.uniform(2, 8)) if way == "bmm" else None
        sizes = [round(2 ** source.uniform(*powers)) for powers in RANDOM_POWERS]
        if source.random() < 0.75:
            sizes[1:] = (max(8, size // 8 * 8) for size in sizes[1:])
        if fits(batch or 1, *sizes):
            kind = source.choice(("", "row")) if batch else way
            found[key_of(sizes, kind, dtype, batch)] = None
    return list(found)


def fits(batch: int, m: int, n: int, k: int) -> bool:
    """Whether a GEMM is small enough to be timed often."""
    elements = batch * (m * k + k * n + m * n)
    return 2 * batch * m * n * k <= MOST_OPERATIONS and elements <= MOST_ELEMENTS


def balanced() -> list[tuple[str, str]]:
    """Return all problems, each with the model that it is of, in the order to measure them in."""
    source = random.Random(SEED)  # noqa: S311  no secret
    groups = dict(of_models(source))
    rest = random_keys(source)
    in_turn: list[tuple[str, str]] = []
    rounds = max(map(len, groups.values()))
    share = math.ceil(len(rest) / rounds)
    for number in range(rounds):
        turn = [(keys[number], name) for name, keys in groups.items() if number < len(keys)]
        turn += [(key, "random") for key in rest[number * share : (number + 1) * share]]
        source.shuffle(turn)
        in_turn += turn
    seen: dict[str, str] = {}
    for key, name in in_turn:
        seen.setdefault(key, name)
    return list(seen.items())


def rows_of(key: str) -> int:
    """Return the rows of the GEMM that *key* names."""
    return parse_problem(key).m.low


def main() -> None:
    """Write the document, and print how many problems it has of each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, help="only problems with at most so many rows")
    parser.add_argument("--first", type=int, default=None, help="only the first so many problems")
    parser.add_argument("--without", type=Path, help="timings whose problems are left out")
    parser.add_argument("--share", default="1/1", help="such as 2/4: the second of four shares")
    asked = parser.parse_args()
    share, shares = map(int, asked.share.split("/"))
    timed = read_timings([asked.without]) if asked.without else ()
    known = {one.key for one in timed if one.times_us}
    listed = [each for each in balanced() if asked.rows is None or rows_of(each[0]) <= asked.rows]
    chosen = [each for each in listed[: asked.first] if each[0] not in known]
    chosen = chosen[share - 1 :: shares]
    problems = [
        {"key": key, "kind": "gemm", "reason": "not_in_table", "count": 1, "source": name}
        for key, name in chosen
    ]
    document = {"schema": 1, "digests": [], "problems": problems}
    asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"{len(chosen)} problems, {sum(name == 'random' for _, name in chosen)} random")


if __name__ == "__main__":
    main()
