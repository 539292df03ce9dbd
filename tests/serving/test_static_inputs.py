"""`StaticInputs`: inputs of any size, padded in memory whose address a CUDA graph can keep."""

from __future__ import annotations

import threading

import torch
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config

from warmup.serving.compiled_buckets import StaticInputs

PLACE = ("x",)
SIZES = {1: 8, 2: 4}


def padded(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor* padded with zeros to SIZES, in memory of its own."""
    missing = (0, 4 - tensor.shape[2], 0, 8 - tensor.shape[1])
    return torch.nn.functional.pad(tensor, missing)


def test_every_size_is_padded_with_zeros_at_one_address() -> None:
    """Also after a larger size, along either dim."""
    inputs, addresses = StaticInputs(), set()
    for rows, columns in ((5, 3), (8, 4), (2, 1), (6, 4), (3, 2), (8, 1), (1, 4)):
        tensor = torch.randn(7, rows, columns)
        found = inputs.fill(tensor, PLACE, SIZES)
        assert torch.equal(found, padded(tensor))
        assert inputs.fill(found, PLACE, SIZES) is found  # filled once for each dynamic dim
        addresses.add(found.data_ptr())
    assert len(addresses) == 1


def test_places_dtypes_and_threads_have_memory_of_their_own() -> None:
    """None of them overwrites another's input."""
    inputs, found = StaticInputs(), []

    def fill(place: str, dtype: torch.dtype = torch.float32) -> None:
        found.append(inputs.fill(torch.ones(7, 5, 3, dtype=dtype), (place,), SIZES))

    fill("x")
    fill("y")
    fill("x", torch.float64)
    thread = threading.Thread(target=fill, args=("x",))
    thread.start()
    thread.join()
    assert len({tensor.data_ptr() for tensor in found}) == 4


def test_a_graph_takes_them_as_inputs_at_a_fixed_address() -> None:
    """Inductor is told so of the input as of the weights, and each call uses its values."""
    told = []

    def inner(
        module: torch.fx.GraphModule, inputs: list[torch.Tensor], **settings: object
    ) -> object:
        told.append((len(inputs), [*settings["static_input_idxs"]]))
        return module.forward

    def compile_(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        return compile_fx.compile_fx(module, inputs, inner_compile=inner)

    model, inputs = torch.nn.Linear(4, 4), StaticInputs()
    compiled = torch.compile(model, backend=compile_, dynamic=False)
    with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False):
        for rows in (3, 8, 2):
            tensor = torch.randn(rows, 4)
            found = compiled(inputs.fill(tensor, PLACE, {0: 8}))[:rows]
            torch.testing.assert_close(found, model(tensor))
    assert told == [(3, [0, 1, 2])]


def test_a_frozen_graph_does_not_take_them_for_constants() -> None:
    """With inductor's freezing what is at a fixed address is one: weights are, and no input is."""
    placeholders = []

    def compile_(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        placeholders.append(len(inputs))
        return module.forward

    inputs = StaticInputs()
    compiled = torch.compile(torch.nn.Linear(4, 4), backend=compile_, dynamic=False)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        compiled(inputs.fill(torch.randn(3, 4), PLACE, {0: 8}))
    assert placeholders == [1]
