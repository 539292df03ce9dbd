"""`find_groups`: the Linears of a model, in groups whose padding is one decision.

Groups follow from the modules alone: no input is needed, and no operation on the model's tensors
runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from torch import fx, nn

from warmup.keys.weight import Structure
from warmup.models.padding.chains import Chain, find_chains
from warmup.models.padding.linears import PaddableLinear, find_candidates, names_of
from warmup.models.padding.tracing import UntraceableError, trace

_NO_CHAIN: Final = "not padded as a chain"


@dataclass(frozen=True, slots=True)
class Group:
    """Linears of one model, by name, whose features are padded together or not at all.

    The features are output of ``producers`` and input of ``consumers``. In a chain ``between``
    computes the consumers' inputs from the producers' outputs, and ``sources`` numbers the
    activation that each producer reads.
    """

    structure: Structure
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    between: fx.Graph | None = field(default=None, compare=False, repr=False)
    sources: tuple[int, ...] = field(default=(0,), compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all its Linears; a model that is itself a Linear has an empty name."""
        return (*self.producers, *self.consumers)

    def __str__(self) -> str:
        return format_names(self.names)


@dataclass(frozen=True, slots=True)
class UnpaddedLinears:
    """Linears that are not padded, or not padded as a chain, and why."""

    names: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{format_names(self.names)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FoundGroups:
    """The groups of a model, and its other unaligned Linears with the reasons."""

    groups: tuple[Group, ...]
    unpadded: tuple[UnpaddedLinears, ...]


def find_groups(model: nn.Module) -> FoundGroups:
    """Return the groups of *model*: chains where zeros are sure to survive, else single Linears.

    Each Linear is in one group at most. A single Linear with two unaligned sizes has its input
    features padded. The same model gives the same groups, in the order of its modules.
    """
    candidates = find_candidates(model)
    unpadded = [UnpaddedLinears(c.names[:1], c.refusal) for c in candidates if c.refusal]
    free = {c.linear: c for c in candidates if not c.refusal}
    groups: list[Group] = []
    for module, inside in _modules_around_chains(model, list(free.values())):
        chains, broken = _chains_in(module, {c.linear: c for c in inside if c.linear in free})
        unpadded += broken
        for chain in chains:
            groups.append(_chain_group(chain, free))
            for linear in (*chain.producers, *chain.consumers):
                del free[linear]
    for candidate in free.values():
        single = _single_group(candidate)
        groups += [single] if isinstance(single, Group) else []
        unpadded += [single] if isinstance(single, UnpaddedLinears) else []
    order = {candidate.names[0]: number for number, candidate in enumerate(candidates)}
    groups.sort(key=lambda group: min(order[name] for name in group.names))
    return FoundGroups(tuple(groups), tuple(unpadded))


def format_names(names: Sequence[str]) -> str:
    """Return *names* for people; the empty name of a model is ``(model)``."""
    return ", ".join(name or "(model)" for name in names)


def _modules_around_chains(
    model: nn.Module, free: Sequence[PaddableLinear]
) -> list[tuple[nn.Module, list[PaddableLinear]]]:
    """Return the smallest modules that may hold a chain, innermost first, with their Linears.

    A Linear that also has a name outside of a module does not count as in it: a caller outside
    would get padded features.
    """
    names = names_of(model)
    inside = defaultdict[str, list[PaddableLinear]](list)
    for candidate in free:
        for ancestor in _ancestors(candidate.names[0]):
            aliases = names[model.get_submodule(ancestor)]
            is_inside = all(_is_under(name, aliases) for name in candidate.names)
            if len(candidate.names) == 1 or is_inside:
                inside[ancestor].append(candidate)
    smallest: dict[str, list[PaddableLinear]] = {}
    for consumer in free:
        for ancestor in _ancestors(consumer.names[0]) if consumer.has_unaligned_input else ():
            if any(_fits(producer, consumer) for producer in inside[ancestor]):
                smallest.setdefault(ancestor, inside[ancestor])
                break
    innermost = sorted(smallest, key=lambda name: -len(name.split(".")) if name else 0)
    return [(model.get_submodule(name), smallest[name]) for name in innermost]


def _chains_in(
    module: nn.Module, inside: Mapping[nn.Linear, PaddableLinear]
) -> tuple[list[Chain], list[UnpaddedLinears]]:
    """Return the chains among the Linears *inside* of *module*, and the others with reasons."""
    untied = [candidate for candidate in inside.values() if not candidate.tied]
    producers = [c for c in untied if any(_fits(c, other) for other in untied)]
    consumers = [c for c in untied if any(_fits(other, c) for other in untied)]
    if not producers:
        return [], []
    try:
        traced = trace(module)
    except UntraceableError as error:
        names = tuple(c.names[0] for c in untied if c in producers or c in consumers)
        return [], [UnpaddedLinears(names, f"{_NO_CHAIN}: {error}")]
    chains, broken = find_chains(
        traced, [c.linear for c in producers], [c.linear for c in consumers]
    )
    unpadded = [
        UnpaddedLinears(
            tuple(inside[linear].names[0] for linear in chain.linears),
            f"{_NO_CHAIN}: {chain.reason}",
        )
        for chain in broken
    ]
    return chains, unpadded


def _chain_group(chain: Chain, free: Mapping[nn.Linear, PaddableLinear]) -> Group:
    producers = [free[linear] for linear in chain.producers]
    consumers = [free[linear] for linear in chain.consumers]
    structure = Structure(
        inputs=tuple(c.linear.in_features for c in producers),
        features=producers[0].linear.out_features,
        outputs=tuple(c.linear.out_features for c in consumers),
        dtype=producers[0].dtype,
        biases=tuple(c.linear.bias is not None for c in (*producers, *consumers)),
        via=chain.via,
        fp32=_fp32(producers[0]),
    )
    return Group(
        structure,
        tuple(c.names[0] for c in producers),
        tuple(c.names[0] for c in consumers),
        chain.between,
        chain.sources,
    )


def _single_group(candidate: PaddableLinear) -> Group | UnpaddedLinears:
    linear, name = candidate.linear, candidate.names[:1]
    pads_input = candidate.has_unaligned_input and not candidate.tied
    if not pads_input and not candidate.has_unaligned_output:
        tied = format_names(candidate.tied)
        reason = f"its weight is also that of {tied}; columns of tied weights are not padded"
        return UnpaddedLinears(name, reason)
    structure = Structure(
        inputs=() if pads_input else (linear.in_features,),
        features=linear.in_features if pads_input else linear.out_features,
        outputs=(linear.out_features,) if pads_input else (),
        dtype=candidate.dtype,
        biases=(linear.bias is not None,),
        fp32=_fp32(candidate),
    )
    return Group(structure, () if pads_input else name, name if pads_input else ())


def _fp32(candidate: PaddableLinear) -> str | None:
    if candidate.dtype != "f32":
        return None
    from warmup.inductor.gemm.key import fp32_precision  # imports inductor, which takes seconds

    return fp32_precision(candidate.linear.weight.device.type)


def _fits(producer: PaddableLinear, consumer: PaddableLinear) -> bool:
    """Whether *consumer* could read the output of *producer*, by size and dtype."""
    if producer is consumer or producer.dtype != consumer.dtype:
        return False
    is_same_size = producer.linear.out_features == consumer.linear.in_features
    return is_same_size and producer.has_unaligned_output


def _ancestors(name: str) -> Iterator[str]:
    """Yield the names of the modules around *name*, innermost first, last the model's: empty."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _is_under(name: str, ancestors: Sequence[str]) -> bool:
    return any(not ancestor or name.startswith(f"{ancestor}.") for ancestor in ancestors)
