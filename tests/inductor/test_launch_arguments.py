"""`OwnArguments`: a launch config is tried on copies of what its kernel writes."""

from __future__ import annotations

import types
from typing import Any

import torch

from warmup.inductor.launch.kernels import OwnArguments, call_of

NAMES = ["in_ptr0", "in_out_ptr0", "out_ptr0", "ws_ptr", "xnumel"]


def make_kernel(**changes: Any) -> Any:
    """Return what is asked of a kernel with an input, a tensor that it changes, and an output."""
    zeroed: list[torch.Tensor] = []
    return types.SimpleNamespace(
        **{
            "fn": types.SimpleNamespace(arg_names=[*NAMES, "XBLOCK"]),
            "mutated_arg_names": ["in_out_ptr0"],
            "reset_to_zero_arg_names": ["ws_ptr"],
            "zeroed": zeroed,
            "reset_to_zero_args": lambda *args, **_: zeroed.append(args[3]),
            "get_device_interface": lambda: types.SimpleNamespace(
                get_raw_stream=lambda _device: 7, current_device=lambda: 0
            ),
            **changes,
        }
    )


def make_arguments() -> tuple[Any, ...]:
    storage = torch.zeros(12)
    out = storage.as_strided((4,), (2,), 3)
    return torch.ones(4), torch.full((4,), 2.0), out, torch.full((2,), 5.0), 4


def launch(x: Any, total: Any, out: Any, space: Any, _numel: int, *, stream: int) -> int:
    total += x
    out[:3] = total[:3]
    space[0] += 1
    return stream


def test_a_call_leaves_the_models_tensors_as_they_are() -> None:
    """The kernel reads the model's inputs, and writes copies with the same strides."""
    given = make_arguments()
    own = OwnArguments(make_kernel(), given, {})
    assert call_of(make_kernel(), launch, own)(0) == 7
    assert own.args[0] is given[0]
    assert own.args[4] == 4
    assert own.args[2].stride() == given[2].stride()
    assert given[1].tolist() == [2.0] * 4
    assert (given[2].tolist(), given[3].tolist()) == ([0.0] * 4, [5.0] * 2)
    assert own.args[1].tolist() == [3.0] * 4


def test_every_candidate_begins_with_the_same_values() -> None:
    """What the kernel changes is as at first, and what it only writes is poisoned."""
    kernel = make_kernel()
    own = OwnArguments(kernel, make_arguments(), {})
    written = []
    for _ in range(2):
        own.restore()
        # A workspace is no result and not poisoned: a kernel may wait for a semaphore in it. One
        # that must be zero is zeroed before each call.
        assert own.args[3].tolist() == [5.0, 5.0]
        call_of(kernel, launch, own)(0)
        written.append(own.results())
    for changed, only_written in written:
        assert changed.tolist() == [3.0] * 4
        assert only_written[:3].tolist() == [3.0] * 3
        assert only_written[3].isnan()
    assert len(kernel.zeroed) == 2


def test_integers_and_booleans_are_poisoned_too() -> None:
    """A dtype without NaN gets its largest value; 8-bit floats have NaN."""
    names = types.SimpleNamespace(arg_names=["out_ptr0", "out_ptr1", "out_ptr2"])
    kernel = make_kernel(fn=names, mutated_arg_names=[])
    dtypes = torch.int8, torch.bool, torch.float8_e4m3fn
    own = OwnArguments(kernel, [torch.zeros(2, dtype=dtype) for dtype in dtypes], {})
    own.restore()
    integers, booleans, floats = own.results()
    assert [integers.tolist(), booleans.tolist()] == [[127, 127], [True, True]]
    assert bool(floats.float().isnan().all())
