"""`GemmChoices`: the hooks of the row kind ``gemm``, which answer inductor's GEMM selections.

All hooks are on classes, so that they work in every thread:

- Where candidates are listed: `CandidateLists`.
- ``AlgorithmSelectorCache.__call__`` selects: the hook reduces its list to the row's choice or the
  fallback and reports the hit or miss.
- What measures, in a build: `OwnMeasurements`.
- ``InductorChoices.can_fuse``, ``Scheduler.codegen``, and of an invariant table
  ``TritonTemplateKernel.store_output``: `Fusions`.
- ``CppTemplateKernel.render`` and the parsers that it calls: `CppSources`.
"""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import TensorBox
from torch._inductor.scheduler import BaseSchedulerNode, Scheduler
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    ExternKernelChoice,
    TritonTemplateKernel,
)
from torch._inductor.virtualized import V
from torch.fx import Node

from warmup.core.errors import MissReason, ProblemError
from warmup.core.events import Contradicted, Hit, Missed, Scheduled, Selected
from warmup.core.rows import Family, Search, SearchCounts, Winner
from warmup.inductor.gemm.blas import forced
from warmup.inductor.gemm.choices import (
    DeferredCppChoices,
    choice_of,
    force_choice,
    generate_deferred,
    identify,
    library_or_first,
    post_op_of,
    with_library,
)
from warmup.inductor.gemm.cpp_sources import CppSources, unmeasured
from warmup.inductor.gemm.key import PostOp, current_node, describe, end_of_epilogue
from warmup.inductor.gemm.question import expect_padding, question_of
from warmup.inductor.gemm.search import Selection, named_alone, search, unlisted_candidates
from warmup.inductor.listing import OwnMeasurements, is_listing
from warmup.inductor.options import option_value, tuning_is_on
from warmup.inductor.patches import Firewall, Function, KindHooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.gemm import COVERED, CPU_LINEAR, VIA_CHOICES, GemmProblem
from warmup.keys.question import Answers
from warmup.keys.registry import covers

_WITH_BIAS: Final = ("addmm", "baddbmm")  # ops whose first input is the bias


@dataclass(slots=True)
class Listed:
    """A selection as its lists described it; ``op`` is empty where inductor made no list of it.

    ``rejected`` is why the winner of a row could not be forced.
    """

    op: str = ""
    nodes: tuple[Any, ...] = ()
    problem: GemmProblem | None = None
    answer: Winner | MissReason = MissReason.NOT_DESCRIBED
    dropped: int = 0
    rejected: MissReason | None = None
    searched: SearchCounts | None = None

    def is_of(self, op: str, nodes: Sequence[Any]) -> bool:
        """Return whether *op* of *nodes* is this selection; the bias may come in other forms."""
        first = op in _WITH_BIAS
        same = zip(self.nodes[first:], nodes[first:], strict=False)
        is_same = op == self.op and len(nodes) == len(self.nodes)
        return is_same and all(one is other for one, other in same)


