"""The guards of what torch.compile makes for a dynamic size, taken where they are made.

`record` compiles as torch.compile does, up to the code of the kernels: dynamo, AOTAutograd with the
backward, inductor's passes, lowering, scheduling and code generation all add guards, so all of them
run. Building and launching kernels adds none and is left out: a graph runs uncompiled.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import sympy
import torch
import torch._dynamo
import torch._functorch.config as functorch_config
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import get_compilation_metrics
from torch._guards import CompileContext, TracingContext
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering
from torch.fx.experimental.symbolic_shapes import ShapeEnv, uninteresting_files

from warmup.inductor.guard import Artifact, Guard, SourceLine
from warmup.inductor.patches import Patches

_TORCH_FOLDER: Final = str(Path(torch.__file__).parents[1])
_RELATIONS: Final = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge, sympy.Eq)
_MAX_ARTIFACTS: Final = 64  # of one model, that may each be compiled so often
_SMALLEST_DYNAMIC: Final = (
    2  # what torch takes every dynamic size to be at least (0/1 specialisation)
)


@dataclass(frozen=True, slots=True)
class Follows:
    """A size that follows from the dim: ``times * dim + plus``."""

    times: int
    plus: int = 0

    def at(self, size: int) -> int:
        """Return it where the dim is *size*."""
        return self.times * size + self.plus


@dataclass(frozen=True, slots=True)
class Frame:
    """The code that one graph was compiled from."""

    function: str
    path: str
    line: int


@dataclass
class Recorder:
    """A backend of torch.compile that keeps the guards of each graph; see `record`.

    ``size`` is the dim's size in the calls that come, ``dim`` its name, ``follows`` the sizes of
    inputs that follow from it.
    """

    dim: str
    follows: tuple[Follows, ...]
    size: int = 0
    artifacts: list[Artifact] = field(default_factory=list)
    frames: dict[int, Frame] = field(default_factory=dict)
    _users: dict[int, tuple[Any, SourceLine]] = field(default_factory=dict)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _compiles: dict[str, int] = field(default_factory=dict)

    def __call__(self, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile *graph*, keep its guards, and return it as it is."""
        compile_id = CompileContext.current_compile_id()
        frame = None if compile_id is None else compile_id.frame_id
        number = self._numbers.setdefault(frame, len(self._numbers))
        tracing = TracingContext.get()
        assert tracing.fake_mode is not None
        compile_fx_module.compile_fx(graph, list(inputs))
        if compile_id is not None:
            self._compiles[str(compile_id)] = len(self.artifacts)
        self.artifacts.append(self._read(number, tracing.fake_mode.shape_env, inputs))
        run: Callable[..., Any] = graph.forward
        return run

    def settle(self) -> None:
        """Add what dynamo knows only after a call: the code of each graph, and why it compiled."""
        for metrics in get_compilation_metrics():
            place = self._compiles.pop(str(metrics.compile_id), None)
            if place is None:
                continue
            artifact = self.artifacts[place]
            self.artifacts[place] = replace(artifact, why=_first_guard(metrics.recompile_reason))
            self.frames[artifact.graph] = Frame(
                metrics.co_name or "", metrics.co_filename or "", metrics.co_firstlineno or 0
            )

    def note_user(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return *original*, which makes the places of guards, keeping where the model stood."""

        def get_stack_summary(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            for frame in reversed(TracingContext.extract_stack()):
                if not frame.filename.startswith(_TORCH_FOLDER + os.sep):
                    user = SourceLine(frame.filename, frame.lineno or 0, frame.name)
                    self._users[id(made[0])] = (made[0], user)
                    break
            return made

        return get_stack_summary

    def _read(self, number: int, env: Any, inputs: Sequence[Any]) -> Artifact:
        bound, unbound = self._bind(env)
        guards = [
            self._guard(env, guard.expr, guard.sloc, bound)
            for guard in env.guards
            if guard.expr.free_symbols & bound.keys()
        ]
        for symbol in bound:
            guards += self._range(env, symbol, bound)
            if (sloc := env.replacements_slocs.get(symbol)) is not None:
                equality = sympy.Eq(symbol, env.replacements[symbol])
                fixed = bool(equality.rhs.is_number)
                guards.append(self._guard(env, equality, sloc, bound, is_fixed=fixed))
        if not bound and self._is_fixed_in(inputs):
            guards.append(self._fixed())
        return Artifact(number, self.size, tuple(guards), unbound=unbound)

    def _bind(self, env: Any) -> tuple[dict[Any, Follows], tuple[str, ...]]:
        """Return the symbols whose sizes follow from the dim, and the names of the others."""
        bound: dict[Any, Follows] = {}
        unbound: list[str] = []
        for symbol, value in env.backed_var_to_val.items():
            matching = (each for each in self.follows if each.at(self.size) == value)
            if (found := next(matching, None)) is not None:
                bound[symbol] = found
            else:
                unbound.append(next((s.name for s in env.var_to_sources[symbol]), str(symbol)))
        return bound, tuple(unbound)

    def _guard(
        self, env: Any, expression: Any, sloc: Any, bound: dict[Any, Follows], **marks: bool
    ) -> Guard:
        size = sympy.Symbol(self.dim, integer=True, positive=True)
        known = env.backed_var_to_val
        held = {s: known[s] for s in expression.free_symbols if s in known and s not in bound}
        expression = expression.xreplace(held)
        spelled = expression.xreplace({s: f.times * size + f.plus for s, f in bound.items()})
        location = sloc.framework_loc
        noted = self._users.get(id(sloc))
        return Guard(
            expression=str(spelled),
            holds=_evaluator(expression, bound),
            is_linear=_is_linear(spelled, size),
            place=None if location is None or isinstance(location, str) else _place(location),
            user=noted[1] if noted else None,
            **marks,
        )

    def _range(self, env: Any, symbol: Any, bound: dict[Any, Follows]) -> Iterator[Guard]:
        """Yield the ends of the symbol's range; both may have come from a guard too."""
        known, slocs = env.var_to_range[symbol], env.var_to_range_sloc[symbol]
        if known.lower.is_finite:
            guard = self._guard(env, sympy.Ge(symbol, known.lower), slocs.lower, bound)
            if known.lower == _SMALLEST_DYNAMIC and guard.place is None:
                guard = replace(guard, place=_default_range(), user=None, is_default=True)
            yield guard
        if known.upper.is_finite and known.upper != sympy.oo:
            yield self._guard(env, sympy.Le(symbol, known.upper), slocs.upper, bound)

    def _is_fixed_in(self, inputs: Sequence[Any]) -> bool:
        """Return whether an input that is no weight has a size that follows from the dim."""
        sizes = {follows.at(self.size) for follows in self.follows}
        return any(
            isinstance(each, torch.Tensor)
            and not isinstance(each, torch.nn.Parameter)
            and any(isinstance(size, int) and size in sizes for size in each.shape)
            for each in inputs
        )

    def _fixed(self) -> Guard:
        size = self.size
        small = size < _SMALLEST_DYNAMIC
        return Guard(
            expression=f"Eq({self.dim}, {size})",
            holds=lambda other: other == size,
            is_linear=True,
            place=_default_range() if small else None,
            is_default=small,
            is_fixed=True,
        )


@contextlib.contextmanager
def record(recorder: Recorder, recompiles: int) -> Iterator[None]:
    """Let *recorder* see each graph compiled anew, up to *recompiles* times, without kernels.

    No graph comes from a cache, and dynamo begins and ends with nothing compiled.
    """
    patches = Patches()
    patches.wrap(GraphLowering, "compile_to_module", lambda _: _generate)
    patches.wrap(ShapeEnv, "_get_stack_summary", recorder.note_user)
    uninteresting_files().add(__file__)  # or guards would seem to be made by `note_user`
    torch._dynamo.reset()
    try:
        with (
            functorch_config.patch(enable_autograd_cache=False),
            inductor_config.patch(fx_graph_cache=False, compile_threads=1),
            dynamo_config.patch(
                recompile_limit=recompiles, accumulated_recompile_limit=_MAX_ARTIFACTS * recompiles
            ),
        ):
            yield
    finally:
        patches.restore()
        uninteresting_files().discard(__file__)
        torch._dynamo.reset()


def compile_recorded(model: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Return *model* compiled through *recorder*; dims become dynamic as torch.compile decides."""
    return torch.compile(model, backend=recorder)


def mark(tensor: torch.Tensor, dim: int) -> None:
    """Make the size *dim* of *tensor* dynamic in the compiles that follow, unless torch fixes it.

    `mark_dynamic` would make an error of a size that is fixed; here that is something to tell.
    """
    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def default_recompile_limit() -> int:
    """Return how often dynamo compiles one piece of code before it runs it uncompiled."""
    return int(dynamo_config.recompile_limit)


def _first_guard(reason: str | None) -> str:
    """Return the guard in what dynamo says, without the lines of source that follow it."""
    return " ".join((reason or "").partition("#")[0].split())


def _generate(graph: Any) -> Any:
    """Generate the code of *graph*, which may add guards, and build nothing."""
    graph.codegen()
    return types.SimpleNamespace(call=_refuse, runner=None)


def _refuse(*_: Any) -> Any:
    raise AssertionError("a graph compiled for its guards was called")


def _evaluator(expression: Any, bound: dict[Any, Follows]) -> Callable[[int], bool]:
    @functools.cache  # asked size by size, several times, where it is not linear
    def holds(size: int) -> bool:
        values = {symbol: sympy.Integer(each.at(size)) for symbol, each in bound.items()}
        try:
            return bool(expression.xreplace(values) != sympy.false)
        except ZeroDivisionError:  # the guard is undefined there, so it does not hold
            return False

    return holds


def _is_linear(spelled: Any, size: Any) -> bool:
    """Return whether the relation *spelled* holds on one interval for being linear in *size*."""
    if spelled in (sympy.true, sympy.false):
        return True
    if not isinstance(spelled, _RELATIONS):
        return False
    difference = spelled.lhs - spelled.rhs
    return bool(difference.is_polynomial(size)) and sympy.degree(difference, size) <= 1


def _place(frame: Any) -> SourceLine:
    path = frame.filename
    if path.startswith(_TORCH_FOLDER + os.sep):
        path = os.path.relpath(path, _TORCH_FOLDER)
    return SourceLine(path, frame.lineno or 0, frame.name)


def _default_range() -> SourceLine:
    """Return where torch gives every dynamic size its first range."""
    made = ShapeEnv._default_value_range
    path = os.path.relpath(inspect.getsourcefile(made) or "", _TORCH_FOLDER)
    return SourceLine(path, inspect.getsourcelines(made)[1], made.__name__)
