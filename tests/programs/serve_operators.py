"""Serve operators of torch's own tests, quantized products and models of the zoo from tables.

    python serve_operators.py '{"operators": ["mm"], "mode": "default"}'

``operators`` are names of torch.testing's ``op_db``, or of `QUANTIZED`, or ``zoo:NAME``; with
``every``, each so many of ``op_db``. The first sample that compiles is served with its other inputs
frozen, as weights are. ``rows`` says what the table holds, see `TABLES`; by default no row.
``uncovered`` is that of the table, null without a table; with ``faulty`` the hook of selections
raises. Benchmarks are counted by warmup, and at inductor's benchmarkers apart from it. The result
has those of each operator, its kernels, its uncovered sites and what went wrong.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor import config
from torch._inductor.runtime.benchmarking import Benchmarker
from torch._inductor.utils import run_and_get_code
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from warmup.core.events import Emitter, Event, EventName
from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.inductor import connect
from warmup.inductor.gemm import hooks
from warmup.table.lookup import Lookup
from warmup.table.schema import BUILD_MODES, OnMiss, Uncovered

Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
BF16 = torch.bfloat16
CALL = re.compile(r"\b(?:extern_kernels|torch\.ops)\.[\w.]+(?=\()|\bcpp_fused\w*(?=\()")
counted: Counter[str] = Counter()
kernels: set[str] = set()


def count_at_the_benchmarkers() -> None:
    """Count in `counted` each call of inductor's benchmarkers, before warmup wraps anything."""
    pending = [Benchmarker]
    for owner in pending:
        pending += owner.__subclasses__()
        for name, function in list(vars(owner).items()):
            if name.startswith("benchmark") and callable(function):

                def count(*args: Any, name: str = name, plain: Any = function, **kw: Any) -> Any:
                    counted[name] += 1
                    return plain(*args, **kw)

                setattr(owner, name, count)


def _int8() -> Case:
    weight = torch.randint(-127, 127, (256, 128), dtype=torch.int8)
    inputs = (torch.randn(32, 128, dtype=BF16), weight, torch.rand(256, dtype=BF16))
    return torch.ops.aten._weight_int8pack_mm, inputs, {}


def _int4() -> Case:
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        torch.randint(0, 16, (256, 128), dtype=torch.int32), 1
    )
    scales = torch.rand(4, 256, 2, dtype=BF16)
    inputs = (torch.randn(32, 128, dtype=BF16), packed, 32, scales)
    return torch.ops.aten._weight_int4pack_mm_for_cpu, inputs, {}


def _qlinear() -> Case:
    ops = torch.ops.onednn
    weight = ops.qlinear_prepack(torch.randint(-127, 127, (256, 128), dtype=torch.int8), None)
    scales, zeros = torch.rand(256) / 100, torch.zeros(256, dtype=torch.int64)

    def multiply(x: Any, packed: Any, w_scale: Any, w_zero: Any) -> Any:
        quantized = (x, 0.02, 3, packed, w_scale, w_zero, None)
        return ops.qlinear_pointwise(*quantized, 1.0, 0, torch.float32, "none", [], "")

    x = torch.randint(0, 255, (32, 128), dtype=torch.uint8)
    return multiply, (x, weight, scales, zeros), {}


def _int_mm() -> Case:
    factors = [torch.randint(-127, 127, size, dtype=torch.int8) for size in ((32, 64), (64, 48))]
    return torch._int_mm, tuple(factors), {}


def _tuned_custom_op() -> Case:
    from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning

    def double_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 2 * (a @ b)

    def mm_of_double(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (2 * a) @ b

    op = torch.library.custom_op("warmup_tests::double_mm", double_mm, mutates_args=())
    op.register_fake(double_mm)
    configs = [CustomOpConfig(way) for way in (double_mm, mm_of_double)]
    register_custom_op_autotuning(op, configs=configs)
    return op, (torch.randn(32, 64), torch.randn(64, 48)), {}


QUANTIZED: dict[str, Callable[[], Case]] = {
    "int8": _int8,
    "int4": _int4,
    "qlinear": _qlinear,
    "int_mm": _int_mm,
    "custom_op": _tuned_custom_op,
}


EVIDENCE = Evidence(time_us=1.0, library_us=2.0, runner_up=None, runner_up_us=None, tried=2)
BLOCKS = tuple((name, 1) for name in ("block_k", "block_m", "block_n", "num_threads"))


class Always(dict[str, Row]):
    """A table with a row for each key that is asked for, whose winner inductor does not offer."""

    def __init__(self, winner: Winner) -> None:
        self.row = Row(winner, EVIDENCE)

    def get(self, _key: str, _default: Any = None) -> Row:
        return self.row

    __getitem__ = get

    def __contains__(self, _key: object) -> bool:
        return True


OTHERS = tuple(
    f"{op} m=7 n=7 k=7 f32 a=row b={b} out=f32 fp32=ieee | epilogue=none"
    for op, b in (("mm", "col"), ("packed_linear", "packed"))
)
TABLES: dict[str, Callable[[], dict[str, Row]]] = {
    "none": dict,
    "of another model": lambda: dict.fromkeys(
        OTHERS, Row(Winner(Family.EXTERN, "aten::mm"), EVIDENCE)
    ),
    "wrong libraries": lambda: Always(Winner(Family.EXTERN, "aten::nothing")),
    "wrong blocks": lambda: Always(Winner(Family.CPP, "cpp::CppPackedGemmTemplate", BLOCKS)),
    "wrong templates": lambda: Always(Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 16),))),
}


