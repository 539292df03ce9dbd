"""What an earlier build left: found where nothing changed, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warmup.buckets.bucket import parse_buckets
from warmup.core.rows import Row
from warmup.models.loading import load_model
from warmup.table import Table
from warmup.table.policy import PolicyOptions
from warmup.tuning.bucket_compiler import BucketCompiler
from warmup.tuning.earlier_builds import EarlierBuilds, Pace, earlier_builds
from warmup.tuning.judge import Judgement
from warmup.tuning.progress import Progress, Revisit
from warmup.tuning.report import BucketResult, Observer
from warmup.tuning.session import Session
from warmup.tuning.setup import BuildSetup, find_setup

_MODEL = """import torch
from torch import nn
from act_of_project import act
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
    def forward(self, x):
        return act(self.up(x))
def example_inputs(seqlen):
    return torch.ones(seqlen, 8)
"""
_ACT = "import torch\ndef act(x):\n    return torch.relu(x)\n"
_BUCKETS = parse_buckets("4,6", None)


@pytest.fixture
def setup() -> BuildSetup:
    return find_setup("cpu", PolicyOptions())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model in one file, a function of it in another."""
    import sys

    (tmp_path / "net_of_project.py").write_text(_MODEL)
    (tmp_path / "act_of_project.py").write_text(_ACT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("net_of_project", "act_of_project"):
        sys.modules.pop(name, None)


def _session(project: Path, setup: BuildSetup, table: Table, revisit: Revisit) -> Session:
    import sys

    for name in ("net_of_project", "act_of_project"):
        sys.modules.pop(name, None)
    progress = Progress(
        path=project / "t.json",
        table=table,
        replaces=False,
        observer=Observer(),
        can_search=False,
        given_up={},
        measured_peaks=lambda: None,
        revisit=revisit,
    )
    loaded = load_model(str(project / "net_of_project.py"))
    tuner: Any = None
    compiler = BucketCompiler(setup=setup, model=loaded, progress=progress, tuner=tuner)
    return Session(compiler=compiler)


@pytest.fixture
def find(
    project: Path,
    setup: BuildSetup,
    make_table: Callable[..., Table],
) -> Callable[..., tuple[BucketResult, ...] | None]:
    """``find(row=None, asked=(), revisit=Revisit(), keep=False)``: what a new process finds."""

    def run(
        rows: dict[str, Row] | None = None,
        asked: tuple[object, ...] = (),
        revisit: Revisit | None = None,
        *,
        keep: bool = False,
    ) -> tuple[BucketResult, ...] | None:
        table = make_table(rows)
        session = _session(project, setup, table, revisit or Revisit())
        builds = earlier_builds(setup, "net_of_project.py", asked, project / "records")
        if keep:
            results = [
                BucketResult(
                    bucket=bucket,
                    keys=tuple(table.rows),
                    tuned=2,
                    judgement=Judgement(error=1e-7, limit=1e-3),
                    seconds=9,
                )
                for bucket in _BUCKETS
            ]
            builds.keep(session, _BUCKETS, results)
        return builds.find(session, _BUCKETS)

    return run


Find = Callable[..., tuple[BucketResult, ...] | None]


def test_a_finished_build_is_found_by_the_next(
    find: Find, make_table: Callable[..., Table]
) -> None:
    """Its buckets and keys, with nothing tuned."""
    assert find() is None
    find(keep=True)
    found = find()
    assert found is not None
    assert [(one.bucket, one.keys, one.tuned) for one in found] == [
        (bucket, tuple(make_table().rows), 0) for bucket in _BUCKETS
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"act_of_project.py": _ACT.replace("relu", "tanh")},
        {"act_of_project.py": _ACT + "# a comment\n"},
        {"net_of_project.py": _MODEL.replace("8, 16", "8, 32")},
    ],
    ids=["operation", "comment", "width"],
)
def test_a_changed_file_of_the_project_is_another_build(
    find: Find, project: Path, change: dict[str, str]
) -> None:
    """The model's own file or one that it imports, whatever the change."""
    find(keep=True)
    for name, text in change.items():
        (project / name).write_text(text)
    assert find() is None


def test_a_model_that_changes_by_itself_is_another_build(
    find: Find, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same sources, as by a variable or a file of settings, the graphs decide."""
    by_variable = "import os\nimport torch\nact = getattr(torch, os.environ['ACT_OF_TEST'])\n"
    (project / "act_of_project.py").write_text(by_variable)
    monkeypatch.setenv("ACT_OF_TEST", "relu")
    find(keep=True)
    assert find() is not None
    monkeypatch.setenv("ACT_OF_TEST", "tanh")
    assert find() is None


def test_other_arguments_or_variables_are_another_build(
    find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs, dtypes, policies, and variables that torch reads."""
    find(keep=True)
    assert find(asked=("bf16",)) is None
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert find() is not None
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert find() is None


def test_a_row_that_is_gone_or_other_is_built_again(
    find: Find, make_table: Callable[..., Table], make_row: Callable[..., Row]
) -> None:
    """The table decides, not the record."""
    find(keep=True)
    first, second = make_table().rows
    kept = make_table().rows[first]
    assert find({first: kept}) is None
    assert find({first: kept, second: make_row(num_warps=8)}) is None
    faster = replace(kept, evidence=replace(kept.evidence, time_us=1.0))
    assert find({**make_table().rows, first: faster}) is not None


def test_rows_that_are_to_be_measured_again_are_built(find: Find) -> None:
    """As by --force."""
    find(keep=True)
    assert find(revisit=Revisit(all_rows=True)) is None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": 1}',
        b'{"format": 1, "winners": {}, "graphs": [], "shortened": [], "results": []}',
        b'{"format": 1, "winners": 5, "graphs": 5, "shortened": 5, "results": 5}',
        b"\xff",
        b'{"format": 9}',
    ],
)
def test_a_damaged_record_is_no_record(find: Find, project: Path, damage: bytes) -> None:
    """It costs a compile, and nothing else."""
    find(keep=True)
    (record,) = (project / "records").glob("*.json")
    record.write_bytes(damage)
    assert find() is None


def test_a_folder_that_cannot_be_written_keeps_nothing(setup: BuildSetup, project: Path) -> None:
    """A file in the place of the folder."""
    (project / "records").write_text("")
    builds = earlier_builds(setup, "m", (), project / "records")
    builds.keep_pace(setup, 3, 6.0)
    assert builds.pace(setup) is None


def test_the_pace_of_the_last_build_is_kept(setup: BuildSetup, project: Path) -> None:
    """Problems and seconds; a build that tuned nothing leaves the older one."""
    builds = EarlierBuilds(project / "records", "x")
    builds.keep_pace(setup, 3, 6.04)
    builds.keep_pace(setup, 0, 9.0)
    found = builds.pace(setup)
    assert found == Pace(3, 6.0, found.day if found else "")


def test_old_records_are_removed(setup: BuildSetup, project: Path) -> None:
    """At most 256 are kept."""
    folder = project / "records"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number}.json").write_text(json.dumps({"format": 1}))
    EarlierBuilds(folder, "x").keep_pace(setup, 1, 1.0)
    assert len(list(folder.iterdir())) == 256
