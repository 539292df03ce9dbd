"""`prepare`: which rows decide, what is reported, and that another device's rows pad nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_tables import make_table
from torch import nn

from warmup.core.device import Mismatch
from warmup.core.errors import TableNotFoundError
from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.inductor import connect
from warmup.keys.gemm import Dim
from warmup.keys.pad import Padding, winner_of
from warmup.models.padding import Prepared, pad_by_rows, paddings, prepare
from warmup.models.weight_groups import Group, find_groups, restore
from warmup.table.store import write

EVIDENCE = Evidence(time_us=1, library_us=2, runner_up=None, runner_up_us=None, tried=2)


def row(group: Group, m: int, features: int) -> dict[str, Row]:
    key = group.structure.key(Dim.of(m))
    return {key: Row(winner_of(group.structure, features), EVIDENCE)}


def reasons_of(prepared: Prepared) -> dict[str, str]:
    return {", ".join(each.names): each.reason for each in prepared.left}


@pytest.fixture
def groups(language_model: nn.Module) -> dict[str, Group]:
    """The groups of the language model, by their first Linear."""
    return {group.names[0]: group for group in find_groups(language_model).groups}


@pytest.fixture
def table(groups: dict[str, Group]) -> Any:
    return make_table(row(groups["head"], 7, 104), runtime=connect().runtime("cpu"))


def test_rows_of_all_sizes_decide(language_model: nn.Module, groups: dict[str, Group]) -> None:
    """Weights are shared by all buckets.

    Rows that agree pad. A group of one producer is used unpadded for the rows whose winner says so.
    A chain passes its padded features on: where its rows disagree, the reason names each row.
    """
    head, mlp = groups["head"], groups["mlp.gate"]
    cases: dict[str, tuple[Group, dict[int, int], Padding | str]] = {
        "agree": (head, {7: 104, 560: 104}, Padding(104)),
        "in part": (head, {560: 104, 16: 101, 7: 101}, Padding(104, (Dim.of(7), Dim.of(16)))),
        "unpadded": (head, {7: 101, 16: 101}, "it is faster unpadded"),
        "chain": (mlp, {7: 45, 560: 48}, "its rows disagree (m=7: 45, m=560: 48)"),
        "none": (head, {}, "not in the table"),
    }
    for name, (group, sizes, expected) in cases.items():
        rows = {key: each for m, size in sizes.items() for key, each in row(group, m, size).items()}
        prepared = pad_by_rows(language_model, rows)
        if isinstance(expected, str):
            assert prepared.padded == {}, name
            assert reasons_of(prepared)[", ".join(group.names)] == expected, name
        else:
            assert prepared.padded == {group: expected}, name
            restore(language_model)


def test_rows_that_cannot_be_used_pad_nothing(
    language_model: nn.Module, groups: dict[str, Group]
) -> None:
    head = groups["head"]
    (key, own), *_ = row(head, 7, 104).items()
    huge = replace(own, winner=Winner(Family.WEIGHT, "padded", (("features", 2**30),)))
    other = replace(head.structure, biases=(True,)).key(Dim.of(7))
    marked = replace(own, untrusted="the output was wrong")
    for rows, reason in (
        ({key: huge}, "does not say to which size"),
        ({other: own}, "not in the table"),
        ({**row(head, 560, 104), key: marked}, "not trusted: the output was wrong"),
    ):
        prepared = pad_by_rows(language_model, rows)
        assert prepared.padded == {}
        assert reason in reasons_of(prepared)["head"]


def test_a_table_is_applied(
    language_model: nn.Module,
    model_inputs: Any,
    groups: dict[str, Group],
    table: Any,
    tmp_path: Path,
) -> None:
    """The rows of a table of this machine, or of its file, pad the model, which gives the same."""
    path = tmp_path / "language_model.json"
    write(path, table)
    for given in (table, path):
        with torch.no_grad():
            before = language_model(*model_inputs)
            assert prepare(language_model, given).padded == {groups["head"]: Padding(104)}, given
            torch.testing.assert_close(language_model(*model_inputs), before)
        restore(language_model)
    with pytest.raises(TableNotFoundError):
        prepare(language_model, tmp_path / "none.json")
    assert prepare(nn.ReLU().eval(), table) == Prepared({}, (), 0, 0)


def test_a_table_of_another_device_pads_nothing(language_model: nn.Module, table: Any) -> None:
    """Times of another device do not hold here; a soft difference does not matter."""
    device = replace(table.provenance.runtime.device, arch="another")
    runtime = replace(table.provenance.runtime, device=device)
    other = replace(table, provenance=replace(table.provenance, runtime=runtime))
    prepared = prepare(language_model, other)
    assert prepared.padded == {}
    assert "another" in reasons_of(prepared)["head"]
    hard = Mismatch("device.arch", "sm_90", "sm_80", is_hard=True)
    assert paddings(table, (hard,)) == {}
    assert len(paddings(table, (replace(hard, is_hard=False),))) == 1
