"""`KernelWatch`: the kernels of a compiled region, counted and looked at after they were loaded."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import BaseSchedulerNode

from warmup.inductor.firewall import Firewall
from warmup.inductor.gemm.fusion import key_of_template
from warmup.inductor.patches import Patches

# A launch in the code that inductor generates; library calls are those of `extern_kernels`.
_LAUNCHED: Final = re.compile(r"\b(?:triton_\w+\.run|extern_kernels\.\w+)\(")


@dataclass(slots=True)
class KernelWatch:
    """The modules that were generated and loaded while watched, and the kernel of each template."""

    _modules: list[Any] = field(default_factory=list)
    _templates: dict[str, str] = field(default_factory=dict)  # key of a GEMM -> its kernel's name

    def count_launches(self) -> int:
        """Return how many kernels and library calls the generated code launches."""
        sources = (Path(module.__file__).read_text(encoding="utf-8") for module in self._modules)
        return sum(len(_LAUNCHED.findall(source)) for source in sources)

    def spills_and_registers(self, key: str) -> tuple[int | None, int | None]:
        """Return the spilled and the used registers of the kernel with the template of *key*.

        For each thread, as the driver reports them once the kernel is loaded; None before, and
        where no template was compiled for *key*.
        """
        name = self._templates.get(key, "")
        kernels = (getattr(module, name, None) for module in self._modules)
        for kernel in kernels:
            for launcher in getattr(kernel, "launchers", ()):
                return getattr(launcher, "n_spills", None), getattr(launcher, "n_regs", None)
        return None, None

    def wrap_define(self, original: Callable[..., str]) -> Callable[..., str]:
        """Return *original* (``TritonScheduling.define_kernel``), noting kernels of templates."""

        def define_kernel(scheduling: Any, source: str, node_schedule: Any, kernel: Any) -> str:
            name = original(scheduling, source, node_schedule, kernel)
            for node in node_schedule:  # marks of where reductions begin and end are in it too
                is_node = isinstance(node, BaseSchedulerNode)
                if is_node and (key := key_of_template(node)) is not None:
                    self._templates[key] = name
            return name

        return define_kernel

    def wrap_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return *original* (``GraphLowering.compile_to_module``), noting the module."""

        def compile_to_module(graph: Any) -> Any:
            module = original(graph)
            self._modules.append(module)
            return module

        return compile_to_module


@contextlib.contextmanager
def watching_kernels() -> Iterator[KernelWatch]:
    """Note the graphs that any thread compiles while the context is open."""
    from torch._inductor.codegen.triton import TritonScheduling

    watch, patches = KernelWatch(), Patches(Firewall.current())
    patches.wrap(TritonScheduling, "define_kernel", watch.wrap_define)
    patches.wrap(GraphLowering, "compile_to_module", watch.wrap_load)
    try:
        yield watch
    finally:
        patches.restore()
