"""`spec_of` and `make_call`: a choice as plain values, and a call made from these values.

The call can be made in another process than the one that lowers the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._inductor.autotune_process import (
    ExternKernelBenchmarkRequest,
    ExternKernelGPUBenchmarkRequest,
    TensorMeta,
    TritonBenchmarkRequest,
    TritonGPUBenchmarkRequest,
)
from torch._inductor.codecache import PyCodeCache
from torch._inductor.codegen.subgraph import SubgraphChoiceCaller
from torch._inductor.select_algorithm import DataProcessorChoiceCallerWrapper

from warmup.core.trial import Candidate, Operands, Spec, TimedCall

RunKernel = Callable[[], Any]

# Constructor arguments of inductor's request for a template (autotune_process.py).
_TEMPLATE_FIELDS: Final = (
    *("kernel_name", "module_path", "module_cache_key", "num_stages", "num_warps"),
    *("num_consumer_groups", "num_buffers_warp_spec", "matrix_instr_nonkdim", "waves_per_eu"),
    *("kpack", "workspace_size", "workspace_zero_fill"),
)
_PLAIN_TYPES: Final = (bool, int, float, str, type(None))


def spec_of(choice: Any) -> Spec | None:
    """Return plain values from which `make_call` can call *choice*; None if that is impossible."""
    if isinstance(choice, DataProcessorChoiceCallerWrapper):
        return None  # it changes its operands by Python code
    if isinstance(choice, SubgraphChoiceCaller):
        module = choice._compile_for_benchmarking()
        return {
            "subgraph": module.__file__,
            "key": module.key,
            "sizes": [int(value) for value in choice.sym_input_values],
        }
    request = getattr(choice, "bmreq", None)
    if isinstance(request, TritonBenchmarkRequest):
        fields = {name: getattr(request, name) for name in _TEMPLATE_FIELDS}
        return _plain({"template": fields, "extra": list(request.extra_args)})
    if isinstance(request, ExternKernelBenchmarkRequest):
        return _plain(
            {
                "extern": request.kernel_name,
                "kwargs": {name: _to_plain(value) for name, value in request.kwargs.items()},
                "writes": bool(request.has_out_variant),
            }
        )
    return None


def _to_plain(value: Any) -> Any:
    """Return *value*, a dtype as an object with its name: `torch._scaled_mm` takes one."""
    is_dtype = isinstance(value, torch.dtype)
    return {"dtype": str(value).removeprefix("torch.")} if is_dtype else value


def _from_plain(value: Any) -> Any:
    return getattr(torch, value["dtype"]) if isinstance(value, dict) else value


def _plain(spec: Spec) -> Spec | None:
    def is_plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(isinstance(name, str) and is_plain(item) for name, item in value.items())
        return (
            all(map(is_plain, value))
            if isinstance(value, list)
            else isinstance(value, _PLAIN_TYPES)
        )

    return spec if is_plain(spec) else None


def make_call(candidate: Candidate, sets: Operands) -> TimedCall:
    """Return the call of *candidate* on the operand sets *sets*.

    The call returns a new output tensor, or None if it wrote the output of its operand set.

    Raises:
        Exception: an error from loading or compiling the candidate.
        ValueError: the candidate's spec is of no known form.
    """
    spec = candidate.spec
    numbers = range(sets.count)
    if "template" in spec:
        return _in_turn([_template(spec, sets, number) for number in numbers])
    if "subgraph" in spec:
        return _subgraph(spec, sets)
    if "extern" in spec:
        return _in_turn([_extern(spec, sets, number) for number in numbers])
    raise ValueError(f"{candidate.winner} has no spec to call it by")


def _in_turn(runs: Sequence[RunKernel]) -> TimedCall:
    def call(number: int) -> object:
        return runs[number % len(runs)]()

    return call


def _template(spec: Spec, sets: Operands, number: int) -> RunKernel:
    out, operands = sets.out(number), sets.operands(number)
    request = TritonGPUBenchmarkRequest(
        input_tensor_meta=[_meta(operand) for operand in operands],
        output_tensor_meta=_meta(out),
        extra_args=list(spec["extra"]),
        **spec["template"],
    )
    run = request.make_run_fn(*operands, out=out)

    def write() -> None:
        run()

    return write


def _extern(spec: Spec, sets: Operands, number: int) -> RunKernel:
    request = ExternKernelGPUBenchmarkRequest(
        kernel_name=spec["extern"],
        input_tensor_meta=[],
        output_tensor_meta=[],
        extra_args=(),
        callable_path=f"extern_kernels.{spec['extern']}",
        kwargs={name: _from_plain(value) for name, value in spec["kwargs"].items()},
        has_out_variant=spec["writes"],
    )
    out = sets.out(number, at_offset=True)
    run: RunKernel = request.make_run_fn(*sets.views(number), out=out)
    return run


def _subgraph(spec: Spec, sets: Operands) -> TimedCall:
    module = PyCodeCache.load_by_key_path(spec["key"], spec["subgraph"])

    def call(number: int) -> object:
        outputs = module.call([*spec["sizes"], *sets.views(number)])  # empties its argument
        return outputs[0] if isinstance(outputs, (list, tuple)) else outputs

    return call


def _meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(
        device=tensor.device,
        dtype=tensor.dtype,
        sizes=tuple(tensor.shape),
        strides=tensor.stride(),
        offset=int(tensor.storage_offset()),
    )
