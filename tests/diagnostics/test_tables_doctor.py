"""`doctor --tables`: unserved versions, devices that lack rows, drift and damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmup.core.errors import SettingsError
from warmup.core.rows import Row
from warmup.core.runtime import Runtime
from warmup.diagnostics.doctor import FindingState
from warmup.diagnostics.tables.examine import examine_tables
from warmup.diagnostics.tables.profiled_times import read_profiles
from warmup.table import Table
from warmup.table.codec import encode

MakeTable = Callable[..., Table]
MakeRuntime = Callable[..., Runtime]
PROFILE = ("mm m=32 n=64 k=64 bf16 a=row b=col out=bf16 | epilogue=none", 10.0)


def found(places: list[Path], name: str, **given: Any) -> list[tuple[FindingState, str]]:
    """Return the state and the text of each finding of that *name*."""
    diagnosis = examine_tables([str(place) for place in places], **given)
    return [(one.state, one.said) for one in diagnosis.findings if one.name == name]


def put(path: Path, table: Table) -> Path:
    """Write *table* to a file; return its folder, the place to examine."""
    path.mkdir(exist_ok=True)
    (
        path / f"{table.provenance.runtime.device.slug}-{table.provenance.runtime.torch}.json"
    ).write_text(encode(table))
    return path


def profile(folder: Path, row: Row, ratio: float, **changes: Any) -> Path:
    """Write what `warmup profile --json` prints of a kernel that takes *ratio* of *row*."""
    line = {
        "keys": [PROFILE[0]],
        "winner": str(row.winner),
        "row_us": row.evidence.time_us,
        "ratio": ratio,
        "is_whole": True,
        **changes,
    }
    document = {"schema": 1, "device": "NVIDIA H200", "buckets": [{"kernels": [line]}]}
    path = folder / "profile.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def two(tmp_path: Path, make_table: MakeTable, make_runtime: MakeRuntime) -> Path:
    """Tables of torch 2.13 and of torch 2.11."""
    for torch in ("2.13.0", "2.11.0"):
        place = put(tmp_path / "rows", make_table(runtime=make_runtime(torch=torch)))
    return place


def test_rows_of_unserved_versions_are_named(two: Path) -> None:
    """By the versions that the user names."""
    ((state, said),) = found([two], "versions", served=["torch=2.13"])
    assert state is FindingState.WARN
    assert "torch2.11" in said or "2.11.0" in said
    assert said.endswith("2 rows of torch 2.11, served: torch 2.13")


def test_served_versions_are_read_from_audit_logs(two: Path, tmp_path: Path) -> None:
    """Each install says its torch and Triton; a log of an earlier warmup has no Triton."""
    event = {"event": "table.installed", "schema": 1, "run": "r", "pid": 1, "seq": 0, "paths": []}
    event |= {"table": "d", "device": "NVIDIA H200", "torch": "2.11.1"}
    other = event | {"run": "s", "torch": "2.13.1", "triton": "3.7.1"}
    log = tmp_path / "audit.jsonl"
    log.write_text("".join(f"{json.dumps(one)}\n" for one in (event, other)))
    ((state, said),) = found([two], "versions", logs=[log])
    assert (state, "torch 2.11, torch 2.13, triton 3.7" in said) == (FindingState.OK, True)


def test_without_versions_none_is_called_unserved(two: Path) -> None:
    """The finding says how to name them."""
    ((state, said),) = found([two], "versions")
    assert (state, said[:12]) == (FindingState.WARN, "not examined")


def test_a_device_that_lacks_problems_is_named(
    tmp_path: Path, make_table: MakeTable, make_runtime: MakeRuntime, make_key: Callable[..., str]
) -> None:
    """A problem that another GPU has and this one has not; a CPU's problems are not compared."""
    table = make_table()
    other = make_runtime(name="NVIDIA H100", memory_gib=80)
    fewer = {key: row for key, row in table.rows.items() if key != make_key(1024)}
    cpu = make_runtime(type="cpu", name="EPYC", threads=2, sm_count=None, memory_gib=None)
    places = [
        put(tmp_path / str(number), each)
        for number, each in enumerate(
            (table, make_table(fewer, runtime=other), make_table({}, runtime=cpu))
        )
    ]
    ((state, said),) = found(places, "devices")
    assert state is FindingState.WARN
    assert said.startswith("NVIDIA H100 has no row for 1 problem of 2 that NVIDIA H200 has")
    assert make_key(1024) in said


