"""`warmup suggest`: buckets for observed sizes, and the padding that fewer buckets cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Final

import typer

from warmup.cli import options
from warmup.cli.output import print_report, record, times
from warmup.core.text import counted
from warmup.diagnostics.suggest import MAX_SUGGESTED, Cost, Suggestion
from warmup.diagnostics.suggest import suggest as choose_buckets

_BAR_COLUMNS: Final = 46  # the bar of all work, beside three columns of numbers


def suggest(
    *,
    histogram: Annotated[
        str,
        typer.Option(
            help="File with a line for each size: SIZE or SIZE,COUNT or JSON with both; - is stdin."
        ),
    ],
    max_buckets: Annotated[
        int, typer.Option(help=f"The most buckets to suggest, 1 to {MAX_SUGGESTED}.")
    ] = 8,
    multiple: Annotated[
        int, typer.Option(help="Round buckets up to multiples of this, such as 64.")
    ] = 1,
    cost: Annotated[
        Cost, typer.Option(help="Growth of the work with the size; attention is quadratic.")
    ] = Cost.LINEAR,
    as_json: options.AsJson = False,
) -> None:
    """Choose buckets that add the least padding to observed sizes."""
    source = sys.stdin.buffer if histogram == "-" else histogram
    found = choose_buckets(source, max_buckets=max_buckets, multiple=multiple, cost=cost)
    print_report(
        found,
        partial(spell, cost=cost),
        lambda found: {"multiple": multiple, "cost": cost, **document(found)},
        as_json=as_json,
    )


def spell(found: Suggestion, cost: Cost) -> Iterator[str]:
    """Yield the buckets as an option of `build`, then the padded work for 1, 2, 3 ... of them.

    A bar is the share of all work that is done on padding.
    """
    yield f"--seqlens {_value(found.best.sizes)}"
    yield ""
    sizes = f"{found.observed} sizes from {found.smallest} to {found.largest}"
    yield f"{found.requests} requests, {sizes}; work {cost} in the size"
    buckets = counted(len(found.curve), "bucket")
    yield f"with {buckets} the padded work is {times(found.padded(found.best))} the unpadded work"
    yield ""
    yield "buckets  padded work  padding"
    for number, pick in enumerate(found.curve, start=1):
        share = 1 - found.work / pick.work
        bar = "#" * round(_BAR_COLUMNS * share)
        yield f"{number:>7}  {times(found.padded(pick)):>11}  {share:>7.1%}  {bar}".rstrip()


def document(found: Suggestion) -> dict[str, Any]:
    """Return the record of *found*, each pick with its padded work over the unpadded work."""
    picks = [{**record(pick), "padded": found.padded(pick)} for pick in found.curve]
    return {**record(found), "curve": picks, "value": _value(found.best.sizes)}


def _value(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))
