"""`warmup suggest`: buckets for observed sizes, and what fewer cost. Text or JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from warmup.buckets.suggest import MAX_SUGGESTED, Cost, Suggestion
from warmup.buckets.suggest import suggest as run
from warmup.cli.arguments import JSON
from warmup.core.errors import SettingsError

_MAX_BUCKETS = 8
_SEQLEN = "seqlen"
_BAR = 46  # all work, beside three columns in 80 letters


def suggest(
    *,
    histogram: Annotated[
        str,
        typer.Option(help="Lines SIZE, SIZE,COUNT or JSON objects with both; - reads stdin."),
    ],
    max_buckets: Annotated[
        int, typer.Option(help=f"How many buckets there may be, 1 to {MAX_SUGGESTED}.")
    ] = _MAX_BUCKETS,
    dim: Annotated[str, typer.Option(help="The dim that the sizes are of.")] = _SEQLEN,
    multiple: Annotated[
        int, typer.Option(help="Round buckets up to multiples of this, such as 64.")
    ] = 1,
    cost: Annotated[
        Cost, typer.Option(help="How work grows with the size: linear, or quadratic as attention.")
    ] = Cost.LINEAR,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Pick the buckets that add the least padding to the sizes that were requested."""
    if not (dim.isascii() and dim.isidentifier()):
        raise SettingsError(f"--dim: {dim!r} is no name of a dim", "give one such as seqlen")
    source = sys.stdin.buffer if histogram == "-" else histogram
    found = run(source, max_buckets=max_buckets, multiple=multiple, cost=cost)
    if as_json:
        json.dump(
            {"dim": dim, "multiple": multiple, "cost": cost, **document(found)},
            sys.stdout,
            indent=2,
            sort_keys=True,
        )
        sys.stdout.write("\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in spell(found, dim, cost))


def spell(found: Suggestion, dim: str, cost: Cost) -> Iterator[str]:
    """Yield the buckets as an option of `build`, then what padding costs with 1, 2, 3 ... of them.

    A bar is the share of the work that is done on padding.
    """
    value = _value(found.best.sizes)
    yield f"--seqlens {value}" if dim == _SEQLEN else f"--dims {dim}={value}"
    yield ""
    sizes = f"{found.observed} sizes from {found.smallest} to {found.largest}"
    yield f"{found.requests} requests, {sizes}; work {cost} in the size"
    buckets = "1 bucket" if len(found.curve) == 1 else f"{len(found.curve)} buckets"
    yield f"with {buckets} padded work is {found.padded(found.best):.2f}x the unpadded"
    yield ""
    yield "buckets  padded work  padding"
    for number, pick in enumerate(found.curve, start=1):
        share = 1 - found.work / pick.work
        bar = "#" * round(_BAR * share)
        yield f"{number:>7}  {found.padded(pick):>10.2f}x  {share:>7.1%}  {bar}".rstrip()


def document(found: Suggestion) -> dict[str, Any]:
    """Return *found* as JSON values; docs/reference/cli.md says what each is."""
    return {
        "requests": found.requests,
        "observed": found.observed,
        "smallest": found.smallest,
        "largest": found.largest,
        "work": found.work,
        "sizes": list(found.best.sizes),
        "value": _value(found.best.sizes),
        "padded": round(found.padded(found.best), 6),
        "curve": [
            {
                "buckets": len(pick.sizes),
                "sizes": list(pick.sizes),
                "work": pick.work,
                "padded": round(found.padded(pick), 6),
            }
            for pick in found.curve
        ],
    }


def _value(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))
