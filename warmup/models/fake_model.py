"""`FakeModel`: a model whose tensors are fake, which shows what its forward accepts."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from warmup.core.roofline import dtype_name

Args = tuple[Any, ...]

# On fake tensors torch does not compare the dtypes of a matmul's operands.
_MATMULS: Final = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
# On fake tensors torch computes it in bfloat16 alone, and on a CPU in any dtype
# (torch/_meta_registrations.py, 2.11 to 2.13).
_GROUPED_PRODUCT: Final = "_grouped_mm"
_GROUPS_POSITION: Final = 6  # of `groups` among the arguments of a convolution


class NeedKind(StrEnum):
    """What an input is to a model."""

    IDS = "ids"
    FEATURES = "features"
    CHANNELS = "channels"
    MASK = "mask"


@dataclass(frozen=True, slots=True)
class Need:
    """What a layer takes: ids below ``size``, features, or channels before ``rank`` dims."""

    kind: NeedKind
    size: int = 0
    rank: int = 0


@dataclass(slots=True)
class Encounters:
    """By input the first `Need` that it met, all embeddings, and how many functions were called."""

    needs: dict[str, Need] = field(default_factory=dict)
    embedding_rows: list[int] = field(default_factory=list)
    calls: int = 0


@contextlib.contextmanager
def fake_tensors(mode: FakeTensorMode) -> Iterator[None]:
    """Make every new tensor a fake one of *mode* while the context is open, without gradients.

    Compiled functions run uncompiled, and torch does not log an operation that fails.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        with mode, torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        log.disabled = was_disabled


def fake_mode() -> FakeTensorMode:
    """Return a mode in which fake tensors and real constants may meet."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_like(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Return the fake tensor of *mode* like *tensor*, on the CPU for one on the meta device."""
    if tensor.is_meta:
        with mode:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    return mode.from_tensor(tensor.detach())


class RejectedCallError(Exception):
    """A forward raised on fake tensors: the cause. Argument: what its inputs met until then."""

    def __init__(self, found: Encounters) -> None:
        super().__init__(found)
        self.found = found


@dataclass(frozen=True, slots=True)
class FakeModel:
    """A model on fake tensors of ``mode``; ``make`` returns a new copy of it."""

    mode: FakeTensorMode
    make: Callable[[], nn.Module]

    def call(self, make_arguments: Callable[[], tuple[Args, Mapping[str, Any]]]) -> Encounters:
        """Return what the inputs of *make_arguments* meet in a new copy, without its prints."""
        module, found = self.make(), Encounters()
        with redirect_stdout(io.StringIO()), warnings.catch_warnings(), fake_tensors(self.mode):
            warnings.simplefilter("ignore")
            args, kwargs = make_arguments()
            try:
                with _Reality(), _Encountering(kwargs, found):  # type: ignore[no-untyped-call]  # torch's own
                    module(*args, **kwargs)
            except Exception as error:  # the user's forward may raise anything
                raise RejectedCallError(found) from error
        return found


def fake_copy(module: nn.Module, dtype: torch.dtype | None = None) -> FakeModel:
    """Return *module* on fake tensors, floats cast to *dtype*; raises what copying raises."""
    mode = fake_mode()
    fakes: dict[int, Any] = {}  # what copying puts in the place of each tensor
    with fake_tensors(mode):
        for tensor in (*module.parameters(), *module.buffers()):
            fake = fake_like(tensor, mode)
            if dtype is not None and fake.is_floating_point():
                fake = fake.to(dtype)
            is_parameter = isinstance(tensor, nn.Parameter)
            fakes[id(tensor)] = nn.Parameter(fake, requires_grad=False) if is_parameter else fake
    model = FakeModel(mode, lambda: copy.deepcopy(module, dict(fakes)))
    model.make()
    return model


def fake_instance(definition: Callable[[], nn.Module]) -> FakeModel:
    """Return what *definition* makes, on fake tensors of the CPU; raises what it raises."""
    # Not in the fake mode: there torch refuses to convert a module that is under construction.
    with torch.device("meta"), _OnMeta(), torch.no_grad():  # type: ignore[no-untyped-call]
        module = definition().eval()
    return fake_copy(module)


class _OnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Makes every tensor on the meta device, whatever device is asked for."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Args = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if named.get("device") is not None:
            named["device"] = torch.device("meta")
        return func(*args, **named)


class _Reality(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Refuses a matmul of different dtypes, as real tensors do; makes a value that is read 1."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Args = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _MATMULS:
            dtypes = [dtype_name(arg.dtype) for arg in args if isinstance(arg, torch.Tensor)]
            if len({*dtypes}) > 1:
                raise RuntimeError(f"a matmul of {' and '.join(dtypes)}")
        # Operations that read a value, which a fake tensor does not have.
        if name in ("is_nonzero", "equal"):
            return True
        if name in ("_local_scalar_dense", "item"):
            return 1.0 if args[0].is_floating_point() else 1
        if name == _GROUPED_PRODUCT and args[0].dtype is not torch.bfloat16:
            given, named = tree_map_only(
                torch.Tensor,
                lambda x: x.to(torch.bfloat16) if x.is_floating_point() else x,
                (args, kwargs or {}),
            )
            return func(*given, **named).to(args[0].dtype)
        return func(*args, **(kwargs or {}))


class _Encountering(TorchFunctionMode):
    def __init__(self, inputs: Mapping[str, Any], found: Encounters) -> None:
        super().__init__()
        self._names = {id(x): name for name, x in inputs.items() if isinstance(x, torch.Tensor)}
        self._found = found

    def __torch_function__(self, func: Any, _: Any, args: Args = (), kwargs: Any = None) -> Any:
        self._found.calls += 1
        need = _need_of(getattr(func, "__name__", ""), args, kwargs or {})
        if need is not None:
            if need.kind is NeedKind.IDS:
                self._found.embedding_rows.append(need.size)
            name = self._names.get(id(args[0]))
            if name is not None:
                self._found.needs.setdefault(name, need)
        return func(*args, **(kwargs or {}))


def _need_of(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Need | None:
    if not args:
        return None
    second = args[1] if len(args) > 1 else kwargs.get("weight", kwargs.get("normalized_shape"))
    if name in ("layer_norm", "rms_norm") and isinstance(second, (tuple, list)) and second:
        return Need(NeedKind.FEATURES, int(second[-1]))
    if not isinstance(second, torch.Tensor) or second.dim() < 2:  # noqa: PLR2004  rows and columns
        return None
    if name == "linear":
        return Need(NeedKind.FEATURES, second.shape[-1])
    if name in ("matmul", "mm", "__matmul__"):
        return Need(NeedKind.FEATURES, second.shape[-2])
    if name in ("embedding", "embedding_bag"):
        return Need(NeedKind.IDS, second.shape[0])
    if name in ("conv1d", "conv2d"):
        groups = args[_GROUPS_POSITION] if len(args) > _GROUPS_POSITION else kwargs.get("groups", 1)
        return Need(NeedKind.CHANNELS, second.shape[1] * int(groups), second.dim() - 2)
    return None
