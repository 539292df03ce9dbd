"""`needs_of` and `shapes_of`: what the layers of a model take, and the inputs that may be that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import nn

from warmup.models.fake_model import Need, NeedKind

# Of images, in the order of trying.
SIDES: Final = (224, 28, 32, 64, 96, 128, 256, 299, 336, 384, 448, 512, 518)
_BATCH: Final = "batch"


def needs_of(module: nn.Module) -> Iterator[Need]:
    """Yield what the layers of *module* take, in order; a size of 1 fits all, and comes last."""
    ones = []
    for layer in module.modules():
        for need in _needs_of_a_layer(layer):
            if need.size == 1 and need.kind is NeedKind.FEATURES:
                ones.append(need)
            else:
                yield need
    yield from ones


def _needs_of_a_layer(layer: nn.Module) -> Iterator[Need]:
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        yield Need(NeedKind.IDS, layer.num_embeddings)
    elif isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        yield Need(NeedKind.CHANNELS, layer.in_channels, layer.weight.dim() - 2)
    elif isinstance(layer, nn.Linear):
        yield Need(NeedKind.FEATURES, layer.in_features)
    else:
        for parameter in layer.parameters(recurse=False):
            for size in reversed(parameter.shape[-2:]):
                yield Need(NeedKind.FEATURES, size)


def shapes_of(
    need: Need, dims: tuple[str, ...]
) -> Iterator[tuple[tuple[str | int, ...], str | None]]:
    """Yield the dims of an input for *need*, and its dtype; None for that of the parameters.

    *dims* are the sized dims, which all occur. A batch stands first; a single other dim stands
    first, or second behind a batch of one.
    """
    ordered = tuple(sorted(dims, key=lambda name: name != _BATCH))
    single = len(dims) == 1 and ordered[0] != _BATCH
    leads: list[tuple[str | int, ...]] = [ordered, (1, *ordered)] if single else [ordered]
    if need.kind is NeedKind.IDS:
        yield from ((lead, "i64") for lead in reversed(leads))
    elif need.kind is NeedKind.FEATURES:
        yield from (((*lead, need.size), None) for lead in leads)
    elif need.kind is NeedKind.MASK:
        yield from ((lead, "bool") for lead in reversed(leads))
        yield (*ordered[:-1], ordered[-1], ordered[-1]), "bool"
    elif need.rank == 1:  # a signal, whose length is the last dim
        batch = ordered[:-1] or (1,)
        yield (*batch, need.size, ordered[-1]), None
    elif need.rank == 2 and len(dims) == 1:  # noqa: PLR2004  images
        yield from (((*ordered, need.size, side, side), None) for side in SIDES)
    elif need.rank == 2 and len(dims) == 2 and ordered[0] == _BATCH:  # noqa: PLR2004
        yield (_BATCH, need.size, ordered[1], ordered[1]), None
