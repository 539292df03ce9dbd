"""Lower each GEMM of an exported lookup table on the device that its keys name, without warmup.

    python -I serve_exported.py FOLDER

FOLDER has ``lookup_table.json``, ``load.py``, which is run, and `fake_gpu`. Prints by torch's key
what was left to choose from, whether the first is the exported kernel, launches, and measurements.
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

import fake_gpu  # noqa: E402

fake_gpu.pretend(next(iter(TABLE)).partition("+")[0])
exec(Path("load.py").read_text())  # noqa: S102  the lines of the page

from torch._inductor import config, select_algorithm  # noqa: E402
from torch._inductor.debug import DebugContext  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

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


def lower(key: str) -> list[str]:
    """Return what the code of the GEMM launches."""
    op, mode, inputs = key.rpartition("+")[2], FakeTensorMode(allow_non_fake_inputs=True), []
    with mode, torch.no_grad():
        for name, *lists in OPERANDS.findall(key):
            sizes, strides = map(json.loads, lists)
            while strides and not strides[0]:  # a model has the bias as it is, not as it is added
                del sizes[0], strides[0]
            dtype = getattr(torch, name)
            inputs.append(torch.empty_strided(sizes, strides, dtype=dtype, device="cuda:0"))
        graph = make_fx(PRODUCTS.get(op) or getattr(torch, op))(*inputs)
    with V.set_fake_mode(mode), V.set_debug_handler(DebugContext()), config.patch(OPTIONS):
        post_grad_passes(graph, is_inference=True)
        lowering = GraphLowering(graph, example_inputs=inputs, is_inference=True)
        with V.set_graph_handler(lowering):
            lowering.run(*inputs)
            code = lowering.codegen()[0]
    return re.findall(r"\b(triton_\w+\.run|extern_kernels\.\w+)\(", getattr(code, "value", code))


select_algorithm.AlgorithmSelectorCache.do_autotuning = count
select_algorithm.add_preprocessing_fn(note)
for key, (kernel,) in TABLE.items():
    MEASURED.clear(), CHOICES.clear()
    said: dict[str, Any] = {"launches": lower(key), "measured": len(MEASURED)}
    said["choices"] = [choice["template_id"] for choice in CHOICES]
    kernel.pop("template_hash", None)
    said["is_exported"] = CHOICES[0].items() >= kernel.items()
    sys.stdout.write(json.dumps([key, said]) + "\n")
