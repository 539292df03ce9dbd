"""`OwnArguments`: a launch config is tried on copies of what its kernel writes."""

from __future__ import annotations

import types
from typing import Any

import torch

from warmup.inductor.launch.kernels import OwnArguments, call_of


def make_kernel(**changes: Any) -> Any:
    """Return what is asked of a kernel with an input, a tensor that it changes, and an output."""
    zeroed: list[torch.Tensor] = []
    return types.SimpleNamespace(
        **{
            "fn": types.SimpleNamespace(arg_names=["in_ptr0", "in_out_ptr0", "out_ptr0", "xnumel"]),
            "mutated_arg_names": ["in_out_ptr0"],
            "zeroed": zeroed,
            "reset_to_zero_args": lambda *args, **_: zeroed.append(args[0]),
            "get_device_interface": lambda: types.SimpleNamespace(
                get_raw_stream=lambda _device: 7, current_device=lambda: 0
            ),
            **changes,
        }
    )


def make_tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    storage = torch.zeros(12)
    return torch.ones(4), torch.full((4,), 2.0), storage.as_strided((4,), (2,), 3)


def launch(x: Any, total: Any, out: Any, _numel: int, *, stream: int) -> int:
    """Do what the kernel does."""
    total += x
    out[:3] = total[:3]
    return stream


def test_a_call_leaves_the_models_tensors_as_they_are() -> None:
    """The kernel reads the model's inputs, and writes copies with the same strides."""
    x, total, out = make_tensors()
    kernel = make_kernel()
    own = OwnArguments(kernel, (x, total, out, 4), {})
    assert call_of(kernel, launch, own)(0) == 7
    assert own.args[0] is x
    assert own.args[3] == 4
    assert own.args[2].stride() == out.stride()
    assert (total.tolist(), out.tolist()) == ([2.0] * 4, [0.0] * 4)
    assert own.args[1].tolist() == [3.0] * 4


def test_every_candidate_begins_with_the_same_values() -> None:
    """What the kernel changes is as at first, and what it only writes is poisoned."""
    x, total, out = make_tensors()
    kernel = make_kernel()
    own = OwnArguments(kernel, (x, total, out, 4), {})
    written = []
    for _ in range(2):
        own.restore()
        call_of(kernel, launch, own)(0)
        written.append(own.copies())
    for changed, only_written in written:
        assert changed.tolist() == [3.0] * 4
        assert only_written[:3].tolist() == [3.0] * 3
        assert only_written[3].isnan()


def test_integers_and_booleans_are_poisoned_too() -> None:
    """A dtype without NaN gets its largest value."""
    names = types.SimpleNamespace(arg_names=["out_ptr0", "out_ptr1"])
    kernel = make_kernel(fn=names, mutated_arg_names=[])
    tensors = torch.zeros(2, dtype=torch.int8), torch.zeros(2, dtype=torch.bool)
    own = OwnArguments(kernel, tensors, {})
    own.restore()
    assert [one.tolist() for one in own.copies()] == [[127, 127], [True, True]]


def test_a_workspace_is_zeroed_before_each_call() -> None:
    """A kernel that counts on zeros finds them, also when a call is timed again."""
    kernel = make_kernel()
    own = OwnArguments(kernel, (*make_tensors(), 4), {})
    call = call_of(kernel, launch, own)
    call(0)
    call(1)
    assert len(kernel.zeroed) == 2
