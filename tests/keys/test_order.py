"""The order of keys in lists."""

from __future__ import annotations

from sample_tables import make_key

from warmup.keys.kind import natural_order
from warmup.keys.registry import ingredients_of


def test_sizes_are_in_numeric_order() -> None:
    """Sorted keys put m=16 before m=128."""
    keys = map(make_key, ("128", "16", "16..128", "2"))
    sizes = [ingredients_of(key)["m"] for key in sorted(keys, key=natural_order)]
    assert sizes == ["2", "16", "16..128", "128"]
