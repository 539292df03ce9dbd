"""`compile_ahead` and `load_ahead`: a call of a model compiled in a process, and run in another.

torch saves what it compiled with the guards of the call (``aot_compile`` of torch.compile,
torch/_dynamo/aot_compile.py). Loading compiles nothing but C++ kernels that the cache folder lacks:
no frame is traced and no graph is lowered. The bytes are a pickle of torch's: loading them can run
anything, so only bytes from a trusted bundle are loaded.
"""

from __future__ import annotations

import hashlib
import io
import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
import torch._inductor
from torch import nn
from torch._dynamo.guards import CheckFunctionManager

from warmup.core.artifact_form import SourceLines
from warmup.core.compile_modes import COMPILE_MODES, GRAPH_MODES
from warmup.core.errors import InductorChangedError, SettingsError
from warmup.inductor.internals import ARTIFACT_INTERNALS, check_internals
from warmup.inductor.versions import ARTIFACTS_SINCE, check_supported

_TORCH: Final = "torch"
_SAVED_BY_NAME: Final = frozenset({"TYPE_MATCH", "BUILTIN_MATCH"})  # not by the object's identity


def refusal_of_torch() -> str | None:
    """Return why this torch cannot compile ahead of time, None where it can."""
    if check_supported(torch.__version__) < ARTIFACTS_SINCE:
        needed = ".".join(map(str, ARTIFACTS_SINCE))
        return f"torch {torch.__version__} cannot save compiled calls, torch {needed} can"
    return None


def check_savable(mode: str) -> None:
    """Check that this torch can save calls that are compiled in *mode* of torch.compile.

    Raises:
        SettingsError: it cannot, or there is no such mode.
    """
    modes = [each for each in COMPILE_MODES if each not in GRAPH_MODES]
    if mode not in modes:
        reason = "records CUDA graphs, which torch does not save with an artifact"
        what = reason if mode in GRAPH_MODES else "is not a mode"
        raise SettingsError(f"artifacts: {mode!r} {what}", f"use one of {', '.join(modes)}")
    if (refusal := refusal_of_torch()) is not None:
        raise SettingsError(f"artifacts: {refusal}", "use --bundle-graphs")


def call_model(model: nn.Module, /, **arguments: Any) -> Any:
    """Return ``model(**arguments)``: the function that is compiled, with the model as argument."""
    return model(**arguments)


def compile_ahead(
    model: nn.Module, arguments: Mapping[str, Any], mode: str
) -> tuple[bytes, tuple[SourceLines, ...]]:
    """Return the compiled call ``model(**arguments)``, and the lines that it was traced from.

    Sizes are fixed, except those of dims that are marked as dynamic. Lines of torch are left out.

    Raises:
        Exception: torch cannot compile the call as one graph, or cannot save the graph.
    """
    check_internals(ARTIFACT_INTERNALS)
    options = {**torch._inductor.list_mode_options(mode), "guard_filter_fn": _guards_to_save}
    compiled: Any = torch.compile(call_model, dynamic=False, fullgraph=True, options=options)
    artifact = compiled.aot_compile(((model,), dict(arguments)))
    content = type(artifact).serialize(artifact).serialized_data
    lines = {
        (source.module, source.firstlineno, source.lastlineno)
        for source in artifact.source_info().inlined_sources
        if source.module.partition(".")[0] != _TORCH
    }
    return content, tuple(SourceLines(*each, _sha256_of(*each)) for each in sorted(lines))


def changed_source(sources: Iterable[SourceLines]) -> str | None:
    """Return which of *sources* reads otherwise here than where it was compiled, None for none."""
    for lines in sources:
        try:
            here = _sha256_of(lines.module, lines.first, lines.end)
        except Exception as error:  # noqa: BLE001  a module may raise anything on import
            return f"{lines.module}, which it was traced from, cannot be imported ({error})"
        if here != lines.sha256:
            return f"{lines.module}, lines {lines.first} to {lines.end - 1}, has changed"
    return None


@dataclass(frozen=True, slots=True)
class LoadedArtifact:
    """A compiled call, loaded by `load_ahead`."""

    _function: Any

    def fits(self, model: nn.Module, arguments: Mapping[str, Any]) -> bool:
        """Whether the guards hold: the call is of the kind that was compiled."""
        return bool(self._function.guard_check(model, **arguments))

    def misfit(self, model: nn.Module, arguments: Mapping[str, Any]) -> str:
        """Return the first guard that does not hold."""
        values = self._function.prepare_f_locals(model, **arguments)
        found = self._function._artifacts.guard_manager.check_verbose(values)
        return "; ".join(found.verbose_code_parts)

    def run(self, model: nn.Module, arguments: Mapping[str, Any]) -> Any:
        """Return the result of the call; its guards are not checked."""
        return self._function.fn(model, **arguments)


def load_ahead(content: bytes) -> LoadedArtifact:
    """Load *content*, which `compile_ahead` returned in a process like this one, and is trusted.

    Raises:
        InductorChangedError: torch has other internals than the supported versions.
        Exception: torch cannot load it.
    """
    check_internals(ARTIFACT_INTERNALS)
    function = torch.compiler.load_compiled_function(
        io.BytesIO(content), f_globals=call_model.__globals__
    )
    if not hasattr(function, "fn"):
        raise InductorChangedError("torch.compiler.load_compiled_function returns no fn")
    return LoadedArtifact(function)


def _guards_to_save(guards: Sequence[Any]) -> list[bool]:
    """Return which of *guards* an artifact keeps.

    As torch does without a filter (`aot_compile_fullgraph`), guards on globals and on the identity
    of an object are left out, which mean nothing in another process; torch forgets those that are
    derived from other guards, and then refuses to save.
    """
    identities = frozenset(CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
    return [
        not guard.is_global
        and (
            guard.guard_type in _SAVED_BY_NAME
            or identities.isdisjoint((guard.guard_type, *guard.derived_guard_types))
        )
        for guard in guards
    ]


def _sha256_of(module: str, first: int, end: int) -> str:
    path = getattr(import_module(module), "__file__", None) or ""
    lines = linecache.getlines(path)[first - 1 : end - 1]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
