"""Lines of timings: written, read again, and refused where they are none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from warmup.core.errors import SettingsError
from warmup.core.rows import Evidence, Family, Flag, Rejection, Row, Timing, Tuned, Winner
from warmup.core.runtime import Device, Runtime
from warmup.prediction.timing_lines import line_of, read_timings, winner_of
from warmup.prediction.training import training_set

KEY = "addmm m=8 n=64 k=64 bf16 a=row b=col bias=1d out=bf16 | epilogue=none"
GPU = Device(type="cuda", vendor="nvidia", name="stated", arch="sm_90", sm_count=132)
HERE = Runtime(device=GPU, torch="2.13.0", triton="3.8.0")
LIBRARY = Winner(Family.EXTERN, "aten::addmm")
TEMPLATE = Winner(
    Family.TEMPLATE,
    "triton::mm",
    (("ACC_TYPE", "tl.float32"), ("BLOCK_M", 64), ("EVEN_K", True), ("hint_override", None)),
    "abc",
)


def tuned(key: str = KEY, *flags: Flag) -> Tuned:
    evidence = Evidence(
        time_us=4.5,
        library_us=5.0,
        runner_up=None,
        runner_up_us=None,
        tried=3,
        flags=flags,
        clock_mhz=1980,
    )
    timings = (
        Timing(LIBRARY, 5.0, spread=0.01),
        Timing(TEMPLATE, 4.5),
        Timing(Winner(Family.TEMPLATE, "triton::other"), None, Rejection.COMPILE, "no"),
    )
    return Tuned(key, Row(TEMPLATE, evidence), timings)


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Key, source, device, versions, method and the candidates that ran; also compressed."""
    line = line_of(tuned(), HERE, "eager cold", "vit")
    for name, opened in (("t.jsonl", open), ("t.jsonl.gz", gzip.open)):
        with opened(tmp_path / name, "wt") as file:
            file.write(line + "\n")
    found = [read_timings([tmp_path / name]) for name in ("t.jsonl", "t.jsonl.gz")]
    (one,) = found[0]
    assert found[0] == found[1]
    assert dict(one.times_us) == {LIBRARY: 5.0, TEMPLATE: 4.5}
    assert (one.key, one.source, one.method) == (KEY, "vit", "eager cold")
    assert (one.on and one.on.sm_count, dict(one.templates)) == (132, {"triton::mm": "abc"})


def test_of_two_lines_with_a_key_the_last_counts(tmp_path: Path) -> None:
    """A problem that was measured again replaces its first times."""
    path = tmp_path / "t.jsonl"
    lines = [line_of(tuned(), HERE, "eager cold", source) for source in ("first", "last")]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert [one.source for one in read_timings([path])] == ["last"]


def test_a_choice_is_read_as_it_is_written() -> None:
    """The text of a winner gives the winner, also one that says whether it was fused."""
    assert winner_of(str(TEMPLATE), {"triton::mm": "abc"}) == TEMPLATE
    assert winner_of(f"{TEMPLATE} fused", {"triton::mm": "abc"}) == TEMPLATE
    assert winner_of("aten::addmm", {}) == LIBRARY


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"key": "mm"}', '{"key": 1, "candidates": []}', '{"schema": 9}']
)
def test_another_file_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    """The error names the file and the line."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{line_of(tuned(), HERE, 'eager cold')}\n{text}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"t\.jsonl, line 2: no line of timings"):
        read_timings([path])


@pytest.mark.parametrize("name", ["device", "torch", "triton", "templates"])
def test_a_line_without_its_origin_is_refused(tmp_path: Path, name: str) -> None:
    """The error names what is missing, and the line."""
    line = json.loads(line_of(tuned(), HERE, "eager cold"))
    del line[name]
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(line), encoding="utf-8")
    with pytest.raises(SettingsError, match=f"line 1: no line of timings: missing .*{name}"):
        read_timings([path])


@pytest.mark.parametrize("number", ["²", "--5", "-", "9" * 5000])
def test_what_is_no_number_of_a_choice_is_a_word(number: str) -> None:
    """As any other text that stands there."""
    winner = winner_of(f"triton::mm(BLOCK_M={number})", {})
    assert winner.kwargs == (("BLOCK_M", number),)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    """A bit that flipped in the compressed data, whatever the decompressor makes of it."""
    path = tmp_path / "t.jsonl.gz"
    whole = gzip.compress((line_of(tuned(), HERE, "eager cold") + "\n").encode() * 3)
    for place in range(10, len(whole) - 8):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(SettingsError):
            read_timings([path])


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """The error says that the file cannot be read."""
    with pytest.raises(SettingsError, match="cannot be read"):
        read_timings([tmp_path / "absent.jsonl"])


def _read_with(tmp_path: Path, *lines: str) -> Any:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return training_set(read_timings([path]))


def test_disturbed_and_unplaced_times_are_left_out(tmp_path: Path) -> None:
    """Unstable rows, lines without a device and CPUs are not fitted to, and are counted."""
    older = {**json.loads(line_of(tuned(KEY.replace("m=8", "m=9")), HERE, "eager cold"))}
    older = {name: older[name] for name in ("key", "candidates")}
    unstable = line_of(tuned(KEY.replace("m=8", "m=10"), Flag.UNSTABLE), HERE, "eager cold")
    found = _read_with(tmp_path, line_of(tuned(), HERE, "eager cold"), json.dumps(older), unstable)
    assert len(found.problems) == 1
    assert sum(found.left_out.values()) == 2


def test_a_time_that_scatters_is_no_time(tmp_path: Path) -> None:
    """Of a problem that can be used, a candidate that a build would not choose is left out."""
    line = json.loads(line_of(tuned(), HERE, "eager cold"))
    slow = {**line["candidates"][1], "choice": "decompose_k(k_split=8)", "spread": 0.3}
    found = _read_with(tmp_path, json.dumps({**line, "candidates": [*line["candidates"], slow]}))
    assert found.scattered == 1
    assert sorted(found.problems[0].times_us.values()) == [4.5, 5.0]


def test_a_problem_whose_times_all_scatter_is_counted(tmp_path: Path) -> None:
    """It is left out with that reason, beside a problem that is fitted to."""
    line = json.loads(line_of(tuned(KEY.replace("m=8", "m=9")), HERE, "eager cold"))
    scattering = [{**candidate, "spread": 0.3} for candidate in line["candidates"]]
    text = json.dumps({**line, "candidates": scattering})
    found = _read_with(tmp_path, line_of(tuned(), HERE, "eager cold"), text)
    assert [one.sizes.m for one in found.problems] == [8]
    assert found.left_out == {"without a time that can be used": 1}


def test_timings_of_two_devices_are_refused(tmp_path: Path) -> None:
    """A model is of one device: the error names both."""
    other = Runtime(
        device=Device(type="cuda", vendor="nvidia", name="other", arch="sm_80", sm_count=108),
        torch="2.13.0",
        triton="3.8.0",
    )
    lines = [line_of(tuned(), HERE, "eager cold"), line_of(tuned(), other, "eager cold")]
    with pytest.raises(SettingsError, match="different devices"):
        _read_with(tmp_path, *lines)
