"""`question_of`: the `Question` about one GEMM selection, made from inductor's choices and nodes.

On a GPU the question consists of plain values, and a child process measures it. On a CPU it is
measured in this process with inductor's operands, since packed weights are no plain values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch._inductor.codegen.subgraph import SubgraphChoiceCaller
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    DataProcessorChoiceCallerWrapper,
)
from torch._subclasses import FakeTensorMode

from warmup.core.events import logger
from warmup.core.rows import Winner
from warmup.core.trial import Candidate, Fill, Operands, Region, Spec, TensorSpec, ViewSpec
from warmup.inductor.gemm.calls import spec_of
from warmup.inductor.gemm.choices import identify
from warmup.inductor.gemm.key import current_node
from warmup.inductor.gemm.regions import region_of
from warmup.inductor.gemm.size_hints import SizeHints, choice_at_hints, hints_of, using_hints
from warmup.inductor.layouts import fixed_layouts
from warmup.keys.gemm import NO_EPILOGUE, GemmProblem
from warmup.keys.question import LiveTrial, Question, SmallerSize

_SCALES: Final = (2, 3)  # positions among the operands of scaled_mm
_NOT_PLAIN: Final = "plain values cannot describe this call, so no other process can time it"
_ENVIRONMENT: Final = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def question_of(
    problem: GemmProblem,
    choices: Sequence[Any],
    input_nodes: Sequence[Any],
    layout: Any,
    input_gen_fns: Mapping[int, Callable[[Any], torch.Tensor]] | None,
) -> Question:
    """Return the question of *problem* about *choices*, with the questions at smaller sizes.

    Choices that a row cannot force are left out.
    """
    make_question = partial(_question, problem, input_nodes, layout, input_gen_fns)
    question = make_question(choices)
    hints = hints_of(input_nodes, layout)
    if not hints:
        return question
    by_winner = _by_winner(choices)
    specs = {candidate.winner: candidate.spec for candidate in question.candidates}
    smaller_sizes = tuple(
        SmallerSize(smaller.size, partial(_question_at, smaller, make_question, by_winner, specs))
        for smaller in hints[:-1]
    )
    return replace(question, size=hints[-1].size, smaller_sizes=smaller_sizes)


def _by_winner(choices: Sequence[Any]) -> dict[Winner, Any]:
    return {winner: choice for choice in choices if (winner := identify(choice)) is not None}


def _question_at(
    hints: SizeHints,
    make_question: Callable[[Sequence[Any]], Question],
    by_winner: Mapping[Winner, Any],
    specs: Mapping[Winner, Spec],
    winners: Sequence[Winner],
) -> Question:
    """Return the question about *winners* at *hints*, without those that need another kernel."""
    with using_hints(hints.symbols):
        fresh = [_choice_at(hints.size, winner, by_winner[winner]) for winner in winners]
        question = make_question([choice for choice in fresh if choice is not None])
    subgraphs = tuple(  # compiled once, which takes a second: sizes are arguments
        Candidate(winner, {**spec, "sizes": _sizes(choice, spec, hints)})
        for winner in winners
        if isinstance(choice := by_winner[winner], SubgraphChoiceCaller)
        and (spec := specs.get(winner))
    )
    return replace(question, candidates=(*question.candidates, *subgraphs), size=hints.size)


def _choice_at(size: int, winner: Winner, choice: Any) -> Any | None:
    """Return *choice* as it is called at *size*; None, which is logged, if inductor cannot."""
    try:
        return choice_at_hints(choice)
    except Exception as error:  # noqa: BLE001  a template may refuse a size in any way
        logger.info("not timed at %d: %s: %s: %s", size, winner, type(error).__name__, error)
        return None


def _sizes(choice: SubgraphChoiceCaller, spec: Spec, hints: SizeHints) -> list[int]:
    pairs = zip(choice.sym_inputs, spec["sizes"], strict=True)
    return [hints.symbols.get(symbol, size) for symbol, size in pairs]


def _question(
    problem: GemmProblem,
    input_nodes: Sequence[Any],
    layout: Any,
    input_gen_fns: Mapping[int, Callable[[Any], torch.Tensor]] | None,
    choices: Sequence[Any],
) -> Question:
    by_winner = _by_winner(choices)
    device = layout.device
    if device.type == "cpu":
        args = AlgorithmSelectorCache.get_inputs(
            list(choices), list(input_nodes), layout, dict(input_gen_fns or {})
        )
        packed = frozenset(input_gen_fns or ())
        live = LiveTrial(
            make_sets=lambda seed, _max_sets: _LiveOperands(args, packed, seed),
            make_call=lambda candidate, sets: _live_call(by_winner[candidate.winner], sets),
        )
        candidates = tuple(map(Candidate, by_winner))
        return Question(
            problem,
            str(device),
            candidates,
            environment=_environment(),
            live=live,
            region=_region(problem, ()),
        )
    specs, uncompiled = _specs(by_winner)
    with fixed_layouts(input_nodes), FakeTensorMode():  # sizes and strides, without memory
        args = AlgorithmSelectorCache.get_inputs(
            list(choices), list(input_nodes), layout, dict(input_gen_fns or {})
        )
    out, library_out = args.triton.output_tensor, args.extern.output_tensor
    assert out is not None
    assert library_out is not None
    names = list(dict.fromkeys(node.get_name() for node in input_nodes))
    views = tuple(
        ViewSpec(names.index(node.get_name()), *_shape(view), int(view.storage_offset()))
        for node, view in zip(input_nodes, args.extern.input_tensors, strict=True)
    )
    operands = tuple(
        _operand(tensor, [view for view in views if view.base == i], problem.op, i)
        for i, tensor in enumerate(args.triton.input_tensors)
    )
    return Question(
        problem,
        str(device),
        tuple(Candidate(winner, spec) for winner, spec in specs.items()),
        operands=operands,
        views=views,
        out=TensorSpec(*_shape(out), int(library_out.storage_offset()), _dtype_name(out)),
        environment=_environment(),
        uncompiled=uncompiled,
        region=_region(
            problem,
            [
                TensorSpec(view.sizes, view.strides, view.offset, operands[view.base].dtype)
                for view in views
            ],
        ),
    )


def _environment() -> dict[str, str]:
    """Return the variables that name the cache folders of this build."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def _region(problem: GemmProblem, views: Sequence[TensorSpec]) -> Region | None:
    """Return the region of the GEMM being lowered; *views* are its operands."""
    node = current_node()
    if node is None:
        return None
    return region_of(node, views, has_epilogue=problem.epilogue != NO_EPILOGUE)


