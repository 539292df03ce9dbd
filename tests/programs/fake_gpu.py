"""A stated H100 for a machine without a GPU: enough for inductor to lower, schedule and generate.

Shows what inductor generates given that a card qualifies. Triton compiles for it (ptxas needs no
device); `pretend_launches` stands for the rest: loading, launching and timing a kernel.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

NAME = "NVIDIA H100 80GB HBM3"
_FACTS = {
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
}


def make_range(shapes: Any, low: int, high: int, *, hint: int, name: str = "s_m") -> Any:
    """Return a size in *shapes*, a ShapeEnv, that is a range; to be called after `pretend`."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StrictMinMaxConstraint
    from torch.utils._sympy.value_ranges import ValueRanges

    source = ConstantSource(name)
    symbol = shapes.create_symbol(
        hint,
        source=source,
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=StrictMinMaxConstraint(vr=ValueRanges(low, high), warn_only=False),
    )
    return shapes.create_symintnode(symbol, hint=hint, source=source)


def pretend(name: str = NAME) -> None:
    """Answer every device query with the stated H100, by any *name*, from now on."""
    properties = types.SimpleNamespace(
        **_FACTS,
        name=name,
        gcnArchName=name,
        total_memory=80 << 30,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=50 << 20,
    )
    _pretend_torch(properties)
    _pretend_inductor(properties)
    _pretend_triton()


@dataclass(slots=True)
class Work:
    """What inductor asked for, config by config: compiles are real, times stated, launches void."""

    compiled: list[str] = field(default_factory=list)
    timed: dict[str, float] = field(default_factory=dict)
    launched: list[str] = field(default_factory=list)

    def clear(self) -> None:
        self.compiled.clear()
        self.timed.clear()
        self.launched.clear()


@dataclass(slots=True, eq=False)
class _Launcher:
    """What inductor reads of a kernel that is loaded on the device."""

    config: Any
    log: list[str]
    cache_hash: str = "0"
    n_regs: int = 32
    n_spills: int = 0
    shared: int = 0
    store_cubin: bool = False

    def __call__(self, *_: Any, **__: Any) -> None:
        self.log.append(spell(self.config))


def spell(config: Any) -> str:
    from torch._inductor.runtime.runtime_utils import triton_config_to_hashable

    spelled: Any = triton_config_to_hashable(config)
    return ",".join(f"{name}={value}" for name, value in sorted(spelled))


def pretend_launches(
    time_us: Callable[[Mapping[str, int]], float], refuses: Callable[[str], bool]
) -> Work:
    """Load, launch and time generated kernels on nothing; return the log, which goes on growing."""
    # *time_us* states the time of a config. A config that *refuses* says true of does not load, as
    # one that needs more than the device has.
    from torch._dynamo import device_interface
    from torch._inductor.runtime import triton_heuristics
    from torch._inductor.runtime.triton_compat import OutOfResources

    work = Work()
    tuner: Any = triton_heuristics.CachingAutotuner
    compile_config = tuner._precompile_config

    @functools.wraps(compile_config)
    def precompile_config(kernel: Any, config: Any) -> Any:
        work.compiled.append(spell(config))
        return compile_config(kernel, config)

    def make_launcher(result: Any) -> _Launcher:
        if refuses(spell(result.config)):
            raise OutOfResources(300_000, 232_448, "shared memory")
        return _Launcher(result.config, work.launched)

    @functools.wraps(tuner.bench)
    def bench(kernel: Any, launcher: _Launcher, *_: Any, **__: Any) -> float:
        config = launcher.config
        named = {**config.kwargs, "num_warps": config.num_warps}
        work.timed[spell(config)] = time_us(named)
        return time_us(named) / 1000

    tuner._precompile_config = precompile_config
    tuner.bench = bench
    for result in (
        triton_heuristics.TritonCompileResult,
        triton_heuristics.StaticTritonCompileResult,
    ):
        result.make_launcher = make_launcher  # type: ignore[assignment,method-assign]
    interface: Any = device_interface.CudaInterface
    interface.exchange_device = staticmethod(lambda _: 0)
    interface.maybe_exchange_device = staticmethod(lambda _: 0)
    return work


def _pretend_torch(properties: Any) -> None:
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: True
    cuda._lazy_init = lambda: None
    cuda.device_count = lambda: 2
    cuda.current_device = lambda: 0
    cuda.synchronize = lambda *_: None
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.set_rng_state = lambda *_: None
    cuda.get_device_capability = lambda *_, **__: (9, 0)
    cuda.get_device_properties = lambda *_, **__: properties
    from torch._subclasses import fake_tensor

    fake_tensor.init_gpu_context = lambda *_: None  # it would allocate on the device


def _pretend_inductor(properties: Any) -> None:
    import torch.utils._triton as triton_queries
    from torch._dynamo import device_interface
    from torch._inductor import utils
    from torch._inductor.runtime import hints, triton_helpers

    for name in (
        "has_triton",
        "has_triton_package",
        "has_triton_tensor_descriptor_host_tma",
        "has_triton_stable_tma_api",
        "has_triton_tma_device",
    ):
        if hasattr(triton_queries, name):
            setattr(triton_queries, name, lambda *_, **__: True)
    known = hints.DeviceProperties._fields
    fields: dict[str, Any] = dict.fromkeys(known)
    fields |= {name: value for name, value in _FACTS.items() if name in known}
    fields |= {"type": "cuda", "cc": 90}

    def describe(cls: Any, device: torch.device) -> Any:
        return cls(**{**fields, "index": device.index or 0})

    hints.DeviceProperties.create = classmethod(describe)
    interface: Any = device_interface.CudaInterface
    interface.Worker.get_device_properties = staticmethod(lambda *_, **__: properties)
    interface.get_compute_capability = staticmethod(lambda *_, **__: 90)
    interface.is_available = staticmethod(lambda: True)
    utils.is_big_gpu = lambda *_, **__: True
    utils._use_template_for_gpu = lambda layout, dtypes: (
        layout.dtype in dtypes and layout.device.type == "cuda"
    )
    triton_helpers.set_driver_to_gpu = lambda: None


def _pretend_triton() -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    limits = {
        "max_shared_mem": 232448,
        "multiprocessor_count": 132,
        "max_num_regs": 65536,
        "warpSize": 32,
    }
    driver = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_current_device=lambda: 0,
        get_device_capability=lambda *_: (9, 0),
        utils=types.SimpleNamespace(get_device_properties=lambda _: limits),
    )
    triton.runtime.driver.set_active(driver)
