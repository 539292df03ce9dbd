"""A store of 100,000 rows, and a family of a thousand models: `store.py [OUT] [--models N]`.

Writes ``store.json`` and ``store-family.json`` into OUT, by default docs/benchmarks/results.
Nothing is measured on a device. Rows are those of the shipped tables with other sizes and other
times of as many digits. Models are listed as problems: the GEMM keys of the architectures in
`FAMILIES`, which for Llama-3-8B and Qwen2-7B are checked against the shipped tables, and as many
launch and reduction keys as these tables have, with what they depend on in place of the hash of
their source.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warmup.core.rows import Row
from warmup.table import Table
from warmup.table.row_store import RowStore
from warmup.table.row_store.served_versions import ServedVersions
from warmup.table.row_store.sweep import sweep
from warmup.table.row_store.table_view import view_like
from warmup.table.store import read, write

HERE = Path(__file__).resolve().parent
TABLES = HERE.parents[1] / "tables"
ROWS, VIEW_ROWS, MODELS = 100_000, 200, 1000
BUCKETS = (1, 8, 32, 128)
SEED = 26
ADDED_TOKENS, IN_ONE_OF = 8, 5  # one model in five has 1 to 8 times 64 tokens more


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder: hidden, all heads of q and of k, the MLP, and the vocabulary."""

    name: str
    hidden: int
    q: int
    kv: int
    mlp: int
    vocab: int
    biased: bool = False


FAMILIES: Mapping[str, Sequence[Decoder]] = {
    "Llama": (
        Decoder("Llama-2-7B", 4096, 4096, 4096, 11008, 32000),
        Decoder("Llama-2-13B", 5120, 5120, 5120, 13824, 32000),
        Decoder("Llama-2-70B", 8192, 8192, 1024, 28672, 32000),
        Decoder("Llama-3-8B", 4096, 4096, 1024, 14336, 128256),
        Decoder("Llama-3-70B", 8192, 8192, 1024, 28672, 128256),
        Decoder("Llama-3.2-1B", 2048, 2048, 512, 8192, 128256),
        Decoder("Llama-3.2-3B", 3072, 3072, 1024, 8192, 128256),
        Decoder("Llama-3.1-405B", 16384, 16384, 1024, 53248, 128256),
    ),
    "Qwen": (
        Decoder("Qwen2.5-0.5B", 896, 896, 128, 4864, 151936, biased=True),
        Decoder("Qwen2.5-1.5B", 1536, 1536, 256, 8960, 151936, biased=True),
        Decoder("Qwen2.5-3B", 2048, 2048, 256, 11008, 151936, biased=True),
        Decoder("Qwen2-7B", 3584, 3584, 512, 18944, 152064, biased=True),
        Decoder("Qwen2.5-14B", 5120, 5120, 1024, 13824, 152064, biased=True),
        Decoder("Qwen2.5-32B", 5120, 5120, 1024, 27648, 152064, biased=True),
        Decoder("Qwen2.5-72B", 8192, 8192, 1024, 29568, 152064, biased=True),
    ),
    "Mistral": (
        Decoder("Mistral-7B-v0.1", 4096, 4096, 1024, 14336, 32000),
        Decoder("Mistral-7B-v0.3", 4096, 4096, 1024, 14336, 32768),
        Decoder("Mistral-Nemo-12B", 5120, 4096, 1024, 14336, 131072),
        Decoder("Mistral-Small-22B", 6144, 6144, 1024, 16384, 32768),
        Decoder("Mistral-Small-24B", 5120, 4096, 1024, 32768, 131072),
        Decoder("Mistral-Large-123B", 12288, 12288, 1024, 28672, 32768),
    ),
}
# Tables of one bucket of 32 tokens, by which the listing is checked.
SHIPPED = {
    "Llama-3-8B": TABLES / "nvidia-h100-80gb-hbm3/zoo.llama3-8b-tokens.bf16.json",
    "Qwen2-7B": TABLES / "nvidia-h100-80gb-hbm3/zoo.qwen2-7b-tokens.bf16.json",
}


def gemm_keys(decoder: Decoder, m: int) -> Iterator[str]:
    """Yield the GEMM keys of a decode step of *decoder* with *m* tokens, equal layers once."""
    one, h = decoder, decoder.hidden

    def linear(n: int, k: int, epilogue: str, *, biased: bool = False) -> str:
        op, bias = ("addmm", " bias=1d") if biased else ("mm", "")
        operands = f"bf16 a=row b=col{bias} out=bf16"
        return f"{op} m={m} n={n} k={k} {operands} | epilogue={epilogue}"

    yield linear(one.q, h, "none", biased=one.biased)
    yield linear(one.kv, h, "none", biased=one.biased)
    yield linear(h, one.q, f"add(bf16[{m},1,{h}])")
    yield linear(one.mlp, h, f"silu,mul(bf16[{m},1,{one.mlp}])")
    yield linear(one.mlp, h, f"mul(bf16[{m},1,{one.mlp}])")
    yield linear(h, one.mlp, f"add(bf16[{m},1,{h}])")
    yield linear(h, one.mlp, f"add(bf16[{m},1,{h}]),to(f32)")
    yield linear(one.vocab, h, "none")
    yield "mm m=64 n=1 k=1 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"


