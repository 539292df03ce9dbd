"""`digest_graphs`: the digest of what torch.compile captures from a model, without compiling it.

Two calls whose graphs have one digest, under equal settings and versions, make inductor ask the
same questions: the digest covers each operation with its arguments, and each input and parameter
with its sizes, strides, dtype and device. It does not cover the values of tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch.fx.node import _get_qualified_name

from warmup.core.events import logger

_PLAIN: Final = (bool, int, float, complex, str, type(None), type(...))
_TORCH_WORDS: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# Code that comes with torch and Python; an operation from elsewhere may change without a trace.
_KNOWN_CODE: Final = ("torch.", "operator.", "_operator.", "builtins.", "math.")
_KNOWN_OPS: Final = frozenset({"aten", "prims", "prim"})


class _NotDescribedError(Exception):
    """Something in a graph has no text that says all about it."""


def digest_graphs(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the digest of the graphs of ``model(*args, **kwargs)``; None if it would not say all.

    The model is called once, its graphs as they are. None too when the call fails.
    """
    texts: list[str] = []
    gaps: list[str] = []

    def note(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        try:
            texts.append("\n".join(_describe(graph, inputs)))
        except _NotDescribedError as gap:
            gaps.append(str(gap))
        forward: Callable[..., Any] = graph.forward
        return forward

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(model, dynamic=False, backend=note)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  a build calls the model too, and reports the failure
        gaps.append(f"{type(error).__name__}: {error}")
    finally:
        torch._dynamo.reset()
    if gaps:
        logger.debug("the graphs have no digest: %s", gaps[0])
        return None
    return hashlib.sha256("\n\n".join(texts).encode()).hexdigest()


def describe_settings() -> str | None:
    """Return inductor's options and torch's switches as text; None if one is a custom function."""
    import torch._inductor.config as options

    try:
        own = {name: _plain(value) for name, value in options.get_config_copy().items()}
    except _NotDescribedError as gap:
        logger.debug("inductor's options have no digest: %s", gap)
        return None
    switches = {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default_dtype": str(torch.get_default_dtype()),
        "mkldnn": torch.backends.mkldnn.enabled,
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "f16_reduction": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    }
    return json.dumps([own, {name: str(value) for name, value in switches.items()}], sort_keys=True)


def _describe(graph: torch.fx.GraphModule, inputs: list[Any]) -> Iterator[str]:
    """Yield a line for each node of *graph*.

    Raises:
        _NotDescribedError: a node has an operation or an argument that no text describes.
    """
    given = iter(inputs)
    for node in graph.graph.nodes:
        words = [node.op, node.name, _target(graph, node), _text(node.args), _text(node.kwargs)]
        if node.op == "placeholder" and inputs:
            words.append(_text(next(given)))
        yield " ".join(words)


def _target(graph: torch.fx.GraphModule, node: torch.fx.Node) -> str:
    if node.op == "get_attr":
        value: Any = graph
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if isinstance(value, torch.fx.GraphModule):
            return "{" + "; ".join(_describe(value, [])) + "}"
        return _text(value)
    if node.op in {"placeholder", "output", "call_method"}:
        return str(node.target)
    if node.op != "call_function":
        raise _NotDescribedError(f"{node.op} {node.target}")
    if isinstance(node.target, torch._ops.OpOverload):
        if node.target.namespace not in _KNOWN_OPS:
            raise _NotDescribedError(f"the operation {node.target}")
        return str(node.target)
    name = _get_qualified_name(node.target) if callable(node.target) else str(node.target)
    if not name.startswith(_KNOWN_CODE) or name.startswith("torch.ops."):
        raise _NotDescribedError(f"the operation {name}")
    return name


def _text(value: Any) -> str:
    """Return *value*, an argument of a node or an input of a graph, as text."""
    if type(value) in _PLAIN or isinstance(value, _TORCH_WORDS):
        return repr(value)
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, slice):
        return f"slice({_text(value.start)}, {_text(value.stop)}, {_text(value.step)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(one)}' for key, one in value.items())}}}"
    if isinstance(value, torch.SymInt):
        return _symbol(value)
    raise _NotDescribedError(f"a value of the type {type(value).__name__}")


def _tensor(value: torch.Tensor) -> str:
    known = (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor)
    if type(value) not in known or value.layout is not torch.strided:
        raise _NotDescribedError(f"a tensor of the type {type(value).__name__}")
    sizes = ", ".join(map(_symbol, value.shape))
    strides = ", ".join(map(_symbol, value.stride()))
    kind = "parameter" if isinstance(value, torch.nn.Parameter) else "tensor"
    return f"{kind}[{sizes}]({strides}) {value.dtype} {value.device} {value.requires_grad}"


def _symbol(size: int | torch.SymInt) -> str:
    """Return a size; of a dynamic size its hint and its range."""
    if not isinstance(size, torch.SymInt):
        return str(size)
    node = size.node
    ranges = {
        str(symbol): str(node.shape_env.var_to_range.get(symbol))
        for symbol in sorted(node.expr.free_symbols, key=str)
    }
    return f"{node.expr}~{node.hint} {ranges}"


def _plain(value: Any) -> Any:
    """Return an option's *value* as JSON values."""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(_plain(one)) for one in value)
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, _TORCH_WORDS):
        return str(value)
    raise _NotDescribedError(f"an option of the type {type(value).__name__}")
