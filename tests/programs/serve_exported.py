"""Compile each GEMM of an exported lookup table on the device that its keys name, without warmup.

    python -I serve_exported.py FOLDER

FOLDER has ``lookup_table.json`` and `fake_gpu`, for which the GEMMs are lowered; on a GPU they are
called too. The lines that load the table are those of the page. Prints by torch's key what was left
to choose from, whether the first is the exported kernel, launches, measurements, and on a GPU the
relative error of the result.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch

os.chdir(sys.argv[1])
sys.path.append(str(Path.cwd()))
sys.modules["warmup"] = None  # type: ignore[assignment]  cannot be imported
TABLE: dict[str, list[dict[str, Any]]] = json.loads(Path("lookup_table.json").read_text())
ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    import fake_gpu

    fake_gpu.pretend(next(iter(TABLE)).partition("+")[0])
PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/exchange-with-torch.md"
(LINES,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
exec(LINES)  # noqa: S102  of our own page

from torch._inductor import config, select_algorithm  # noqa: E402
from torch._inductor.debug import DebugContext  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

LAUNCH = re.compile(r"\b(triton_\w+\.run|extern_kernels\.\w+)\(")
OPERANDS = re.compile(r"\(torch\.(\w+), (\[[0-9, ]*\]), (\[[0-9, ]*\])\)")
PRODUCTS = {"mm_plus_mm": lambda a, b, c, d: a @ b + c @ d, "int_mm": torch._int_mm}
OPTIONS = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
MEASURED: list[str] = []
CHOICES: list[dict[str, Any]] = []


def count(_: Any, *arguments: Any, **__: Any) -> dict[Any, float]:
    MEASURED.append(arguments[0])
    return dict.fromkeys(arguments[5], 1.0)  # the choices


def note(choices: list[Any]) -> list[Any]:
    named = (choice.annotations["ktc"] for choice in choices)
    CHOICES.extend({"template_id": one.template.uid, **one.params.to_kwargs()} for one in named)
    return choices


def inputs_of(key: str) -> list[torch.Tensor]:
    inputs = []
    for name, *lists in OPERANDS.findall(key):
        sizes, strides = map(json.loads, lists)
        while strides and not strides[0]:  # a model has the bias as it is, not as it is added
            del sizes[0], strides[0]
        dtype = getattr(torch, name)
        inputs.append(torch.empty_strided(sizes, strides, dtype=dtype, device="cuda:0"))
    return inputs


def lower(key: str, product: Any) -> list[str]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        inputs = inputs_of(key)
        graph = make_fx(product)(*inputs)
    with V.set_fake_mode(mode), V.set_debug_handler(DebugContext()), config.patch(OPTIONS):
        post_grad_passes(graph, is_inference=True)
        lowering = GraphLowering(graph, example_inputs=inputs, is_inference=True)
        with V.set_graph_handler(lowering):
            lowering.run(*inputs)
            code = lowering.codegen()[0]
    return LAUNCH.findall(getattr(code, "value", code))


def call(key: str, product: Any) -> dict[str, Any]:
    """Return what the code of the GEMM launches, and the error of what the GEMM returns."""
    inputs = inputs_of(key)
    for one in inputs:
        one.normal_() if one.is_floating_point() else one.random_(-9, 9)
    torch._dynamo.reset()
    compiled = torch.compile(product, dynamic=False, options=OPTIONS)
    with torch.no_grad():
        found, codes = run_and_get_code(compiled, *inputs)
        wanted = product(*inputs).float()
    error = (found.float() - wanted).norm() / wanted.norm()
    return {"launches": LAUNCH.findall(codes[0]), "error": float(error)}


select_algorithm.AlgorithmSelectorCache.do_autotuning = count
select_algorithm.add_preprocessing_fn(note)
for key, (kernel,) in TABLE.items():
    MEASURED.clear(), CHOICES.clear()
    op = key.rpartition("+")[2]
    product = PRODUCTS.get(op) or getattr(torch, op)
    said = call(key, product) if ON_GPU else {"launches": lower(key, product)}
    said["measured"] = len(MEASURED)
    said["choices"] = [choice["template_id"] for choice in CHOICES]
    kernel.pop("template_hash", None)
    said["is_exported"] = CHOICES[0].items() >= kernel.items()
    sys.stdout.write(json.dumps([key, said]) + "\n")