def other_keys(decoder: Decoder, m: int, shipped: Table) -> Iterator[str]:
    """Yield as many launch and reduction keys as *shipped* has, one for each of its own.

    In place of a kernel's hash is that of its name and what it depends on: the sizes of the
    decoder, and the vocabulary where it reads tokens, whose range is checked in the kernel.
    """
    for key in shipped.rows:
        if not key.startswith(("launch ", "reduction ")):
            continue
        facts = [key, decoder.hidden, decoder.q, decoder.kv, m]
        facts += [decoder.vocab] if "i64" in key else []
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        yield re.sub(r"(source|body)=[0-9a-f]{16}", rf"\1={digest}", key)


def keys_of(decoder: Decoder, shipped: Table) -> list[str]:
    """Return the keys of *decoder* in every bucket, each once."""
    found = [
        key for m in BUCKETS for key in (*gemm_keys(decoder, m), *other_keys(decoder, m, shipped))
    ]
    return list(dict.fromkeys(found))


def check_listing() -> None:
    """Check that the listing has exactly the GEMM keys of the shipped tables."""
    decoders = {one.name: one for family in FAMILIES.values() for one in family}
    for name, path in SHIPPED.items():
        rows = read(path).rows
        own = {key for key in rows if key.startswith(("mm ", "addmm "))}
        if own != set(gemm_keys(decoders[name], 32)):
            raise SystemExit(f"the listing of {name} is not that of {path}")


def population(family: str, models: int) -> list[Decoder]:
    """Return *models* decoders of *family*: its sizes at random, some with added tokens."""
    chance = random.Random(f"{SEED} {family}")  # noqa: S311  a sample
    found = []
    for _ in range(models):
        one = chance.choice(FAMILIES[family])
        if chance.randrange(IN_ONE_OF) == 0:
            one = replace(one, vocab=one.vocab + 64 * chance.randint(1, ADDED_TOKENS))
        found.append(one)
    return found