def _specs(by_winner: Mapping[Winner, Any]) -> tuple[dict[Winner, Spec], dict[Winner, str]]:
    """Return the spec of each choice, and for choices without one the reason."""
    specs: dict[Winner, Spec] = {}
    uncompiled: dict[Winner, str] = {}
    for winner, choice in by_winner.items():
        try:
            spec = spec_of(choice)
        except Exception as error:  # noqa: BLE001  compiling a subgraph may raise anything
            uncompiled[winner] = f"{type(error).__name__}: {error}".partition("\n")[0]
            continue
        if spec is None:
            uncompiled[winner] = _NOT_PLAIN
        else:
            specs[winner] = spec
    return specs, uncompiled


def _operand(tensor: torch.Tensor, views: Sequence[ViewSpec], op: str, position: int) -> TensorSpec:
    """Return the spec of *tensor* with enough memory for all *views* of it."""
    sizes, strides = _shape(tensor)
    dtype = _dtype_name(tensor)
    own = TensorSpec(sizes, strides, 0, dtype).span
    span = max(
        (TensorSpec(view.sizes, view.strides, view.offset, dtype).span for view in views),
        default=own,
    )
    is_scale = op == "scaled_mm" and position in _SCALES
    fill = Fill.POSITIVE if is_scale else Fill.NORMAL
    return TensorSpec(sizes, strides, max(span - own, 0), dtype, fill)


def _shape(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor* without the dims along which it repeats, as an expanded bias does."""
    sizes = [
        size if stride else min(size, 1)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return tensor.as_strided(sizes, tensor.stride())


@dataclass
class _LiveOperands:
    """Inductor's operands for one selection, as a single operand set."""

    args: Any
    packed: frozenset[int]  # operands whose values must not change
    seed: int
    count: int = 1

    def __post_init__(self) -> None:
        source = torch.Generator().manual_seed(self.seed)
        for number, tensor in enumerate(self.args.extern.input_tensors):
            is_random = number not in self.packed and tensor.is_floating_point()
            if is_random and tensor.layout is torch.strided:
                _once(tensor).normal_(generator=source)

    def operands(self, _number: int) -> list[torch.Tensor]:
        return list(self.args.triton.input_tensors)

    def views(self, _number: int) -> list[torch.Tensor]:
        return list(self.args.extern.input_tensors)

    def out(self, _number: int, *, at_offset: bool = False) -> torch.Tensor:
        group = self.args.extern if at_offset else self.args.triton
        output: torch.Tensor = group.output_tensor
        return output

    def poison(self) -> None:
        out = self.args.extern.output_tensor
        out.fill_(float("nan") if out.is_floating_point() else torch.iinfo(out.dtype).max)


def _live_call(choice: Any, sets: Operands) -> Callable[[int], object]:
    """Return the call of *choice* on the live operand set *sets*."""
    is_library = AlgorithmSelectorCache._is_extern(choice)
    operands = sets.views(0) if is_library else sets.operands(0)
    out = sets.out(0, at_offset=is_library)
    post: Callable[[torch.Tensor], torch.Tensor] | None = None
    while isinstance(choice, DataProcessorChoiceCallerWrapper):
        operands, out = choice._preprocessor(operands, out)
        post, choice = choice._postprocessor, choice._wrapped
    return _LiveCall(choice.bmreq.make_run_fn(*operands, out=out), (*operands, out), post)


@dataclass(frozen=True)
class _LiveCall:
    """A call that keeps its operands and output alive: a C++ kernel holds only their addresses.

    The output is last in ``held``; ``post`` turns it into the GEMM's result.
    """

    run: Callable[[], Any]
    held: tuple[torch.Tensor, ...]
    post: Callable[[torch.Tensor], torch.Tensor] | None

    def __call__(self, _number: int) -> object:
        returned = self.run()
        if isinstance(returned, torch.Tensor):
            return returned
        return self.held[-1] if self.post is None else self.post(self.held[-1])
