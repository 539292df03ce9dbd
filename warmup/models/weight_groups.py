"""`find_groups`: the Linears of a model, in groups whose padding is one decision.

Groups follow from the modules alone: no input is needed, and no operation on the model's tensors
runs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from warmup.core.roofline import dtype_name
from warmup.keys.gemm import format_number
from warmup.keys.weight import WEIGHT_DTYPES, Structure, is_aligned


class UntraceableError(Exception):
    """A module's forward cannot be traced. Argument: why."""


@dataclass(frozen=True, slots=True)
class TracedModule:
    """The graph of the forward of *module*, and the Linear of each node that calls a Linear."""

    module: nn.Module
    graph: fx.Graph
    linears: dict[fx.Node, nn.Linear]


def trace(module: nn.Module) -> TracedModule:
    """Return the traced forward of *module*; no operation on a tensor runs.

    Raises:
        UntraceableError: the forward branches on values, sets attributes, fails on proxies, or was
            replaced on the instance; or a module inside has hooks, which would see padded values.
    """
    if "forward" in vars(module):
        raise UntraceableError(f"{type(module).__name__} has a forward of its own")
    for name, inner in module.named_modules():
        if inner is not module and is_hooked(inner):
            raise UntraceableError(f"{name} has hooks")
    before = {inner: dict(vars(inner)) for inner in module.modules()}
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # the user's forward may raise anything on a proxy
        reason = str(error).partition("\n")[0]
        raise UntraceableError(
            f"{type(module).__name__}.forward cannot be traced: {reason}"
        ) from error
    finally:
        changed = _restore_attributes(before)
    if changed:
        raise UntraceableError(f"{type(module).__name__}.forward sets {', '.join(changed)}")
    linears = {
        node: inner
        for node in graph.nodes
        if node.op == "call_module"
        and isinstance(inner := module.get_submodule(str(node.target)), nn.Linear)
    }
    return TracedModule(module, graph, linears)


def _restore_attributes(before: dict[nn.Module, dict[str, Any]]) -> list[str]:
    """Give modules the attributes that they had *before*; return the names of changed attributes.

    A forward that stores values in its module has stored proxies there.
    """
    changed: list[str] = []
    for module, attributes in before.items():
        now = vars(module)
        names = [name for name, value in now.items() if attributes.get(name, now) is not value]
        if names or len(now) != len(attributes):
            changed += names
            now.clear()
            now.update(attributes)
    return changed


def is_hooked(module: nn.Module) -> bool:
    """Whether *module* has hooks, or a forward that was replaced on the instance."""
    return "forward" in vars(module) or any(
        vars(module).get(name)
        for name in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    )


