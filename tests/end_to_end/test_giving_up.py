"""Problems that cannot be measured: what a build leaves and says of them; real compiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, PROGRAMS, answer_of

pytestmark = pytest.mark.nightly

LINEAR = "packed_linear m=16 n=128 k=64 f32 a=row b=packed out=f32 fp32=ieee | epilogue=none"
ALONE = LINEAR.replace("m=16", "m=32")
GRAM = "mm m=16 n=16 k=128 f32 a=row b=col out=f32 fp32=ieee | epilogue=none"
MIXED = "mm m=16 n=64 k=16 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"
WHY = "for want of memory"


@pytest.fixture(scope="module")
def found(run_once: Callable[..., tuple[Path, str]], variables: dict[str, str]) -> dict[str, Any]:
    words = (str(PROGRAMS / "build_giving_up.py"), f"{MODELS / 'gram.py'}:Gram")
    _, said = run_once("giving-up", *words, "16", "gram.json", ALONE, **variables)
    builds: dict[str, Any] = answer_of(said)
    return builds


def test_a_build_goes_on_without_what_it_cannot_measure(found: dict[str, Any]) -> None:
    """The rest is tuned, served with the library's kernel in its place, and compared with eager."""
    assert found["first"]["not_tuned"] == {GRAM: WHY, MIXED: WHY}
    assert [*found["first"]["rows"]] == [LINEAR]
    assert found["first"]["asked"] == [[LINEAR]]


def test_a_problem_alone_that_cannot_be_measured_says_why(found: dict[str, Any]) -> None:
    """The build does not say that the rebuilt module leaves inductor nothing to choose."""
    assert (found["alone"]["not_tuned"], found["alone"]["not_rebuilt"]) == ({ALONE: WHY}, {})
    assert [*found["alone"]["rows"]] == [LINEAR]


def test_the_next_build_tunes_it_and_force_keeps_what_it_cannot_replace(
    found: dict[str, Any],
) -> None:
    """A problem without a row is open; one that force could not measure is told as not tuned."""
    assert (found["then"]["tuned"], found["then"]["not_tuned"]) == ([GRAM, MIXED], {})
    before, after, left = found["then"]["rows"], found["forced"]["rows"], {GRAM: WHY, MIXED: WHY}
    assert (found["forced"]["tuned"], found["forced"]["not_tuned"]) == ([LINEAR], left)
    assert {key: after[key] for key in left} == {key: before[key] for key in left}
    assert found["forced"]["asked"] == [sorted(after.keys())]
