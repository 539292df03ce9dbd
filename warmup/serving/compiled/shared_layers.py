"""`SharedLayers`: serves one bucket by a graph around the repeated layers, and their artifacts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from warmup.core.compile_modes import GRAPH_MODES
from warmup.core.errors import LayersError, SettingsError
from warmup.core.events import logger
from warmup.inductor.artifacts import (
    compile_entry,
    count_artifacts,
    drop_artifacts,
    graph_break_reason,
    with_own_code,
)
from warmup.inductor.layers.module_watch import ModuleWatch
from warmup.inductor.layers.opaque_call import OtherLayoutError, run_program, tracing_program
from warmup.models.layer_proof import LayerProof
from warmup.models.other_sizes import OtherSizes
from warmup.models.proved_layers import NotSharedError, ProvedLayers
from warmup.models.shadow import Shadow, shadow_of
from warmup.serving.compiled.arguments import Arguments

if TYPE_CHECKING:
    from torch import nn

    from warmup.models.repeated_groups import LayerGroup


class LayersForm(StrEnum):
    """How repeated layers are compiled: `warmup.compile` explains each."""

    AUTO = "auto"
    ONCE = "once"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class SharedLayersReport:
    """How the repeated layers of a model were compiled so far.

    ``shared`` layers use ``artifacts`` artifacts in each bucket; ``refusal`` says why whole graphs
    are compiled instead. ``changes`` counts calls that found a layer or a weight changed, after
    which the layers were proved equal again; ``otherwise`` counts calls that whole graphs served
    because layers were proved equal for another form of call.
    """

    shared: int
    artifacts: int
    changes: int
    otherwise: int
    refusal: str | None

    def __str__(self) -> str:
        if self.refusal is not None:
            text = f"layers: whole graphs, since {self.refusal}"
        else:
            text = f"layers: {self.shared} share {self.artifacts} artifacts in each bucket"
        changes = f", {self.changes} changes" if self.changes else ""
        otherwise = f", {self.otherwise} calls of another form" if self.otherwise else ""
        return f"{text}{changes}{otherwise}"


class LayerSharing:
    """What the buckets of one model share about its repeated layers, in *groups*.

    ``refusal`` says why whole graphs are compiled, None while layers are shared.
    """

    def __init__(self, form: LayersForm, groups: tuple[LayerGroup, ...]) -> None:
        self.form, self.groups = form, groups
        self.refusal: str | None = None
        self._counts: Counter[str] = Counter()
        self._proved: ProvedLayers | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, model: nn.Module, form: str) -> LayerSharing | None:
        """Return what is shared about the layers of *model*; None for whole graphs.

        Raises:
            SettingsError: there is no such form.
            LayersError: the layers must be compiled once, and there are no repeated layers.
        """
        from warmup.models.repeated_groups import find_groups

        if form not in set(LayersForm):
            raise SettingsError(f"layers={form!r}", f"use one of {', '.join(LayersForm)}")
        if form == LayersForm.WHOLE:
            return None
        sharing = cls(LayersForm(form), find_groups(model))
        if not sharing.groups:
            sharing.refuse("the model has no repeated layers")
        return sharing

    def refuse(self, reason: str) -> None:
        """Compile whole graphs from now on, and log why.

        Raises:
            LayersError: the layers must be compiled once.
        """
        if self.form is LayersForm.ONCE:
            raise LayersError(reason)
        with self._lock:
            self.refusal = reason
        logger.warning("layers: whole graphs are compiled, since %s", reason)

    def add(self, proved: ProvedLayers) -> None:
        """Note what was proved; log the first time which layers share artifacts."""
        with self._lock:
            is_first, self._proved = self._proved is None, proved
        if is_first:
            logger.info("layers: %s", proved)

    def count(self, what: str, message: str) -> None:
        """Count *what*, "changes" or "otherwise"; log *message* at each power of two."""
        with self._lock:
            self._counts[what] += 1
            count = self._counts[what]
        if count & (count - 1) == 0:
            logger.warning("%s (%d times so far)", message, count)

    def report(self) -> SharedLayersReport:
        """Return the counts so far."""
        shared = () if self._proved is None else self._proved.artifacts
        return SharedLayersReport(
            shared=sum(len(each.layers) for each in shared),
            artifacts=len(shared),
            changes=self._counts["changes"],
            otherwise=self._counts["otherwise"],
            refusal=self.refusal,
        )


class SharingBucket(Protocol):
    """What `SharedLayers` needs of its bucket."""

    def whole(self, *args: Any, **kwargs: Any) -> Any:
        """Serve a call of another form, by the whole graph."""

    def other_sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OtherSizes | None:
        """Return a call with other sizes of the bucket; None for a bucket of one size."""

    def as_compiled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments as a compile gets them."""

    def cache_entries(self) -> AbstractContextManager[None]:
        """Return a context in which a compile has cache entries of its own, if it needs them."""


