"""`CompiledFunction`: what is timed in a generated module, and that the module is as before."""

from __future__ import annotations

import time
import types
from typing import Any

from warmup.inductor.host_parts import CompiledFunction

# As inductor generates it for a GPU: an allocation, a template, a library call, an operator.
GENERATED = """
def call(args):
    buffer = empty_strided_cuda((2, 3), (3, 1), None)
    triton_tem_fused_mm_0.run(args, buffer, stream=0)
    extern_kernels.mm(args, args, out=buffer)
    torch.ops.mkl._mkl_linear.default(args)
    assert_size_stride(args)
    return torch.float32
"""
PART_S = 0.002


def generated() -> Any:
    def wait(*_args: object, **_kwargs: object) -> None:
        time.sleep(PART_S)

    module: Any = types.ModuleType("generated")
    module.empty_strided_cuda = wait
    module.triton_tem_fused_mm_0 = types.SimpleNamespace(run=wait)
    module.extern_kernels = types.SimpleNamespace(mm=wait)
    operator = types.SimpleNamespace(default=wait)
    operators = types.SimpleNamespace(mkl=types.SimpleNamespace(_mkl_linear=operator))
    module.torch = types.SimpleNamespace(ops=operators, float32="f32")
    module.assert_size_stride = wait
    exec(GENERATED, vars(module))  # noqa: S102  as inductor loads it
    return module


def test_allocations_and_launches_are_timed_and_checks_are_not() -> None:
    """One allocation, three launches; what is neither stays in the rest."""
    module = generated()
    function = CompiledFunction(generated, {}, [module])
    with function.timing_parts() as parts:
        assert module.call("a") == "f32"
    least_us = PART_S * 1e6
    assert parts.allocation_us >= least_us
    assert parts.launch_us >= 3 * least_us
    assert parts.allocation_us < parts.launch_us


def test_the_module_is_as_before() -> None:
    """Every global is the original one after the parts were timed."""
    module = generated()
    before = dict(vars(module))
    with CompiledFunction(generated, {}, [module]).timing_parts():
        assert module.extern_kernels is not before["extern_kernels"]
    assert vars(module) == before
    assert all(vars(module)[name] is value for name, value in before.items())


def test_guards_that_do_not_hold_have_no_time() -> None:
    """A function that was never compiled has no guards to time."""
    assert CompiledFunction(generated, {}).guards_us(3) is None