class CandidateLists(KindHooks):
    """Lists the candidates that *answers* need while attached, and notes the rest."""

    def __init__(self, version: Version, answers: Answers) -> None:
        super().__init__(version, answers)
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(InductorChoices, "_finalize_template_configs", self._finalize)
        patches.hook(CppGemmTemplate, "add_choices", self._add_choices)

    def look_up(
        self,
        notes: Listed,
        op: str,
        nodes: Sequence[Any],
        layout: Any,
        post_op: PostOp | None = None,
    ) -> None:
        notes.op, notes.nodes = op, tuple(nodes)
        try:
            notes.problem = describe(op, list(nodes), layout, post_op)
        except ProblemError:
            notes.problem, notes.answer = None, MissReason.NOT_DESCRIBED
        else:
            notes.answer = self._answers.find(notes.problem)

    def take_notes(self) -> Listed:
        """Return this thread's notes since its last selection, and begin anew."""
        notes, self._local.notes = self._notes, Listed()
        return notes

    @property
    def _notes(self) -> Listed:
        notes: Listed | None = getattr(self._local, "notes", None)
        if notes is None:
            notes = self._local.notes = Listed()
        return notes

    def _finalize(
        self,
        original: Function,
        handler: Any,
        template_choices: dict[str, Iterator[Any]],
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: Any = None,
    ) -> Any:
        def list_all() -> Any:
            return original(
                handler, template_choices, kernel_inputs, templates, op_name, kwarg_overrides
            )

        if op_name not in VIA_CHOICES or not self._active or not tuning_is_on():
            return list_all()
        nodes, notes = kernel_inputs.nodes(), self._notes
        if not notes.is_of(op_name, nodes):
            self.look_up(notes, op_name, nodes, kernel_inputs.output_layout())
        overrides = kwarg_overrides or {}
        selection = Selection(self._version, handler, kernel_inputs, templates, op_name, overrides)
        algorithms = self._algorithm_of_row(selection) if selection.lists_library else []
        if isinstance(notes.answer, MissReason) and self._settings.measures:
            return self._widen(selection, list_all(), notes.problem)
        offered = {**template_choices, **unlisted_candidates(selection)}
        kept = [*self._keep_winner_and_library(offered, selection, notes.answer), *algorithms]
        if kept or "ATEN" in option_value("max_autotune_gemm_backends"):
            return kept
        # The caller switched the library off, and a selection without choices is an error:
        # list everything anew, since the generators above are partly consumed.
        template_choices = {
            template.uid: handler.get_ktc(
                kernel_inputs, template, op_name, overrides.get(template.uid, {})
            )
            for template in templates
        }
        return list_all()

    def _algorithm_of_row(self, selection: Selection) -> list[Any]:
        notes, answer = self._notes, self._notes.answer
        if not isinstance(answer, Winner) or answer.family is not Family.BLAS:
            return []
        choice = forced(self._version, selection.kernel_inputs, selection.op_name, answer)
        if not isinstance(choice, MissReason):
            return [choice]
        notes.dropped += 1
        notes.answer = notes.rejected = choice
        return []

    def _widen(
        self, selection: Selection, listed: list[Any], problem: GemmProblem | None
    ) -> list[Any]:
        mode, near = self._settings.search, tuple[Winner, ...]()
        if problem is None:
            mode = Search.DEFAULT
        elif mode is not Search.DEFAULT:
            near = tuple(self._settings.neighbours(problem))
        if mode is Search.IMPORTED:
            result, listed = named_alone(selection, listed, near), []
        else:
            result = search(selection, mode, listed, near)
        notes = self._notes
        before = notes.searched
        notes.searched = result.searched if before is None else before + result.searched
        return [*listed, *result.choices]

    def _keep_winner_and_library(
        self,
        template_choices: Mapping[str, Iterator[Any]],
        selection: Selection,
        answer: Winner | MissReason,
    ) -> list[Any]:
        library = {t.uid for t in selection.templates if isinstance(t, ExternKernelChoice)}
        kept: list[Any] = []
        for uid, candidates in template_choices.items():
            first = next(candidates, None)  # lazy: this generates no code
            if first is None:
                continue
            if isinstance(answer, Winner) and uid == answer.uid and uid not in library:
                forced = force_choice(self._version, answer, first)
                if isinstance(forced, MissReason):
                    self._notes.dropped += 1
                    self._notes.rejected = forced
                else:
                    kept.append(forced)
            elif uid in library:
                kept.append(first)
            else:
                self._notes.dropped += 1
        return kept

    def _add_choices(
        self, original: Function, cls: Any, choices: list[Any], *args: Any, **kwargs: Any
    ) -> Any:
        if not self._active or not tuning_is_on():
            return original(cls, choices, *args, **kwargs)
        choices.append(DeferredCppChoices(lambda into: original(cls, into, *args, **kwargs)))
        return None


