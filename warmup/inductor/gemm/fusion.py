"""`Fusions`: forces for each GEMM whether operations are fused into its template, as its row says.

The scheduler asks ``InductorChoices.can_fuse`` about every pair of nodes, and the answer False is
final. True is not: fusing must be legal too, and the operations must have a buffer of their own.
Lowering gives none to an operation that each kernel that reads its result can repeat, so the end of
an epilogue that is to be fused is realized. What became of each decision is read from the scheduler
when it generates code, and reported where it differs from the row.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from torch._inductor.choices import InductorChoices
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import TensorBox
from torch._inductor.scheduler import Scheduler
from torch._inductor.virtualized import V
from torch.fx import Node

from warmup.core.rows import Winner
from warmup.inductor.gemm.epilogues import end_of_epilogue
from warmup.inductor.gemm.key import current_node
from warmup.inductor.patches import Hooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.question import Answers

_UNDECIDED: Final = ("", None)
_Decisions = dict[str, tuple[str, bool]]  # buffer of a template -> key of its row, and `fused`
_decided: weakref.WeakKeyDictionary[Any, _Decisions] = weakref.WeakKeyDictionary()  # by graph
_ends: weakref.WeakKeyDictionary[Any, set[Node]] = weakref.WeakKeyDictionary()  # by graph
_deciding = threading.Lock()


class Fusions(Hooks):
    """Forces the decisions of winners with ``fused`` while attached; other nodes are inductor's."""

    def __init__(self, version: Version, answers: Answers) -> None:
        self._version = version
        self._answers = answers

    def attach(self, patches: Patches) -> None:
        """Force decisions until *patches* is restored."""
        patches.on_restore(self._deactivate)
        patches.wrap(GraphLowering, "run_node", self._wrap_run_node)
        patches.wrap(InductorChoices, "can_fuse", self._wrap_can_fuse)
        patches.wrap(Scheduler, "codegen", self._wrap_codegen)

    def decide(self, selected: Any, key: str, winner: Winner) -> None:
        """Force the decision of *winner* for the GEMM of *key*, which was *selected* just now.

        *selected* is what ``AlgorithmSelectorCache.__call__`` returned. Nothing is forced where the
        winner has no decision.
        """
        if winner.fused is None:
            return
        node = selected[0] if isinstance(selected, tuple) else selected  # from torch 2.12 on
        gemm = current_node()
        end = end_of_epilogue(gemm) if winner.fused and gemm is not None else None
        with _deciding:
            decisions = _decided.setdefault(V.graph, {})
            decisions[node.get_name()] = (key, winner.fused)
            if end is not None:
                _ends.setdefault(V.graph, set()).add(end)

    def _wrap_run_node(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_node(graph: Any, node: Node) -> Any:
            result = original(graph, node)
            with _deciding:
                is_end = node in _ends.get(graph, ())
            if is_end and isinstance(result, TensorBox):
                result.realize()
            return result

        return run_node

    def _wrap_can_fuse(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def can_fuse(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            decisions = _decisions_here() if self._active else {}
            if decisions:
                decided = {
                    decisions.get(_template_of(node), _UNDECIDED)[1] for node in (node1, node2)
                }
                if False in decided:
                    return False
                if True in decided:
                    score = self._version.fusion_score
                    shared_data_score = score(scheduler, node1, node2, shared_data_score)
                elif _belongs_to_template(scheduler, node1, node2, decisions):
                    return False
            return original(scheduler, node1, node2, shared_data_score)

        return can_fuse

    def _wrap_codegen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def codegen(scheduler: Any) -> Any:
            decisions = _decisions_here() if self._active else {}
            for node in scheduler.nodes if decisions else ():
                key, wanted = decisions.get(_template_of(node), _UNDECIDED)
                is_fused = len(node.get_nodes()) > 1
                if wanted is not None:
                    self._answers.scheduled(key, fused=wanted, found=is_fused)
            return original(scheduler)

        return codegen


def key_of_template(node: Any) -> str | None:
    """Return the key of the row that decided about the template in the scheduler's *node*.

    None where there is no template, or no decision about it.
    """
    return _decisions_here().get(_template_of(node), (None, None))[0]


def _decisions_here() -> _Decisions:
    with _deciding:
        return _decided.get(V.graph, {})


def _belongs_to_template(scheduler: Any, node1: Any, node2: Any, decisions: _Decisions) -> bool:
    """Whether *node1* or *node2* can be fused into a template instead, whose row says that it is.

    Inductor would fuse an operation into the reduction that follows, as the addition of a residual
    into the norm behind it, before it looks at the template.
    """
    for node in (node1, node2):
        for name in {read.name for read in node.read_writes.reads} & decisions.keys():
            if decisions[name][1] and name in scheduler.name_to_buf:
                template = scheduler.get_fused_node(scheduler.name_to_buf[name].defining_op)
                if scheduler.can_fuse(template, node):
                    return True
    return False


def _template_of(node: Any) -> str:
    """Return the buffer of the template in the scheduler's *node*; empty where there is none."""
    template = node.get_template_node()
    return "" if template is None else str(template.get_name())
