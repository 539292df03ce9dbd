"""`SelectionChoices`: the hooks of row kinds of selections whose choices inductor lists itself.

These are `Convolutions` and `GroupedProducts`. Max-autotune times the library's kernel against
Triton templates, alone, and so does a build. At serving the list of choices is reduced to the row's
before inductor selects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch._dynamo.device_interface import get_interface_for_device
from torch._inductor.kernel import conv
from torch._inductor.kernel.mm_grouped import triton_grouped_mm_template
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    ExternKernelCaller,
    TritonTemplateCaller,
)

from warmup.core.errors import MissReason, ProblemError
from warmup.core.events import Hit, Missed
from warmup.core.roofline import dtype_name
from warmup.core.rows import Family, Search, SearchCounts, Winner
from warmup.core.trial import LiveSearch
from warmup.inductor.gemm.choices import identify, library_or_first, with_library
from warmup.inductor.gemm.key import layout_of_operand, strides_of
from warmup.inductor.listing import OwnMeasurements
from warmup.inductor.options import tuning_is_on
from warmup.inductor.patches import Function, KindHooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.convolution import ConvolutionProblem
from warmup.keys.grouped import OF_EACH_GROUP, GroupedProblem, Over, ends_of_groups
from warmup.keys.kind import Problem
from warmup.keys.question import Answers, SearchQuestion

_LEAST_CHOICES: Final = 2
# What is tuned of a template. Its other kwargs follow from the operands and their precision.
_TILE_WORDS: Final = re.compile(r"\b(BLOCK_[MNKLC]|num_stages|num_warps)=([0-9]+)")

TensorMakers = Mapping[int, Callable[[Any], torch.Tensor]]


class SelectionChoices(KindHooks):
    """Answers the selections of one row kind from *answers* while attached."""

    name: ClassVar[str]  # what inductor calls the selection
    templates: ClassVar[Mapping[str, Any]]  # by the first words of their choices' names
    has_samples: ClassVar[bool] = False  # the first dim of the first input and the output
    # In tables of earlier builds the policy's option leaves the library.
    is_always_kept: ClassVar[bool] = False

    def __init__(self, version: Version, answers: Answers) -> None:
        super().__init__(version, answers)
        self._measurements = OwnMeasurements()

    @classmethod
    def describe(cls, choices: Sequence[Any], inputs: Sequence[Any], layout: Any) -> Problem:
        """Return the problem of a selection; a ProblemError where a key cannot describe it."""
        try:
            return cls._describe(choices, inputs, layout)
        except TypeError as error:
            raise ProblemError(f"a size of the {cls.name} is a range: {error}") from error

    @staticmethod
    def _describe(choices: Sequence[Any], inputs: Sequence[Any], layout: Any) -> Problem:
        raise NotImplementedError

    @staticmethod
    def tensors_for(inputs: Sequence[Any], makers: TensorMakers) -> list[torch.Tensor]:
        """Return random tensors like *inputs*; *makers* are inductor's, by position."""
        raise NotImplementedError

    @classmethod
    def winner_of(cls, choice: Any) -> Winner | None:
        """Return *choice* as a winner; None for a choice that a row cannot name."""
        template = cls.templates.get(choice.name.rpartition("_")[0])
        if not isinstance(choice, TritonTemplateCaller) or template is None:
            return identify(choice)
        tuned = [(name, int(value)) for name, value in _TILE_WORDS.findall(choice.description)]
        return Winner(Family.TEMPLATE, template.uid, tuple(sorted(tuned)), template.src_hash)

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(AlgorithmSelectorCache, "__call__", self._select, with_library)
        self._measurements.attach(patches)

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

        is_decision = name == self.name and len(choices) >= _LEAST_CHOICES
        if not (self._active and is_decision and tuning_is_on()):
            return proceed(choices)
        library = library_or_first(name, choices)
        if not (self.is_always_kept or name in self._settings.searched):
            return proceed([library])
        try:
            problem = self.describe(choices, input_nodes, layout)
        except ProblemError:  # a size is a range, for which no row is measured
            return proceed([library])
        answer = self._answers.find(problem)
        if isinstance(answer, Winner):
            chosen = [choice for choice in choices if self.winner_of(choice) == answer]
            if chosen:
                result = proceed(chosen[:1])
                self._answers.emit(Hit(problem.key, str(answer)))
                return result
            answer = MissReason.TEMPLATE_ABSENT
        if self._settings.measures:
            kw["return_multi_template"] = False
            with self._measurements.chosen_by(partial(self._measure, problem, library)):
                return proceed(choices)
        self._answers.emit(Missed(problem.key, answer, str(self.winner_of(library))))
        return proceed([library])

    def _measure(
        self,
        problem: Problem,
        default: Any,
        ready: list[Any],
        inputs: Any,
        layout: Any,
        makers: TensorMakers | None,
    ) -> Any:
        # *default* is a library's.
        named = {winner: one for one in ready if (winner := self.winner_of(one)) is not None}
        library = self.winner_of(default)
        if library is None or library not in named:
            return ready[0]
        with torch.random.fork_rng(devices=[layout.device]), torch.no_grad():
            tensors = self.tensors_for(inputs, makers or {})
            search = _search_of(named, library, tensors, layout, has_samples=self.has_samples)
            winner = self._answers.measure(SearchQuestion(problem, search))
        return named.get(winner or library, default)


