"""The zoo's program: what it measures again, and what it says of its results; no compiler runs."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from warmup.table import Table
from warmup.table.codec import digest_of
from warmup.table.store import write

ROOT = Path(__file__).resolve().parents[2]
BUILT = {"rows": 3, "digest": "0", "problems": [], "known": [], "buckets": []}
BUILT |= {"stages": {}, "not_tuned": {}, "distrusted": {}, "unstable": []}
ROUNDS = 8


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The programs, by name."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/benchmarks"))
    names = ("zoo", "zoo_models.entries", "zoo_results", "gains", "template", "render")
    return {name: importlib.import_module(name) for name in names}


@pytest.fixture
def begin(modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """``begin(log, fails="race")``: a zoo whose programs only say what they would do, in *log*."""

    def make(log: list[str], *, fails: str = "", limit: float = 600.0, **options: Any) -> Any:
        def run(_: Any, words: Sequence[str], said: Path) -> str:
            log.append(said.stem)
            if said.stem == fails:
                raise modules["zoo"].StoppedError("the limit ended it")
            if said.stem == "race":
                Path(words[-1]).write_text('{"launches": {}, "doubts": {}}')
            else:
                Path(words[words.index("--out") + 1]).write_text("{}")
            return json.dumps(BUILT)

        monkeypatch.setattr(modules["zoo"].Zoo, "run", run)
        given: dict[str, Any] = {"out": tmp_path, "limit": limit, "device": "cpu", "rounds": 6}
        given |= {"variants": None, "launch": None, "second_build": False, "again": False}
        return modules["zoo"].Zoo(argparse.Namespace(**(given | options)))

    return make


@pytest.fixture
def entry(modules: Any) -> Any:
    return modules["zoo_models.entries"].TINY["vit"]


def test_a_model_that_is_done_is_not_measured_again(begin: Any, entry: Any) -> None:
    """The second call runs nothing, and has the same document."""
    log: list[str] = []
    first = begin(log).measure(entry)
    assert log == ["build-table", "race"]
    assert begin(log).measure(entry) == json.loads(json.dumps(first))
    assert log == ["build-table", "race"]


def test_a_race_that_was_ended_begins_anew_from_the_same_build(begin: Any, entry: Any) -> None:
    """What was built stays; the failure is in the file until the race is run to its end."""
    log: list[str] = []
    assert begin(log, fails="race").measure(entry)["failure"] == "the limit ended it"
    assert begin(log).measure(entry)["failure"] is None
    assert log == ["build-table", "race", "race"]


def test_another_machine_or_source_begins_anew(
    modules: Any, begin: Any, entry: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A build and a race are never of two machines: the table of the first one is removed."""
    log: list[str] = []
    begin(log, fails="race").measure(entry)
    monkeypatch.setattr(modules["zoo"], "machine", lambda: {"boot": "another"})
    stopped = begin(log, fails="build-table").measure(entry)
    assert log == ["build-table", "race", "build-table"]
    assert "race" not in stopped
    assert "rows" not in stopped["builds"]["table"]
    assert not (tmp_path / "vit" / "table.json").exists()


