"""A stated H100 for a machine without a GPU: enough for inductor to lower, schedule and generate.

Shows what inductor generates given that a card qualifies; it neither compiles nor runs a kernel.
"""

from __future__ import annotations

import types
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


def pretend() -> None:
    """Answer every device query with the stated H100, for the rest of this process."""
    properties = types.SimpleNamespace(
        **_FACTS,
        name=NAME,
        gcnArchName=NAME,
        total_memory=80 << 30,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        L2_cache_size=50 << 20,
    )
    _pretend_torch(properties)
    _pretend_inductor(properties)
    _pretend_triton()


def _pretend_torch(properties: Any) -> None:
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: True
    cuda._lazy_init = lambda: None
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.synchronize = lambda *_: None
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
    fields |= {"type": "cuda", "index": 0, "cc": 90}
    device = hints.DeviceProperties(**fields)
    hints.DeviceProperties.create = classmethod(lambda cls, _: device)
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
