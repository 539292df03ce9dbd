"""`resolve_inputs`: the inputs of a model, those that nobody named inferred.

An inferred input is one that forward accepted on fake tensors, at the first and at the last bucket.
Its forms are tried in the order of the model's layers, after a form that the layer asks for which
the input met first.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from warmup.core.buckets import Bucket, InputSpec
from warmup.core.errors import ModelError, SettingsError, WarmupError
from warmup.core.roofline import dtype_name
from warmup.core.rows import SEED
from warmup.core.text import first_line
from warmup.inductor.adapter import mark_range
from warmup.models.fake_model import (
    Encounters,
    FakeModel,
    Need,
    NeedKind,
    RejectedCallError,
    fake_copy,
)
from warmup.models.loading import (
    Cast,
    Inputs,
    Specs,
    accepts_example,
    check_names,
    floating_dtype,
    forward_parameters,
    load_model,
    make_inputs,
    needed_arguments,
    parse_cast,
    parse_dtype,
)
from warmup.models.model_target import Assumption, Dims, LoadedModel

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


def shapes_of(need: Need, dims: tuple[str, ...]) -> Iterator[tuple[Dims, str | None]]:
    """Yield the dims of an input for *need*, and its dtype; None for that of the parameters."""
    # *dims* are the sized dims, which all occur. A batch stands first; a single other dim stands
    # first, or second behind a batch of one.
    ordered = tuple(sorted(dims, key=lambda name: name != _BATCH))
    single = len(dims) == 1 and ordered[0] != _BATCH
    leads: list[Dims] = [ordered, (1, *ordered)] if single else [ordered]
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


MAX_FAKE_RUNS: Final = 200
# Where an image of this side is accepted too, any is.
_OTHER_SIDE: Final = 160
_SHOWN_FORMS: Final = 4
_LOOKED_AT: Final = 100  # forms among which the next one is chosen
_ORIGIN: Final = "taken from forward and the weights"
_OTHER_MODEL: Final = "--model FILE.py:NAME names another"
_PLAIN_VALUES: Final = ("int", "float", "bool", "str", "complex", int, float, bool, str, complex)

Form = tuple[InputSpec, ...]


@dataclass(frozen=True, slots=True)
class ResolvedInputs:
    """The specs of a model's inputs, and what was assumed about the model and them.

    Without specs ``example_inputs`` makes the inputs. Nothing is assumed where all was named.
    """

    specs: tuple[InputSpec, ...]
    assumptions: tuple[Assumption, ...] = ()


def resolve_inputs(
    model: LoadedModel, specs: Specs, buckets: Sequence[Bucket], dtype: Cast
) -> ResolvedInputs:
    """Return *specs*, and a spec for each other argument of forward that has no default.

    Without *specs*, a model whose ``example_inputs`` makes its inputs needs none; in a file with
    several classes it gives way to inferred inputs where forward accepts only these. Of a forward
    whose arguments all have defaults the first is taken. Nothing runs on real tensors.
    """
    given = tuple(specs)
    check_names(model.module, given)
    inferred: Form = ()
    if given or model.example_inputs is None:
        inferred = _infer(model, given, buckets, dtype)
    elif model.has_siblings and not _fits_example(model, buckets[0], dtype):
        _refuse_misspelled(model, buckets[0], dtype)
        with contextlib.suppress(ModelError):  # example_inputs is taken then
            inferred = _infer(model, given, buckets, dtype)
    assumed = [model.assumed, None if given else model.inputs_assumed]
    assumptions = [each for each in assumed if each is not None]
    if model.chosen:
        assumptions.append(Assumption(f"model: {model.chosen}", _OTHER_MODEL))
    if inferred:
        first = inferred[0]
        origin = max((spec.inferred_from for spec in inferred), key=len)
        assumptions.append(
            Assumption(
                f"inputs: {' '.join(map(str, inferred))}, {origin}",
                f'--input "{first.name}=[...]:{first.dtype}" says otherwise',
            )
        )
    return ResolvedInputs((*given, *inferred), tuple(assumptions))


def _unnamed(model: LoadedModel, given: Form) -> tuple[str, ...]:
    parameters = [
        parameter
        for parameter in forward_parameters(model.module).values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    needed = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not needed and not given:
        needed = parameters[:1]
    named = {spec.name for spec in given}
    unnamed = [parameter for parameter in needed if parameter.name not in named]
    names = tuple(parameter.name for parameter in unnamed)
    if not names and not given:
        raise _cannot_infer("forward names no argument", ("x",))
    if plain := [parameter for parameter in unnamed if parameter.annotation in _PLAIN_VALUES]:
        raise _cannot_infer(f"forward needs {plain[0].name}, which is no tensor", names)
    return names


def _infer(model: LoadedModel, given: Form, buckets: Sequence[Bucket], dtype: Cast) -> Form:
    names = _unnamed(model, given)
    if not names:
        return ()
    floating = dtype_name(dtype or floating_dtype(model.module) or torch.float32)
    try:
        fake = fake_copy(model.module, dtype)
    except Exception as error:  # the user's model may raise anything when it is copied
        raise _cannot_infer(f"the model cannot be copied: {first_line(error)}", names) from error
    ends = tuple(dict.fromkeys([buckets[0], buckets[-1]]))
    device = _device_of(model.module)
    form = _FormSearch(model.module, fake, given, names, floating, ends, device).run()
    if model.example_inputs is not None and not given:
        note = f"{_ORIGIN}, since example_inputs is for another model"
        form = tuple(replace(spec, inferred_from=note) for spec in form)
    return form


def _fits_example(model: LoadedModel, bucket: Bucket, dtype: Cast) -> bool:
    assert model.example_inputs is not None
    make_fake = functools.partial(fake_copy, model.module, dtype)
    return accepts_example(make_fake, model.example_inputs, bucket, _device_of(model.module), dtype)


def _refuse_misspelled(model: LoadedModel, bucket: Bucket, dtype: Cast) -> None:
    assert model.example_inputs is not None
    needed = needed_arguments(model.example_inputs)
    missing = [name for name in needed if name not in dict(bucket.sizes)]
    size = bucket.sizes[-1][1] if bucket.sizes else 1
    whole = Bucket((*bucket.sizes, *((name, size) for name in missing)))
    if missing and _fits_example(model, whole, dtype):
        raise SettingsError(
            f"--dims has no size for {', '.join(missing)} of example_inputs({', '.join(needed)})",
            f'bind it with --dims "{missing[0]}=1,8", or give --input for each argument',
        )


def _device_of(module: nn.Module) -> torch.device:
    devices = (parameter.device for parameter in module.parameters())
    return next((device for device in devices if device.type != "meta"), torch.device("cpu"))


def _cannot_infer(
    reason: str, names: Sequence[str], forms: Sequence[Form] = (), closest: Form = ()
) -> ModelError:
    shown = [" ".join(map(str, form)) for form in forms[:_SHOWN_FORMS]]
    more = f" and {len(forms) - _SHOWN_FORMS} more" if len(forms) > _SHOWN_FORMS else ""
    tried = f"; tried on fake tensors: {', '.join(shown)}{more}" if shown else ""
    named = map(str, closest) if closest else (f"{name}=[seqlen,...]:f32" for name in names)
    spelled = " ".join(f'--input "{each}"' for each in named)
    return ModelError(
        f"the inputs of the model cannot be inferred ({reason}{tried})",
        f"name them, such as {spelled}, or define example_inputs(seqlen) beside the model",
    )


@dataclass
class _FormSearch:
    module: nn.Module
    fake: FakeModel
    given: Form
    names: tuple[str, ...]
    floating: str
    ends: tuple[Bucket, ...]
    device: torch.device
    met: dict[str, Need] = field(default_factory=dict)
    failures: dict[Form, str] = field(default_factory=dict)
    # Calls until a failure, what failed, and the form of the inputs.
    furthest: tuple[int, str, Form] = (-1, "no layer suggests a form", ())
    runs: int = 0

    def run(self) -> Form:
        while self.runs < MAX_FAKE_RUNS and (form := self._next()) is not None:
            found = self._accepted(form)
            if found is not None:
                return self._finished(form, found)
        _, reason, closest = self.furthest
        raise _cannot_infer(reason, self.names, tuple(self.failures), closest)

    def _next(self) -> Form | None:
        def is_uniform(form: Form) -> bool:
            return len({spec.dims[:1] == (1,) for spec in (*self.given, *form)}) == 1

        for is_narrow in (True, False):
            choices = [[*self._specs(name, is_narrow=is_narrow)] for name in self.names]
            forms = itertools.chain(zip(*choices, strict=False), itertools.product(*choices))
            untried = (form for form in forms if form not in self.failures)
            some = list(itertools.islice(untried, _LOOKED_AT))
            if some:
                return next(filter(is_uniform, some), some[0])
        return None

    def _specs(self, name: str, *, is_narrow: bool) -> Mapping[InputSpec, None]:
        needs = [self.met[name]] if name in self.met else []
        if not needs or not is_narrow:
            masks = [Need(NeedKind.MASK)] if len(self.names) + len(self.given) > 1 else []
            layers = needs_of(self.module)
            needs += [*masks, *layers] if "mask" in name else [*layers, *masks]
        dims = tuple(dim for dim, _ in self.ends[0].sizes)
        return {
            InputSpec(name, shape, dtype or self.floating, inferred_from=_ORIGIN): None
            for need in needs
            for shape, dtype in shapes_of(need, dims)
        }

    def _accepted(self, form: Form) -> Encounters | None:
        found = None
        for bucket in self.ends:
            self.runs += 1
            try:
                found = self.fake.call(functools.partial(self._arguments, form, bucket))
            except RejectedCallError as error:
                self.failures[form] = reason = first_line(error.__cause__ or error)
                if error.found.calls > self.furthest[0]:
                    said = f"{' '.join(map(str, form))}, {bucket}: {reason}"
                    self.furthest = (error.found.calls, said, form)
                for name, need in error.found.needs.items():
                    self.met.setdefault(name, need)
                return None
        return found

    def _arguments(self, form: Form, bucket: Bucket) -> tuple[tuple[()], Mapping[str, Any]]:
        return (), {
            spec.name: torch.empty(
                spec.shape(bucket),
                dtype=parse_dtype(spec.dtype or self.floating, f"--input {spec.name}"),
                device=self.device,
            )
            for spec in (*self.given, *form)
        }

    def _finished(self, form: Form, found: Encounters) -> Form:
        finished = []
        for number, spec in enumerate(form):
            met = found.needs.get(spec.name)
            rows = [met.size] if met and met.kind is NeedKind.IDS else found.embedding_rows
            done = replace(spec, below=min([spec.below, *rows]))
            if spec.dims[-1:] == (SIDES[0],) == spec.dims[-2:-1]:
                other = replace(spec, dims=(*spec.dims[:-2], _OTHER_SIDE, _OTHER_SIDE))
                if self._accepted((*form[:number], other, *form[number + 1 :])) is not None:
                    done = replace(done, inferred_from=f"{_ORIGIN} (which take images of any size)")
            finished.append(done)
        return tuple(finished)


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model on its device, in the dtype that was asked for, and the specs of its inputs."""

    loaded: LoadedModel
    resolved: ResolvedInputs
    device: torch.device
    dtype: Cast
    seed: int

    @property
    def module(self) -> nn.Module:
        return self.loaded.module

    def inputs(self, bucket: Bucket) -> Inputs:
        """Return the inputs of *bucket*, equal in each call."""
        torch.manual_seed(self.seed)
        return make_inputs(self.loaded, self.resolved.specs, bucket, self.device, self.dtype)


