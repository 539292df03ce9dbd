"""`AssumedGpu`: inductor compiles graphs of the CPU for a GPU that this machine need not have.

Dynamo and autograd trace the model on the CPU, since they need a driver for tensors of a GPU. Each
graph is moved to the GPU before inductor's passes see it, and while inductor works on it, torch and
Triton report the facts of the assumed device. Nothing is launched; code is generated, not built.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.utils._triton as triton_queries
from torch._dynamo import device_interface
from torch._inductor import async_compile, scheduler
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config
from torch._inductor import utils as inductor_utils
from torch._inductor.codecache import CacheBase
from torch._inductor.codegen import triton as triton_codegen
from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad
from torch._inductor.kernel import mm_grouped
from torch._inductor.runtime import hints
from torch._inductor.template_heuristics import triton as template_heuristics
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from warmup.core.assumed_device import AssumedDevice
from warmup.core.errors import SettingsError
from warmup.core.units import GIB
from warmup.inductor.internals import ASSUMED_GPU_INTERNALS, check_internals
from warmup.inductor.patches import Patches, unwrapped

_GPU: Final = torch.device("cuda", 0)
_REGISTERS_OF_SM: Final = 65536
_THREADS_OF_WARP: Final = 32
# What inductor calculates from the facts and caches for the process.
_CALCULATED: Final = ("get_device_tflops", "get_gpu_dram_gbps", "get_max_num_sms", "is_big_gpu")
# What else torch caches for the process of the facts; `compile_fx` fills it while they are assumed.
_FILLED: Final[tuple[Any, ...]] = (
    *(CacheBase.get_system, inductor_utils.get_gpu_type),
    *(triton_queries.triton_backend, triton_queries.triton_hash_with_backend),
)
_TRITON_QUERIES: Final = (
    *("has_triton", "has_triton_package", "has_triton_tma", "has_triton_tma_device"),
    *("has_triton_tensor_descriptor_host_tma", "has_triton_stable_tma_api"),
)
# The modules that define or import one of these; all of them are imported before it is replaced.
_IMPORTING: Final = (
    *(triton_queries, async_compile, compile_fx_module, hints, inductor_utils, mm_grouped, pad_mm),
    *(scheduler, template_heuristics, triton_codegen),
)


@dataclass(frozen=True)
class AssumedGpu:
    """Compiles for *device*.

    Raises:
        SettingsError: there is no Triton, whose code inductor generates for a GPU.
        InductorChangedError: this torch reports a device in another way.
    """

    device: AssumedDevice

    def __post_init__(self) -> None:
        try:
            import triton  # noqa: F401  not called here
        except ImportError as error:
            raise SettingsError(
                f"assuming {self.device.name} needs Triton, which inductor generates code for",
                "pip install triton (on Linux); a GPU is not needed",
            ) from error
        check_internals(ASSUMED_GPU_INTERNALS)

    def attach(self, patches: Patches) -> None:
        """Move each graph to the GPU where inductor's passes begin, until *patches* is restored."""
        name = "_recursive_joint_graph_passes"
        patches.wrap(compile_fx_module, name, self._on_moved_graph)

    def compile_inner(self, graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
        """Compile *graph*, which was moved, as inductor's own inner compile does."""
        post_grad.lazy_init()
        with self._reported():
            moved = [_moved(each) for each in inputs]
            return compile_fx_module.compile_fx_inner(graph, moved, **options)

    def _on_moved_graph(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_passes(gm: Any, *args: Any, **options: Any) -> Any:
            # The patterns are traced with examples, which need a driver on a GPU.
            joint_graph.lazy_init(options.get("input_device"))
            joint_graph.constant_fold_uniform_value(gm)  # it makes real tensors, of the CPU here
            folded = inductor_config.patch(joint_graph_constant_folding=False)
            with folded, self._reported():
                _move_graph(gm)
                return original(gm, *args, **options)

        return run_passes

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Let torch and Triton report the assumed device while the context is open.

        What torch caches of the facts is forgotten before and afterwards.
        """
        from triton.runtime import driver

        patches, before = Patches(), driver._active
        try:
            self._replace_facts(patches)
            driver.set_active(self._driver())
            _forget_facts()
            yield
        finally:
            driver._active = before
            patches.restore()
            _forget_facts()

    def _replace_facts(self, patches: Patches) -> None:
        """Replace each attribute of torch that reports a fact of the device."""
        device, properties = self.device, self._properties()
        interface = device_interface.CudaInterface

        def report(owner: Any, **facts: Any) -> None:
            for name, value in facts.items():
                patches.wrap(owner, name, _always(_always(value)))

        report(
            torch.cuda,
            is_available=True,
            is_initialized=True,
            device_count=1,
            current_device=0,
            _exchange_device=0,
            _maybe_exchange_device=0,
            _lazy_init=None,
            synchronize=None,
            get_rng_state=torch.empty(0),
            set_rng_state=None,
            get_device_name=device.name,
            get_device_capability=device.capability,
            get_device_properties=properties,
        )
        report(interface.Worker, get_device_properties=properties)
        report(interface, get_compute_capability=device.compute_capability, is_available=True)
        report(torch._utils_internal, max_clock_rate=device.clock_mhz)
        report(fake_tensor, init_gpu_context=None)
        has_tma = device.capability >= (9, 0)  # TMA came with it
        for name in _TRITON_QUERIES:
            for module in _importing(name):
                report(module, **{name: "tma" not in name or has_tma})
        for name in _CALCULATED:
            for module in _importing(name):
                patches.wrap(module, name, unwrapped)
        patches.wrap(hints.DeviceProperties, "create", _always(self._describe_for_inductor()))

    def _properties(self) -> Any:
        device = self.device
        return types.SimpleNamespace(
            name=device.name,
            gcnArchName=device.name,
            major=device.capability[0],
            minor=device.capability[1],
            multi_processor_count=device.sm_count,
            total_memory=device.memory_gib * GIB,
            L2_cache_size=device.l2_bytes,
            regs_per_multiprocessor=_REGISTERS_OF_SM,
            max_threads_per_multi_processor=2048,
            max_threads_per_block=1024,
            warp_size=_THREADS_OF_WARP,
            shared_memory_per_block=48 << 10,  # without opting in
            shared_memory_per_block_optin=device.block_bytes,
            shared_memory_per_multiprocessor=device.sm_bytes,
        )

    def _describe_for_inductor(self) -> Callable[..., Any]:
        properties = {
            **vars(self._properties()),
            "type": "cuda",
            "cc": self.device.compute_capability,
        }

        def create(cls: Any, device: torch.device) -> Any:
            fields = {name: properties.get(name) for name in cls._fields}
            return cls(**{**fields, "index": device.index or 0})

        return create

    def _driver(self) -> Any:
        from triton.backends.compiler import GPUTarget

        target = GPUTarget("cuda", self.device.compute_capability, _THREADS_OF_WARP)
        limits = {
            "max_shared_mem": self.device.block_bytes,
            "multiprocessor_count": self.device.sm_count,
            "max_num_regs": _REGISTERS_OF_SM,
            "warpSize": _THREADS_OF_WARP,
            "sm_clock_rate": 1000 * self.device.clock_mhz,
            "mem_clock_rate": 1000 * self.device.memory_clock_mhz,
            "mem_bus_width": self.device.bus_bits,
        }
        interface = types.SimpleNamespace(current_device=_always(0))
        return types.SimpleNamespace(
            get_current_target=_always(target),
            get_active_torch_device=_always(_GPU),
            get_current_device=_always(0),
            get_device_interface=_always(interface),
            get_device_capability=_always(self.device.capability),
            utils=types.SimpleNamespace(get_device_properties=_always(limits)),
        )


def _forget_facts() -> None:
    for cached in _FILLED:
        cached.cache_clear()


def _importing(name: str) -> list[Any]:
    return [module for module in _IMPORTING if name in vars(module)]


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _move_graph(graph: Any) -> None:
    """Move the values and the device arguments of *graph* from the CPU to the GPU, in place."""
    for node in graph.graph.nodes:
        if "val" in node.meta and node.op != "get_attr":
            node.meta["val"] = torch.utils._pytree.tree_map(_moved, node.meta["val"])
        node.args = torch.fx.node.map_aggregate(node.args, _moved_device)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _moved_device)


def _moved_device(value: Any) -> Any:
    return _GPU if isinstance(value, torch.device) and value.type == "cpu" else value


def _moved(value: Any) -> Any:
    """Return a fake tensor of the CPU as one of the GPU, with the same memory; others as they are.

    Sizes and aliases stay, so that nothing is guarded, and passes that look for views find them.
    """
    if not isinstance(value, FakeTensor) or value.device.type != "cpu":
        return value
    mode = value.fake_mode
    with in_kernel_invocation_manager(mode):
        return FakeTensor(mode, value, _GPU)
