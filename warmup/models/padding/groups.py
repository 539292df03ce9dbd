"""Groups: the Linears of a model whose padding is one decision.

FoundGroups from the modules alone: no input is needed, and no tensor of the model is computed with.
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

    ``makers`` make the features, ``takers`` take them. In a chain ``between`` computes what is
    taken from what was made, and ``sources`` numbers the activations that the makers are given.
    """

    structure: Structure
    makers: tuple[str, ...]
    takers: tuple[str, ...]
    between: fx.Graph | None = field(default=None, compare=False, repr=False)
    sources: tuple[int, ...] = field(default=(0,), compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all its Linears; that of a model which is itself one is empty."""
        return (*self.makers, *self.takers)

    def __str__(self) -> str:
        return listed(self.names)


@dataclass(frozen=True, slots=True)
class Left:
    """Linears that are not padded, or not as a chain, and why."""

    names: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{listed(self.names)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FoundGroups:
    """The groups of a model, and what was left out of them."""

    groups: tuple[Group, ...]
    left: tuple[Left, ...]


def find_groups(model: nn.Module) -> FoundGroups:
    """Return the groups of *model*: chains where zeros are sure to survive, else single Linears.

    Each Linear is in one group at most. One whose two sizes are unaligned is padded in what it
    takes. The same model gives the same groups, in the order of its modules.
    """
    candidates = find_candidates(model)
    left = [Left(each.names[:1], each.refusal) for each in candidates if each.refusal]
    free = {each.linear: each for each in candidates if not each.refusal}
    groups: list[Group] = []
    for spot, inside in _enclosing(model, list(free.values())):
        chains, told = _chains_in(spot, {c.linear: c for c in inside if c.linear in free})
        left += told
        for chain in chains:
            groups.append(_chain_group(chain, free))
            for linear in (*chain.makers, *chain.takers):
                del free[linear]
    for each in free.values():
        single = _single_group(each)
        groups += [single] if isinstance(single, Group) else []
        left += [single] if isinstance(single, Left) else []
    order = {each.names[0]: number for number, each in enumerate(candidates)}
    groups.sort(key=lambda group: min(order[name] for name in group.names))
    return FoundGroups(tuple(groups), tuple(left))


def listed(names: Sequence[str]) -> str:
    """Return *names* for people; a model that is itself a Linear has no other name."""
    return ", ".join(name or "(model)" for name in names)


def _enclosing(
    model: nn.Module, free: Sequence[PaddableLinear]
) -> list[tuple[nn.Module, list[PaddableLinear]]]:
    """Return the smallest modules that may hold a chain, innermost first, and what is in each.

    A Linear that is also reached by a name outside of such a module is not in it: whoever calls it
    there would be given padded features.
    """
    names = names_of(model)
    under = defaultdict[str, list[PaddableLinear]](list)
    for each in free:
        for spot in _ancestors(each.names[0]):
            every = names[model.get_submodule(spot)]
            if len(each.names) == 1 or all(_is_under(own, every) for own in each.names):
                under[spot].append(each)
    found: dict[str, list[PaddableLinear]] = {}
    for taker in free:
        for spot in _ancestors(taker.names[0]) if taker.takes_unaligned else ():
            if any(_fits(maker, taker) for maker in under[spot]):
                found.setdefault(spot, under[spot])
                break
    innermost = sorted(found, key=lambda spot: -len(spot.split(".")) if spot else 0)
    return [(model.get_submodule(spot), found[spot]) for spot in innermost]


def _chains_in(
    module: nn.Module, inside: Mapping[nn.Linear, PaddableLinear]
) -> tuple[list[Chain], list[Left]]:
    """Return the chains among the candidates *inside* of *module*, and why others are none."""
    able = [each for each in inside.values() if not each.tied]
    makers = [each for each in able if any(_fits(each, other) for other in able)]
    takers = [each for each in able if any(_fits(other, each) for other in able)]
    if not makers:
        return [], []
    try:
        traced = trace(module)
    except UntraceableError as error:
        names = tuple(each.names[0] for each in able if each in makers or each in takers)
        return [], [Left(names, f"{_NO_CHAIN}: {error}")]
    chains, broken = find_chains(
        traced, [each.linear for each in makers], [each.linear for each in takers]
    )
    told = [
        Left(
            tuple(inside[linear].names[0] for linear in each.linears), f"{_NO_CHAIN}: {each.reason}"
        )
        for each in broken
    ]
    return chains, told


def _chain_group(chain: Chain, free: Mapping[nn.Linear, PaddableLinear]) -> Group:
    makers, takers = [free[each] for each in chain.makers], [free[each] for each in chain.takers]
    structure = Structure(
        inputs=tuple(each.linear.in_features for each in makers),
        features=makers[0].linear.out_features,
        outputs=tuple(each.linear.out_features for each in takers),
        dtype=makers[0].dtype,
        biases=tuple(each.linear.bias is not None for each in (*makers, *takers)),
        via=chain.via,
        fp32=_fp32(makers[0]),
    )
    return Group(
        structure,
        tuple(each.names[0] for each in makers),
        tuple(each.names[0] for each in takers),
        chain.between,
        chain.sources,
    )


def _single_group(candidate: PaddableLinear) -> Group | Left:
    linear, name = candidate.linear, candidate.names[:1]
    takes = candidate.takes_unaligned and not candidate.tied
    if not takes and not candidate.makes_unaligned:
        said = f"its weight is also that of {listed(candidate.tied)}"
        return Left(name, f"{said}; columns of tied weights are not padded")
    structure = Structure(
        inputs=() if takes else (linear.in_features,),
        features=linear.in_features if takes else linear.out_features,
        outputs=(linear.out_features,) if takes else (),
        dtype=candidate.dtype,
        biases=(linear.bias is not None,),
        fp32=_fp32(candidate),
    )
    return Group(structure, () if takes else name, name if takes else ())


def _fp32(candidate: PaddableLinear) -> str | None:
    if candidate.dtype != "f32":
        return None
    from warmup.inductor.gemm.key import fp32_precision  # imports inductor: only where it matters

    return fp32_precision(candidate.linear.weight.device.type)


def _fits(maker: PaddableLinear, taker: PaddableLinear) -> bool:
    """Whether *taker* could take what *maker* makes, by size and dtype."""
    made, taken = maker.linear.out_features, taker.linear.in_features
    is_other = maker is not taker and maker.dtype == taker.dtype
    return is_other and made == taken and maker.makes_unaligned


def _ancestors(name: str) -> Iterator[str]:
    """Yield the names of the modules around *name*, innermost first; the model's is empty."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _is_under(name: str, spots: Sequence[str]) -> bool:
    return any(not spot or name.startswith(f"{spot}.") for spot in spots)
