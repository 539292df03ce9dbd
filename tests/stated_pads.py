"""Stated times of pad decisions, as lines that `warmup pad collect` would write on a GPU.

Nobody measured them: a time is the larger of arithmetic and memory traffic, an unaligned operand
slows the arithmetic down, and padding copies what is not free.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from warmup.core.dtypes import item_bytes
from warmup.core.method import Method
from warmup.core.rows import Winner
from warmup.core.runtime import Device, Runtime
from warmup.core.samples import Samples
from warmup.core.trial import Outcome
from warmup.keys.pad import AS_IS, PADDED, PadProblem
from warmup.keys.pad_text import parse_padding
from warmup.measuring.measured_rows import make_ways_row
from warmup.prediction.pad.sampling import draw_pad_keys
from warmup.prediction.timing_lines import line_of

HERE = Runtime(
    device=Device(type="cuda", vendor="nvidia", name="stated", arch="sm_90", sm_count=132),
    torch="2.13.0",
    triton="3.8.0",
)
_RATES = {"f16": 6e8, "bf16": 6e8, "ieee": 5e7, "tf32": 3e8}  # multiplications in a microsecond
_BYTES_PER_US = 3e6
_LAUNCH_US = 3.0
_SLOW_UNALIGNED = 0.6


def stated_us(problem: PadProblem) -> dict[Winner, float]:
    """Return the stated time of *problem* as it is and padded."""
    size = item_bytes(problem.dtype)
    rate = _RATES[problem.fp32 or problem.dtype]
    m, n, k = (dim.low for dim in (problem.m, problem.n, problem.k))
    unit = 16 // size
    wide = [each if each == 1 else -(-each // unit) * unit for each in (m, n, k)]
    inner = (k if str(problem.a) == "row" else m, n if str(problem.b) == "row" else k)
    slow = _SLOW_UNALIGNED if any(each % unit for each in inner) else 1.0
    moved = (m * k + k * n + m * n) * size
    as_is = max(m * n * k / (rate * slow), moved / _BYTES_PER_US) + _LAUNCH_US
    copied = 2 * m * n * size if wide[:2] != [m, n] else 0
    copied += 2 * m * k * size if "a" not in problem.free and (wide[0], wide[2]) != (m, k) else 0
    copied += 2 * k * n * size if "b" not in problem.free and (wide[1], wide[2]) != (n, k) else 0
    padded = max(wide[0] * wide[1] * wide[2] / rate, moved / _BYTES_PER_US) + _LAUNCH_US
    return {AS_IS: as_is, PADDED: padded + copied / _BYTES_PER_US}


def lines_of(
    keys: Iterable[str],
    *,
    source: str = "random",
    here: Runtime = HERE,
    own: Mapping[Winner, float] | None = None,
) -> Iterator[str]:
    """Yield the line of each of *keys*; *own* are factors of inductor's own calls to the times."""
    for key in keys:
        times = stated_us(parse_padding(key))
        found, bare = (
            [
                Outcome(winner=way, samples=Samples((us * factors.get(way, 1.0),) * 12), error=0.0)
                for way, us in times.items()
            ]
            for factors in ({}, own or {})
        )
        tuned = make_ways_row(key, found, bare, AS_IS, Method())
        assert tuned is not None
        yield line_of(tuned, here, "eager cold", source)


def drawn_keys(count: int, seed: int = 1, dtypes: tuple[str, ...] = ("bf16", "f32")) -> list[str]:
    """Return the keys of the first *count* samples."""
    return [*itertools.islice(draw_pad_keys(seed, dtypes), count)]
