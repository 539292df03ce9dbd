"""`SharedLayers`: serves one bucket by a graph around the repeated layers, and their artifacts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from warmup.core.compile_modes import GRAPH_MODES
from warmup.core.error_text import first_line
from warmup.core.events import logger
from warmup.core.layers_form import LayersForm
from warmup.inductor.artifacts import count_artifacts, drop_artifacts
from warmup.inductor.layers.module_watch import ModuleWatch
from warmup.inductor.layers.opaque_call import run_program
from warmup.models.layer_pair import CalledPair
from warmup.models.layer_proof import LayerProof
from warmup.models.other_sizes import OtherSizes
from warmup.models.proved_layers import NotSharedError, ProvedLayers
from warmup.models.shadow import Shadow
from warmup.models.shared_graph import SharedGraph, compile_shared, other_layout
from warmup.models.sharing_cost import cost_of, is_timed
from warmup.serving.compiled.arguments import Arguments
from warmup.serving.compiled.layer_sharing import LayerSharing
from warmup.serving.handle import installed


class SharingBucket(Protocol):
    """What `SharedLayers` needs of its bucket."""

    def __str__(self) -> str:
        """Return the bucket's name."""

    def whole(self, *args: Any, **kwargs: Any) -> Any:
        """Serve a call of another form, by the whole graph."""

    def other_sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OtherSizes | None:
        """Return a call with other sizes of the bucket; None for a bucket of one size."""

    def marked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments as a compile gets them."""

    def compiling(self) -> AbstractContextManager[None]:
        """Return a context for a compile of the bucket."""


class SlowerError(Exception):
    """Shared layers are slower than one graph in a bucket. Argument: the measurement."""


@dataclass(frozen=True, slots=True)
class _Served:
    """A graph around the layers, and what it relies on."""

    graph: SharedGraph
    watch: ModuleWatch


class SharedLayers:
    """Serves the calls of one *bucket*; made at its first call.

    Layers are proved equal for each of torch's modes that calls come in, as autocast or inference
    mode, since layers compute something else in each.
    """

    def __init__(self, sharing: LayerSharing, proof: LayerProof, bucket: SharingBucket) -> None:
        self._sharing, self._proof, self._bucket = sharing, proof, bucket
        self._by_modes: dict[Any, _Served | None] = {}  # None: not shared in these modes
        self._is_whole = False  # a change has made the layers differ
        self._pair: CalledPair | None = None  # between the first proof and its measurement
        self._others: set[Any] = set()  # forms of calls that the whole graph serves
        self._lock = threading.RLock()

    @property
    def artifacts(self) -> int:
        """How many graphs around the layers were compiled."""
        return sum(count_artifacts(each.graph.entry) for each in [*self._by_modes.values()] if each)

    def drop_artifacts(self) -> None:
        """Drop the graphs around the layers; the next compile starts anew."""
        for served in self._by_modes.values():
            if served is not None:
                drop_artifacts(served.graph.entry)
        self._by_modes = {}

    def first_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compile as `compile` does, and measure where the form asks for it.

        Raises:
            NotSharedError: as `compile`.
            SlowerError: one graph of all layers is faster.
        """
        result = self.compile(args, kwargs)
        pair, self._pair = self._pair, None
        if not self._sharing.is_measured or (pair is not None and not is_timed(pair.device)):
            return result
        bucket = str(self._bucket)
        if pair is None:
            self._sharing.unmeasured(bucket, "no layer is called with what another returns")
            return result
        handle = installed()
        if handle is not None and LayersForm.WHOLE not in handle.table.provenance.forms.of(bucket):
            self._sharing.unmeasured(bucket, "the table has no rows of whole graphs")
            return result
        served = self._by_modes[_modes()]
        assert served is not None
        try:
            name = f"{self._proof.name}_pair"
            cost = cost_of(pair, served.graph.program, self._proof.mode, name)
        except Exception as error:  # noqa: BLE001  a measurement that fails must not end a start
            self._sharing.unmeasured(bucket, first_line(error))
            return result
        self._sharing.measured(bucket, cost)
        if cost.is_slower:
            self.drop_artifacts()
            raise SlowerError(str(cost))
        return result

    def compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Prove the layers equal, compile the graph around them; return the result of this call.

        Raises:
            NotSharedError: the layers cannot share artifacts.
        """
        other = self._bucket.other_sizes(args, kwargs)
        first = compile_shared(self._proof, args, kwargs, other)
        self._by_modes[_modes()] = _Served(first.graph, self._watch_of(first.proved, first.shadow))
        self._sharing.add(first.proved)
        self._pair = first.proved.pair
        return first.result

    def _watch_of(self, proved: ProvedLayers, shadow: Shadow) -> ModuleWatch:
        inner = [module for layer in proved.forwards for module in layer.modules()]
        modules = [*dict.fromkeys([*shadow.copies, *inner])]
        return ModuleWatch(
            modules,
            proved.read,
            proved.weights,
            proved.frozen,
            has_addresses=self._proof.mode in GRAPH_MODES,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Serve a call: by the shared artifacts if nothing has changed since they were proved."""
        if self._is_whole:
            return self._bucket.whole(*args, **kwargs)
        modes, proved = _modes(), self._by_modes
        if modes not in proved:
            return self._prove(args, kwargs, modes)
        if (served := proved[modes]) is None:
            return self._serve_otherwise(args, kwargs)
        if not served.watch.is_same():
            return self._prove_again(args, kwargs, served)
        return self._run(served, args, kwargs)

    def _run(self, served: _Served, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._others and _form(args, kwargs) in self._others:
            return self._serve_otherwise(args, kwargs)
        try:
            return run_program(served.graph.program, served.graph.compiled, args, kwargs)
        except Exception as error:
            if other_layout(error) is None:
                raise
        if not count_artifacts(served.graph.entry):  # torch._dynamo.reset()
            return self._prove_again(args, kwargs, served)
        self._others.add(_form(args, kwargs))
        return self._serve_otherwise(args, kwargs)

    def _prove(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], modes: Any) -> Any:
        """Serve the first call in these *modes*."""
        with self._lock:
            if modes in self._by_modes:  # another thread was first
                return self(*args, **kwargs)
            try:
                with self._bucket.compiling():
                    return self.compile(*self._bucket.marked(args, kwargs))
            except NotSharedError as error:
                logger.warning("%s: layers are not shared here: %s", self._proof.name, error)
                self._by_modes[modes] = None
        return self._serve_otherwise(args, kwargs)

    def _prove_again(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], served: _Served
    ) -> Any:
        """Serve a call that found a change since *served* was proved."""
        with self._lock:
            if self._is_whole or all(each is not served for each in self._by_modes.values()):
                return self(*args, **kwargs)
            self._sharing.count("changes", f"{self._proof.name}: a layer or a weight was changed")
            self.drop_artifacts()
            try:
                with self._bucket.compiling():
                    return self.compile(*self._bucket.marked(args, kwargs))
            except NotSharedError as error:
                self._sharing.refuse(str(error))
                self._is_whole = True
        return self._bucket.whole(*args, **kwargs)

    def _serve_otherwise(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._sharing.count(
            "otherwise", f"{self._proof.name}: a call of another form is served by the whole graph"
        )
        return self._bucket.whole(*args, **kwargs)


def _form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what dynamo may have compiled a call for: layouts, constants and torch's modes."""
    import torch

    leaves, spec = torch.utils._pytree.tree_flatten((args, dict(kwargs)))  # noqa: SLF001  no public name

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return (type(leaf), leaf) if isinstance(leaf, (bool, int, float, str)) else type(leaf)
        layout = leaf.shape, leaf.stride(), leaf.dtype, leaf.device
        return (type(leaf), *layout, leaf.requires_grad, leaf.is_inference())

    return str(spec), tuple(of(leaf) for leaf in leaves), _modes()


def _modes() -> Any:
    """Return the modes of torch in this thread that decide what a layer computes."""
    import torch

    autocast = [
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    return (*modes, *autocast)
