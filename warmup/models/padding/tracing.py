"""`trace`: the graph of a module's forward, in which each call of a Linear is one node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx, nn


class UntraceableError(Exception):
    """A module's forward cannot be traced. Argument: why."""


@dataclass(frozen=True, slots=True)
class TracedModule:
    """The graph of the forward of *module*, and the Linear of each node that calls a Linear."""

    module: nn.Module
    graph: fx.Graph
    linears: dict[fx.Node, nn.Linear]


def trace(module: nn.Module) -> TracedModule:
    """Return the traced forward of *module*; no operation on a tensor runs.

    Raises:
        UntraceableError: the forward branches on values, sets attributes, fails on proxies, or was
            replaced on the instance; or a module inside has hooks, which would see padded values.
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
        reason = str(error).partition("\n")[0]
        raise UntraceableError(
            f"{type(module).__name__}.forward cannot be traced: {reason}"
        ) from error
    finally:
        changed = _restore_attributes(before)
    if changed:
        raise UntraceableError(f"{type(module).__name__}.forward sets {', '.join(changed)}")
    linears = {
        node: inner
        for node in graph.nodes
        if node.op == "call_module"
        and isinstance(inner := module.get_submodule(str(node.target)), nn.Linear)
    }
    return TracedModule(module, graph, linears)


def _restore_attributes(before: dict[nn.Module, dict[str, Any]]) -> list[str]:
    """Give modules the attributes that they had *before*; return the names of changed attributes.

    A forward that stores values in its module has stored proxies there.
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
    """Whether *module* has hooks, or a forward that was replaced on the instance."""
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
    """Traces into every module but Linears and those modules of torch that have weights."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.Linear):
            return True
        has_state = any(True for _ in (*m.parameters(), *m.buffers(), *m.children()))
        return has_state and super().is_leaf_module(m, module_qualified_name)