class _Tracer(fx.Tracer):
    """Traces into every module but Linears and those modules of torch that have weights."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.Linear):
            return True
        has_state = any(True for _ in (*m.parameters(), *m.buffers(), *m.children()))
        return has_state and super().is_leaf_module(m, module_qualified_name)


# `propagate_padding`: the values at padded features after an operation, found by running it.

MAX_VIA_LENGTH: Final = 512
_aten = torch.ops.aten
# Element by element, but without the tag in some of the supported torch versions.
_UNTAGGED_POINTWISE_OPS: Final = frozenset(
    {
        _aten._to_copy.default,  # noqa: SLF001  its name
        _aten.detach.default,
        _aten.gelu.default,
        _aten.hardswish.default,
        _aten.hardswish_.default,
        _aten.leaky_relu.default,
        _aten.leaky_relu_.default,
    }
)
_IDENTITIES: Final = frozenset({_aten.clone.default, _aten.detach.default})
# Many dims, none of size 1: what changes the shape of real values changes this shape too.
_SAMPLE: Final = (2, 3, 2, 3, 2, 5)


class LostZerosError(Exception):
    """An operation may turn zeros at padded features into other values. Argument: why."""


@dataclass(frozen=True, slots=True)
class PaddedValues:
    """A sample of the padding of one value of the graph, and the expression that computes it."""

    sample: torch.Tensor
    expression: str

    @property
    def is_zero(self) -> bool:
        """Whether the whole sample is zero."""
        return not self.sample.any().item()


def make_padding(name: str, dtype: torch.dtype) -> PaddedValues:
    """Return the padding of the output of a padded Linear: zeros, with *name* as expression."""
    return PaddedValues(torch.zeros(_SAMPLE, dtype=dtype), name)


def propagate_padding(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    """Return the result of *node* for *known* values: `PaddedValues`, or a dtype or device.

    Raises:
        LostZerosError: the operation reads sizes, does not compute element by element, uses a value
            that is not known, or cannot be run on the CPU.
    """
    unknown = [str(other) for other in node.all_input_nodes if other not in known]
    if unknown:
        raise LostZerosError(f"{_name(node)} also reads {', '.join(unknown)}")
    tracer = _PaddingTracer([value for value in known.values() if isinstance(value, PaddedValues)])

    def value_of(other: fx.Node) -> Any:
        value = known[other]
        return value.sample if isinstance(value, PaddedValues) else value

    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    try:
        with torch.no_grad(), tracer:
            result = _call(node, args, kwargs)
    except LostZerosError as error:
        raise LostZerosError(f"{_name(node)}: {error}") from None
    except Exception as error:  # an operation may raise anything on unexpected shapes
        reason = str(error).partition("\n")[0]
        raise LostZerosError(f"{_name(node)} cannot be tried: {reason}") from error
    if isinstance(result, (torch.dtype, torch.device)):
        return result
    if not isinstance(result, torch.Tensor) or result.shape != _SAMPLE:
        raise LostZerosError(f"{_name(node)} reads the size or changes the shape")
    return PaddedValues(result, tracer.expression_of(result))


def _call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


class _PaddingTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped upstream
    """Raises for operators that are not pointwise; keeps the expressions of the others."""

    def __init__(self, known: Sequence[PaddedValues]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        # Samples are kept alive, since a new tensor may get the id of a freed one.
        self._expressions = {
            id(values.sample): (values.sample, values.expression) for values in known
        }

    def __torch_dispatch__(  # torch names it
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.pointwise not in func.tags and func not in _UNTAGGED_POINTWISE_OPS:
            raise LostZerosError(f"{func} does not compute element by element")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        words = [self._word(value) for value in (*args, *kwargs.values())]
        name = func.overloadpacket.__name__.strip("_").replace("to_copy", "to")
        expression = words[0] if func in _IDENTITIES else f"{name}({','.join(words)})"
        if len(expression) > MAX_VIA_LENGTH:
            raise LostZerosError("the operations in between are too long for a key")
        self._expressions[id(result)] = (result, expression)
        return result

    def expression_of(self, value: torch.Tensor) -> str:
        """Return the expression that computes *value*."""
        _, expression = self._expressions[id(value)]
        return expression

    def _word(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if id(value) in self._expressions:
                return self.expression_of(value)
            if value.dim():
                raise LostZerosError("uses a tensor that is not padded")
            value = value.item()  # torch passes a number to an operator as a tensor without dims
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        return format_number(value) if isinstance(value, (int, float)) else str(value).lower()


# `find_chains`: Linears that pass features to each other through operations that keep zeros.


@dataclass(frozen=True, slots=True)
class Chain:
    """Linears that produce features and Linears that consume them, in the order of their calls.

    ``via`` is the expression of the consumers' input, as keys have it. ``between`` computes it: its
    placeholders are the outputs of the producers, its output a tuple with one value for each
    consumer. ``sources`` numbers the activation that each producer reads: producers of the same
    activation have the same number.
    """

    producers: tuple[nn.Linear, ...]
    consumers: tuple[nn.Linear, ...]
    via: str
    between: fx.Graph
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BrokenChain:
    """Linears whose features cannot be padded together, and why."""

    linears: tuple[nn.Linear, ...]
    reason: str


def find_chains(
    traced: TracedModule, producers: Collection[nn.Linear], consumers: Collection[nn.Linear]
) -> tuple[list[Chain], list[BrokenChain]]:
    """Return the chains from *producers* to *consumers* in *traced*, and the broken ones.

    Each Linear is in one chain at most: a consumer of a chain is no producer of another. Linears
    that are called more than once are in no chain.
    """
    calls = Counter(traced.linears.values())
    once = {linear for linear, count in calls.items() if count == 1}
    producing, consuming = once.intersection(producers), once.intersection(consumers)
    broken: list[BrokenChain] = []
    while True:  # a consumer in a broken chain may be a producer of another chain
        flow = _PaddingFlow(traced, producing, consuming)
        reasons = flow.broken_roots()
        if not reasons:
            return [flow.chain_of(root) for root in flow.roots()], broken
        for root, reason in reasons.items():
            broken.append(BrokenChain((*flow.producers_of(root), *flow.consumers_of(root)), reason))
            producing.difference_update(flow.producers_of(root))


class _PaddingFlow:
    """Padding of the outputs of *producers*, followed through a graph until *consumers* read it.

    Producers whose features meet in one operation belong together; one of them is their root.
    """

    def __init__(
        self,
        traced: TracedModule,
        producers: Collection[nn.Linear],
        consumers: Collection[nn.Linear],
    ) -> None:
        self._traced = traced
        self._consumers = consumers
        self._known: dict[fx.Node, Any] = {}
        self._origins: dict[fx.Node, nn.Linear] = {}  # of each padded value, one of its producers
        self._inputs: dict[fx.Node, fx.Node] = {}  # of each consumer's call, the padded input
        self._roots: dict[nn.Linear, nn.Linear] = {}
        self._calls: dict[nn.Linear, fx.Node] = {}
        self._reasons: list[tuple[nn.Linear, str]] = []
        for node in traced.graph.nodes:
            linear = traced.linears.get(node)
            padded = [value for value in node.all_input_nodes if value in self._origins]
            if padded:
                self._follow(node, padded)
            elif linear is not None and linear in producers:
                padding = make_padding(f"p{len(self._calls)}", linear.weight.dtype)
                self._known[node], self._origins[node] = padding, linear
                self._roots[linear], self._calls[linear] = linear, node

    def roots(self) -> list[nn.Linear]:
        """Return one producer of each chain, in the order of their calls."""
        return [linear for linear, root in self._roots.items() if linear is root]

    def producers_of(self, root: nn.Linear) -> list[nn.Linear]:
        """Return the producers that belong to *root*, in the order of their calls."""
        return [linear for linear in self._calls if self._root(linear) is root]

    def consumers_of(self, root: nn.Linear) -> list[nn.Linear]:
        """Return the consumers of the features of *root*, in the order of their calls."""
        return [self._traced.linears[node] for node, _ in self._consumer_calls(root)]

    def broken_roots(self) -> dict[nn.Linear, str]:
        """Return each root whose features cannot be padded, with the reason."""
        reasons: dict[nn.Linear, str] = {}
        for producer, reason in self._reasons:
            reasons.setdefault(self._root(producer), reason)
        for root in self.roots():
            for _, value in self._consumer_calls(root):
                if not self._known[value].is_zero:
                    expression = self._expression(root, value)
                    reasons.setdefault(root, f"{expression} of zeros is not zero")
            if not self._consumer_calls(root):
                reasons.setdefault(root, "no Linear reads the features")
        return reasons

    def chain_of(self, root: nn.Linear) -> Chain:
        """Return the chain of *root*, which is not broken."""
        producers = self.producers_of(root)
        activations = [self._calls[producer].all_input_nodes[0] for producer in producers]
        numbers = {node: number for number, node in enumerate(dict.fromkeys(activations))}
        expressions = [self._expression(root, value) for _, value in self._consumer_calls(root)]
        return Chain(
            producers=tuple(producers),
            consumers=tuple(self.consumers_of(root)),
            via=expressions[0] if len({*expressions}) == 1 else ";".join(expressions),
            between=self._between(root),
            sources=tuple(numbers[node] for node in activations),
        )

    def _follow(self, node: fx.Node, padded: list[fx.Node]) -> None:
        """Follow the *padded* inputs of *node* into its result, or note why that is impossible."""
        linear = self._traced.linears.get(node)
        if linear is not None and linear in self._consumers:
            self._inputs[node] = padded[0]
            return
        producers = [self._origins[value] for value in padded]
        if node.op not in ("call_function", "call_method"):
            is_output = node.op == "output"
            reader = "the caller" if is_output else node.target
            reason = f"{reader} reads the features"
            self._reasons += [(producer, reason) for producer in producers]
            return
        try:
            result = propagate_padding(node, self._known)
        except LostZerosError as error:
            self._reasons += [(producer, str(error)) for producer in producers]
            return
        self._known[node] = result
        if isinstance(result, PaddedValues):
            self._origins[node] = producers[0]
            for producer in producers:
                self._roots[self._root(producer)] = self._root(producers[0])

    def _root(self, producer: nn.Linear) -> nn.Linear:
        while (root := self._roots[producer]) is not producer:
            producer = root
        return producer

    def _consumer_calls(self, root: nn.Linear) -> list[tuple[fx.Node, fx.Node]]:
        """Return the calls of the consumers of *root*, each with its padded input."""
        return [
            (node, value)
            for node, value in self._inputs.items()
            if self._root(self._origins[value]) is root
        ]

    def _expression(self, root: nn.Linear, value: fx.Node) -> str:
        """Return the expression of *value*, in which the producers of *root* count from ``p0``."""
        numbers = {producer: number for number, producer in enumerate(self._calls)}
        names = {f"p{numbers[own]}": f"p{i}" for i, own in enumerate(self.producers_of(root))}
        expression: str = self._known[value].expression
        return re.sub(r"\bp[0-9]+\b", lambda match: names[match[0]], expression)

    def _between(self, root: nn.Linear) -> fx.Graph:
        """Return the graph from the outputs of the producers of *root* to the consumers' inputs."""
        graph = fx.Graph()
        copies = {
            self._calls[producer]: graph.placeholder(f"features_{number}")
            for number, producer in enumerate(self.producers_of(root))
        }
        for node in self._traced.graph.nodes:
            is_between = node in self._known and node not in copies
            if is_between and all(value in copies for value in node.all_input_nodes):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[value] for _, value in self._consumer_calls(root)))
        return graph


