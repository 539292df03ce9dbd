"""Serve a model from a bundle's artifacts; print what came of it as JSON, by change.

    python serve_artifacts.py MODEL TABLE BUNDLE SIZES CHANGE,... [POLICY]

Each of `CHANGES` changes a model of its own before it is served. For each size, ``frames`` counts
what dynamo traced, ``graphs`` what inductor lowered and ``benchmarks`` what it measured.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import warmup
from warmup.buckets.bucket import parse_buckets
from warmup.models.loading import LoadedModel, load_model, make_inputs

CPU = torch.device("cpu")


def keep(model: Any) -> None:
    """Change nothing."""


def rename(model: Any) -> None:
    """Give the weight of a layer another name."""
    first = model.layers[0]
    first.renamed = first.up
    del first.up
    first.forward = lambda x: nn.functional.gelu(first.renamed(x)) * first.scale


def widen(model: Any) -> None:
    """Let two layers pass wider tensors."""
    model.layers[0].up, model.layers[1].up = nn.Linear(32, 48), nn.Linear(48, 32)


def tie(model: Any) -> None:
    """Let two layers share their weights."""
    model.layers[1].up.weight = model.layers[0].up.weight


def transpose(model: Any) -> None:
    """Give a weight other strides."""
    up = model.layers[0].up
    up.weight = nn.Parameter(up.weight.detach().t().contiguous().t())


def scale(model: Any) -> None:
    """Change a number that forward reads."""
    model.layers[0].scale = 3.0


def swap_function(model: Any) -> None:
    """Give a layer another activation, which no guard of an artifact sees."""
    model.layers[0].activation = lambda x: torch.relu(x)  # noqa: PLW0108  a function in Python


def add_output(model: Any) -> None:
    """Return a second tensor, which no guard of an artifact sees."""
    model.finish = lambda x: (x, x)


def loosen(model: Any) -> None:
    """Let forward take any number of arguments, as a decorator may."""
    original = model.forward
    model.forward = lambda x, y, *others, **named: original(x, y, *others, **named)  # noqa: PLW0108  another signature


CHANGES = {
    each.__name__: each
    for each in (
        *(keep, rename, widen, tie, transpose, scale, swap_function),
        *(add_output, loosen),
    )
}


def relative(found: Any, expected: Any) -> float:
    """Return how far the tensors are apart; of several, the first."""
    if isinstance(expected, tuple):
        found, expected = found[0], expected[0]
    return float((found - expected).norm() / expected.norm())


def serve(
    loaded: LoadedModel, table: str, bundle: str, sizes: tuple[int, ...], policy: str
) -> dict[str, Any]:
    """Call every size twice, then make a call of another kind; return all counts."""
    from torch._dynamo.utils import counters
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.benchmarking import Benchmarker

    module = loaded.module
    served = warmup.compile(
        module,
        dims={"x": {1: "seqlen"}},
        buckets=sizes,
        policy=policy,
        independent=("seqlen",),
        table=table,
        bundle=bundle,
    )
    handle = served.handle
    assert handle is not None
    assert handle.bundle is not None
    lowered: list[object] = []
    measured: list[object] = []

    def counting(original: Callable[..., Any], into: list[object]) -> Callable[..., Any]:
        def count(this: Any, *args: Any, **kwargs: Any) -> Any:
            into.append(this)
            return original(this, *args, **kwargs)

        return count

    counters.clear()
    by_size: dict[int, dict[str, Any]] = {}
    with (
        torch.no_grad(),
        patch.object(GraphLowering, "run", counting(GraphLowering.run, lowered)),
        patch.object(Benchmarker, "benchmark", counting(Benchmarker.benchmark, measured)),
    ):
        for bucket in parse_buckets(sizes, None):
            args = make_inputs(loaded, (), bucket, CPU, None).args
            errors = [relative(served(*args), module(*args)) for _ in range(2)]
            by_size[dict(bucket.sizes)["seqlen"]] = {
                "frames": counters["stats"]["unique_graphs"],
                "graphs": len(lowered),
                "benchmarks": len(measured),
                "compiled": handle.bundle.compiled_besides(),
                "error": max(errors),
            }
        odd_error = None
        if served.report().bundled:
            args = make_inputs(loaded, (), parse_buckets(sizes[:1], None)[0], CPU, None).args
            odd = served(*args, negative=True)
            odd_error = relative(odd, module(*args, negative=True))
    report = handle.report()
    served.close()
    return {
        **asdict(served.report()),
        "sizes": by_size,
        "odd_error": odd_error,
        "bundle_refused": handle.bundle.refused,
        "from_cache": report.from_cache,
        "decisions": report.cached_decisions,
        "artifact_rows": dict(report.artifact_rows),
        "artifacts_refused": report.artifacts_refused,
        "unused": report.unused,
        "text": str(report),
        "model_text": str(served.report()),
    }


def main(model: str, table: str, bundle: str, sizes: str, *words: str) -> None:
    """Print the counts of each change."""
    found = {}
    changes, policy = (*words, "exact")[:2]
    for change in changes.split(","):
        torch.manual_seed(0)
        torch.compiler.reset()
        loaded = load_model(model)
        CHANGES[change](loaded.module)
        found[change] = serve(loaded, table, bundle, tuple(map(int, sizes.split(","))), policy)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
