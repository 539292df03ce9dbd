"""Collecting pad samples: measured as a row is, resumed, within a budget.

One collection on the CPU, with inductor's pad_mm pass switched on there and stated times
(tests/programs/collect_pads.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stated_pads import HERE, drawn_keys, lines_of

from warmup.core.errors import NothingRecordedError, SettingsError, WarmupError
from warmup.core.method import L2, Launch, Method
from warmup.diagnostics.misses import MissedProblem
from warmup.prediction.pad.samples import TimedPadding, read_paddings
from warmup.table import Table
from warmup.tuning.pad_collection import check_method, collect_pads, drop_cut_line
from warmup.tuning.report import NOT_BEGUN, BuildReport

PROGRAM = str(Path(__file__).resolve().parents[1] / "programs/collect_pads.py")
WORDS = ("pad", "collect", "--dtypes", "f32", "--device", "cpu", "--out", "pad.jsonl")

Run = Callable[..., Any]


def _collect(
    run_once: Run, name: str, words: Sequence[str], samples: int
) -> tuple[list[dict[str, Any]], tuple[TimedPadding, ...]]:
    """Collect *samples*, then one more without time; return what was printed, and the samples."""
    quiet = [*words, "--wait-for-quiet", "0"]
    lines = (
        [*quiet, "--samples", f"{samples}"],
        [*quiet, "--samples", f"{samples + 1}", "--budget", "0s"],
    )
    folder, said = run_once(name, PROGRAM, json.dumps(lines))
    return json.loads(said), read_paddings([folder / "pad.jsonl"])


@pytest.fixture(scope="module")
def collected(run_once: Run) -> tuple[list[dict[str, Any]], tuple[TimedPadding, ...]]:
    """What two commands printed, for one sample and then for two without time; and the samples."""
    return _collect(run_once, "collect", WORDS, 1)


def test_a_sample_is_compiled_and_timed_both_ways(
    collected: tuple[list[dict[str, Any]], tuple[TimedPadding, ...]],
) -> None:
    """As a pad row is in a build: the region's times, and those of inductor's own calls."""
    (first, _), (sample,) = collected
    assert (first["code"], first["ways"]) == (0, ["as_is", "padded"])
    assert first["out"] == "pad.jsonl: 1 of 1 sample, 1 measured now\n"
    assert sample.region_us == {"padded": 10.0, "as_is": 20.0}
    assert sample.own_us == {"padded": 20.0, "as_is": 10.0}
    assert sample.source == "random"


def test_a_second_run_measures_what_is_missing_within_its_budget(
    collected: tuple[list[dict[str, Any]], tuple[TimedPadding, ...]],
) -> None:
    """The first sample is known; there is no time for the second, and a line says so."""
    (_, second), _ = collected
    assert (second["code"], second["ways"]) == (0, [])
    assert second["out"].splitlines() == [
        "pad.jsonl: 1 of 2 samples, 0 measured now",
        "1 left: the budget was spent; run the same command again",
    ]


@pytest.fixture(scope="module")
def shared(run_once: Run) -> tuple[list[dict[str, Any]], tuple[TimedPadding, ...]]:
    """As `collected`, by two workers of a device: two samples, and then three without time."""
    words = [*WORDS[: WORDS.index("--device")], "--devices", "cpu,cpu", *WORDS[-2:]]
    return _collect(run_once, "shared", words, 2)


@pytest.mark.long
def test_workers_of_a_device_collect_the_same(
    shared: tuple[list[dict[str, Any]], tuple[TimedPadding, ...]],
) -> None:
    """Each sample is compiled and timed both ways in a worker, and has a line."""
    (first, _), samples = shared
    assert (first["code"], first["ways"]) == (0, []), first
    assert first["out"] == "pad.jsonl: 2 of 2 samples, 2 measured now\n"
    assert [one.region_us for one in samples] == [{"padded": 10.0, "as_is": 20.0}] * 2
    assert [one.source for one in samples] == ["random"] * 2


@pytest.mark.long
def test_workers_begin_nothing_once_the_budget_is_spent(
    shared: tuple[list[dict[str, Any]], tuple[TimedPadding, ...]],
) -> None:
    """What waits is left for the next run, and has not failed."""
    (_, second), _ = shared
    assert second["code"] == 0, second
    assert second["out"].splitlines() == [
        "pad.jsonl: 2 of 3 samples, 0 measured now",
        "1 left: the budget was spent; run the same command again",
    ]


@pytest.fixture
def known(tmp_path: Path) -> tuple[Path, list[str]]:
    """A file with two of five samples, and the keys of all five."""
    keys = drawn_keys(5)
    path = tmp_path / "pad.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines_of(keys[:2])), encoding="utf-8")
    return path, keys


def test_samples_with_a_line_are_not_measured_again(known: tuple[Path, list[str]]) -> None:
    """The others are, each as a problem of no model."""
    path, keys = known
    asked: list[MissedProblem] = []

    def build(problems: Sequence[MissedProblem], **_options: Any) -> None:
        asked.extend(problems)
        raise NothingRecordedError("none", "")

    done = collect_pads(keys, out=path, build=build)
    assert [one.key for one in asked] == keys[2:]
    assert {one.source for one in asked} == {"random"}
    assert (done.known, done.measured, done.left) == (2, 0, 3)


@pytest.mark.parametrize(
    ("reasons", "is_error"),
    [
        (f"pad mm m=1: {NOT_BEGUN}; pad mm m=3: {NOT_BEGUN}", False),
        (f"pad mm m=1: too large; pad mm m=3: {NOT_BEGUN}", True),
        ("", False),
    ],
)
def test_samples_that_were_not_begun_are_no_failures(
    known: tuple[Path, list[str]], reasons: str, is_error: bool
) -> None:
    """A budget that is spent before the first sample is done is no error; a failure is."""
    path, keys = known

    def build(*_problems: Any, **_options: Any) -> None:
        raise NothingRecordedError("none", reasons)

    expected = pytest.raises(WarmupError, match="no sample could be measured")
    with expected if is_error else contextlib.nullcontext():
        done = collect_pads(keys, out=path, build=build)
        assert (done.left, dict(done.failed)) == (3, {})


def test_samples_that_all_fail_are_an_error(known: tuple[Path, list[str]]) -> None:
    """With the reasons of the first; the file stays as it is."""
    path, keys = known

    def build(*_problems: Any, **_options: Any) -> None:
        raise NothingRecordedError("none", "pad mm m=1: too large")

    with pytest.raises(WarmupError, match="no sample could be measured; pad mm m=1: too large"):
        collect_pads(keys, out=path, build=build)


def test_a_sample_timed_by_inductors_calls_alone_is_measured_again(
    known: tuple[Path, list[str]], make_table: Callable[..., Table]
) -> None:
    """Its line is no sample to fit to: it failed, with its reason, and is asked for again."""
    path, keys = known
    line = json.loads(next(lines_of(keys[2:3])))
    for candidate in line["candidates"]:
        candidate["fused_us"] = None
    asked: list[str] = []

    def build(problems: Sequence[MissedProblem], **_options: Any) -> BuildReport:
        asked.extend(one.key for one in problems)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        not_begun = {one.key: NOT_BEGUN for one in problems if one.key != keys[2]}
        return BuildReport(
            *(path, make_table({}), "0" * 64, (), (), 1.0),
            not_fused={keys[2]: "out of memory"},
            not_rebuilt=not_begun,
        )

    for _ in range(2):
        done = collect_pads(keys, out=path, build=build)
        assert dict(done.failed) == {keys[2]: "out of memory"}
        assert (done.known, done.measured, done.left) == (2, 0, 2)
    assert asked == keys[2:] * 2


def test_a_line_that_a_killed_run_cut_is_dropped(known: tuple[Path, list[str]]) -> None:
    """Its sample is measured again; whole lines stay, and a whole file is left alone."""
    path, keys = known
    whole = path.read_bytes()
    assert not drop_cut_line(path)
    path.write_bytes(whole[:-30])
    assert drop_cut_line(path)
    assert [one.key for one in read_paddings([path])] == keys[:1]


@pytest.mark.parametrize("content", [b"notes", b'{"a": 1}', b'{"key": "x"}\nnotes'])
def test_another_file_is_not_cut(tmp_path: Path, content: bytes) -> None:
    """A file that is not of samples is refused, and stays as it is."""
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="no file of samples"):
        drop_cut_line(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("here", "method", "said"),
    [
        (replace(HERE, torch="2.14.0"), Method(), "another machine, version or method"),
        (HERE, Method(launch=Launch.CUDAGRAPH), "than stated, cudagraph cold"),
    ],
)
def test_samples_of_another_origin_are_not_added(
    known: tuple[Path, list[str]], here: Any, method: Method, said: str
) -> None:
    """A file is of one machine, one torch and one method, or it cannot be fitted to."""
    path, _ = known
    check_method(path, HERE, Method(launch=Launch.EAGER, l2=L2.COLD))
    with pytest.raises(SettingsError, match=said):
        check_method(path, here, method)