_UNDECIDED: Final = ("", None)
_Decisions = dict[str, tuple[str, bool]]  # buffer of a template -> key of its row, and `fused`
_decided: weakref.WeakKeyDictionary[Any, _Decisions] = weakref.WeakKeyDictionary()  # by graph
_ends: weakref.WeakKeyDictionary[Any, set[Node]] = weakref.WeakKeyDictionary()  # by graph
_deciding = threading.Lock()


class Fusions(KindHooks):
    """Forces the decisions of winners with ``fused`` while attached; other nodes are inductor's."""

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(GraphLowering, "run_node", self._run_node)
        patches.hook(InductorChoices, "can_fuse", self._can_fuse)
        patches.hook(Scheduler, "codegen", self._codegen)
        if self._settings.fixes_rows:
            patches.hook(TritonTemplateKernel, "store_output", _store_rounded)

    def decide(self, selected: Any, key: str, winner: Winner) -> None:
        """Force the decision of *winner* for the GEMM of *key*, which was *selected* just now."""
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

    def _run_node(self, original: Function, graph: Any, node: Node) -> Any:
        result = original(graph, node)
        with _deciding:
            is_end = node in _ends.get(graph, ())
        if is_end and isinstance(result, TensorBox):
            result.realize()
        return result

    def _can_fuse(
        self, original: Function, scheduler: Any, node1: Any, node2: Any, shared_data_score: int
    ) -> Any:
        decisions = _decisions_here() if self._active else {}
        if decisions:
            decided = {decisions.get(_template_of(node), _UNDECIDED)[1] for node in (node1, node2)}
            if False in decided:
                return False
            if True in decided:
                score = self._version.fusion_score
                shared_data_score = score(scheduler, node1, node2, shared_data_score)
            elif _belongs_to_template(scheduler, node1, node2, decisions):
                return False
        return original(scheduler, node1, node2, shared_data_score)

    def _codegen(self, original: Function, scheduler: Any) -> Any:
        decisions = _decisions_here() if self._active else {}
        for node in scheduler.nodes if decisions else ():
            key, wanted = decisions.get(_template_of(node), _UNDECIDED)
            is_fused = len(node.get_nodes()) > 1
            if wanted is not None:
                self._answers.emit(Scheduled(key, wanted, is_fused))
        return original(scheduler)


def _store_rounded(original: Function, kernel: Any, *args: Any, **words: Any) -> Any:
    """Generate a template so that what is fused into it computes as in a kernel of its own.

    Before torch 2.13 it reads the sum of the product before it is rounded (select_algorithm.py,
    `TritonTemplateKernel.store_output`). With `emulate_precision_casts` Triton contracts nothing to
    FMA in other kernels (codegen/triton.py, `triton_meta_common`), but does in templates.
    """
    if "SM_SCALE" in kernel.meta:  # of flex attention, whose rows are not promised
        return original(kernel, *args, **words)
    of_template, dtype = kernel.epilogue_fn, kernel.output_node.get_dtype()
    kernel.triton_meta = {**(kernel.triton_meta or {}), "enable_fp_fusion": False}

    def rounded(*values: Any) -> Any:
        value = of_template(*values)
        sum_dtype = values[0].dtype
        if sum_dtype == dtype:
            return value
        narrow = V.ops.to_dtype(value, dtype, src_dtype=sum_dtype, use_compute_types=False)
        return V.ops.to_dtype(narrow, sum_dtype, src_dtype=dtype)

    kernel.epilogue_fn = rounded
    try:
        return original(kernel, *args, **words)
    finally:
        kernel.epilogue_fn = of_template


def key_of_template(node: Any) -> str | None:
    """Return the key of the row that decided about the template in *node*, if one did."""
    return _decisions_here().get(_template_of(node), (None, None))[0]


def _decisions_here() -> _Decisions:
    with _deciding:
        return _decided.get(V.graph, {})


