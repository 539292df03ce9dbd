"""`ProvedLayers`: what a proof of repeated layers found, or `NotSharedError`: why they differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from warmup.core.counted import counted
from warmup.inductor.layers.artifact import LayerArtifact
from warmup.inductor.layers.opaque_call import LayerProgram
from warmup.inductor.layers.reads import ReadObjects
from warmup.models.layer_pair import CalledPair


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
    """The result of a proof: what runs for which layer.

    ``frozen`` are those of the ``weights`` whose values are in the artifacts' constants.
    """

    program: LayerProgram
    forwards: dict[nn.Module, Callable[..., Any]]
    weights: list[torch.Tensor]
    frozen: list[torch.Tensor]
    read: ReadObjects
    artifacts: tuple[SharedArtifact, ...]
    pair: CalledPair | None  # of the largest group, if two of its layers follow each other

    def __str__(self) -> str:
        layers = sum(len(shared.layers) for shared in self.artifacts)
        artifacts = counted(len(self.artifacts), "artifact")
        text = f"{layers} layers share {artifacts} in each bucket, proved equal"
        others = [difference_of(shared) for shared in self.artifacts if shared.difference]
        return f"{text} ({'; '.join(others)})" if others else text


def difference_of(shared: SharedArtifact) -> str:
    """Return which layers use an artifact that is not the first of its group, and why."""
    more = f" and {len(shared.layers) - 1} more" if len(shared.layers) > 1 else ""
    return f"{shared.layers[0]}{more}: {shared.difference}"