class Convolutions(SelectionChoices):
    """A convolution by the library or a template (kernel/conv.py)."""

    name = "convolution"
    templates: ClassVar[Mapping[str, Any]] = {
        f"triton_{one.name}": one
        for one in (
            *(conv.conv2d_template, conv.conv3d_template),
            *filter(None, [getattr(conv, "depthwise_conv1d_template", None)]),  # not in torch 2.11
        )
    }
    is_always_kept = has_samples = True

    @staticmethod
    def _describe(choices: Sequence[Any], inputs: Sequence[Any], layout: Any) -> Problem:
        library = next((one for one in choices if isinstance(one, ExternKernelCaller)), None)
        if library is None or "stride" not in library.kwargs:
            raise ProblemError("no library call says stride and padding")
        x, w = ((_whole(one.get_size()), _whole(strides_of(one))) for one in inputs[:2])
        dims, dtype = len(x[0]) - 2, inputs[0].get_dtype()
        stride, padding = (  # torch allows a single value for all dims
            _whole(given) * (dims if len(given) == 1 else 1)
            for given in (library.kwargs["stride"], library.kwargs["padding"])
        )
        return ConvolutionProblem(
            x=x,
            w=w,
            out=(_whole(layout.size), _whole(layout.stride)),
            stride=stride,
            padding=padding,
            groups=int(library.kwargs["groups"]),
            dtype=dtype_name(dtype),
            fp32=_fp32_precision() if dtype == torch.float32 else None,
        )

    @staticmethod
    def tensors_for(inputs: Sequence[Any], _makers: TensorMakers) -> list[torch.Tensor]:
        return _random_factors(inputs, math.prod(_whole(inputs[1].get_size()[1:])))


_OFFSETS: Final = 2  # position among the inputs
_OF_RANKS: Final = {
    (2 + ("a" in names), 2 + ("b" in names)): over for over, names in OF_EACH_GROUP.items()
}