def family_shares(family: str, models: int, folder: Path) -> dict[str, Any]:
    """Return which share of its problems each model of *family* has to tune, in turn.

    Each takes from the store what it has, and adds the rest, as `warmup build --store` does.
    """
    shipped = read(SHIPPED["Qwen2-7B" if family == "Qwen" else "Llama-3-8B"])
    by_word = {key.split(" ", 1)[0]: row for key, row in shipped.rows.items()}
    store, shares = RowStore(str(folder / family)), []
    tuned = asked = 0
    for decoder in population(family, models):
        keys = keys_of(decoder, shipped)
        like = replace(shipped, rows={})
        view = store.view(like) if store.is_there() else None
        missing = [key for key in keys if view is None or view.get(key) is None]
        rows = {key: by_word.get(key.split(" ", 1)[0], by_word["mm"]) for key in missing}
        store.add(replace(like, rows=rows))
        shares.append(len(missing) / len(keys))
        tuned, asked = tuned + len(missing), asked + len(keys)
    alone = replace(FAMILIES[family][0], vocab=1)
    new = [key for key in keys_of(alone, shipped) if store.view(like).get(key) is None]
    last = shares[-max(1, models // 10) :]
    return {
        "family": family,
        "models": models,
        "sizes": len(FAMILIES[family]),
        "problems_each": round(asked / models, 1),
        "first": round(shares[0], 4),
        "tenth": round(shares[min(9, models - 1)], 4),
        "hundredth": round(shares[min(99, models - 1)], 4),
        "last": round(shares[-1], 4),
        "last_percent": round(100 * shares[-1], 2),
        "mean_of_last_tenth": round(sum(last) / len(last), 5),
        "most_of_last_tenth": round(max(last), 4),
        "own_vocabulary": round(len(new) / len(keys_of(alone, shipped)), 4),
        "asked": asked,
        "tuned": tuned,
    }


def many_rows(count: int) -> Iterator[tuple[str, Row]]:
    """Yield *count* rows: those of the shipped tables with other sizes and other times."""
    chance = random.Random(SEED)  # noqa: S311  a sample
    own = [pair for path in sorted(TABLES.glob("*/*.json")) for pair in read(path).rows.items()]
    own = [(key, row) for key, row in own if ".." not in key]
    seen = set()
    while len(seen) < count:
        key, row = chance.choice(own)
        key = re.sub(r"\b([mx])=\d+", lambda m: f"{m[1]}={chance.randint(1, 8192)}", key, count=1)
        key = re.sub(r"\bn=\d+", lambda _: f"n={64 * chance.randint(1, 1024)}", key, count=1)
        digest = f"{chance.getrandbits(64):016x}"
        key = re.sub(r"(source|body)=[0-9a-f]{16}", rf"\1={digest}", key)
        if key not in seen:
            seen.add(key)
            yield key, replace(row, evidence=_other_times(row, chance))


def _other_times(row: Row, chance: random.Random) -> Any:
    """Return the evidence of *row* with other numbers, each of as many digits."""

    def other(number: float) -> float:
        digits = len(repr(number).replace(".", "").lstrip("0"))
        return float(f"{number * chance.uniform(0.2, 5):.{max(digits, 1)}g}")

    evidence = row.evidence
    names = ("time_us", "library_us", "runner_up_us", "bare_us", "spread", "error", "tflops")
    numbers = {
        name: other(value)
        for name in (*names, "gbps", "peak_share")
        if (value := getattr(evidence, name)) is not None
    }
    ranking = re.sub(
        r"(^|; )([0-9.]+)", lambda m: f"{m[1]}{other(float(m[2])):.3f}", evidence.ranking
    )
    return replace(evidence, **numbers, ranking=ranking)


def best_s(work: Callable[[], object], runs: int = 3) -> float:
    """Return the seconds of *work*, the least of some runs."""
    seconds = []
    for _ in range(runs):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return round(min(seconds), 3)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below *folder*."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def large_store(folder: Path, count: int) -> dict[str, Any]:
    """Return what a store takes whose *count* rows are all of one device, versions and policy."""
    shipped = replace(read(SHIPPED["Llama-3-8B"]), imported={})
    rows = dict(many_rows(count))
    keys = list(rows)
    place = folder / "rows"
    store = RowStore(str(place))
    all_at_once = best_s(lambda: store.add(replace(shipped, rows=rows)), 1)
    chance = random.Random(SEED + 1)  # noqa: S311  a sample
    some = chance.sample(keys, VIEW_ROWS)
    model = replace(shipped, rows={key: rows[key] for key in some})
    write(folder / "model.json", model)
    added: list[int] = []

    products = [key for key in keys if key.startswith(("mm ", "addmm "))]

    def add() -> None:
        """Add a table of 200 rows, half of them new."""
        batch = products[100 * len(added) :][:100]
        new = {f"{key},relu": rows[key] for key in batch}
        half = dict(list(model.rows.items())[:100])
        added.append(len(store.add(replace(shipped, rows=new | half)).added))

    found: dict[str, Any] = {
        "rows": count,
        "add_s": best_s(add),
        "added_each": added,
        "get_s": best_s(lambda: store.view(shipped, keys=some[:1]).get(some[0])),
        "view_rows": VIEW_ROWS,
        "view_s": best_s(lambda: view_like(store, model)),
        "list_s": best_s(store.load_all, 1),
        "add_all_s": all_at_once,
        "view_all_s": best_s(lambda: view_like(store, shipped, every=True), 1),
        "bytes": size_of(place),
        "megabytes": round(size_of(place) / 1e6, 2),
    }
    found["gc_s"] = best_s(lambda: sweep(store, ServedVersions()), 1)
    found["bytes_after_gc"] = size_of(place)
    found["files_after_gc"] = len([*place.glob("groups/*/*.rows")])
    words = ["-m", "warmup", "store", "get", "--like", "model.json", "--out", "out.json"]
    command = [sys.executable, *words, "--store", str(place)]
    found["get_command_s"] = best_s(lambda: _run(command, folder))
    words = ["-m", "warmup", "store", "add", "model.json", "--store", str(place)]
    command = [sys.executable, *words]
    found["add_command_s"] = best_s(lambda: _run(command, folder))
    return found


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=HERE / "results")
    parser.add_argument("--models", type=int, default=MODELS)
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()

    check_listing()
    machine = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),  # of other programs, before anything is measured
    }
    with tempfile.TemporaryDirectory() as folder:
        large = large_store(Path(folder), options.rows)
        _write(options.out / "store.json", {"machine": machine, **large})
        families = [family_shares(family, options.models, Path(folder)) for family in FAMILIES]
        document = {"machine": machine, "buckets": BUCKETS, "families": families}
        _write(options.out / "store-family.json", document)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
