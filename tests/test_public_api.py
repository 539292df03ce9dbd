"""What `import warmup` offers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import warmup


def test_all_is_sorted_and_what_the_package_offers() -> None:
    assert dir(warmup) == warmup.__all__ == sorted(set(warmup.__all__))


def test_type_checkers_see_the_same_objects(root: Path) -> None:
    """What TYPE_CHECKING imports from where is what the package hands out at run time."""
    source = (root / "warmup" / "__init__.py").read_text(encoding="utf-8")
    block = re.search(r"^if TYPE_CHECKING:\n((?:    .*\n|\n)+)", source, re.MULTILINE)
    assert block is not None
    seen: dict[str, object] = {}
    exec(inspect.cleandoc("\n" + block[1]), seen)  # noqa: S102  our own imports
    del seen["__builtins__"]
    assert sorted([*seen, "__version__"]) == warmup.__all__
    assert [name for name, value in seen.items() if getattr(warmup, name) is not value] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'warmup' has no attribute 'instal'"):
        _ = warmup.instal


def test_every_public_object_says_what_it_is() -> None:
    """Whoever catches WarmupError catches every error that the package names."""
    for name in set(warmup.__all__) - {"__version__"}:
        value = getattr(warmup, name)
        assert inspect.getdoc(value), name
        assert not name.endswith("Error") or issubclass(value, warmup.WarmupError), name
