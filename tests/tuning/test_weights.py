"""Padded weights: whether padding pays, the module of a group, calls weighed, builds on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_processes import Built
from sample_tables import make_outcome, make_row
from torch import nn

from warmup.core.rows import Flag, Row
from warmup.core.trial import Tuned
from warmup.keys.gemm import Dim
from warmup.keys.pad import Padding, padded_sizes, winner_of
from warmup.models.weight_groups import PaddedLinear, find_groups, pad
from warmup.tuning.weights import (
    _decided_size,
    _pays,
    _with_winner,
    count_rows,
    make_linear_module,
    unpadded_row,
)

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "weigh_ranges.py"
GROUP = find_groups(nn.Sequential(nn.Linear(64, 99))).groups[0]
STRUCTURE = GROUP.structure
AS_IS, PADDED = winner_of(STRUCTURE, 99), winner_of(STRUCTURE, 100)


def tuned(as_is_us: float, padded_us: float, *flags: Flag, key: str = "k") -> Tuned:
    """``tuned(10.0, 8.0)``: 10 us unpadded, 8 us padded; the faster one is the winner."""
    winner = AS_IS if as_is_us <= padded_us else PADDED
    times = {"time_us": min(as_is_us, padded_us), "library_us": as_is_us}
    evidence = replace(make_row().evidence, flags=flags, **times)
    return Tuned(
        key,
        Row(winner, evidence),
        (make_outcome(AS_IS, as_is_us), make_outcome(PADDED, padded_us)),
    )


def test_padding_pays_beyond_the_spread_of_the_times() -> None:
    """By more than the near-tie band, whatever the number of rows."""
    noisy = tuned(10.0, 9.5)
    for measured, pays in (
        ([tuned(10.0, 8.0)], True),
        ([tuned(10.0, 8.0), tuned(10.0, 10.2)], True),
        ([tuned(10.0, 8.0), tuned(10.0, 10.4)], False),
        ([tuned(10.0, 9.8)], False),
        ([noisy], True),
        # The row kept the weights as they are, although the other median is lower by 5 %.
        ([replace(noisy, row=replace(noisy.row, winner=AS_IS))], False),
        ([tuned(10.0, 5.0, Flag.UNSTABLE)], False),
    ):
        assert _pays(measured, PADDED, AS_IS, 0.03) is pays, measured


def test_a_row_has_the_times_of_both_ways() -> None:
    """Also where the winner was chosen for the sake of other numbers of rows, and taken back."""
    row = _with_winner(tuned(10.0, 10.2), PADDED, AS_IS).row
    assert (row.winner, row.evidence.time_us, row.evidence.library_us) == (PADDED, 10.2, 10.0)
    assert (row.evidence.runner_up, row.evidence.runner_up_us) == (str(AS_IS), 10.0)
    assert (row.evidence.spread, Flag.NEAR_TIE in row.evidence.flags) == (0.0, True)
    after = unpadded_row(row, AS_IS, Flag.NEAR_TIE)
    assert (after.winner, after.evidence.time_us) == (AS_IS, 10.0)
    assert (after.evidence.runner_up, after.evidence.runner_up_us) == (str(PADDED), 10.2)


def test_padding_that_was_wrong_is_not_taken_again() -> None:
    """One row that is not trusted decides for all rows of the structure, measured now or before."""
    for measured in (7, 9):
        row = replace(make_row(), winner=PADDED)
        rows = {STRUCTURE.key(Dim.of(m)): row for m in (7, 9)}
        assert _decided_size(STRUCTURE, rows, [Dim.of(measured)]) == 100
        rows[STRUCTURE.key(Dim.of(7))] = replace(row, untrusted="the output was wrong")
        assert _decided_size(STRUCTURE, rows, [Dim.of(measured)]) == STRUCTURE.features


class Fork(nn.Module):
    """Two activations in, Linears that make one kind of features, two that take them, one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(n, 45, bias=n > 8) for n in (8, 16, 8))
        self.left, self.right = nn.Linear(45, 8), nn.Linear(45, 12, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.relu(self.one(x)) * self.two(y) - self.three(x)
        return self.left(made), self.right(torch.tanh(made))


def test_the_module_of_a_group_has_its_structure_and_can_be_padded() -> None:
    for model in (
        nn.Linear(32, 101, bias=False),
        nn.Linear(30, 32),
        nn.Sequential(nn.Linear(32, 45), nn.GELU("tanh"), nn.Linear(45, 32)),
        nn.Sequential(nn.Linear(32, 45), nn.Linear(45, 32)),
        nn.Linear(30, 32).bfloat16(),
        Fork(),
    ):
        (group,) = find_groups(model.eval()).groups
        linears, structure = make_linear_module(group, 6, torch.device("cpu")), group.structure
        assert find_groups(linears.module).groups == (linears.group,), model
        assert linears.group.structure == structure, model
        with torch.no_grad():
            before = linears.module(*linears.inputs)
            padding = Padding(padded_sizes(structure.features, structure.dtype)[-1])
            pad(linears.module, {linears.group: padding})
            after = linears.module(*linears.inputs)
        assert any(isinstance(module, PaddedLinear) for module in linears.module.modules()), model
        sizes = structure.outputs or (structure.features,)
        assert [tuple(each.shape) for each in after] == [(6, size) for size in sizes], model
        torch.testing.assert_close(after, before)


def test_the_module_computes_what_its_group_does() -> None:
    model = Fork().eval()
    (group,) = find_groups(model).groups
    linears = make_linear_module(group, 6, torch.device("cpu"))
    for name, own in zip(group.names, linears.group.names, strict=True):
        state = model.get_submodule(name).state_dict()
        linears.module.get_submodule(own).load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(linears.module(*linears.inputs), model(*linears.inputs))


def test_rows_of_all_calls_are_counted(
    language_model: nn.Module, model_inputs: Any, gated: Callable[..., nn.Module]
) -> None:
    """All leading dims together; an uncalled layer has none; an error leaves no hooks."""
    groups = find_groups(language_model).groups
    counted = count_rows(language_model, groups, lambda: language_model(*model_inputs))
    assert counted == dict.fromkeys(groups, (7,))
    model = nn.ModuleDict({"used": gated(), "unused": gated()}).eval()
    used, unused = find_groups(model).groups

    def call() -> None:
        for size in ((2, 5, 32), (32,), (10, 32)):
            model["used"](torch.zeros(size))
        raise RuntimeError("no more inputs")

    with pytest.raises(RuntimeError, match="no more inputs"):
        count_rows(model, [used, unused], call)
    assert all(not module._forward_pre_hooks for module in model.modules())


@pytest.mark.long
def test_a_build_writes_and_reports_what_it_pads(weighed: Built) -> None:
    """A row for each number of rows, whose winner is the size; the group, both sizes, memory."""
    said = weighed[1]
    rows = {key: kwargs for key, kwargs in said["rows"].items() if key.startswith("weight ")}
    assert rows == {"weight n m=8 in=64 features=99 f32 bias=1 fp32=ieee": {"features": 100}}
    assert said["built"] == ["head"]
    begin = next(i for i, line in enumerate(said["text"]) if line.startswith("groups of weights"))
    assert said["text"][begin : begin + 2] == [
        "groups of weights padded: 1, 0.0 MiB more (1.01%)",
        "head: 99 features padded to 100",
    ]


@pytest.mark.nightly
def test_padding_is_measured_for_the_range_that_is_served(
    run_once: Callable[..., tuple[Path, str]], variables: dict[str, str], head: str
) -> None:
    """No row is for the upper end alone, and the padded runs find all their rows."""
    _, output = run_once("weighed-ranges", str(PROGRAM), head, "table.json", **variables)
    found = json.loads(output)
    sizes = {word for key in found["keys"] for word in key.split() if word.startswith("m=")}
    assert sizes == {"m=1", "m=2..8"}
    assert [found["tuned"][f"seqlen={size}, weights padded"] for size in ("1", "2..8")] == [0, 0]
