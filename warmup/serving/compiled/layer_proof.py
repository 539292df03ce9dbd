"""`LayerProof`: which layers of a model share an artifact, shown for one bucket.

The model runs once, uncompiled, with a stand-in for each repeated layer. The first layer of a group
is compiled with what it is called with. For each other layer, dynamo's guards of the artifacts are
evaluated; a layer that none of them fits is compiled as well, and the guard that fails names the
difference. Each layer's output is compared with the uncompiled layer's for the same inputs, and the
artifact's output is what the next layer gets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from warmup.inductor.layer_artifact import LayerArtifact, LayerCompiler
from warmup.inductor.layer_form import UnshareableLayerError, tensors_of_call
from warmup.inductor.opaque_call import LayerProgram, define_op, run_program
from warmup.models.outputs import worst_error
from warmup.models.repeated_groups import LayerGroup, hooked_module
from warmup.models.shadow import shadow_of

_LEAST_SHARING: Final = 2  # layers per artifact; with fewer, the whole graph is compiled


class NotSharedError(Exception):
    """The layers of a model cannot share artifacts. Argument: why."""


@dataclass(slots=True)
class SharedArtifact:
    """An artifact, the names of the layers that use it, and how it came to be."""

    artifact: LayerArtifact
    layers: list[str]
    difference: str | None = None  # to the first artifact of the group


@dataclass(frozen=True, slots=True)
class ProvedLayers:
    """The result of a proof: what runs for which layer, and the output of the proof's run."""

    program: LayerProgram
    forwards: dict[nn.Module, Callable[..., Any]]
    weights: list[torch.Tensor]
    output: Any
    artifacts: tuple[SharedArtifact, ...]


@dataclass(slots=True)
class LayerProof:
    """Proves layers equal for one bucket; artifacts are kept for the next proof.

    ``name`` is part of the names of code objects.
    """

    model: nn.Module
    groups: tuple[LayerGroup, ...]
    mode: str | None
    tolerance: Mapping[str, float]
    name: str
    _artifacts: list[list[SharedArtifact]] = field(default_factory=list)  # by group
    _compilers: dict[str, LayerCompiler] = field(default_factory=dict)  # of compiles under way

    def prove(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ProvedLayers:
        """Return what runs for which layer; the model runs once with these arguments.

        Raises:
            NotSharedError: the layers cannot share artifacts.
            Exception: an error of the model or of a compiler.
        """
        define_op()
        if nn.modules.module._has_any_global_hook():  # noqa: SLF001  has no public name
            raise NotSharedError("torch has a hook for all modules")
        if not self._artifacts:
            self._artifacts = [[] for _ in self.groups]
        run = _ProofRun(self, LayerProgram())
        for shared in (each for group in self._artifacts for each in group):
            shared.layers.clear()
        stand_ins = {
            layer: run.stand_in(number, name, layer)
            for number, group in enumerate(self.groups)
            for name, layer in group.layers.items()
        }
        shadow = shadow_of(self.model, stand_ins)
        with _unwritten(self.model, stand_ins, args, kwargs):
            output = shadow.model(*args, **kwargs)
        if changed := shadow.changed():
            raise NotSharedError(f"the model's forward sets {', '.join(changed)}")
        if not run.forwards:
            raise NotSharedError("the model calls none of its repeated layers by their forward")
        artifacts = tuple(each for group in self._artifacts for each in group if each.layers)
        if len(run.forwards) < _LEAST_SHARING * len(artifacts):
            raise NotSharedError(
                f"{len(run.forwards)} layers need {len(artifacts)} artifacts: "
                + "; ".join(f"{each.layers[0]}: {each.difference}" for each in artifacts if each.difference)
            )
        return ProvedLayers(run.program, run.forwards, run.weights, output, artifacts)

    def artifact_for(
        self, number: int, name: str, layer: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]
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
            compiler.compile(layer, *call), [], differences[0] if differences else None
        )
        del self._compilers[name]
        known.append(made)
        return made


@dataclass(slots=True)
class _ProofRun:
    """One run of the model with stand-ins."""

    proof: LayerProof
    program: LayerProgram
    forwards: dict[nn.Module, Callable[..., Any]] = field(default_factory=dict)
    weights: list[torch.Tensor] = field(default_factory=list)
    _used: dict[nn.Module, SharedArtifact] = field(default_factory=dict)

    def stand_in(self, number: int, name: str, layer: nn.Module) -> Callable[..., Any]:
        """Return the forward of *layer*, of group *number*, in the proof's run."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._call(number, name, layer, (args, kwargs))
            except UnshareableLayerError as error:
                raise NotSharedError(f"{name} {error}") from error

        return forward

    def _call(self, number: int, name: str, layer: nn.Module, call: Any) -> Any:
        args, kwargs = call
        if (hooked := hooked_module(layer)) is not None:
            raise UnshareableLayerError(f"has a hook, or a forward of its own, in {hooked}")
        if layer in self._used:
            difference = self._used[layer].artifact.difference(layer, args, kwargs)
            if difference is not None:
                raise UnshareableLayerError(f"is called in two ways: {difference}")
        else:
            self._add(layer, self.proof.artifact_for(number, name, layer, call), name)
        expected = layer.forward(*args, **kwargs)
        result = run_program(self.program, self.forwards[layer], args, kwargs)
        self._compare(expected, result)
        return result

    def _add(self, layer: nn.Module, shared: SharedArtifact, name: str) -> None:
        artifact, program = shared.artifact, self.program
        shared.layers.append(name)
        self._used[layer] = shared
        self.forwards[layer] = artifact.form.forward(len(program.calls))
        program.calls.append(artifact.call_with(layer))
        program.inputs.append(artifact.inputs)
        program.outputs.append(artifact.outputs)
        self.weights += artifact.weights_of(layer).values()

    def _compare(self, expected: Any, result: Any) -> None:
        try:
            distance, limit = worst_error(expected, result, self.proof.tolerance)
        except ValueError as error:
            raise UnshareableLayerError("returns other tensors uncompiled") from error
        if not distance <= limit:
            raise UnshareableLayerError(
                f"is {distance:.2e} away from its uncompiled output (relative L2, limit {limit:.0e})"
            )


@contextlib.contextmanager
def _unwritten(
    model: nn.Module, layers: Mapping[nn.Module, object], args: Sequence[Any], kwargs: Any
) -> Iterator[None]:
    """Undo what a run writes into attributes, buffers and arguments while the context is open.

    Raises:
        NotSharedError: a tensor was written into; it has its values from before again.
    """
    inner = {module for layer in layers for module in layer.modules()}
    outside = [module for module in model.modules() if module not in inner]
    attributes = {module: dict(vars(module)) for module in outside}
    tensors = [tensor for _, tensor in tensors_of_call(args, kwargs)]
    tensors += [buffer for module in outside for buffer in module.buffers(recurse=False)]
    copies = [tensor.detach().clone() for tensor in tensors]
    versions = [None if tensor.is_inference() else tensor._version for tensor in tensors]
    is_written = False
    try:
        yield
    finally:
        for module, before in attributes.items():
            now = vars(module)
            if now.keys() != before.keys() or any(now[name] is not before[name] for name in now):
                now.clear()
                now.update(before)
        for tensor, copy, version in zip(tensors, copies, versions, strict=True):
            if not torch.equal(tensor, copy) if version is None else tensor._version != version:
                is_written = True
                with torch.no_grad():
                    tensor.copy_(copy)
    if is_written:
        raise NotSharedError("the model writes into a buffer or an argument")
