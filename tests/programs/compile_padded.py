"""Pads a small model, compiles it plain and frozen, and prints what came of it as JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

from warmup.keys.gemm import Dim
from warmup.keys.pad import Padding, padded_sizes
from warmup.models.weight_groups import PaddedLinear, find_groups, pad

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from padding_models import LanguageModel


def main() -> None:
    torch.manual_seed(0)
    said = {}
    for name, freezing in (("plain", False), ("frozen", True), ("in part", False)):
        torch.compiler.reset()
        model = LanguageModel().eval()
        inputs = torch.arange(7), torch.randn(7, 30)
        with torch.no_grad(), config.patch(freezing=freezing):
            expected = model(*inputs)
            groups = find_groups(model).groups
            as_is = (Dim.of(7),) if name == "in part" else ()
            paddings = {
                g: Padding(
                    padded_sizes(g.structure.features, "f32")[0],
                    as_is if g.structure.differs_by_rows else (),
                )
                for g in groups
            }
            pad(model, paddings)
            compiled = torch.compile(model, fullgraph=True, dynamic=False)
            found, codes = run_and_get_code(compiled, *inputs)
            with torch.compiler.set_stance("fail_on_recompile"):
                compiled(inputs[0], inputs[1] + 1)
        matrices = re.findall(r"reinterpret_tensor\(arg\d+_1, \((\d+), (\d+)\)", codes[0])
        said[name] = {
            "padded": sum(isinstance(module, PaddedLinear) for module in model.modules()),
            "error": (found - expected).abs().max().item(),
            "graphs": len(codes),
            "kernels": sorted({*re.findall(r"cpp_fused_\w+", codes[0])}),
            "weights": [[int(n), int(k)] for k, n in matrices],
        }
    json.dump(said, sys.stdout)


main()