class SharedLayers:
    """Serves the calls of one *bucket*; made at its first call."""

    def __init__(self, sharing: LayerSharing, proof: LayerProof, bucket: SharingBucket) -> None:
        self._sharing, self._proof, self._bucket = sharing, proof, bucket
        self._entry: Callable[..., Any] | None = None
        self._is_whole = False  # a change has made the layers differ
        self._others: set[Any] = set()  # forms of calls that the whole graph serves
        self._lock = threading.RLock()

    @property
    def artifacts(self) -> int:
        """How many graphs around the layers were compiled."""
        return 0 if self._entry is None else count_artifacts(self._entry)

    def drop_artifacts(self) -> None:
        """Drop the graph around the layers; the next compile starts anew."""
        if self._entry is not None:
            drop_artifacts(self._entry)
            self._entry = None

    def compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Prove the layers equal, compile the graph around them; return the result of this call.

        Raises:
            NotSharedError: the layers cannot share artifacts.
        """
        proved = self._proof.prove(args, kwargs, self._bucket.other_sizes(args, kwargs))
        shadow = shadow_of(self._proof.model, proved.forwards)
        entry = with_own_code(shadow.model, f"{self._proof.name}_around")
        compiled = compile_entry(entry, self._proof.mode, whole=True)
        try:
            with tracing_program(proved.program):
                result = run_program(proved.program, compiled, args, kwargs)
        except Exception as error:
            if (other := _other_layout(error)) is not None:
                raise NotSharedError(str(other)) from error
            if (place := graph_break_reason(error)) is not None:
                raise NotSharedError(f"the graph around the layers breaks: {place}") from error
            raise
        self._entry, self._compiled, self._program = entry, compiled, proved.program
        self._watch = self._watch_of(proved, shadow)
        self._sharing.add(proved)
        return result

    def _watch_of(self, proved: ProvedLayers, shadow: Shadow) -> ModuleWatch:
        inner = [module for layer in proved.forwards for module in layer.modules()]
        modules = [*dict.fromkeys([*shadow.copies, *inner])]
        return ModuleWatch(
            modules,
            proved.dicts,
            proved.weights,
            has_addresses=self._proof.mode in GRAPH_MODES,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Serve a call: by the shared artifacts if nothing has changed since they were proved."""
        if self._is_whole:
            return self._bucket.whole(*args, **kwargs)
        if not self._watch.is_same():
            return self._prove_again(args, kwargs)
        if self._others and _form(args, kwargs) in self._others:
            return self._serve_otherwise(args, kwargs)
        try:
            return run_program(self._program, self._compiled, args, kwargs)
        except Exception as error:
            if _other_layout(error) is None:
                raise
        if self._entry is None or not count_artifacts(self._entry):  # torch._dynamo.reset()
            return self._prove_again(args, kwargs, is_reset=True)
        self._others.add(_form(args, kwargs))
        return self._serve_otherwise(args, kwargs)

    def _prove_again(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_reset: bool = False
    ) -> Any:
        with self._lock:
            if self._is_whole or (self._watch.is_same() and not is_reset):
                return self(*args, **kwargs)
            self._sharing.count("changes", f"{self._proof.name}: a layer or a weight was changed")
            self.drop_artifacts()
            try:
                with self._bucket.cache_entries():
                    return self.compile(*self._bucket.as_compiled(args, kwargs))
            except NotSharedError as error:
                self._sharing.refuse(str(error))
                self._is_whole = True
        return self._bucket.whole(*args, **kwargs)

    def _serve_otherwise(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._sharing.count(
            "otherwise", f"{self._proof.name}: a call of another form is served by the whole graph"
        )
        return self._bucket.whole(*args, **kwargs)


def _other_layout(error: BaseException | None) -> OtherLayoutError | None:
    """Return the `OtherLayoutError` among the causes of *error*, if any."""
    while error is not None:
        if isinstance(error, OtherLayoutError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what dynamo may have compiled a call for: layouts, constants and torch's modes."""
    import torch

    leaves, spec = torch.utils._pytree.tree_flatten((args, dict(kwargs)))  # noqa: SLF001  no public name

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return (type(leaf), leaf) if isinstance(leaf, (bool, int, float, str)) else type(leaf)
        layout = leaf.shape, leaf.stride(), leaf.dtype, leaf.device
        return (type(leaf), *layout, leaf.requires_grad, leaf.is_inference())

    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled()
    return str(spec), tuple(of(leaf) for leaf in leaves), modes, torch.get_default_dtype()