def model_and_inputs(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return what is compiled for *name*, and the arguments of its call."""
    # A model of the zoo is called in its first bucket.
    if not name.startswith("zoo:"):
        function, (given, *rest), kwargs = case_of(name)
        return Served(function, rest, kwargs), (given,), {}
    from torchvision_anywhere import import_torchvision

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "benchmarks"))
    import_torchvision()
    from zoo_models.entries import TINY

    from warmup.core.buckets import parse_buckets, parse_inputs
    from warmup.models.loading import load_model, make_inputs

    entry = TINY[name.removeprefix("zoo:")]
    loaded, bucket = load_model(entry.model), parse_buckets(None, entry.dims)[0]
    inputs = make_inputs(loaded, parse_inputs(entry.inputs), bucket, torch.device("cpu"), None)
    return loaded.module, tuple(inputs.args), dict(inputs.kwargs)


def case_of(name: str) -> Case:
    """Return the function and the inputs of the operator *name*."""
    if name in QUANTIZED:
        return QUANTIZED[name]()
    operator = next(one for one in op_db if one.full_name == name)
    dtypes = operator.supported_dtypes("cpu")
    dtype = next((one for one in (torch.float32, BF16) if one in dtypes), next(iter(dtypes)))
    samples = list(operator.sample_inputs("cpu", dtype))
    # The largest has the fewest special cases.
    sample = max(samples, key=lambda one: one.input.numel() if hasattr(one.input, "numel") else 0)
    return operator.op, (sample.input, *sample.args), sample.kwargs


class Served(nn.Module):
    """Calls *function* with its first input given and all other tensors constant."""

    def __init__(self, function: Callable[..., Any], rest: Any, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        leaves, self.spec = tree_flatten((rest, kwargs))
        self.leaves: list[Any] = [None if torch.is_tensor(one) else one for one in leaves]
        for number, leaf in enumerate(leaves):
            if torch.is_tensor(leaf):
                setattr(self, f"w{number}", nn.Parameter(leaf.detach(), requires_grad=False))

    def forward(self, given: Any) -> Any:
        leaves = [getattr(self, f"w{n}", leaf) for n, leaf in enumerate(self.leaves)]
        rest, kwargs = tree_unflatten(leaves, self.spec)
        return self.function(given, *rest, **kwargs)


def serve(name: str, mode: str) -> str | None:
    """Compile and call the operator *name*; return what went wrong, None where nothing did."""
    torch.manual_seed(0)
    try:
        model, args, kwargs = model_and_inputs(name)
        wanted = tree_leaves(model(*args, **kwargs))
    except Exception as error:  # noqa: BLE001  not every operator can be called like this
        return f"eager: {type(error).__name__}: {str(error)[:200]}"
    torch._dynamo.reset()
    try:
        compiled = torch.compile(model, dynamic=False, mode=mode)
        output, codes = run_and_get_code(compiled, *args, **kwargs)
        kernels.update(CALL.findall("".join(codes)))
        found = tree_leaves(output)
        if name.startswith("zoo:"):  # one tensor is enough, and caches of keys are no outputs
            found, wanted = found[:1], wanted[:1]
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2, equal_nan=True)
    except Exception as error:  # noqa: BLE001  reported
        return f"compiled: {type(error).__name__}: {str(error)[:300]}"
    return None


def _raise(*_args: Any) -> Any:
    raise RuntimeError("planted")


def main() -> None:
    asked = json.loads(sys.argv[1])
    names = list(asked.get("operators", ()))
    names += [one.full_name for one in op_db[:: asked["every"]]] if "every" in asked else []
    warnings.simplefilter("ignore")
    count_at_the_benchmarkers()
    events: list[Event] = []
    word = Uncovered(asked["uncovered"] or "library")
    rows = TABLES[asked.get("rows", "none")]()
    lookup = Lookup(rows, OnMiss.FALLBACK, Emitter([events.append]), on_uncovered=word)
    inductor, results = connect(), {}
    options = {**inductor.quiet_switches(), **BUILD_MODES["max-autotune"], "freezing": True}
    options["max_autotune_gemm_backends"] = "ATEN,CPP"
    if asked.get("faulty"):
        hooks.covers = hooks.describe = _raise  # type: ignore[assignment]  the test's own fault
    stack = contextlib.ExitStack()
    if asked["uncovered"] is None:
        stack.enter_context(config.patch({"freezing": True}))
    else:
        stack.callback(inductor.attach(lookup, options, "test", quiet=True).detach)
    with stack, inductor.count_benchmarks() as sites, torch.no_grad():
        for name in dict.fromkeys(names):
            for counts in (counted, sites, events, kernels):
                counts.clear()
            problem = serve(name, asked.get("mode", "default"))
            results[name] = {
                "problem": problem,
                "benchmarks": sum(counted.values()),
                "counted": dict(sites),
                "kernels": sorted(kernels),
                "misses": [e.fields["key"] for e in events if e.name is EventName.MISSED],
                "uncovered": [e.fields["site"] for e in events if e.name is EventName.UNCOVERED],
            }
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