class GroupedProducts(SelectionChoices):
    """Products of groups of rows, by the library or a template (kernel/mm_grouped.py).

    A layer with experts multiplies the rows of each expert by the expert's weights in one call;
    which rows are whose, the tensor ``offs`` says at run time. Choices are timed with rows that a
    router sent to one group or another at random. Max-autotune times groups of equal size
    (`create_offsets`), which often fill whole tiles, and hide what a kernel loses where they do
    not.
    """

    name = "grouped_mm"
    templates: ClassVar[Mapping[str, Any]] = {
        f"triton_{triton_grouped_mm_template.name}": triton_grouped_mm_template
    }

    @staticmethod
    def _describe(_choices: Sequence[Any], inputs: Sequence[Any], layout: Any) -> Problem:
        a, b = inputs[:2]
        sizes = [_whole(one.get_size()) for one in inputs]
        _whole(layout.size)
        over = _OF_RANKS[len(sizes[0]), len(sizes[1])]
        return GroupedProblem(
            groups=sizes[0][0] if over is Over.NOTHING else sizes[_OFFSETS][0],
            over=over,
            m=sizes[0][-2],
            n=sizes[1][-1],
            k=sizes[0][-1],
            dtype=dtype_name(a.get_dtype()),
            a=layout_of_operand(a),
            b=layout_of_operand(b),
            out=dtype_name(layout.dtype),
        )

    @staticmethod
    def tensors_for(inputs: Sequence[Any], makers: TensorMakers) -> list[torch.Tensor]:
        """Return two random factors and, where groups have offsets, those."""
        # Offsets of columns and of factors must be aligned: they are inductor's, of about equal
        # size.
        a, b = inputs[:2]
        tensors = _random_factors(inputs, int(a.get_size()[-1]))
        if len(inputs) == _OFFSETS:
            return tensors
        offsets = inputs[_OFFSETS]
        if _OF_RANKS[len(a.get_size()), len(b.get_size())] is not Over.M:
            return [*tensors, makers[_OFFSETS](offsets)]
        ends = ends_of_groups(int(a.get_size()[0]), int(offsets.get_size()[0]))
        return [*tensors, _offsets_like(offsets, ends)]


def _offsets_like(operand: Any, ends: Sequence[int]) -> torch.Tensor:
    return torch.tensor(ends, dtype=operand.get_dtype(), device=operand.get_device())


def _whole(sizes: Sequence[Any]) -> list[int]:
    return [int(size) for size in sizes]


def _fp32_precision() -> str:
    cudnn: Any = torch.backends.cudnn
    precision = str(cudnn.conv.fp32_precision)
    return "ieee" if precision == "none" else precision


def _random_factors(inputs: Sequence[Any], fan_in: int) -> list[torch.Tensor]:
    """Return the first two of *inputs* at random; a sum of *fan_in* products has their size."""
    x, w = (_random(one) for one in inputs[:2])
    w /= math.sqrt(fan_in)
    return [x, w]


def _random(operand: Any) -> torch.Tensor:
    like = {"dtype": operand.get_dtype(), "device": operand.get_device()}
    sizes, strides = _whole(operand.get_size()), _whole(strides_of(operand))
    return torch.empty_strided(sizes, strides, **like).normal_()


def _search_of(
    choices: Mapping[Winner, Any],
    library: Winner,
    inputs: Sequence[torch.Tensor],
    layout: Any,
    *,
    has_samples: bool,
) -> LiveSearch:
    sizes, strides = _whole(layout.size), _whole(layout.stride)
    out = torch.empty_strided(sizes, strides, dtype=layout.dtype, device=inputs[0].device)
    runs = {winner: run_of(choice, inputs, out) for winner, choice in choices.items()}

    def written(winner: Winner) -> list[torch.Tensor]:
        out.fill_(math.nan)
        returned = runs[winner](0)
        return [returned if isinstance(returned, torch.Tensor) else out.clone()]

    counts = SearchCounts(search=Search.DEFAULT, listed=len(runs))
    return LiveSearch(
        listed=(library,),
        calls=runs,
        more=lambda _times_us: {},
        written=written,
        uncompiled={},
        counts=lambda: counts,
        samples=(inputs[0], inputs[1]) if has_samples else None,
    )


def run_of(
    choice: Any, inputs: Sequence[torch.Tensor], out: torch.Tensor
) -> Callable[[int], object]:
    """Return the call of *choice* on *inputs*, which returns its result or writes it to *out*."""
    if isinstance(choice, ExternKernelCaller):
        untyped: Any = choice  # in torch
        library: Callable[..., Any] = untyped.to_callable()
        return lambda _number: library(*inputs)
    bound: partial[Any] = choice.bmreq.make_run_fn(*inputs, out=out)
    interface = get_interface_for_device(out.device.type)

    def run(_number: int) -> object:
        stream = interface.get_raw_stream(interface.current_device())
        return bound(stream=stream)

    return run
