"""What programs share that lower for the stated H100; importing this pretends the device.

Such a program answers one case a line on stdin, as JSON, with one line on stdout.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import fake_gpu
import torch

fake_gpu.pretend()

from torch._inductor import config  # noqa: E402  after the device is pretended
from torch._inductor.choices import InductorChoices  # noqa: E402
from torch._inductor.debug import DebugContext  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.fx_passes import fuse_attention, misc_patterns  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.errors import warmup_error_in  # noqa: E402
from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.core.rows import Evidence, Method, Row, Winner  # noqa: E402
from warmup.core.trial import LiveSearch, Outcome, Samples, Tuned  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.gemm.choices import identify  # noqa: E402
from warmup.inductor.gemm.key import describe  # noqa: E402
from warmup.inductor.gemm.search import Selection  # noqa: E402
from warmup.keys import question as questions  # noqa: E402
from warmup.measuring.selection import make_row  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402
from warmup.table.schema import OnMiss  # noqa: E402

EVIDENCE = Evidence(time_us=1.0, library_us=2.0, runner_up=None, runner_up_us=None, tried=2)
GEMM_OPTIONS: dict[str, Any] = {"max_autotune_gemm_backends": "ATEN,TRITON"}
_SETTINGS = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''\n(.*?)'''", re.DOTALL)
_LAUNCH = re.compile(r"\b(?:triton_\w+\.run|extern_kernels\.\w+)\(.*")

Case = dict[str, Any]
Graph = tuple[Any, list[Any], FakeTensorMode]


def fakes() -> FakeTensorMode:
    """Return a mode for fake tensors, with a `ShapeEnv` of its own."""
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())


def empty(*sizes: Any, dtype: torch.dtype = torch.bfloat16, device: str = "cuda:0") -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device=device)


def like(specs: Sequence[Any], mode: FakeTensorMode) -> list[torch.Tensor]:
    """Return fake tensors of the sizes, strides and dtypes of *specs*, each a `TensorSpec`."""
    with mode:
        return [
            torch.empty_strided(
                one.sizes, one.strides, dtype=getattr(torch, one.dtype), device="cuda:0"
            )
            for one in specs
        ]


def trace(function: Callable[..., Any], inputs: Sequence[Any], mode: FakeTensorMode) -> Any:
    """Return the graph of *function*, decomposed as inductor does it."""
    with mode, torch.no_grad():
        graph = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
        graph.graph.eliminate_dead_code()
    return graph


def run_post_grad(graph: Any, mode: FakeTensorMode, **options: Any) -> None:
    with V.set_fake_mode(mode), config.patch({**_SETTINGS, **options}):
        post_grad_passes(graph, is_inference=True)


def show_outputs(graph: Any) -> None:
    """Mark the outputs of *graph* as what the caller of the model sees, as torch.compile does."""
    (end,) = graph.graph.find_nodes(op="output")
    outputs = end.args[0] if isinstance(end.args[0], (list, tuple)) else [end.args[0]]
    end.meta |= {
        "user_visible_output_idxs": list(range(len(outputs))),
        "original_output_strides": [tuple(node.meta["val"].stride()) for node in outputs],
    }


def lower(
    graph: Any,
    inputs: Sequence[Any],
    mode: FakeTensorMode,
    then: Callable[[GraphLowering], Any] = lambda _: None,
    **options: Any,
) -> Any:
    handlers = V.set_fake_mode(mode), V.set_debug_handler(DebugContext())
    with config.patch({**_SETTINGS, **options}), handlers[0], handlers[1]:
        lowering = GraphLowering(
            graph, example_inputs=inputs, is_inference=True, shape_env=mode.shape_env
        )
        with V.set_graph_handler(lowering):
            lowering.run(*inputs)
            return then(lowering)


def generate(graph: Any, inputs: Sequence[Any], mode: FakeTensorMode, **options: Any) -> str:
    """Return the code that inductor lowers, schedules and generates."""
    code = lower(graph, inputs, mode, lambda lowering: lowering.codegen()[0], **options)
    return str(getattr(code, "value", code))


def guards_of(mode: FakeTensorMode) -> list[str]:
    assert mode.shape_env is not None
    return [str(guard.expr) for guard in mode.shape_env.guards]


def kernels_in(code: str) -> list[tuple[str, str]]:
    """Return the name and the source of each Triton kernel in *code*."""
    return _KERNEL.findall(code)


def launches_in(code: str) -> list[str]:
    """Return the lines of *code* that launch a kernel or call the library, from the call on."""
    return _LAUNCH.findall(code)


# -- tables ------------------------------------------------------------------------------------


@contextlib.contextmanager
def attached(
    lookup: Lookup, options: Mapping[str, Any] | None = None, tag: str = "test", **words: Any
) -> Iterator[None]:
    attachment = connect().attach(lookup, options or {}, tag, quiet=True, **words)
    try:
        yield
    finally:
        attachment.detach()


def serve(
    make: Callable[[], Any],
    rows: Mapping[str, Winner],
    mode: str = "strict",
    tuner: Any = None,
    *,
    options: Mapping[str, Any] | None = None,
    tag: str = "test",
    **words: Any,
) -> tuple[Any, dict[str, Any]]:
    """Return what *make* returns under a table of *rows*, and the error of warmup's, and events."""
    # *mode* is what happens without a row, or ``tune`` to ask *tuner*; *words* go to the `Lookup`.
    events: list[Event] = []
    tunes = mode == "tune"
    lookup = Lookup(
        {key: Row(winner, EVIDENCE) for key, winner in rows.items()},
        emitter=Emitter([events.append]),
        on_miss=OnMiss.FALLBACK if tunes else OnMiss(mode),
        tuner=tuner if tunes else None,
        **words,
    )
    made, error = None, None
    try:
        with attached(lookup, options, tag):
            made = make()
    except Exception as raised:
        own = warmup_error_in(raised)
        if own is None:
            raise
        error = f"{type(own).__name__}: {own}"
    return made, {
        "error": error,
        "events": [{"name": event.name, **event.fields} for event in events],
    }


