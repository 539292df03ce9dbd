"""`search_of`: inductor's choices for a selection as calls on random tensors.

A call runs on the current stream. A template's function from inductor is bound to the stream that
was current when the function was made, and a CUDA graph on another stream would capture nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._dynamo.device_interface import get_interface_for_device
from torch._inductor.select_algorithm import ExternKernelCaller

from warmup.core.live_search import LiveSearch
from warmup.core.method import Search
from warmup.core.rows import Winner
from warmup.core.search import SearchCounts
from warmup.core.trial import TimedCall
from warmup.inductor.gemm.key import strides_of


def search_of(
    choices: Mapping[Winner, Any], library: Winner, inputs: Sequence[torch.Tensor], layout: Any
) -> LiveSearch:
    """Return the search among *choices* on *inputs*, which are compiled; *library* is the control.

    The result has the *layout*, and the dtype that it says.
    """
    sizes, strides = ([int(size) for size in of] for of in (layout.size, layout.stride))
    out = torch.empty_strided(sizes, strides, dtype=layout.dtype, device=inputs[0].device)
    runs = {winner: ChoiceCall.of(choice, inputs, out) for winner, choice in choices.items()}
    calls: dict[Winner, TimedCall] = {winner: run.call for winner, run in runs.items()}
    counts = SearchCounts(search=Search.DEFAULT, listed=len(calls))
    return LiveSearch(
        listed=(library,),
        calls=calls,
        more=lambda _times_us: {},
        written=lambda winner: runs[winner].written(),
        uncompiled={},
        counts=lambda: counts,
    )


@dataclass(frozen=True, slots=True)
class ChoiceCall:
    """A call of one choice, which returns its result or writes it to ``out``."""

    run: Callable[[], Any]
    out: torch.Tensor

    @classmethod
    def of(cls, choice: Any, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> ChoiceCall:
        """Return the call of *choice* on *inputs*; a template writes to *out*."""
        if isinstance(choice, ExternKernelCaller):
            untyped: Any = choice  # in torch
            library: Callable[..., Any] = untyped.to_callable()
            return cls(lambda: library(*inputs), out)
        bound: partial[Any] = choice.bmreq.make_run_fn(*inputs, out=out)
        interface = get_interface_for_device(out.device.type)

        def run() -> Any:
            stream = interface.get_raw_stream(interface.current_device())
            return bound(stream=stream)

        return cls(run, out)

    def call(self, _number: int) -> object:
        """Call the choice once, on the current stream."""
        return self.run()

    def written(self) -> list[torch.Tensor]:
        """Call once, on an output without values, and return the result."""
        self.out.fill_(math.nan)
        returned = self.run()
        return [returned if isinstance(returned, torch.Tensor) else self.out.clone()]


def random_factors(inputs: Sequence[Any], fan_in: int) -> list[torch.Tensor]:
    """Return random tensors for the first two of *inputs*, such that results have a factor's size.

    *fan_in* is the number of products that a result adds up.
    """
    x, w = (_random(one) for one in inputs[:2])
    w /= math.sqrt(fan_in)
    return [x, w]


def _random(operand: Any) -> torch.Tensor:
    sizes, strides = (
        [int(size) for size in of] for of in (operand.get_size(), strides_of(operand))
    )
    tensor = torch.empty_strided(
        sizes, strides, dtype=operand.get_dtype(), device=operand.get_device()
    )
    return tensor.normal_()
