"""`prepare`: which rows decide, what is reported, and that another device's rows pad nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from warmup.core.device import Mismatch
from warmup.core.errors import SettingsError, TableNotFoundError
from warmup.core.method import Method
from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.inductor import connect
from warmup.keys.gemm import Dim
from warmup.keys.weight import Padding, winner_of
from warmup.models.padded_modules import PaddedLinear, restore
from warmup.models.padding import Prepared, pad_by_rows, paddings, prepare
from warmup.models.weight_groups import Group, find_groups
from warmup.table.schema import Policy, Provenance, Table
from warmup.table.store import write

EVIDENCE = Evidence(time_us=1, library_us=2, runner_up=None, runner_up_us=None, tried=2)
NO_ROWS: dict[str, Row] = {}


def row(group: Group, m: int, features: int) -> dict[str, Row]:
    """Return a row with the winner *features* for *m* rows of *group*."""
    key = group.structure.key(Dim.of(m))
    return {key: Row(winner_of(group.structure, features), EVIDENCE)}


def reasons_of(prepared: Prepared) -> dict[str, str]:
    return {", ".join(each.names): each.reason for each in prepared.left}


@pytest.fixture
def groups(language_model: nn.Module) -> dict[str, Group]:
    """The groups of the language model, by their first Linear."""
    return {group.names[0]: group for group in find_groups(language_model).groups}


@pytest.fixture
def table(groups: dict[str, Group]) -> Table:
    policy = Policy(mode="default", options={}, timing=Method(), seed=0, tolerance={})
    provenance = Provenance(connect().runtime("cpu"), "0.1.0", "2026-01-01T00:00:00Z")
    return Table(provenance, policy, row(groups["head"], 7, 104))


def test_rows_decide(language_model: nn.Module, groups: dict[str, Group]) -> None:
    """A group is padded to the size that its rows name, unless that is its own size."""
    rows = {**row(groups["head"], 7, 104), **row(groups["mlp.gate"], 7, 45)}
    prepared = pad_by_rows(language_model, rows)
    assert prepared.padded == {groups["head"]: Padding(104)}
    assert reasons_of(prepared) == {
        "patch": "not in the table",
        "mlp.gate, mlp.up, mlp.down": "it is faster unpadded",
    }
    padded = [name for name, m in language_model.named_modules() if isinstance(m, PaddedLinear)]
    assert padded == ["head"]


def test_rows_of_all_sizes_decide(language_model: nn.Module, groups: dict[str, Group]) -> None:
    """Weights are shared by all buckets.

    Rows that agree pad. A group of one producer is used unpadded for the rows whose winner says so,
    and stays unpadded, without more memory, where all say so. A chain passes its padded features
    from one Linear to the next: where its rows disagree, the reason names each row.
    """
    head, mlp = groups["head"], groups["mlp.gate"]
    cases: dict[str, tuple[Group, dict[int, int], Padding | str]] = {
        "agree": (head, {7: 104, 560: 104}, Padding(104)),
        "in part": (head, {560: 104, 16: 101, 7: 101}, Padding(104, (Dim.of(7), Dim.of(16)))),
        "unpadded": (head, {7: 101, 16: 101}, "it is faster unpadded"),
        "chain": (mlp, {7: 45, 560: 48}, "its rows disagree (m=7: 45, m=560: 48)"),
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
    assert str(Padding(104, (Dim.of(7), Dim.of(16)))) == "104, as they are for 7, 16 rows"


def test_rows_that_name_two_sizes_leave_the_group() -> None:
    model = nn.Linear(32, 1001).eval()
    (group,) = find_groups(model).groups
    prepared = pad_by_rows(model, {**row(group, 7, 1024), **row(group, 560, 1004)})
    assert prepared.padded == {}
    assert reasons_of(prepared)[""] == "its rows disagree (m=7: 1024, m=560: 1004)"


def test_a_row_cannot_ask_for_any_size(language_model: nn.Module, groups: dict[str, Group]) -> None:
    """A size that no build would have tried is not used, and reported."""
    key = groups["head"].structure.key(Dim.of(7))
    winner = Winner(Family.WEIGHT, "padded", (("features", 2**30),))
    prepared = pad_by_rows(language_model, {key: Row(winner, EVIDENCE)})
    assert prepared.padded == {}
    assert "does not say to which size" in reasons_of(prepared)["head"]


def test_a_row_of_another_structure_says_nothing(
    language_model: nn.Module, groups: dict[str, Group]
) -> None:
    key = replace(groups["head"].structure, biases=(True,)).key(Dim.of(7))
    winner = winner_of(groups["head"].structure, 104)
    assert pad_by_rows(language_model, {key: Row(winner, EVIDENCE)}).padded == {}


def test_layers_of_one_structure_share_their_rows(gated: Callable[..., nn.Module]) -> None:
    model = nn.Sequential(gated(), gated()).eval()
    first, second = find_groups(model).groups
    assert pad_by_rows(model, row(first, 7, 48)).padded == {first: Padding(48), second: Padding(48)}


def test_linears_that_cannot_be_padded_are_reported(gated: Callable[..., nn.Module]) -> None:
    """The report has the reasons of the search for groups as well as those of the table."""
    model = gated(activation=lambda x: x.softmax(-1)).eval()
    lines = [str(linears) for linears in pad_by_rows(model, NO_ROWS).left]
    assert lines[0].startswith("gate: not padded as a chain: softmax")
    assert lines[1:] == [
        "up: not padded as a chain: mul also reads softmax",
        *(f"{name}: not in the table" for name in ("gate", "up", "down")),
    ]


def test_the_report_counts_memory_and_reads_well(
    language_model: nn.Module, groups: dict[str, Group]
) -> None:
    """Three rows of 32 more in f32; the embedding that is tied to them does not count again."""
    prepared = pad_by_rows(language_model, row(groups["head"], 7, 104))
    assert prepared.bytes_after - prepared.bytes_before == 3 * 32 * 4
    assert prepared.bytes_before == sum(p.numel() * 4 for p in language_model.parameters())
    assert str(prepared).splitlines() == [
        "groups of weights padded: 1, 0.0 MiB more (1.11%)",
        "head: 101 features padded to 104",
        "patch: not in the table",
        "mlp.gate, mlp.up, mlp.down: not in the table",
    ]


def test_a_table_is_applied(
    language_model: nn.Module,
    model_inputs: Any,
    groups: dict[str, Group],
    table: Table,
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


def test_a_table_of_another_device_pads_nothing(language_model: nn.Module, table: Table) -> None:
    """Times of another device do not hold here; the reason names the difference."""
    device = replace(table.provenance.runtime.device, arch="another")
    runtime = replace(table.provenance.runtime, device=device)
    other = replace(table, provenance=replace(table.provenance, runtime=runtime))
    prepared = prepare(language_model, other)
    assert prepared.padded == {}
    assert "another" in reasons_of(prepared)["head"]


def test_the_paddings_of_a_table_are_known_without_a_model(
    groups: dict[str, Group], table: Table
) -> None:
    """By structure; only structures whose rows agree on a padded size."""
    head, mlp = groups["head"], groups["mlp.gate"]
    agreed = {**table.rows, **row(mlp, 7, 45)}
    assert paddings(replace(table, rows=agreed), ()) == {head.structure: Padding(104)}
    as_it_is = {**agreed, **row(head, 7, 101), **row(mlp, 560, 48)}
    assert paddings(replace(table, rows=as_it_is), ()) == {}


def test_a_table_of_another_device_has_no_paddings(table: Table) -> None:
    """A hard mismatch makes rows unusable here as elsewhere; a soft mismatch does not."""
    hard = Mismatch("device.arch", "sm_90", "sm_80", is_hard=True)
    assert paddings(table, (hard,)) == {}
    assert len(paddings(table, (replace(hard, is_hard=False),))) == 1


def test_a_table_that_is_not_there_is_an_error(language_model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        prepare(language_model, tmp_path / "none.json")


def test_a_model_without_tensors_is_unchanged(table: Table) -> None:
    assert prepare(nn.ReLU().eval(), table) == Prepared({}, (), 0, 0)


def test_training_is_refused(language_model: nn.Module, groups: dict[str, Group]) -> None:
    """Whatever the rows say, a model in training mode is not prepared."""
    for rows in (row(groups["head"], 7, 104), NO_ROWS):
        with pytest.raises(SettingsError, match="training mode"):
            pad_by_rows(language_model.train(), rows)


def test_preparing_twice_is_refused(language_model: nn.Module, groups: dict[str, Group]) -> None:
    """The second time is an error; after `restore` the model can be prepared again."""
    rows = row(groups["head"], 7, 104)
    pad_by_rows(language_model, rows)
    with pytest.raises(SettingsError, match="padded already"):
        pad_by_rows(language_model, rows)
    restore(language_model)
    assert pad_by_rows(language_model, rows).padded == {groups["head"]: Padding(104)}


def test_a_row_that_is_not_trusted_pads_nothing(
    language_model: nn.Module, groups: dict[str, Group]
) -> None:
    """The whole group stays unpadded, also where its other rows agree on a size."""
    head = groups["head"]
    (key, marked), *_ = row(head, 7, 104).items()
    rows = {**row(head, 560, 104), key: replace(marked, untrusted="the output was wrong")}
    prepared = pad_by_rows(language_model, rows)
    assert prepared.padded == {}
    assert reasons_of(prepared)["head"] == "not trusted: the output was wrong"
    assert pad_by_rows(language_model, {**rows, **row(head, 16, 101)}).padded == {}