def place_model(
    target: str,
    specs: Specs,
    buckets: Sequence[Bucket],
    device: torch.device,
    dtype: str | None,
    *,
    seed: int = SEED,
) -> PlacedModel:
    """Return the model that *target* names on *device*; its random weights are those of *seed*."""
    cast = parse_cast(dtype)
    torch.manual_seed(seed)
    loaded = load_model(target)
    resolved = resolve_inputs(loaded, specs, buckets, cast)
    try:
        loaded.module.to(device=device, dtype=cast)
    except RuntimeError as error:
        raise ModelError(f"the model does not fit on {device} ({first_line(error)})") from error
    return PlacedModel(loaded, resolved, device, cast, seed)


def mark_inputs(make_inputs: Callable[[Bucket], Inputs], bucket: Bucket) -> Inputs:
    """Return the inputs of *bucket*, each dim that a lower end changes marked with its range."""
    inputs = make_inputs(bucket)
    leaves = inputs.leaves()
    for name, low in bucket.lows:
        size = bucket.size_of(name)
        smaller = make_inputs(bucket.at({name: low})).leaves()
        for number, (large, small) in enumerate(zip(leaves, smaller, strict=True)):
            if not isinstance(large, torch.Tensor):
                continue
            for dim, pair in enumerate(zip(small.shape, large.shape, strict=True)):
                if pair[0] == pair[1]:
                    continue
                if pair != (low, size):
                    raise ModelError(
                        f"input {number}, dim {dim} is {pair[1]} where {name}={size}, and "
                        f"{pair[0]} where {name}={low}",
                        "only dims of that size itself can have a range: build exact buckets",
                    )
                mark_range(large, dim, low, size)
    return inputs