def test_a_serving_device_without_rows_is_named(tmp_path: Path, make_table: MakeTable) -> None:
    """By its name in the audit log."""
    event = {"event": "table.installed", "schema": 1, "run": "r", "pid": 1, "seq": 0, "paths": []}
    log = tmp_path / "audit.jsonl"
    log.write_text(json.dumps(event | {"table": "d", "device": "NVIDIA L40S", "torch": "2.13.0"}))
    place = put(tmp_path / "rows", make_table())
    said = [text for _, text in found([place], "devices", logs=[log])]
    assert "NVIDIA L40S serves, and has no row" in said


@pytest.mark.parametrize(("ratio", "drifts"), [(1.05, False), (1.4, True), (0.7, True)])
def test_drift_is_beyond_a_tenth(
    ratio: float, drifts: bool, tmp_path: Path, make_table: MakeTable, make_row: Callable[..., Row]
) -> None:
    """The time of a kernel in a profile against that of the row, in a second table too."""
    row = make_row(time_us=PROFILE[1])
    other = put(tmp_path / "other", make_table({PROFILE[0]: make_row(time_us=3.0, BLOCK_M=16)}))
    places = [put(tmp_path / "rows", make_table({PROFILE[0]: row})), other]
    given = {"profiles": [profile(tmp_path, row, ratio)]}
    ((state, said),) = found(places, "drift", **given)
    assert (state is FindingState.WARN, PROFILE[0] in said) == (drifts, drifts)


@pytest.mark.parametrize(
    "changes", [{"is_whole": False}, {"ratio": None}, {"winner": "aten::mm"}, {"row_us": 11.0}]
)
def test_times_of_something_else_are_no_drift(
    changes: dict[str, Any], tmp_path: Path, make_table: MakeTable, make_row: Callable[..., Row]
) -> None:
    """A part of a kernel, another winner and another row's time are not held against a row."""
    row = make_row(time_us=PROFILE[1])
    place = put(tmp_path / "rows", make_table({PROFILE[0]: row}))
    path = profile(tmp_path, row, **{"ratio": 9.0, **changes})
    ((_, said),) = found([place], "drift", profiles=[path])
    assert PROFILE[0] not in said


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 2}', '{"schema": 1}', '{"schema":1,"device":"d","buckets":[{}]}']
)
def test_a_file_that_is_no_profile_is_refused(text: str, tmp_path: Path) -> None:
    """The error names the file and the command that writes one."""
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(SettingsError, match=r"p\.json: no document of a profile.*warmup profile"):
        read_profiles([tmp_path / "p.json"])


def test_damaged_tables_fail(tmp_path: Path, make_table: MakeTable) -> None:
    """Each with its name; the others are examined all the same."""
    for name in ("bad.json", "empty.json"):
        (tmp_path / name).write_text("{" * (name == "bad.json"))
    places = [tmp_path / "empty.json", tmp_path / "bad.json", put(tmp_path / "t", make_table())]
    failed = found(places, "damaged")
    assert [state for state, _ in failed] == [FindingState.FAIL] * 2
    assert found(places, "versions", served=["torch=2.13"])[0][0] is FindingState.OK


def test_a_row_of_another_device_is_not_judged(
    tmp_path: Path, make_table: MakeTable, make_row: Callable[..., Row], make_runtime: MakeRuntime
) -> None:
    """A profile of an H200 says nothing about the rows of an H100."""
    row = make_row(time_us=PROFILE[1])
    table = make_table({PROFILE[0]: row}, runtime=make_runtime(name="NVIDIA H100"))
    place = put(tmp_path / "rows", table)
    ((state, said),) = found([place], "drift", profiles=[profile(tmp_path, row, 9.0)])
    assert (state, "1 of other rows or devices" in said) == (FindingState.OK, True)
