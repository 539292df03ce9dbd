"""`CppSources`: the source of a C++ GEMM template is written only to be compiled, and quickly.

Inductor writes it twice for each product of each layer: for a benchmark, and with the operations
that are fused into the product. Each time it parses the same jinja templates and index expressions
anew, which takes longer than the rest. Where a row answers, nothing is measured: the source for the
benchmark is left out. For every other source the templates and expressions are parsed once in a
process. The generated code is the same.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch._inductor import config as inductor_config
from torch._inductor.codegen import cpp_template_kernel
from torch._inductor.codegen.common import KernelTemplate
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.ir import Buffer, ComputedBuffer, Pointwise
from torch._inductor.virtualized import V

from warmup.inductor.patches import Function, Patches

_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_TEMPLATE_PARAMETERS: Final = (
    *("name", "m", "n", "k", "padded_n", "num_threads", "register_blocking"),
    *("alpha", "beta", "has_bias", "should_block_weights", "is_dynamic_M", "layout"),
)
_BARE_PRODUCT: Final = "warmup_product"  # what a template's own epilogue reads, in its description
_INNER_NAME: Final = "_GemmOut"  # how cpp_gemm_template.py names buffers within a product goes on
_FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16)


_SourceArgument = tuple[int, str, Any]  # place of a buffer, rest of the name, name in the source


@dataclass(frozen=True, slots=True)
class _EarlierSource:
    source: str
    inputs: tuple[_SourceArgument, ...]
    outputs: tuple[_SourceArgument, ...]
    unstored: tuple[_SourceArgument, ...]
    sizes: tuple[tuple[Any, str], ...]


class EqualSources:
    """The sources that were written for each graph so far, by the text of the product."""

    def __init__(self) -> None:
        self._written: WeakKeyDictionary[Any, dict[str, _EarlierSource]] = WeakKeyDictionary()

    def reuse(self, original: Function, kernel: Any, template: Any, **kwargs: Any) -> Any:
        found = _described(kernel, template, **kwargs)
        if found is None:
            return original(kernel, template, **kwargs)
        text, names = found
        written = self._written.setdefault(V.graph, {})
        if text not in written:
            before = {*V.graph.removed_buffers}
            source = original(kernel, template, **kwargs)
            removed = {*V.graph.removed_buffers} - before
            if (kept := _kept(kernel, source, names, removed)) is not None:
                written[text] = kept
            return source
        _leave(kernel, written[text], names)
        return written[text].source


def _described(
    kernel: Any,
    template: Any,
    template_buffer_node: Any = None,
    flag_template_buffer_has_other_users: Any = None,
    epilogue_nodes: Sequence[Any] | None = None,
    **others: Any,
) -> tuple[str, list[str]] | None:
    """Return the text of what a source depends on, and the names in it; None to write it anew."""
    epilogues, args = [*(epilogue_nodes or ())], kernel.args
    inputs = [*template.input_nodes]
    if type(template) is not CppGemmTemplate or template_buffer_node is None or others:
        return None
    if inductor_config.cpp.enable_kernel_profile:  # the source has the number of the graph
        return None
    if args.input_buffers or args.output_buffers or args.inplace_buffers or args.sizevars:
        return None
    if any(node.get_dtype() not in _FLOATS for node in inputs):
        return None
    if any(type(node) is not ComputedBuffer for node in epilogues):
        return None
    computed = [node.data for node in epilogues]
    if template.epilogue_creator is not None:
        computed.append(
            template.epilogue_creator(Buffer(name=_BARE_PRODUCT, layout=template.layout))
        )
    if any(type(each) is not Pointwise for each in computed):
        return None
    buffers = [*inputs, *template_buffer_node.inputs, template_buffer_node, *epilogues]
    names = [node.get_name() for node in buffers]
    for each in computed:
        names += [name for name in each.get_read_names() if name != _BARE_PRODUCT]
    scheduler = V.graph.scheduler
    if {*names} & (scheduler.mutation_real_name.keys() | scheduler.mutation_renames.keys()):
        return None
    names = [*dict.fromkeys(names)]
    parts = [str(getattr(template, name)) for name in _TEMPLATE_PARAMETERS]
    parts.append(str(flag_template_buffer_has_other_users))
    parts += [f"{node.get_name()} {_kind_of(node)} {node.get_layout()}" for node in buffers]
    parts += [f"{each.get_dtype()} {each.get_size()} {each.inner_fn_str()}" for each in computed]
    parts += [f"{name} {_layout_of(name)}" for name in names]
    parts += _readers((template_buffer_node, *epilogues))
    places = {name: f"<{place}>" for place, name in enumerate(names)}
    text = _IDENTIFIER.sub(lambda match: places.get(match.group(), match.group()), "\n".join(parts))
    return text, names


def _readers(nodes: Sequence[Any]) -> list[str]:
    """Return who reads each of *nodes*: a buffer that nothing else reads is not stored."""
    fused = {node.get_operation_name(): node.get_name() for node in nodes}
    buffers = V.graph.scheduler.name_to_buf
    readers = {
        node.get_name(): {
            fused.get(user.get_name(), "another")
            for user in buffers[node.get_name()].users
            if not user.is_weak
        }
        for node in nodes
    }
    return [f"{name} is read by {' and '.join(sorted(by))}" for name, by in readers.items()]


def _kind_of(node: Any) -> str:
    return "" if isinstance(node, Buffer) else type(node).__name__


def _layout_of(name: str) -> str:
    buffer = V.graph.try_get_buffer(name)  # None: a weight that was packed, and is pruned
    return "" if buffer is None else str(buffer.get_layout())


def _kept(
    kernel: Any, source: str, names: Sequence[str], removed: Collection[str]
) -> _EarlierSource | None:
    """Return *source* with what writing it left behind; None where that is not of *names* alone."""
    args = kernel.args
    has_more = (
        *(args.inplace_buffers, args.workspace_args, kernel.inplaced_to_remove),
        *(kernel.removed_buffers, kernel.store_buffer_names),
    )
    places = {name: place for place, name in enumerate(names)}

    def placed(buffers: Mapping[str, Any]) -> tuple[_SourceArgument, ...]:
        parts = [(name.partition(_INNER_NAME), inner) for name, inner in buffers.items()]
        return tuple(
            (places.get(base, -1), own + rest, inner) for (base, own, rest), inner in parts
        )

    inputs, outputs = placed(args.input_buffers), placed(args.output_buffers)
    unstored = placed(dict.fromkeys(removed))
    if any(has_more) or any(place < 0 for place, _, _ in (*inputs, *outputs, *unstored)):
        return None
    return _EarlierSource(source, inputs, outputs, unstored, tuple(args.sizevars.items()))


def _leave(kernel: Any, written: _EarlierSource, names: Sequence[str]) -> None:
    args = kernel.args
    args.input_buffers.update({names[each] + own: inner for each, own, inner in written.inputs})
    args.output_buffers.update({names[each] + own: inner for each, own, inner in written.outputs})
    args.sizevars.update(written.sizes)
    V.graph.removed_buffers.update(names[each] + own for each, own, _ in written.unstored)


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
        patches.hook(cpp_template_kernel.CppTemplateKernel, "render", EqualSources().reuse)
        patches.hook(cpp_template_kernel.CppTemplateKernel, "render", _leave_out)
        patches.wrap(KernelTemplate, "_template_from_string", functools.lru_cache(_TEMPLATES_KEPT))
        patches.wrap(cpp_template_kernel, "parse_expr_with_index_symbols", _keep_expressions)


@contextlib.contextmanager
def unmeasured() -> Iterator[None]:
    """Write no source for a C++ candidate that this thread makes while the context is open.

    A single choice is compiled without a benchmark (AlgorithmSelectorCache.__call__); its source is
    written later, with what is fused into the product (CppScheduling.codegen_template).
    """
    _thread.is_unmeasured = True
    try:
        yield
    finally:
        _thread.is_unmeasured = False


def _leave_out(original: Function, kernel: Any, template: Any, **kwargs: Any) -> Any:
    if not getattr(_thread, "is_unmeasured", False):
        return original(kernel, template, **kwargs)
    # CppTemplate.generate reads the kernel's arguments, which writing the source declares.
    inputs = {f"in_{number}": node for number, node in enumerate(template.input_nodes)}
    kernel.def_kernel(inputs, {"out": template.output_node})
    return _UNWRITTEN


def _keep_expressions(original: Function) -> Callable[[Any], Any]:
    kept = functools.lru_cache(_EXPRESSIONS_KEPT)(original)

    def parse(expression: Any) -> Any:
        is_text = type(expression) in (str, int)  # a list is parsed by items, which come here
        return kept(expression) if is_text else original(expression)

    return parse