def sizes_within(bucket: Bucket) -> tuple[Bucket, ...]:
    """Return the lower end and the middle of the range of *bucket*; empty without a range."""
    if not bucket.lows:
        return ()
    lows = dict(bucket.lows)
    middle = {name: (low + size) // 2 for name, size in bucket.sizes if (low := lows.get(name))}
    return tuple(dict.fromkeys([bucket.at(lows), bucket.at(middle)]))


@contextlib.contextmanager
def naming_dtypes(module: nn.Module, inputs: Inputs) -> Iterator[None]:
    """Raise a ModelError where *module* fails on *inputs*, and not with inputs of its own dtype."""
    try:
        yield
    except WarmupError:
        raise
    except Exception as error:
        own = floating_dtype(module)
        arguments = [*forward_parameters(module), *map(str, range(len(inputs.args)))]
        named = {**dict(zip(arguments, inputs.args, strict=False)), **inputs.kwargs}
        others = {
            name: dtype_name(value.dtype)
            for name, value in named.items()
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != own
        }
        is_reason = own is not None and others and not _accepts(module, inputs, None)
        if own is None or not is_reason or not _accepts(module, inputs, own):
            raise
        (name, other), short = next(iter(others.items())), dtype_name(own)
        raise ModelError(
            f"the parameters of the model are {short}, and its input {name} is {other}",
            f'cast both with --dtype {short}, or name the input: --input "{name}=[...]:{short}"',
        ) from error


def _accepts(module: nn.Module, inputs: Inputs, dtype: Cast) -> bool:
    def fake(tensor: torch.Tensor) -> torch.Tensor:
        cast = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=cast, device=tensor.device)

    def make_arguments() -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        fakes = inputs.changed(fake)
        return fakes.args, fakes.kwargs

    try:
        fake_copy(module).call(make_arguments)
    except Exception:  # noqa: BLE001  the user's model may raise anything: it is not accepted then
        return False
    return True