# `find_candidates`: the Linears of a model with unaligned sizes, and why some cannot be padded.

PARAMETERS: Final = ("weight", "bias")


@dataclass(frozen=True, slots=True)
class PaddableLinear:
    """A Linear with an unaligned size; ``refusal`` is why it cannot be padded, None if it can.

    ``names`` are all its names in the model, of which messages use the first; ``tied`` names the
    other modules that have its weight or bias. ``dtype`` is the short name that keys use.
    """

    linear: nn.Linear
    dtype: str
    names: tuple[str, ...]
    tied: tuple[str, ...]
    refusal: str | None

    @property
    def has_unaligned_output(self) -> bool:
        """Whether the number of output features is unaligned."""
        return not is_aligned(self.linear.out_features, self.dtype)

    @property
    def has_unaligned_input(self) -> bool:
        """Whether the number of input features is unaligned."""
        return not is_aligned(self.linear.in_features, self.dtype)


def find_candidates(model: nn.Module) -> list[PaddableLinear]:
    """Return the Linears of *model* that have an unaligned size, in the order of its modules."""
    names, holders, sharers = names_of(model), _modules_by_parameter(model), _count_sharers(model)
    candidates: list[PaddableLinear] = []
    for module in model.modules():
        first = next(module.parameters(), None) if isinstance(module, nn.Linear) else None
        if first is None or (dtype := dtype_name(first.dtype)) not in WEIGHT_DTYPES:
            continue
        assert isinstance(module, nn.Linear)
        own = [tensor for tensor in module.parameters(recurse=False) if is_plain(tensor)]
        tied = dict.fromkeys(holder for tensor in own for holder in holders[id(tensor)])
        refusal = _refusal(module)
        if any(sharers[address_of(tensor)] > 1 for tensor in own):
            refusal = refusal or "shares memory with another tensor"
        others = [holder for holder in tied if holder is not module]
        if any(isinstance(holder, nn.Linear) for holder in others):
            refusal = refusal or f"has its weight in common with {names[others[0]][0]}"
        other_names = tuple(names[holder][0] for holder in others)
        candidate = PaddableLinear(module, dtype, tuple(names[module]), other_names, refusal)
        if candidate.has_unaligned_output or candidate.has_unaligned_input:
            candidates.append(candidate)
    return candidates


def tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield each parameter and buffer of *model* once, but no sharded or quantized tensors."""
    yield from filter(is_plain, model.parameters())
    yield from filter(is_plain, model.buffers())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether *tensor* is of torch's plain types: a DTensor, for example, has no single memory."""
    return type(tensor) in (torch.Tensor, nn.Parameter)


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of the storage of *tensor*."""
    return tensor.untyped_storage().data_ptr()


def names_of(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Return all names of each module."""
    names = defaultdict[nn.Module, list[str]](list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[module].append(name)
    return names


def _refusal(linear: nn.Linear) -> str | None:
    if type(linear) is not nn.Linear:
        return f"is a {type(linear).__name__}, not a plain Linear"
    if is_hooked(linear):
        return "has hooks or a forward of its own"
    weight, bias = (vars(linear)["_parameters"].get(name) for name in PARAMETERS)
    if type(weight) is not nn.Parameter or type(bias) not in (nn.Parameter, type(None)):
        types = {type(tensor).__name__ for tensor in (weight, bias)} - {"NoneType", "Parameter"}
        return f"its weight or bias is no plain parameter ({', '.join(sorted(types)) or 'absent'})"
    if weight.is_inference():
        return "was made in inference mode"
    if weight.is_meta:
        return "has no values yet, it is on the meta device"
    if bias is not None and (bias.dtype, bias.device) != (weight.dtype, weight.device):
        return "its bias has another dtype or device than its weight"
    if weight.shape != (linear.out_features, linear.in_features) or not weight.is_contiguous():
        return "its weight is not a contiguous matrix of its two sizes"
    return None


def _modules_by_parameter(model: nn.Module) -> dict[int, list[nn.Module]]:
    """Return the modules that have a parameter, by the parameter's id."""
    holders = defaultdict[int, list[nn.Module]](list)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)].append(module)
    return holders


def _count_sharers(model: nn.Module) -> Counter[int]:
    """Return how many tensors share each storage, by its address."""
    return Counter(address_of(tensor) for tensor in tensors_of(model))


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
