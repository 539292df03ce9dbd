"""Weights padded in place: `find_groups` finds what is padded together, `pad` and `restore` do it.

Groups follow from the modules alone: no input is needed, and no operation runs on the model's
tensors.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from warmup.core.errors import SettingsError
from warmup.core.roofline import dtype_name
from warmup.keys.gemm import Dim, format_number
from warmup.keys.pad import WEIGHT_DTYPES, Padding, Structure, is_aligned

PARAMETERS: Final = ("weight", "bias")
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
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _NoChainError(Exception):
    """Features cannot be padded from one Linear to the next. Argument: why."""


@dataclass(frozen=True, slots=True)
class Group:
    """Linears of one model, by name, whose features are padded together or not at all.

    In a chain ``between`` computes the consumers' inputs, a tuple, from the producers' outputs, its
    placeholders; ``sources`` numbers the activation that each producer reads.
    """

    structure: Structure
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    between: fx.Graph | None = field(default=None, compare=False, repr=False)
    sources: tuple[int, ...] = field(default=(0,), compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Return all its names; a model that is itself a Linear has an empty name."""
        return (*self.producers, *self.consumers)

    def __str__(self) -> str:
        return _spelled(self.names)


@dataclass(frozen=True, slots=True)
class UnpaddedLinears:
    """Linears that are not padded, or not padded as a chain, and why."""

    names: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{_spelled(self.names)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FoundGroups:
    """The groups of a model, and its other unaligned Linears with the reasons."""

    groups: tuple[Group, ...]
    unpadded: tuple[UnpaddedLinears, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Unaligned:
    """A Linear with an unaligned size; ``tied`` are other modules that have its parameters."""

    linear: nn.Linear
    dtype: str
    names: tuple[str, ...]
    tied: tuple[str, ...]
    refusal: str | None

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def has_unaligned_output(self) -> bool:
        return not is_aligned(self.linear.out_features, self.dtype)

    @property
    def has_unaligned_input(self) -> bool:
        return not is_aligned(self.linear.in_features, self.dtype)

    def feeds(self, other: _Unaligned) -> bool:
        is_same_size = self.linear.out_features == other.linear.in_features
        is_other = self is not other and self.dtype == other.dtype
        return is_other and is_same_size and self.has_unaligned_output


_Around = tuple[nn.Module, list[_Unaligned]]  # a module, and its Linears


def find_groups(model: nn.Module) -> FoundGroups:
    """Return the groups of *model*: chains where zeros are sure to survive, else single Linears.

    Each Linear is in one group at most. A single Linear with two unaligned sizes has its input
    features padded. The groups have the order of the modules.
    """
    candidates = _unaligned_linears(model)
    unpadded = [UnpaddedLinears(c.names[:1], c.refusal) for c in candidates if c.refusal]
    free = {c.name: c for c in candidates if not c.refusal}
    groups: list[Group] = []
    for module, inside in _modules_around_chains(model, [*free.values()]):
        chains, broken = _chains_in(module, [c for c in inside if c.name in free])
        groups += chains
        unpadded += broken
        for name in (name for chain in chains for name in chain.names):
            del free[name]
    for one in free.values():
        pads_input = one.has_unaligned_input and not one.tied
        if pads_input or one.has_unaligned_output:
            groups.append(_group([] if pads_input else [one], [one] if pads_input else []))
        else:
            tied = f"its weight is also that of {_spelled(one.tied)}"
            reason = f"{tied}; columns of tied weights are not padded"
            unpadded.append(UnpaddedLinears(one.names[:1], reason))
    order = {candidate.name: number for number, candidate in enumerate(candidates)}
    groups.sort(key=lambda group: min(order[name] for name in group.names))
    return FoundGroups(tuple(groups), tuple(unpadded))


def tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield each parameter and buffer of *model* once, but no sharded or quantized tensors."""
    yield from filter(_is_plain, model.parameters())
    yield from filter(_is_plain, model.buffers())


def is_hooked(module: nn.Module) -> bool:
    """Whether *module* has hooks, or a forward that was replaced on the instance."""
    return "forward" in vars(module) or any(vars(module).get(name) for name in _HOOKS)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether *tensor* is of torch's plain types: a DTensor, for example, has no single memory."""
    return type(tensor) in (torch.Tensor, nn.Parameter)


def _address_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _spelled(names: Sequence[str]) -> str:
    return ", ".join(name or "(model)" for name in names)


def _names_of(model: nn.Module) -> Mapping[nn.Module, list[str]]:
    names = defaultdict[nn.Module, list[str]](list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[module].append(name)
    return names


def _unaligned_linears(model: nn.Module) -> list[_Unaligned]:
    names = _names_of(model)
    sharers = Counter(map(_address_of, tensors_of(model)))
    holders = defaultdict[int, list[nn.Module]](list)  # by the id of a parameter
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)].append(module)
    found: list[_Unaligned] = []
    for module in model.modules():
        first = next(module.parameters(), None) if isinstance(module, nn.Linear) else None
        if first is None or (dtype := dtype_name(first.dtype)) not in WEIGHT_DTYPES:
            continue
        assert isinstance(module, nn.Linear)
        own = [tensor for tensor in module.parameters(recurse=False) if _is_plain(tensor)]
        tied = dict.fromkeys(holder for tensor in own for holder in holders[id(tensor)])
        others = [holder for holder in tied if holder is not module]
        refusal = _refusal(module)
        if any(sharers[_address_of(tensor)] > 1 for tensor in own):
            refusal = refusal or "shares memory with another tensor"
        if any(isinstance(holder, nn.Linear) for holder in others):
            refusal = refusal or f"has its weight in common with {names[others[0]][0]}"
        other_names = tuple(names[holder][0] for holder in others)
        candidate = _Unaligned(module, dtype, tuple(names[module]), other_names, refusal)
        if candidate.has_unaligned_output or candidate.has_unaligned_input:
            found.append(candidate)
    return found


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


def _modules_around_chains(model: nn.Module, free: Sequence[_Unaligned]) -> list[_Around]:
    """Return the smallest modules that may hold chains, innermost first, and their Linears."""
    names = _names_of(model)
    inside = defaultdict[str, list[_Unaligned]](list)
    for candidate in free:
        for ancestor in _ancestors(candidate.name):
            aliases = names[model.get_submodule(ancestor)]
            inner = tuple(f"{alias}." if alias else "" for alias in aliases)
            if len(candidate.names) == 1 or all(name.startswith(inner) for name in candidate.names):
                inside[ancestor].append(candidate)
    smallest: dict[str, list[_Unaligned]] = {}
    for consumer in free:
        for ancestor in _ancestors(consumer.name):
            if any(producer.feeds(consumer) for producer in inside[ancestor]):
                smallest.setdefault(ancestor, inside[ancestor])
                break
    innermost = sorted(smallest, key=lambda name: -len(name.split(".")) if name else 0)
    return [(model.get_submodule(name), smallest[name]) for name in innermost]


def _ancestors(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition(".")[0]
        yield name


def _group(
    producers: Sequence[_Unaligned],
    consumers: Sequence[_Unaligned],
    via: str | None = None,
    between: fx.Graph | None = None,
    sources: tuple[int, ...] = (0,),
) -> Group:
    each = (*producers, *consumers)
    first, dtype, fp32 = each[0].linear, each[0].dtype, None
    if dtype == "f32":
        from warmup.inductor.gemm.key import fp32_precision  # imports inductor: takes seconds

        fp32 = fp32_precision(first.weight.device.type)
    structure = Structure(
        inputs=tuple(c.linear.in_features for c in producers),
        features=first.out_features if producers else first.in_features,
        outputs=tuple(c.linear.out_features for c in consumers),
        dtype=dtype,
        biases=tuple(c.linear.bias is not None for c in each),
        via=via,
        fp32=fp32,
    )
    names = tuple(c.name for c in producers), tuple(c.name for c in consumers)
    return Group(structure, *names, between, sources)


_Set = set[_Unaligned]
_Found = tuple[list[Group], list[UnpaddedLinears]]


# Chains: Linears that pass features to each other through operations that keep zeros.


def _chains_in(module: nn.Module, inside: Sequence[_Unaligned]) -> _Found:
    untied = [candidate for candidate in inside if not candidate.tied]
    producers = {c for c in untied if any(c.feeds(other) for other in untied)}
    consumers = {c for c in untied if any(other.feeds(c) for other in untied)}
    if not producers:
        return [], []
    try:
        graph = _trace(module)
    except _NoChainError as error:
        return [], [_no_chain([c for c in untied if c in producers | consumers], str(error))]
    by_linear: dict[nn.Module, _Unaligned] = {c.linear: c for c in untied}
    calls = {
        node: by_linear[inner]
        for node in graph.nodes
        if node.op == "call_module"
        and (inner := module.get_submodule(str(node.target))) in by_linear
    }
    once = {candidate for candidate, count in Counter(calls.values()).items() if count == 1}
    producers &= once
    broken: list[UnpaddedLinears] = []
    while True:  # a consumer in a broken chain may be a producer of another chain
        flow = _PaddingFlow(graph, calls, producers, consumers & once)
        reasons = flow.broken_roots()
        if not reasons:
            return [flow.group_of(root) for root in flow.roots()], broken
        for root, reason in reasons.items():
            own = flow.producers_of(root)
            broken.append(_no_chain([*own, *flow.consumers_of(root)], reason))
            producers.difference_update(own)


def _no_chain(candidates: Sequence[_Unaligned], reason: str) -> UnpaddedLinears:
    names = tuple(candidate.name for candidate in candidates)
    return UnpaddedLinears(names, f"not padded as a chain: {reason}")


def _trace(module: nn.Module) -> fx.Graph:
    kind = type(module).__name__
    if "forward" in vars(module):
        raise _NoChainError(f"{kind} has a forward of its own")
    for name, inner in module.named_modules():
        if inner is not module and is_hooked(inner):
            raise _NoChainError(f"{name} has hooks")
    before = {inner: dict(vars(inner)) for inner in module.modules()}
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # the user's forward may raise anything on a proxy
        reason = str(error).partition("\n")[0]
        raise _NoChainError(f"{kind}.forward cannot be traced: {reason}") from error
    finally:  # a forward that stores values in its module has stored proxies there
        changed: list[str] = []
        for inner, attributes in before.items():
            now = vars(inner)
            names = [name for name, value in now.items() if attributes.get(name, now) is not value]
            if names or len(now) != len(attributes):
                changed += names
                now.clear()
                now.update(attributes)
    if changed:
        raise _NoChainError(f"{kind}.forward sets {', '.join(changed)}")
    return graph


class _Tracer(fx.Tracer):
    """Traces into every module but Linears and those modules of torch that have weights."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.Linear):
            return True
        has_state = any(True for _ in (*m.parameters(), *m.buffers(), *m.children()))
        return has_state and super().is_leaf_module(m, module_qualified_name)


class _PaddingFlow:
    """Padding of the outputs of *producers*, followed through *graph* until *consumers* read it."""

    def __init__(
        self, graph: fx.Graph, calls: Mapping[fx.Node, _Unaligned], producers: _Set, consumers: _Set
    ) -> None:
        self._graph, self._called, self._consumers = graph, calls, consumers
        self._known: dict[fx.Node, Any] = {}  # `_PaddedValues`, or a dtype or device
        self._origins: dict[fx.Node, _Unaligned] = {}  # of each padded value, one of its producers
        self._inputs: dict[fx.Node, fx.Node] = {}  # of each consumer's call, the padded input
        self._roots: dict[_Unaligned, _Unaligned] = {}
        self._calls: dict[_Unaligned, fx.Node] = {}
        self._reasons: list[tuple[_Unaligned, str]] = []
        for node in graph.nodes:
            linear = calls.get(node)
            padded = [value for value in node.all_input_nodes if value in self._origins]
            if padded:
                self._follow(node, padded)
            elif linear is not None and linear in producers:
                zeros = torch.zeros(_SAMPLE, dtype=linear.linear.weight.dtype)
                self._known[node] = _PaddedValues(zeros, f"p{len(self._calls)}")
                self._origins[node] = self._roots[linear] = linear
                self._calls[linear] = node

    def roots(self) -> list[_Unaligned]:
        return [linear for linear, root in self._roots.items() if linear is root]

    def producers_of(self, root: _Unaligned) -> list[_Unaligned]:
        return [linear for linear in self._calls if self._root(linear) is root]

    def consumers_of(self, root: _Unaligned) -> list[_Unaligned]:
        return [self._called[node] for node, _ in self._consumer_calls(root)]

    def broken_roots(self) -> dict[_Unaligned, str]:
        reasons: dict[_Unaligned, str] = {}
        for producer, reason in self._reasons:
            reasons.setdefault(self._root(producer), reason)
        for root in self.roots():
            for _, value in self._consumer_calls(root):
                if self._known[value].sample.any().item():
                    expression = self._expression(root, value)
                    reasons.setdefault(root, f"{expression} of zeros is not zero")
            if not self._consumer_calls(root):
                reasons.setdefault(root, "no Linear reads the features")
        return reasons

    def group_of(self, root: _Unaligned) -> Group:
        producers = self.producers_of(root)
        activations = [self._calls[producer].all_input_nodes[0] for producer in producers]
        numbers = {node: number for number, node in enumerate(dict.fromkeys(activations))}
        expressions = [self._expression(root, value) for _, value in self._consumer_calls(root)]
        via = expressions[0] if len({*expressions}) == 1 else ";".join(expressions)
        sources = tuple(numbers[node] for node in activations)
        return _group(producers, self.consumers_of(root), via, self._between(root), sources)

    def _follow(self, node: fx.Node, padded: list[fx.Node]) -> None:
        if self._called.get(node) in self._consumers:
            self._inputs[node] = padded[0]
            return
        producers = [self._origins[value] for value in padded]
        try:
            result = _propagate(node, self._known)
        except _NoChainError as error:
            self._reasons += [(producer, str(error)) for producer in producers]
            return
        self._known[node] = result
        if isinstance(result, _PaddedValues):
            self._origins[node] = producers[0]
            for producer in producers:
                self._roots[self._root(producer)] = self._root(producers[0])

    def _root(self, producer: _Unaligned) -> _Unaligned:
        while (root := self._roots[producer]) is not producer:
            producer = root
        return producer

    def _consumer_calls(self, root: _Unaligned) -> list[tuple[fx.Node, fx.Node]]:
        pairs = self._inputs.items()
        return [(node, x) for node, x in pairs if self._root(self._origins[x]) is root]

    def _expression(self, root: _Unaligned, value: fx.Node) -> str:
        numbers = {producer: number for number, producer in enumerate(self._calls)}
        names = {f"p{numbers[own]}": f"p{i}" for i, own in enumerate(self.producers_of(root))}
        expression: str = self._known[value].expression
        return re.sub(r"\bp[0-9]+\b", lambda match: names[match[0]], expression)

    def _between(self, root: _Unaligned) -> fx.Graph:
        graph = fx.Graph()
        copies = {
            self._calls[producer]: graph.placeholder(f"features_{number}")
            for number, producer in enumerate(self.producers_of(root))
        }
        for node in self._graph.nodes:
            is_between = node in self._known and node not in copies
            if is_between and all(value in copies for value in node.all_input_nodes):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[value] for _, value in self._consumer_calls(root)))
        return graph


@dataclass(frozen=True, slots=True)
class _PaddedValues:
    """A sample of the padding of one value of the graph, and the expression that computes it."""

    sample: torch.Tensor
    expression: str


def _propagate(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    if node.op not in ("call_function", "call_method"):
        reader = "the caller" if node.op == "output" else node.target
        raise _NoChainError(f"{reader} reads the features")
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    unknown = [str(other) for other in node.all_input_nodes if other not in known]
    if unknown:
        raise _NoChainError(f"{name} also reads {', '.join(unknown)}")
    tracer = _PaddingTracer([value for value in known.values() if isinstance(value, _PaddedValues)])

    def value_of(other: fx.Node) -> Any:
        value = known[other]
        return value.sample if isinstance(value, _PaddedValues) else value

    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    try:
        with torch.no_grad(), tracer:
            if isinstance(node.target, str):
                result = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                result = node.target(*args, **kwargs)
    except _NoChainError as error:
        raise _NoChainError(f"{name}: {error}") from None
    except Exception as error:  # an operation may raise anything on unexpected shapes
        reason = str(error).partition("\n")[0]
        raise _NoChainError(f"{name} cannot be tried: {reason}") from error
    if isinstance(result, (torch.dtype, torch.device)):
        return result
    if not isinstance(result, torch.Tensor) or result.shape != _SAMPLE:
        raise _NoChainError(f"{name} reads the size or changes the shape")
    return _PaddedValues(result, tracer.expression_of(result))


class _PaddingTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped upstream
    """Raises for operators that are not pointwise; keeps the expressions of the others."""

    def __init__(self, known: Sequence[_PaddedValues]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        # Samples are kept alive, since a new tensor may get the id of a freed one.
        self._expressions = {id(one.sample): (one.sample, one.expression) for one in known}

    def __torch_dispatch__(  # torch names it
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.pointwise not in func.tags and func not in _UNTAGGED_POINTWISE_OPS:
            raise _NoChainError(f"{func} does not compute element by element")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        words = [self._word(value) for value in (*args, *kwargs.values())]
        name = func.overloadpacket.__name__.strip("_").replace("to_copy", "to")
        expression = words[0] if func in _IDENTITIES else f"{name}({','.join(words)})"
        if len(expression) > MAX_VIA_LENGTH:
            raise _NoChainError("the operations in between are too long for a key")
        self._expressions[id(result)] = (result, expression)
        return result

    def expression_of(self, value: torch.Tensor) -> str:
        return self._expressions[id(value)][1]

    def _word(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if id(value) in self._expressions:
                return self.expression_of(value)
            if value.dim():
                raise _NoChainError("uses a tensor that is not padded")
            value = value.item()  # torch passes a number to an operator as a tensor without dims
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        return format_number(value) if isinstance(value, (int, float)) else str(value).lower()


# `pad` and `restore`: Linears padded with zeros in place, and back.


class PaddedLinear(nn.Linear):
    """A Linear that computes with more features than its parameters have; the added ones are zero.

    Padding changes the class of an existing Linear: references to it, its names and `isinstance`
    stay valid. ``weight`` and ``bias`` stay the same parameters with their own sizes, now views of
    the padded tensors, which are buffers outside of the state dict: what reads sizes, or loads,
    ties or changes a parameter in place works as before, and the weight is in memory once. Moves,
    casts, copies, pickles and assignments are followed; only an assignment to ``parameter.data`` is
    not.

    With ``takes_padded`` its input is padded already, with ``returns_padded`` its output stays
    padded. For ranges of rows in ``as_is``, lowest and highest (None: no limit), the parameters are
    used.
    """

    padded_weight: torch.Tensor
    padded_bias: torch.Tensor | None
    takes_padded: bool
    returns_padded: bool
    as_is: tuple[tuple[int, int | None], ...]

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  as nn.Linear names it
        for low, high in self.as_is:  # decided once for a compiled graph, by its sizes
            rows = input.numel() // self.in_features
            if rows >= low and (high is None or rows <= high):
                return super().forward(input)
        padded_out, padded_in = self.padded_weight.shape
        if padded_in != self.in_features and not self.takes_padded:
            input = nn.functional.pad(input, (0, padded_in - self.in_features))  # noqa: A001
        output = nn.functional.linear(input, self.padded_weight, self.padded_bias)
        if padded_out == self.out_features or self.returns_padded:
            return output
        return output[..., : self.out_features]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARAMETERS and isinstance(value, torch.Tensor):
            old = getattr(self, name)
            if old is None or old.shape != value.shape:
                raise SettingsError(
                    f"the {name} of a padded Linear cannot get the size {tuple(value.shape)}",
                    "restore the model with warmup.models.weight_groups.restore first",
                )
        super().__setattr__(name, value)
        if name in PARAMETERS:
            self._copy_parameters()

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # untyped upstream
        self._make_views()  # copying a module copies each of its tensors apart

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  torch's signature
        # A state dict cannot be loaded into tensors that were made in inference mode.
        with torch.inference_mode(mode=False), torch.no_grad():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # untyped upstream
        self._make_views()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._copy_parameters()  # torch may have swapped tensors instead of copying into them

    def _copy_parameters(self) -> None:
        for name in PARAMETERS:
            parameter, padded = getattr(self, name), getattr(self, f"padded_{name}")
            if parameter is None or padded is None:
                setattr(self, f"padded_{name}", None)
            elif _address_of(parameter) != _address_of(padded):
                setattr(self, f"padded_{name}", _enlarged(parameter, padded.shape))
        self._make_views()

    def _make_views(self) -> None:
        for name in PARAMETERS:
            parameter, padded = getattr(self, name), getattr(self, f"padded_{name}")
            if parameter is None or padded is None:
                continue
            with torch.no_grad():
                for dim, length in enumerate(parameter.shape):
                    padded.narrow(dim, length, padded.shape[dim] - length).zero_()
            parameter.data = _corner(padded, parameter.shape)


def pad(model: nn.Module, choices: Mapping[Group, Padding]) -> None:
    """Pad *model* in place, each group to its `Padding`; after an error nothing is padded."""
    if model.training:
        raise SettingsError(
            "a model in training mode cannot be padded", "call model.eval(), and pad for inference"
        )
    if any(isinstance(module, PaddedLinear) for module in model.modules()):
        raise SettingsError(
            "the model is padded already", "restore it first, or prepare a model only once"
        )
    try:
        for group, padding in choices.items():
            if padding.features == group.structure.features:
                continue
            is_chain = bool(group.producers and group.consumers)
            for name in group.names:
                linear = model.get_submodule(name)
                assert isinstance(linear, nn.Linear)
                if name in group.producers:
                    size, as_is = (padding.features, linear.in_features), padding.as_is
                    _pad_linear(linear, size, returns_padded=is_chain, as_is=as_is)
                else:
                    size = linear.out_features, padding.features
                    _pad_linear(linear, size, takes_padded=is_chain)
    except BaseException:
        restore(model)
        raise


def restore(model: nn.Module) -> None:
    """Undo all padding in *model*: its Linears are plain, with the same contiguous parameters."""
    for module in model.modules():
        if not isinstance(module, PaddedLinear):
            continue
        for name in PARAMETERS:
            parameter = getattr(module, name)
            if parameter is not None:
                parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
            delattr(module, f"padded_{name}")
        del module.takes_padded, module.returns_padded, module.as_is
        module.__class__ = nn.Linear  # type: ignore[assignment]  # its class before padding


def _pad_linear(
    linear: nn.Linear,
    size: tuple[int, int],
    *,
    takes_padded: bool = False,
    returns_padded: bool = False,
    as_is: Sequence[Dim] = (),
) -> None:
    weight = _enlarged(linear.weight, size)
    bias = None if linear.bias is None else _enlarged(linear.bias, size[:1])
    linear.__class__ = PaddedLinear
    assert isinstance(linear, PaddedLinear)
    linear.takes_padded, linear.returns_padded = takes_padded, returns_padded
    linear.as_is = tuple((rows.low, rows.high) for rows in as_is)
    linear.register_buffer("padded_weight", weight, persistent=False)
    linear.register_buffer("padded_bias", bias, persistent=False)
    linear._make_views()  # noqa: SLF001  a class of this module


def _enlarged(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode(mode=False), torch.no_grad():
        larger = torch.zeros(size, dtype=tensor.dtype, device=tensor.device)
        _corner(larger, tensor.shape).copy_(tensor)
    return larger


def _corner(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return tensor[tuple(slice(length) for length in size)]
