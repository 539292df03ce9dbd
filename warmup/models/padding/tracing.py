"""The graph of a module's forward, with its Linears as leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx, nn


class UntraceableError(Exception):
    """A module's forward cannot be traced. Argument: why."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What *module* computes, and the Linear behind each node that calls one."""

    module: nn.Module
    graph: fx.Graph
    linears: dict[fx.Node, nn.Linear]


def trace(module: nn.Module) -> Traced:
    """Return the traced forward of *module*; no tensor is computed with.

    Raises:
        UntraceableError: its forward branches on values, keeps some, fails on proxies, or is not
            what a call of it runs; or hooks watch what modules inside of it compute.
    """
    if "forward" in vars(module):
        raise UntraceableError(f"{type(module).__name__} has a forward of its own")
    for name, inner in module.named_modules():
        if inner is not module and is_hooked(inner):
            raise UntraceableError(f"{name} has hooks")
    before = {inner: dict(vars(inner)) for inner in module.modules()}
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # the user's forward may raise anything on a proxy
        said = str(error).partition("\n")[0]
        raise UntraceableError(
            f"{type(module).__name__}.forward cannot be traced: {said}"
        ) from error
    finally:
        kept = _put_back(before)
    if kept:
        raise UntraceableError(f"{type(module).__name__}.forward sets {', '.join(kept)}")
    called = {
        node: inner
        for node in graph.nodes
        if node.op == "call_module"
        and isinstance(inner := module.get_submodule(str(node.target)), nn.Linear)
    }
    return Traced(module, graph, called)


def _put_back(before: dict[nn.Module, dict[str, Any]]) -> list[str]:
    """Give modules the attributes that they had *before*; return the names of those that changed.

    A forward that keeps what it computes would leave proxies behind.
    """
    changed: list[str] = []
    for module, attributes in before.items():
        now = vars(module)
        names = [name for name, value in now.items() if attributes.get(name, now) is not value]
        if names or len(now) != len(attributes):
            changed += names
            now.clear()
            now.update(attributes)
    return changed


def is_hooked(module: nn.Module) -> bool:
    """Whether a call of *module* is watched or replaced: by a hook, or a forward of its own."""
    return "forward" in vars(module) or any(
        vars(module).get(name)
        for name in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    )


class _Tracer(fx.Tracer):
    """Goes into everything but Linears, and modules of torch that have weights."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.Linear):
            return True
        has_state = any(True for _ in (*m.parameters(), *m.buffers(), *m.children()))
        return has_state and super().is_leaf_module(m, module_qualified_name)
