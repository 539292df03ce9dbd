"""`WeightWatch`: a frozen graph is compiled again after a weight that it holds was changed.

A frozen graph keeps the values that its weights had at the compile, and dynamo guards which tensors
they are, not what they hold. The watch adds a guard: each weight still has the version counter, the
storage and the data pointer that it had and, in a CPU's memory, the same eight bytes in its middle.
The guard is the last of its graph, in C++ over all weights, and under 1 us for 100 of them; without
a C++ compiler it is a loop in Python. Dynamo compiles again where it fails. All this is read before
the values, so that a change during the compile is noticed as well.

No counter shows a write through ``.data`` or numpy, or by a fused optimizer or another process, nor
any write to a tensor that was made in inference mode. Those eight bytes show it if they changed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from types import CodeType
from typing import Any, Final, NamedTuple

import torch
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo import convert_frame
from torch._dynamo.cache_size import CacheSizeRelevantForFrame
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch._dynamo.source import GlobalStateSource
from torch._guards import TracingContext
from torch._inductor import freezing
from torch._inductor.codecache import CppCodeCache
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.multiprocessing.reductions import StorageWeakRef

from warmup.core.events import Contradicted, WeightChanged, logger
from warmup.core.text import counted, first_line
from warmup.inductor.compile_watch import place_of
from warmup.inductor.patches import Firewall, Function, Hooks, Patches
from warmup.keys.question import Answers

_SAMPLE: Final = 8  # bytes
_SOURCE: Final = """
#include <c10/core/TensorImpl.h>
#include <cstdint>
#include <cstring>
struct Weight {
  const c10::TensorImpl* tensor;  // null once Python has freed it
  const c10::StorageImpl* storage;  // null where it has none
  const void* data;
  int64_t version;
  const void* sample;  // null where the memory is not to be read
  int64_t value;
};
extern "C" int64_t first_changed(int64_t count, const Weight* weights) {
  for (int64_t i = 0; i < count; ++i) {
    const Weight& weight = weights[i];
    if (weight.tensor == nullptr) continue;
    const auto& version = weight.tensor->version_counter();
    if (version.enabled() && version.current_version() != weight.version) return i;
    if (weight.storage == nullptr) continue;
    auto* storage = weight.tensor->unsafe_storage().unsafeGetStorageImpl();
    if (storage != weight.storage) return i;
    if (storage->_mutable_data_ptr_no_checks().get() != weight.data) return i;
    if (weight.sample == nullptr) continue;
    int64_t value;
    std::memcpy(&value, weight.sample, sizeof value);
    if (value != weight.value) return i;
  }
  return -1;
}
"""
_STEPS: Final = re.compile(r"'([^']+)'|\.(\w+)|\[(\d+)\]|^(\w+)$")  # in the name of a source
_INNER: Final = frozenset({"__dict__", "_modules", "_parameters", "_buffers"})


class _State(NamedTuple):
    """What shows that a weight was changed; no storage where the tensor has none."""

    version: int
    storage: int
    data: int
    sample: int = 0
    value: int = 0


def _state_of(tensor: torch.Tensor) -> _State:
    version = -1 if tensor.is_inference() else tensor._version
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, or of a library
        return _State(version, 0, 0)
    size = tensor.numel() * tensor.element_size()
    end = tensor.storage_offset() * tensor.element_size() + size
    is_readable = tensor.device.type == "cpu" and tensor.is_contiguous() and end <= storage.nbytes()
    if size < _SAMPLE or not is_readable:
        return _State(version, storage._cdata, storage.data_ptr())
    sample = tensor.data_ptr() + (size - _SAMPLE) // 2
    value = ctypes.c_int64.from_address(sample).value
    return _State(version, storage._cdata, storage.data_ptr(), sample, value)


class _Weight(ctypes.Structure):
    _fields_ = (
        ("tensor", ctypes.c_void_p),
        ("storage", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("version", ctypes.c_int64),
        ("sample", ctypes.c_void_p),
        ("value", ctypes.c_int64),
    )


class _Owner(NamedTuple):
    """The module that has a weight, held weakly, and the weight's name in it."""

    module: Callable[[], torch.nn.Module | None]
    name: str


class _FrozenWeight(NamedTuple):
    name: str
    tensor: Callable[[], torch.Tensor | None]
    state: _State
    owner: _Owner | None

    def is_changed(self) -> bool:
        tensor = self.tensor()
        return tensor is not None and _state_of(tensor) != self.state

    def is_replaced(self) -> bool:
        module = None if self.owner is None else self.owner.module()
        if module is None or self.owner is None:
            return False
        name = self.owner.name
        return module._parameters.get(name, module._buffers.get(name)) is not self.tensor()


