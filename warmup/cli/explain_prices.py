"""`spell_prices`: what each size costs by the winners of its range's first size, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from warmup.core.counted import counted
from warmup.diagnostics.recompiles.section import Price, Span

_LISTED: Final = 8  # sizes that are listed; of more sizes the dearest are


def served_by(span: Span, requests: Mapping[int, int]) -> str:
    """Return which given sizes *span* serves, and their share of *requests* if there are any."""
    sizes = span.sizes
    if not sizes:
        return "no given size uses its winners"
    named = ", ".join(map(str, sizes))
    if len(sizes) > _LISTED:
        named = f"{len(sizes)} given sizes from {min(sizes)} to {max(sizes)}"
    text = f"its winners serve {named}"
    if requests:
        share = sum(requests.get(size, 0) for size in sizes) / sum(requests.values())
        text += f": {share:.1%} of the requests"
    return text


def spell_prices(span: Span, requests: Mapping[int, int]) -> Iterator[str]:
    """Yield a line for each price of *span*; of many, the dearest, and how many there are."""
    prices = span.prices
    if len(prices) > _LISTED:
        known = [price for price in prices if price.measured or price.predicted]
        yield f"prices are known for {len(known)} of {len(prices)} sizes"
        prices = tuple(sorted(known, key=_dearness, reverse=True)[:_LISTED])
        if len(known) > _LISTED:
            yield f"the {_LISTED} dearest of them:"
    for price in prices:
        yield f"{_line(span, price)}{_share(price.size, requests)}"


def _line(span: Span, price: Price) -> str:
    head = f"{price.size} by the winners of {span.tuned_at}: "
    parts = []
    if price.cost is not None:
        times = f"{price.first_us:.1f} in place of {price.own_us:.1f} us"
        parts.append(f"{price.cost:+.0%} measured ({times}, {_of(price.measured, price)})")
    if price.predicted_cost is not None:
        times = f"{price.predicted_first_us:.1f} in place of {price.predicted_own_us:.1f} us"
        parts.append(
            f"{price.predicted_cost:+.0%} predicted ({times}, {_of(price.predicted, price)})"
        )
    if price.unknown or not price.gemms:
        parts.append(f"not known for {_of(price.unknown, price)}")
    return head + "; ".join(parts)


def _of(count: int, price: Price) -> str:
    return f"{count} of {counted(price.gemms, 'GEMM')}" if price.gemms else "any GEMM"


def _share(size: int, requests: Mapping[int, int]) -> str:
    return (
        f"; {requests[size] / sum(requests.values()):.1%} of the requests"
        if size in requests
        else ""
    )


def _dearness(price: Price) -> float:
    """Return the time lost, measured and predicted, in microseconds."""
    lost = price.first_us - price.own_us
    return lost + price.predicted_first_us - price.predicted_own_us