def _belongs_to_template(scheduler: Any, node1: Any, node2: Any, decisions: _Decisions) -> bool:
    """Whether a row says that *node1* or *node2* is fused into a template instead."""
    # Inductor would fuse an operation into the reduction that follows, as the addition of a
    # residual into the norm behind it, before it looks at the template.
    for node in (node1, node2):
        for name in {read.name for read in node.read_writes.reads} & decisions.keys():
            if decisions[name][1] and name in scheduler.name_to_buf:
                template = scheduler.get_fused_node(scheduler.name_to_buf[name].defining_op)
                if scheduler.can_fuse(template, node):
                    return True
    return False


def _template_of(node: Any) -> str:
    template = node.get_template_node()
    return "" if template is None else str(template.get_name())


_LEFT_OUT: Final = "inductor could not compile this candidate and left it out"


@dataclass(slots=True)
class _TunedSelection:
    problem: GemmProblem
    choices: list[Any]
    searched: SearchCounts
    winner: Winner | None = None


class GemmChoices(KindHooks):
    """Answers GEMM selections from *answers* while attached."""

    def __init__(self, version: Version, answers: Answers) -> None:
        super().__init__(version, answers)
        self._measurements = OwnMeasurements()
        self._lists = CandidateLists(version, answers)
        self._fusions = Fusions(version, answers)

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        expect_padding(patches)
        self._lists.attach(patches)
        patches.hook(AlgorithmSelectorCache, "__call__", self._select, with_library)
        self._measurements.attach(patches)
        self._fusions.attach(patches)
        CppSources().attach(patches)

    def _handles(self, name: str) -> bool:
        return self._active and name in COVERED and tuning_is_on()

    def _report_other_handler(self) -> None:
        advice = "let one of the two choose: remove the handler, or this table"
        listing = V.choices._finalize_template_configs.__self__  # type: ignore[attr-defined]
        names = InductorChoices.__name__, type(listing).__name__
        self._answers.emit(Contradicted("choices handler", *names, advice))

    def _select(
        self,
        original: Function,
        cache: Any,
        name: str,
        choices: list[Any],
        input_nodes: Any,
        layout: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        def proceed(chosen: list[Any]) -> Any:
            return original(cache, name, chosen, input_nodes, layout, *args, **kw)

        if not self._handles(name):
            return proceed(self._choices_without_rows(name, choices))
        notes = self._lists.take_notes()
        # A handler that lists candidates without its base class decides before any row can:
        # torch's lookup table does (torch/_inductor/lookup_table/choices.py).
        is_listed_elsewhere = (
            name in VIA_CHOICES and not notes.op and type(V.choices) is not InductorChoices
        )
        if not notes.is_of(name, input_nodes):
            post_op = post_op_of(choices) if name in CPU_LINEAR else None
            self._lists.look_up(notes, name, input_nodes, layout, post_op)
        problem, answer = notes.problem, notes.answer
        if isinstance(answer, Winner):
            assert problem is not None
            with unmeasured():
                chosen = choice_of(choices, answer)
            if chosen is not None:
                result = proceed([chosen])
                self._fusions.decide(result, problem.key, answer)
                self._answers.emit(Hit(problem.key, str(answer)))
                return result
            answer = notes.rejected or MissReason.TEMPLATE_ABSENT
        is_single = len(choices) + notes.dropped <= 1
        if is_single and (self._settings.measures or not is_listed_elsewhere):
            return proceed(generate_deferred(choices))  # a single choice is no decision
        if is_listed_elsewhere:
            self._report_other_handler()
        if self._settings.measures and problem is not None:
            kw["return_multi_template"] = False
            ready = generate_deferred(choices)
            searched = notes.searched or SearchCounts(search=Search.DEFAULT, listed=0)
            return self._tune(
                _TunedSelection(problem, ready, searched.completed(len(ready))), proceed
            )
        fallback = library_or_first(name, choices)
        key = _undescribed(name) if problem is None else problem.key
        self._answers.emit(Missed(key, answer, str(identify(fallback))))
        return proceed([fallback])

    def _choices_without_rows(self, name: str, choices: list[Any]) -> list[Any]:
        # It is uncovered where max-autotune would measure several choices and no row kind has the
        # selection.
        site = f"select:{name}"
        if self._active and len(choices) > 1 and tuning_is_on() and not covers(site):
            default = library_or_first(name, choices)
            takes_library = self._settings.takes_library or is_listing()
            self._answers.emit(Selected(site, str(identify(default)) if takes_library else None))
            if takes_library:
                return [default]
        return generate_deferred(choices)

    def _tune(self, selection: _TunedSelection, proceed: Callable[[list[Any]], Any]) -> Any:
        with self._measurements.chosen_by(partial(self._measure, selection)):
            selected = proceed(selection.choices)
        if selection.winner is not None:
            self._fusions.decide(selected, selection.problem.key, selection.winner)
        return selected

    def _measure(
        self,
        tuning: _TunedSelection,
        ready: list[Any],
        input_nodes: Any,
        layout: Any,
        input_gen_fns: Any,
    ) -> Any:
        question = question_of(tuning.problem, ready, input_nodes, layout, input_gen_fns)
        left_out = (choice for choice in tuning.choices if choice not in ready)
        identified = filter(None, map(identify, left_out))
        uncompiled: dict[Winner, str] = dict.fromkeys(identified, _LEFT_OUT)
        winner = self._answers.measure(
            replace(
                question,
                uncompiled={**question.uncompiled, **uncompiled},
                library=identify(library_or_first(tuning.problem.op, tuning.choices)),
                searched=tuning.searched,
            )
        )
        tuning.winner = winner
        wanted = None if winner is None else winner.choice
        chosen = [choice for choice in ready if identify(choice) == wanted]
        return chosen[0] if chosen else library_or_first(tuning.problem.op, ready)


def _undescribed(name: str) -> str:
    node = current_node()
    return f"{name} ({node.target if node is not None else 'outside a graph'})"


_CACHED_US: Final = 200_000  # a kernel that takes no longer was in Triton's cache
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

    def facts_of(self, key: str) -> dict[str, Any]:
        """Return the fields of `RegionKernels` about the template's kernel of *key*, if known."""
        name = self._templates.get(key, "")
        kernels: list[Any] = [getattr(module, name, None) for module in self._modules]
        for kernel in kernels:
            for launcher in getattr(kernel, "launchers", ()):
                compile_us = (kernel.autotune_cache_info or {}).get("compile_time_us", 0)
                return {
                    "spills": getattr(launcher, "n_spills", None),
                    "registers": getattr(launcher, "n_regs", None),
                    "compile_s": round(compile_us / 1e6, 2) if compile_us > _CACHED_US else None,
                }
        return {}

    def note_kernel(
        self, original: Function, scheduling: Any, source: str, node_schedule: Any, kernel: Any
    ) -> Any:
        name = original(scheduling, source, node_schedule, kernel)
        for node in node_schedule:  # marks of where reductions begin and end are in it too
            is_node = isinstance(node, BaseSchedulerNode)
            if is_node and (key := key_of_template(node)) is not None:
                self._templates[key] = name
        return name

    def note_module(self, original: Function, graph: Any) -> Any:
        module = original(graph)
        self._modules.append(module)
        return module


@contextlib.contextmanager
def watching_kernels() -> Iterator[KernelWatch]:
    """Note the graphs that any thread compiles while the context is open."""
    from torch._inductor.codegen.triton import TritonScheduling

    watch = KernelWatch()
    with Patches(Firewall.current()) as patches:
        patches.hook(TritonScheduling, "define_kernel", watch.note_kernel)
        patches.hook(GraphLowering, "compile_to_module", watch.note_module)
        yield watch