_armed: weakref.WeakSet[_FrozenGraph] = weakref.WeakSet()


class _FrozenGraph:
    def __init__(self, firewall: Firewall | None = None) -> None:
        self._firewall = firewall or Firewall()  # a guard's exception would reach the user's call
        self.code: CodeType | None = None  # of the frame, once the guard may fail
        self._weights: list[_FrozenWeight] = []
        self._storages: list[Any] = []
        self._freed: list[object] = []  # weak references, for what they call
        self._manager: Callable[[], Any] = lambda: None  # dynamo's guards, held weakly

    def add(self, name: str, tensor: torch.Tensor, state: _State, owner: _Owner | None) -> None:
        self._weights.append(_FrozenWeight(name, weakref.ref(tensor), state, owner))
        if state.storage:  # no other storage gets this address while there is a weak reference
            weak: Any = StorageWeakRef
            self._storages.append(weak(tensor.untyped_storage()))

    def changed(self) -> list[str]:
        """Return the names of the weights that were changed or replaced since."""
        found = [each.name for each in self._weights if each.is_changed() or each.is_replaced()]
        return list(dict.fromkeys(found))

    def add_guard(self, builder: Any) -> None:
        others = len(self._weights) - 1
        rest = f" and {counted(others, 'other')}" if others else ""
        said = f"no frozen weight was changed ({self._weights[0].name}{rest})"
        builder.guard_manager.root.add_epilogue_lambda_guard(self.make_check(), [said], None)
        self._manager = weakref.ref(builder.guard_manager)

    def make_check(self) -> Callable[[object], bool]:
        """Return a check of all weights, which fails only after `arm`: dynamo evaluates it once."""
        weights, first_changed = self._weights, _load_check(cache_dir())
        if first_changed is None:

            def is_equal() -> bool:
                return not any(each.is_changed() for each in weights)

            attempt = self._firewall.attempt
            return lambda _: attempt("weight_watch", is_equal, lambda: True) or not self.code
        array, count = (_Weight * len(weights))(), ctypes.c_int64(len(weights))
        tensors = {i: held for i, each in enumerate(weights) if (held := each.tensor()) is not None}
        for index, address in zip(tensors, _addresses_of([*tensors.values()]), strict=True):
            version, storage, data, *sample = weights[index].state
            array[index] = _Weight(address, storage, data, version, *sample)
            self._freed.append(weakref.ref(tensors[index], partial(_forget, array, index)))
        return lambda _scope: first_changed(count, array) < 0 or not self.code

    def arm(self, code: CodeType, manager: object) -> bool:
        """Let the guard fail from now on; return whether it is among the guards in *manager*."""
        if self._manager() is not manager:
            return False
        self.code = code
        _armed.add(self)
        return True

    def drop(self) -> None:
        """Let dynamo forget the graph, and free its copies of the weights."""
        _armed.discard(self)
        manager = self._manager()
        if manager is not None and manager.cache_entry is not None:
            manager.extra_state.invalidate(manager.cache_entry, _Dropped(manager))


class _Dropped(DeletedGuardManagerWrapper):
    """Stands for the guards of a dropped graph, which another thread may be evaluating."""

    def __init__(self, replaced: Any) -> None:
        super().__init__("a weight that the graph had frozen was changed")
        self.replaced = replaced


def _forget(array: Any, index: int, _ref: object) -> None:
    array[index].tensor = None


@cache
def _load_check(_folder: str) -> Callable[..., int] | None:
    """Return the check in C++, compiled once for each of inductor's folders; None without it."""
    try:
        library: Any = CppCodeCache.load(_SOURCE)
        # With the GIL held, so that no weight is freed meanwhile.
        check: Any = ctypes.PyDLL(library._name, handle=library._handle).first_changed
    except Exception as error:  # noqa: BLE001  a compiler may be missing or broken in any way
        logger.warning(
            "frozen weights are checked for changes by a loop in Python, which takes far longer "
            "than the check in C++, since that cannot be compiled here: %s",
            first_line(error),
        )
        return None
    check.restype = ctypes.c_int64
    return check  # type: ignore[no-any-return]  # a function of ctypes


def _addresses_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    held = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:  # each is an at::Tensor, which is one pointer
        return [ctypes.c_void_p.from_address(get(each, None)).value or 0 for each in held]
    finally:
        torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(held)


class _Made(threading.local):
    """The frozen graphs of the frame that this thread compiles; None outside of a frame."""

    graphs: list[_FrozenGraph] | None = None


