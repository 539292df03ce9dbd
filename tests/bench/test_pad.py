"""`warmup bench pad`: what is drawn, what a file of samples keeps, and a run on the CPU."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_outcome, make_table

from warmup.bench.pad import PadRun, SampleFile, draw_pad_keys, measure_samples
from warmup.core.device import Device, Runtime
from warmup.core.errors import SettingsError
from warmup.core.files import locked
from warmup.core.roofline import item_bytes
from warmup.core.rows import L2, Evidence, Method, Row
from warmup.core.trial import Tuned
from warmup.keys.pad import AS_IS, PADDED, PadProblem
from warmup.serving.audit import MissedProblem
from warmup.tuning.report import NOT_BEGUN, BuildReport

PROGRAM = str(Path(__file__).resolve().parents[1] / "programs/bench_pads.py")
HERE = Runtime(
    device=Device(type="cuda", vendor="nvidia", name="stated", arch="sm_90", sm_count=132),
    torch="2.13.0",
    triton="3.8.0",
)
EVIDENCE = Evidence(time_us=1.0, library_us=2.0, runner_up=None, runner_up_us=None, tried=2)


def keys_of(count: int, seed: int = 1) -> list[str]:
    return [*itertools.islice(draw_pad_keys(seed, ("f16", "bf16", "f32")), count)]


def tuned(key: str, padded_us: float | None = 20.0) -> Tuned:
    """A pad decision whose ways took 10 and *padded_us* as they run, twice that by own calls."""
    ways = [
        make_outcome(AS_IS, 20.0, fused=make_outcome(AS_IS, 10.0)),
        make_outcome(PADDED, 40.0, fused=make_outcome(PADDED, padded_us)),
    ]
    return Tuned(key, Row(AS_IS, EVIDENCE), tuple(ways))


def write(
    path: Path, keys: Sequence[str], here: Runtime = HERE, method: Method | None = None
) -> list[str]:
    """Add the samples *keys* to the file *path*; return what was said."""
    said: list[str] = []
    with SampleFile(path, said.append) as file:
        file.measuring_on(here, method or Method())
        for key in keys:
            file.problem_finished(tuned(key))
    return said


def test_the_same_seed_draws_the_same_unaligned_gemms() -> None:
    """Fewer samples are the first of more; each is small enough, and all forms are drawn."""
    keys = keys_of(400)
    assert keys[:50] == keys_of(50)
    assert len(set(keys)) == 400
    assert not set(keys) & set(keys_of(400, seed=2))
    for key in keys:
        problem = PadProblem.of_key(key)
        sizes = [dim.low for dim in (problem.m, problem.n, problem.k)]
        assert any(size * item_bytes(problem.dtype) % 16 for size in sizes), key
        batch = problem.batch.low if problem.batch else 1
        assert 2 * batch * sizes[0] * sizes[1] * sizes[2] <= 2e12, key
    forms = {(one.op, one.dtype, one.fp32) for one in map(PadProblem.of_key, keys)}
    precisions = [("f16", None), ("bf16", None), ("f32", "ieee"), ("f32", "tf32")]
    assert forms == {(op, *each) for op in ("mm", "addmm", "bmm") for each in precisions}


def test_a_finished_sample_is_a_line_and_is_kept_once(tmp_path: Path) -> None:
    """The GEMM, both times, where they were measured; a GEMM row and a failed way are no sample."""
    path, (key, other) = tmp_path / "pad.jsonl", keys_of(2)
    gemm = "mm m=4 n=8 k=8 bf16 a=row b=col out=bf16 | epilogue=none"
    with SampleFile(path, lambda _: None) as file:
        file.measuring_on(HERE, Method())
        for one in (
            tuned(key),
            tuned(key),
            tuned(other, padded_us=None),
            Tuned(gemm, Row(AS_IS, EVIDENCE), ()),
        ):
            file.problem_finished(one)
            assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == [key]
    (line,) = path.read_text().splitlines()
    sample, problem = json.loads(line), PadProblem.of_key(key)
    assert (sample["op"], sample["m"], sample["free"]) == (problem.op, problem.m.low, problem.free)
    assert (sample["as_is_us"], sample["padded_us"], sample["own_padded_us"]) == (10.0, 20.0, 40.0)
    assert (sample["device"], sample["torch"], sample["l2"]) == ("stated", "2.13.0", "cold")


def test_a_second_run_measures_what_is_missing(tmp_path: Path) -> None:
    """What the file has is not measured again; what the time was too short for is left."""
    path, keys = tmp_path / "pad.jsonl", keys_of(5)
    write(path, keys[:2])
    asked: list[str] = []

    def build(problems: Sequence[MissedProblem], _out: Path, observer: Any) -> BuildReport:
        asked.extend(one.key for one in problems)
        observer.measuring_on(HERE, Method())
        observer.problem_finished(tuned(keys[2]))
        return report(not_rebuilt={keys[3]: "too large"}, not_tuned={keys[4]: NOT_BEGUN})

    with SampleFile(path, lambda _: None) as file:
        done = measure_samples(keys, file, build)
        again = measure_samples(keys[:3], file, build)
    assert asked == keys[2:]
    assert (done.known, done.measured, dict(done.failed), done.left) == (
        2,
        1,
        {keys[3]: "too large"},
        1,
    )
    assert again == PadRun(3, 3, 0, {})


def report(**reasons: Any) -> BuildReport:
    """A report of a build that tuned nothing, for *reasons*."""
    return BuildReport(
        path=Path("t.json"), table=make_table({}), digest="0" * 64, seconds=1.0, **reasons
    )


def test_a_line_that_a_killed_run_cut_is_dropped_with_a_sentence(tmp_path: Path) -> None:
    """Its sample is measured again; whole lines stay, wherever the line was cut."""
    path, keys = tmp_path / "pad.jsonl", keys_of(2)
    write(path, keys)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (first + 1, first + 5, first + 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert write(path, [])[0].endswith("pad.jsonl: the last line was cut, and is dropped"), cut
        assert path.read_bytes() == whole[:first], cut


def test_another_file_is_refused_and_stays(tmp_path: Path) -> None:
    """Notes, other JSON, a sample with a repeated, unknown or impossible field, a huge line."""
    path, (key,) = tmp_path / "pad.jsonl", keys_of(1)
    write(path, [key])
    line = path.read_bytes()
    for content in (
        b"notes",
        b'{"a": 1}',
        b"\n",
        line + b"notes",
        line.replace(b'"op"', b'"no"'),
        line.replace(b'"schema":1', b'"schema":2'),
        line.replace(b'"padded_us":20.0', b'"padded_us":NaN'),
        line.replace(key.encode(), b"mm"),
        b'{"schema":1,' + b" " * 200_000,
    ):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match="no sample of `warmup bench pad`"):
            write(path, [])
        assert path.read_bytes() == content


def test_samples_of_another_origin_are_not_added(tmp_path: Path) -> None:
    """A file is of one machine, one torch and one method, and of one process at a time."""
    path, keys = tmp_path / "pad.jsonl", keys_of(2)
    write(path, keys[:1])
    before = path.read_bytes()
    for here, method, said in (
        (replace(HERE, torch="2.14.0"), Method(), "torch 2.13.0, here 2.14.0"),
        (HERE, Method(l2=L2.WARM), "l2 cold, here warm"),
    ):
        with pytest.raises(SettingsError, match=said):
            write(path, keys[1:], here, method)
    with locked(path, 1.0), pytest.raises(SettingsError, match="another writer held"):
        write(path, keys[1:])
    with pytest.raises(SettingsError, match="cannot be read and written"):
        write(tmp_path / "absent/pad.jsonl", [])
    assert path.read_bytes() == before


@pytest.mark.long
def test_samples_are_compiled_and_timed_both_ways_on_a_cpu(
    run_once: Callable[..., tuple[Path, str]],
) -> None:
    """Real compiles and times of an mm, an addmm and a bmm, the last by a second run."""
    pytest.importorskip("triton")
    folder, said = run_once("bench-pads", PROGRAM, "2", "4", WARMUP_WAIT_FOR_QUIET="0")
    first, second = json.loads(said)
    assert (first["code"], first["out"]) == (0, "pad.jsonl: 2 of 2 samples\n"), first
    assert (second["code"], second["out"]) == (0, "pad.jsonl: 4 of 4 samples\n"), second
    assert (first["ways"], second["ways"]) == (["as_is", "padded"] * 2,) * 2
    samples = [json.loads(line) for line in (folder / "pad.jsonl").read_text().splitlines()]
    assert {one["op"] for one in samples} == {"mm", "addmm", "bmm"}
    assert all(one["as_is_us"] > 0 and one["padded_us"] > 0 for one in samples)
