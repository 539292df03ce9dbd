"""`CppSources`: the source of a C++ GEMM template is written only to be compiled, and quickly.

Inductor writes this source twice for each product of each layer: first for a benchmark, later with
the operations that are fused into the product. Each time it parses the same jinja templates and
index expressions anew, which takes longer than the rest of the writing. A model of equal layers
pays that for each layer in each bucket.

Where a row answers, nothing is measured: the source for the benchmark is left out. For every other
source the templates and expressions are parsed once in a process. The generated code is the same.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch._inductor.codegen import cpp_template_kernel
from torch._inductor.codegen.common import KernelTemplate

from warmup.inductor.gemm.equal_sources import EqualSources
from warmup.inductor.patches import Patches

# Both are constants in torch's own sources, which have far fewer.
_TEMPLATES_KEPT: Final = 256
_EXPRESSIONS_KEPT: Final = 1024
# If a choice were measured after all, the compiler would print this.
_UNWRITTEN: Final = (
    '#error "warmup wrote no source for a benchmark, since a row of the table answers"'
)

_thread = threading.local()


class CppSources:
    """Leaves out sources for benchmarks, and parses the parts of the others once."""

    def attach(self, patches: Patches) -> None:
        """Put the hooks in place until *patches* is restored."""
        patches.wrap(cpp_template_kernel.CppTemplateKernel, "render", EqualSources().reuse)
        patches.wrap(cpp_template_kernel.CppTemplateKernel, "render", _leave_out)
        patches.wrap(KernelTemplate, "_template_from_string", _keep_templates)
        patches.wrap(cpp_template_kernel, "parse_expr_with_index_symbols", _keep_expressions)


@contextlib.contextmanager
def unmeasured() -> Iterator[None]:
    """Write no source for a C++ candidate that this thread makes while the context is open.

    A single choice is compiled without a benchmark (AlgorithmSelectorCache.__call__). The source
    that is compiled is written later, with the operations that are fused into the product
    (CppScheduling.codegen_template).
    """
    _thread.is_unmeasured = True
    try:
        yield
    finally:
        _thread.is_unmeasured = False


def _leave_out(original: Callable[..., str]) -> Callable[..., str]:
    def render(kernel: Any, template: Any, **kwargs: Any) -> str:
        if not getattr(_thread, "is_unmeasured", False):
            return original(kernel, template, **kwargs)
        # CppTemplate.generate reads the kernel's arguments, which writing the source declares.
        inputs = {f"in_{number}": node for number, node in enumerate(template.input_nodes)}
        kernel.def_kernel(inputs, {"out": template.output_node})
        return _UNWRITTEN

    return render


def _keep_templates(original: Callable[[str], Any]) -> Callable[[str], Any]:
    return functools.lru_cache(_TEMPLATES_KEPT)(original)


def _keep_expressions(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    kept = functools.lru_cache(_EXPRESSIONS_KEPT)(original)

    def parse(expression: Any) -> Any:
        is_text = type(expression) in (str, int)  # a list is parsed by items, which come here
        return kept(expression) if is_text else original(expression)

    return parse