def test_the_limit_ends_a_program(
    modules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that outlasts the limit is ended, and with less than a minute left none is begun."""
    zoo = modules["zoo"].Zoo(argparse.Namespace(out=tmp_path, limit=50.0, launch=None))
    with pytest.raises(modules["zoo"].StoppedError, match="left: not begun"):
        zoo.run(["sleep", "60"], tmp_path / "build-table.log")
    monkeypatch.setattr(modules["zoo"], "_LEAST_S", 0.0)
    zoo.deadline -= 49.5
    with pytest.raises(modules["zoo"].StoppedError, match="the limit ended build-table"):
        zoo.run(["sleep", "60"], tmp_path / "build-table.log")


def test_a_program_that_fails_is_told_with_its_last_words(modules: Any, tmp_path: Path) -> None:
    """The exit code and the end of its log are the reason."""
    zoo = modules["zoo"].Zoo(argparse.Namespace(out=tmp_path, limit=500.0, launch=None))
    with pytest.raises(modules["zoo"].StoppedError, match="exit code 3: no such model"):
        zoo.run(["sh", "-c", "echo no such model >&2; exit 3"], tmp_path / "race.log")


def comparison(digest: str, launch: str = "cudagraph", **us: float) -> dict[str, Any]:
    """What `warmup compare` writes for one bucket; a variant's time is the same in each round."""
    runtime = {"device": {"name": "NVIDIA X"}, "torch": "2.11.0", "triton": "3.6.0"}
    origin = {"model": "m.py:M", "runtime": runtime, "created": "2026-01-02", "dtype": "bf16"}
    origin |= {"rounds": ROUNDS, "launch": launch, "digest": digest, "l2": "cold"}
    origin |= {"table": "tables/nvidia-h200/one.bf16.json"}
    cells = [
        {
            "name": name.replace("_", "-"),
            "agrees": True,
            "error": 0.0,
            "limit": 0.02,
            "device_times_us": [time] * ROUNDS,
            "wall_times_us": [2 * time] * ROUNDS,
        }
        for name, time in us.items()
    ]
    starts = [
        {"name": each["name"], "start": {"process_seconds": 10.0, "benchmarks": 7, "hits": 4}}
        for each in cells
    ]
    for start in starts:
        start["start"]["misses"] = 0
    buckets = [{"bucket": {"batch": 8}, "variants": cells}]
    return {"origin": origin, "variants": starts, "buckets": buckets}


def raced(**us: float) -> dict[str, Any]:
    """The result of a model of the zoo."""
    doubt = {"level": "look", "reason": "", "subject": "", "weight": 1.0}
    return {
        "name": "vit",
        "builds": {"table": {"seconds": 16.0, "rows": 3}},
        "agreement": {"same_winner": 1, "rows": 3, "within_band": 1, "beyond_band": ["k"]},
        "race": {
            "launches": {"cudagraph": comparison("0", **us)},
            "doubts": {"table": [doubt], "cudagraph": []},
        },
    }


def test_a_bucket_below_the_goal_is_named(modules: Any) -> None:
    """A table at 0.985 of default mode misses, though it is printed as 0.98x or 0.99x."""
    documents = {"zoo-x-vit": raced(eager=12.0, default=9.85, max_autotune=11.0, table=10.0)}
    results = modules["zoo_results"]
    (line,) = [row["line"] for row in results.zoo_misses(documents)]
    assert line.startswith("NVIDIA X, `vit`, batch=8: 10 us against 9.85 of `default`, 0.98x")
    goals = results.zoo_goals(documents)
    assert (goals["least over default"], goals["least over max-autotune"]) == (0.985, 1.1)
    assert goals["build over start"] == pytest.approx(1.6)
    (start,) = results.zoo_starts(documents)
    assert start["doubts"] == "table: 1 look"


def test_the_zoos_part_of_the_page_is_filled(modules: Any, tmp_path: Path) -> None:
    """Each list of the template finds its fields in a result; without padding a cell is empty."""
    document = raced(eager=12.0, default=11.0, max_autotune=11.0, table=10.0)
    (tmp_path / "zoo-x-vit.json").write_text(json.dumps(document))
    template = (ROOT / "docs/benchmarks/README.template").read_text(encoding="utf-8")
    part = template[template.index("<!-- results: zoo-* -->") :]
    part = part[: part.index("<!-- results: compare-llama-h200 -->")]
    page = modules["template"].render(part, tmp_path, modules["render"].FUNCTIONS)
    assert "| NVIDIA X | 2.11.0 | table | default | 1 | 1.100 | 1.100 | 0 |" in page
    assert "| NVIDIA X | vit | batch=8 | 12 | 11 | 11 | 10 |  | 1.10x (1.10 to 1.10) |" in page
    assert "- no bucket" in page
    agreement = "1 of 3 the same, 1 within the band, 1 beyond"
    starts = "| vit | 16 | 3 | 10.0 | 10.0 | 7 | 1.60 | 10.0 | 7 | 4 | 0 |"
    assert f"{starts} {agreement} | table: 1 look |" in page


def test_a_tables_gain_counts_for_its_digest(
    modules: Any, make_table: Callable[..., Table], make_row: Any, make_key: Any, tmp_path: Path
) -> None:
    """A result of another digest is an earlier build's; and a loss is printed as one."""
    tables, results = tmp_path / "tables", tmp_path / "results"
    results.mkdir()
    one, other = make_table(), make_table({make_key(560): make_row("aten::mm")})
    write(tables / "nvidia-h200" / "one.bf16.json", one)
    write(tables / "nvidia-x" / "one.bf16.json", other)
    found = comparison(digest_of(other), eager=9.0, default=9.0, max_autotune=12.0, table=10.0)
    (results / "compare-one.json").write_text(json.dumps(found))
    (results / "a-list.json").write_text("[]")
    lines = list(modules["gains"].lines(results, tables))
    (earlier,) = [line for line in lines if "(nvidia-h200/" in line]
    (own,) = [line for line in lines if "(nvidia-x/" in line]
    assert "CUDA graphs, an earlier build | table | 1 | 0.90 (0.90 to 0.90) | 1.20" in earlier
    assert "2026-01-02, CUDA graphs | table | 1 | 0.90 (0.90 to 0.90) | 1.20" in own
    assert (
        "**Winners of nvidia-h200 and of nvidia-x** differ, for keys that both have, in:" in lines
    )
    assert "- gemm: 1 of 1 rows" in lines
