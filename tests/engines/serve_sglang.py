"""A program that compiles as one path of SGLang 0.5.23 does, and prints what it did.

    python serve_sglang.py decode|prefill|cpu [MODEL]

For the two paths of GPUs the plugins are loaded, and a small model is compiled, by SGLang's own
functions, which this program calls in the engine's place. For the CPU path it starts SGLang's
engine with MODEL and generates a few tokens.
"""

from __future__ import annotations

import importlib.machinery
import json
import logging
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpulike"))

from choices_for_inputs import freeze_no_weights, offer_templates_for_inputs

BATCHES = (4, 2)  # SGLang captures the largest batch first
TOKENS = (16, 32)  # of prefills, also the longest first
WIDTH, INNER = 256, 512
GROUP: Any = SimpleNamespace(ca_comm=None)  # all that patch_model takes from a group of ranks


@torch.library.custom_op("standin::attention", mutates_args=())
def _attention(hidden: torch.Tensor) -> torch.Tensor:
    return torch.softmax(hidden @ hidden.T, dim=-1) @ hidden


@_attention.register_fake
def _(hidden: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(hidden)


def _model() -> nn.Module:
    from sglang.kernels.fused_op import BaseFusedOp

    class SiluAndMul(BaseFusedOp):  # patch_model switches SGLang's ops to their torch form
        def forward_native(self, both: torch.Tensor) -> torch.Tensor:
            gate, up = both.chunk(2, dim=-1)
            return nn.functional.silu(gate) * up

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(WIDTH)
            self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
            self.activation = SiluAndMul()
            self.down = nn.Linear(INNER, WIDTH, bias=False)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden + self.down(self.activation(self.gate_up(self.norm(hidden))))

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(), Block()

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.second(torch.ops.standin.attention(self.first(hidden)))

    torch.manual_seed(0)
    return Layers().eval().requires_grad_(requires_grad=False)


def _hidden(rows: int) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))


def decode(model: nn.Module) -> list[torch.Tensor]:
    """Run a block as the capture of the decode sizes does under ``--enable-torch-compile``."""
    from sglang.srt.compilation.torch_compile_decoration import (
        patch_model,
        set_torch_compile_config,
    )

    _be_like_a_gpu()
    set_torch_compile_config()
    outputs = []
    for rows in BATCHES:
        with patch_model(model.first, True, num_tokens=rows, tp_group=GROUP) as forward:
            outputs.append(forward(_hidden(rows)))
    return outputs


def prefill(model: nn.Module) -> list[torch.Tensor]:
    """Run *model*, cut at attention, through the compile pass of the piecewise prefill."""
    _be_like_a_gpu()  # before the imports, under whose decorators a recording begins
    _stand_in_for_torchvision()
    _stand_in_for_weak_references()
    from sglang.srt.compilation.compilation_config import CompilationConfig
    from sglang.srt.model_executor.runner_backend import TcPiecewiseCudaGraphBackend
    from sglang.srt.runtime_context import get_parallel

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    outputs: dict[int, torch.Tensor] = {}

    def forward(num_tokens: int) -> None:
        with torch.no_grad():
            outputs[num_tokens] = model(_hidden(num_tokens))

    runner: Any = SimpleNamespace(
        capture_num_tokens=TOKENS,
        _run_dummy_forward=forward,
        run_dummy_multimodal_deepstack_forward=lambda *_: None,
    )
    backend: Any = object.__new__(TcPiecewiseCudaGraphBackend)  # its constructor wants an engine
    backend._compile_config = CompilationConfig(list(TOKENS), "inductor")
    backend._compile_config.add_split_op("standin.attention")
    backend._language_model = model
    backend._pool = object()  # only the capture of CUDA graphs allocates from it
    with get_parallel().override(tp_rank=0):
        backend._run_compile_pass(runner)
    return [outputs[rows] for rows in TOKENS]


def _be_like_a_gpu() -> None:
    offer_templates_for_inputs()
    if "WARMUP_RECORDING" in os.environ:
        freeze_no_weights()


def _stand_in_for_weak_references() -> None:
    # SGLang's module raises where there is no GPU; only the capture of CUDA graphs calls it.
    name = "sglang.srt.model_executor.runner_backend_utils.weak_ref_tensor"
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__dict__["weak_ref_tensors"] = lambda tensors: tensors


def _stand_in_for_torchvision() -> None:
    # The runner imports all of SGLang's model configs, and one of these torchvision, which has no
    # build for this torch. Transformers is to know that there is none.
    from transformers.utils.import_utils import is_torchvision_available

    is_torchvision_available()  # remembered

    for name in ("", ".transforms", ".transforms.functional", ".transforms.v2", ".io"):
        module = _Anything(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.__path__ = []
        sys.modules[module.__name__] = module


class _Anything(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return SimpleNamespace()


def _be_like_sglangs_cpu() -> None:
    """Let SGLang's CPU graph runner run without SGLang's CPU kernels, in this process."""
    # The kernels need AVX512 or AMX and are built from source. Attention is torch's, which SGLang
    # has as a backend without graphs.
    _stand_in_for_torchvision()
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.model_executor import cpu_graph_runner
    from sglang.srt.platforms import current_platform
    from sglang.srt.platforms.interface import PlatformCapabilities

    class Attention(TorchNativeAttnBackend):
        def get_cpu_graph_seq_len_fill_value(self) -> int:
            return 1

        def init_cpu_graph_state(self, *_: Any) -> None:
            pass

        def init_forward_metadata_capture_cpu_graph(self, *_: Any) -> None:
            pass

    # Under the name of another backend: SGLang switches graphs off for its torch_native.
    ATTENTION_BACKENDS["triton"] = Attention
    type(current_platform).capabilities = PlatformCapabilities(graph_capture=True)
    cpu_graph_runner.register_fake_ops = lambda *_: None  # those of the kernels
    cpu_graph_runner.register_inductor_fallback_ops = lambda: None


def _start_engine(model: str) -> dict[str, Any]:
    _be_like_sglangs_cpu()
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(
        model_path=model,
        device="cpu",
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        attention_backend="triton",
        sampling_backend="pytorch",
        enable_torch_compile=True,
        torch_compile_max_bs=2,
        cuda_graph_bs_decode=[2],
        max_total_tokens=1024,
        mem_fraction_static=0.1,
        random_seed=0,
        log_level="info",
    )
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    answers = engine.generate(input_ids=[[1, 5, 9, 20], [1, 7]], sampling_params=sampling)
    return {"tokens": [each["output_ids"] for each in answers]}


def _compile_alone(path: str) -> dict[str, Any]:
    from sglang.srt.plugins import load_plugins

    logging.basicConfig()
    logging.getLogger("sglang.srt.plugins").setLevel(logging.INFO)
    load_plugins()
    was_installed = _is_installed()
    outputs = {"decode": decode, "prefill": prefill}[path](_model())
    from torch._dynamo.utils import counters

    return {
        "installed": [was_installed, _is_installed()],  # by the plugin, and after the compiles
        "sums": [float(each.double().sum()) for each in outputs],
        "benchmarks": sum(n for name, n in counters["inductor"].items() if "benchmark" in name)
        + counters["inductor"]["select_algorithm_autotune"],
    }


def _is_installed() -> bool:
    from warmup.serving.handle import installed

    return installed() is not None


def _main() -> None:
    path, *rest = sys.argv[1:]
    said = _start_engine(*rest) if path == "cpu" else _compile_alone(path)
    sys.stdout.write(f"SAID {json.dumps(said)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main()
elif __name__ == "__mp_main__":  # a process that SGLang's engine has spawned
    _be_like_sglangs_cpu()