def answer_each(answer: Callable[[Case], Any]) -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


@dataclass(slots=True)
class StatedTuner:
    """A tuner that is told the times: *time_us* by winner. What it would run has no device."""

    time_us: Callable[[Winner], float]
    timed: dict[str, float] = field(default_factory=dict)
    questions: list[questions.RegionQuestion] = field(default_factory=list)

    def measure(self, question: questions.Question) -> Tuned | None:
        """Choose as the real one does; there is no answer to a GEMM selection."""
        key = question.problem.key
        if isinstance(question, questions.SearchQuestion):
            return self.measure_search(key, question.search)
        if isinstance(question, questions.RegionQuestion):
            self.questions.append(question)
        assert not isinstance(question, questions.GemmQuestion), key
        return self._choose(key, self._time(question.calls), question.library)

    def measure_search(self, key: str, search: LiveSearch) -> Tuned | None:
        """Follow the search to its end, and choose as the real one does."""
        times: dict[Winner, float] = {}
        calls = search.calls
        while calls:
            times |= self._time(calls)
            calls = search.more(times)
        tuned = self._choose(key, times, min(search.listed, key=times.__getitem__))
        return None if tuned is None else replace(tuned, searched=search.counts())

    def _time(self, winners: Iterable[Winner]) -> dict[Winner, float]:
        times = {winner: self.time_us(winner) for winner in winners}
        for winner, time in times.items():
            self.timed[",".join(f"{name}={value}" for name, value in winner.kwargs)] = time
        return times

    def _choose(self, key: str, times: Mapping[Winner, float], control: Winner) -> Tuned | None:
        outcomes = [
            Outcome(winner=winner, samples=Samples((time,))) for winner, time in times.items()
        ]
        return make_row(key, outcomes, control, Method())

    def close(self) -> None:
        pass


# -- inductor's choices ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gemm:
    """The selection of one GEMM: its candidates by template, and what inductor lists of them."""

    selection: Selection
    candidates: dict[str, Any]
    listed: Callable[[], list[Any]]

    @property
    def key(self) -> str:
        inputs = self.selection.kernel_inputs
        return describe(self.selection.op_name, inputs.nodes(), inputs.output_layout()).key


@contextlib.contextmanager
def choosing(
    choose: Callable[[Gemm], list[Any]], base: type[InductorChoices] = InductorChoices
) -> Iterator[None]:
    """Let *choose* return the candidates of each GEMM that is tuned."""

    class Choosing(base):  # type: ignore[misc,valid-type]  either handler of torch's
        def _finalize_template_configs(
            self, template_choices: Any, inputs: Any, templates: Any, op_name: str, kw: Any = None
        ) -> Any:
            def listed() -> Any:
                plain = super(Choosing, self)._finalize_template_configs
                return plain(template_choices, inputs, templates, op_name, kw)

            if not (config.max_autotune or config.max_autotune_gemm):
                return listed()
            selection = Selection(connect().version, self, inputs, templates, op_name, kw or {})
            return choose(Gemm(selection, template_choices, listed))

    with V.set_choices_handler(Choosing()):
        yield


def is_library(candidate: Any) -> bool:
    uid: str = candidate.template.uid
    return uid.startswith("aten::") and uid != "aten::bias_addmm"  # which torch 2.11 lists beside


def winner_of(candidate: Any) -> Winner:
    """Return what a row names for *candidate*, without generating the code of a template."""
    is_built = candidate.template.uid.startswith(("aten::", "blas::"))
    winner = identify(
        candidate.choice if is_built else SimpleNamespace(annotations={"ktc": candidate})
    )
    assert winner is not None
    return winner


def without_device_patterns() -> None:
    """Leave out the patterns whose examples put numbers on a real device."""
    fuse_attention._sfdp_init = misc_patterns._misc_patterns_init = lambda *_: None


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Give meta tensors for random ones, such as the pad_mm pass makes to measure."""
    with contextlib.ExitStack() as stack:
        for name in ("randn", "randn_like"):
            make = functools.partial(_on_meta, getattr(torch, name))
            stack.enter_context(patch.object(torch, name, make))
        yield


def _on_meta(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return make(*args, **{**kwargs, "device": "meta"})
