"""`LayerProof`: which layers of a model share an artifact, shown for one bucket.

The model runs once, uncompiled, with a stand-in for each repeated layer. The first layer of a group
is compiled for the arguments of its call. For each other layer, dynamo's guards of the artifacts
are evaluated; a layer that none of them fits is compiled as well, and the guard that fails names
the difference. Each layer's output is compared with the uncompiled layer's for the same inputs, and
the artifact's output is what the next layer gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from warmup.inductor.layers.compiler import LayerCompiler, Ranges
from warmup.inductor.layers.form import Path, UnshareableLayerError, tensors_of_call
from warmup.inductor.layers.opaque_call import (
    LayerProgram,
    define_op,
    name_of,
    run_program,
    seen_as_compiling,
)
from warmup.inductor.layers.reads import ReadObjects
from warmup.models.layer_pair import CalledLayer, CalledPair, pair_of
from warmup.models.other_sizes import OtherSizes
from warmup.models.outputs import worst_error
from warmup.models.proved_layers import (
    NotSharedError,
    ProvedLayers,
    SharedArtifact,
    difference_of,
)
from warmup.models.repeated_groups import LayerGroup, hooked_module
from warmup.models.shadow import shadow_of
from warmup.models.unwritten import unwritten

_LEAST_SHARING: Final = 2  # layers per artifact; with fewer, the whole graph is compiled


StandIn = Callable[[int, str, nn.Module, Any], Any]  # number of the group, name, layer, call


@dataclass(slots=True)
class LayerProof:
    """Proves layers equal for one bucket; artifacts are kept for the next proof.

    ``name`` is part of the names of code objects. Without a ``tolerance``, outputs of layers are
    not compared: whoever compiles judges the output of the model.
    """

    model: nn.Module
    groups: tuple[LayerGroup, ...]
    mode: str | None
    tolerance: Mapping[str, float] | None
    name: str
    _artifacts: list[list[SharedArtifact]] = field(default_factory=list)  # by group
    _compilers: dict[str, LayerCompiler] = field(default_factory=dict)  # of compiles under way

    @property
    def largest(self) -> LayerGroup:
        """The group with the most layers."""
        return max(self.groups, key=lambda group: len(group.layers))

    def prove(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], other: OtherSizes | None = None
    ) -> ProvedLayers:
        """Return what runs for which layer; the model runs once with these arguments.

        With *other*, artifacts serve the ranges that it names: the model runs twice more, with the
        arguments of its other sizes.

        Raises:
            NotSharedError: the layers cannot share artifacts.
            Exception: an error of the model or of a compiler.
        """
        define_op()
        if torch.nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]  # noqa: SLF001  has no public name
            raise NotSharedError("torch has a hook for all modules")
        if not self._artifacts:
            self._artifacts = [[] for _ in self.groups]
        for shared in (each for group in self._artifacts for each in group):
            shared.layers.clear()
        ranges: dict[str, Ranges] = {}
        if other is not None:
            ranges = self._ranges(args, kwargs, other)
        run = _ProofRun(self, LayerProgram(), ranges)
        self._run(run.call, args, kwargs)
        if other is not None:
            self._run(run.call_varied, other.args, other.kwargs)
        if not run.forwards:
            raise NotSharedError("the model calls none of its repeated layers by their forward")
        artifacts = tuple(each for group in self._artifacts for each in group if each.layers)
        if len(run.forwards) < _LEAST_SHARING * len(artifacts):
            raise NotSharedError(
                f"{len(run.forwards)} layers need {len(artifacts)} artifacts: "
                + "; ".join(difference_of(each) for each in artifacts if each.difference)
            )
        program = run.finished()
        read = run.weights, run.frozen, run.read
        return ProvedLayers(program, run.forwards, *read, artifacts, run.pair)

    def _run(self, stand_in: StandIn, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Call the model with each repeated layer's forward replaced."""

        def forward_of(number: int, name: str, layer: nn.Module) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                try:
                    return stand_in(number, name, layer, (args, kwargs))
                except UnshareableLayerError as error:
                    raise NotSharedError(f"{name} {error}") from error

            return forward

        forwards = {
            layer: forward_of(number, name, layer)
            for number, group in enumerate(self.groups)
            for name, layer in group.layers.items()
        }
        shadow = shadow_of(self.model, forwards)
        with seen_as_compiling(), unwritten(self.model, forwards, args, kwargs):
            shadow.model(*args, **kwargs)
        if changed := shadow.changed():
            raise NotSharedError(f"the model's forward sets {', '.join(changed)}")

    def _ranges(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], other: OtherSizes
    ) -> dict[str, Ranges]:
        """Return the dynamic dims of each layer's arguments: those that differ in other sizes."""
        found: list[dict[str, dict[Path, tuple[int, ...]]]] = []

        def record(_: int, name: str, layer: nn.Module, call: Any) -> Any:
            found[-1][name] = {path: tuple(each.shape) for path, each in tensors_of_call(*call)}
            return layer.forward(*call[0], **call[1])

        for each in ((args, kwargs), (other.args, other.kwargs)):
            found.append({})
            self._run(record, *each)
        if found[0].keys() != found[1].keys():
            raise NotSharedError("other layers are called at another size")
        first, second = found
        return {name: other.ranges_of(name, first[name], second[name]) for name in first}

    def artifact_for(
        self,
        number: int,
        name: str,
        layer: nn.Module,
        call: tuple[tuple[Any, ...], dict[str, Any]],
        ranges: Ranges,
    ) -> SharedArtifact:
        """Return the artifact of group *number* that fits *layer* and this call; compile if none.

        Raises:
            UnshareableLayerError: the layer cannot be compiled alone.
        """
        known = self._artifacts[number]
        differences = []
        for shared in known:
            difference = shared.artifact.difference(layer, *call)
            if difference is None:
                return shared
            differences.append(difference)
        layers = len(self.groups[number].layers)
        used = sum(1 for shared in known if shared.layers)
        if used + 1 > max(1, layers // _LEAST_SHARING):
            raise NotSharedError(f"too few layers are equal: {name}: {differences[0]}")
        compiler = self._compilers.setdefault(
            name, LayerCompiler(self.mode, f"{self.name}_{name.replace('.', '_')}")
        )
        made = SharedArtifact(
            compiler.compile(layer, *call, ranges), [], differences[0] if differences else None
        )
        del self._compilers[name]
        known.append(made)
        return made


@dataclass(slots=True)
class _ProofRun:
    """What one proof has found about the layers so far; ``ranges`` by name of the layer."""

    proof: LayerProof
    program: LayerProgram
    ranges: dict[str, Ranges]
    forwards: dict[nn.Module, Callable[..., Any]] = field(default_factory=dict)
    weights: list[torch.Tensor] = field(default_factory=list)
    frozen: list[torch.Tensor] = field(default_factory=list)
    read: ReadObjects = field(default_factory=ReadObjects)
    _used: dict[nn.Module, SharedArtifact] = field(default_factory=dict)
    pair: CalledPair | None = None
    _varied: set[int] = field(default_factory=set)  # ids of artifacts seen in both sizes
    _last: CalledLayer | None = None  # of the largest group

    def call(self, number: int, name: str, layer: nn.Module, call: Any) -> Any:
        """Find or compile the artifact of *layer*; return its output, which is the layer's own."""
        args, kwargs = call
        if (hooked := hooked_module(layer)) is not None:
            raise UnshareableLayerError(f"has a hook, or a forward of its own, in {hooked}")
        if layer in self._used:
            difference = self._used[layer].artifact.difference(layer, args, kwargs)
            if difference is not None:
                raise UnshareableLayerError(f"is called in two ways: {difference}")
        else:
            ranges = self.ranges.get(name, {})
            self._add(layer, self.proof.artifact_for(number, name, layer, call, ranges), name)
        result = self._run(layer, args, kwargs)
        if self.pair is None and self.proof.groups[number] is self.proof.largest:
            self._pair_with(layer, name, call, result)
        return result

    def _pair_with(self, layer: nn.Module, name: str, call: Any, result: Any) -> None:
        """Keep a call of a layer, and both as a pair where it follows the call before."""
        artifact, number = self._used[layer].artifact, [*self._used].index(layer)
        called = CalledLayer(name, layer, artifact, number, call[0], call[1], result)
        if (last := self._last) is not None and last.layer is not layer:
            layers, ranges = len(self.proof.largest.layers), self.ranges.get(last.name, {})
            self.pair = pair_of(last, called, layers, ranges)
        self._last = None if self.pair is not None else called

    def call_varied(self, _: int, __: str, layer: nn.Module, call: Any) -> Any:
        """Return the output of the artifact of *layer* at other sizes, which is the layer's own."""
        args, kwargs = call
        shared = self._used[layer]
        if (difference := shared.artifact.difference(layer, args, kwargs)) is not None:
            raise UnshareableLayerError(f"differs at another size: {difference}")
        if id(shared) not in self._varied:
            self._varied.add(id(shared))
            shared.artifact = shared.artifact.varied(layer, args, kwargs)
        return self._run(layer, args, kwargs)

    def finished(self) -> LayerProgram:
        """Return the program of all calls, with the outputs of each."""
        for number, (layer, shared) in enumerate(self._used.items()):
            artifact = shared.artifact
            self.program.outputs.append(artifact.outputs)
            self.forwards[layer] = artifact.form.forward(number, name_of(artifact.outputs))
        return self.program

    def _run(self, layer: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.proof.tolerance is None:
            return run_program(self.program, self.forwards[layer], args, kwargs)
        expected = layer.forward(*args, **kwargs)
        result = run_program(self.program, self.forwards[layer], args, kwargs)
        self._compare(expected, result, self.proof.tolerance)
        return result

    def _add(self, layer: nn.Module, shared: SharedArtifact, name: str) -> None:
        artifact, program = shared.artifact, self.program
        shared.layers.append(name)
        self._used[layer] = shared
        self.forwards[layer] = artifact.form.forward(len(program.calls))
        program.calls.append(artifact.call_with(layer))
        program.inputs.append(artifact.inputs)
        weights = artifact.weights_of(layer).values()
        self.weights += weights
        if artifact.packing is not None:
            self.frozen += weights
        artifact.add_reads(self.read, layer, with_globals=len(shared.layers) == 1)

    @staticmethod
    def _compare(expected: Any, result: Any, tolerance: Mapping[str, float]) -> None:
        try:
            distance, limit = worst_error(expected, result, tolerance)
        except ValueError as error:
            raise UnshareableLayerError("returns other tensors uncompiled") from error
        if not distance <= limit:
            raise UnshareableLayerError(
                f"is {distance:.2e} away from its uncompiled output (relative L2, "
                f"limit {limit:.0e})"
            )