class WeightWatch(Hooks):
    """Reports every changed weight of a frozen graph to *answers*, and drops the graph."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._made = _Made()

    def attach(self, patches: Patches) -> None:
        self._firewall = patches.firewall or Firewall()
        patches.on_restore(self._deactivate)
        patches.hook(freezing, "freeze", self._freeze_and_watch)
        patches.hook(convert_frame, "_compile", self._compile_and_arm)

    def _freeze_and_watch(self, original: Function, model: Any, *args: Any, **kwargs: Any) -> Any:
        context = TracingContext.try_get()
        if not self._active or context is None:
            return original(model, *args, **kwargs)
        flat = list(context.params_flat_unwrap_subclasses or ())
        origins = list(context.params_unwrapped_to_flat_index or range(len(flat)))
        # A tensor that shares the memory, such as the parameter of which a padded weight is a
        # larger copy, has a version counter of its own.
        owners = _owners_in(context.module_context.nn_modules.values())
        seen = {id(each): each for each in flat if isinstance(each, torch.Tensor)}
        seen |= {key: tensor for key, (tensor, _) in owners.items()}
        states = {key: _state_of(tensor) for key, tensor in seen.items()}
        frozen, kept = original(model, *args, **kwargs)
        # What the graph itself writes is kept as an input.
        kept_ids = {id(flat[index]) for index in kept if index < len(flat)}
        names, of_storage = _names_in(model), {}
        for index, tensor in enumerate(flat):
            if id(tensor) in states and id(tensor) not in kept_ids:
                of_storage[states[id(tensor)].storage or id(tensor)] = names[origins[index]]
        graph = _FrozenGraph(self._firewall)
        for key, tensor in seen.items():
            if key not in kept_ids and (name := of_storage.get(states[key].storage or key)):
                graph.add(name, tensor, states[key], owners.get(key, (None, None))[1])
        if of_storage:
            self._watch(context, graph)
        return frozen, kept

    def _watch(self, context: Any, graph: _FrozenGraph) -> None:
        if self._made.graphs is None:
            self._report_unwatched()
            return
        self._made.graphs.append(graph)

        def frozen_weights(builder: Any, _guard: object) -> None:
            self._firewall.attempt("weight_watch", lambda: graph.add_guard(builder), lambda: None)

        context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(frozen_weights))

    def _report_unwatched(self) -> None:
        found = "True without a guard that watches the weights"
        advice = "a weight that is changed later keeps its old values in the graph"
        self._answers.emit(Contradicted("freezing", "True", found, advice))

    def _compile_and_arm(
        self, original: Function, code: CodeType, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._active:
            return original(code, *args, **kwargs)
        self._drop_changed(code)
        outer, self._made.graphs = self._made.graphs, []
        try:
            args = tuple(_without_dropped(code, each) for each in args)
            kwargs = {name: _without_dropped(code, each) for name, each in kwargs.items()}
            converted = original(code, *args, **kwargs)
            guarded = converted.guarded_code
            manager = None if guarded is None else guarded.guard_manager
            armed = [graph.arm(code, manager) for graph in self._made.graphs]
            if armed and not any(armed) and manager is not None:
                self._report_unwatched()
            return converted
        finally:
            self._made.graphs = outer

    def _drop_changed(self, code: CodeType) -> None:
        # Strict serving raises WeightChangedError: the graphs and their guards stay.
        for graph in [each for each in _armed if each.code is code]:
            if changed := graph.changed():
                self._answers.emit(WeightChanged(changed[0], len(changed), place_of(code)))
                graph.drop()


def _owners_in(modules: Iterable[Any]) -> dict[int, tuple[torch.Tensor, _Owner]]:
    return {
        id(tensor): (tensor, _Owner(weakref.ref(module), name))
        for root in modules
        if isinstance(root, torch.nn.Module)
        for module in root.modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }


def _without_dropped(code: CodeType, value: Any) -> Any:
    """Return *value*, the number after which dynamo gives up, without dropped graphs."""
    if not isinstance(value, CacheSizeRelevantForFrame):
        return value
    entries = _debug_get_cache_entry_list(code)
    dropped = sum(isinstance(entry.guard_manager, _Dropped) for entry in entries)
    counts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return type(value)(**{name: max(0, count - dropped) for name, count in counts.items()})


def _names_in(model: torch.fx.GraphModule) -> list[str]:
    """Return ``self.fc.weight`` for ``L['self']._modules['fc']._parameters['weight']``."""
    sources: dict[str, Any] = getattr(model, "_param_name_to_source", {})
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    names += [name for name, _ in model.named_buffers(remove_duplicate=False)]
    spelled = [str(getattr(sources.get(name), "name", name)) for name in names]
    steps = [map("".join, _STEPS.findall(each)) for each in spelled]
    return [".".join(step for step in each if step not in _INNER) for each in steps]
