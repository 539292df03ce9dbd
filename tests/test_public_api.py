"""What `import warmup` offers."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import warmup


def test_all_is_sorted_and_what_the_package_offers() -> None:
    """`__all__` is in order and names nothing twice."""
    assert warmup.__all__ == sorted(set(warmup.__all__))
    # All is what the package offers.
    assert dir(warmup) == warmup.__all__
    # Each name can be imported.
    for name in warmup.__all__:
        assert getattr(warmup, name) is not None


def test_type_checkers_see_the_same_names(root: Path) -> None:
    tree = ast.parse((root / "warmup" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    names = [
        alias.asname or alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted([*names, "__version__"]) == warmup.__all__


def test_type_checkers_see_the_same_objects(root: Path) -> None:
    """What TYPE_CHECKING imports from where is what the package hands out at run time."""
    source = (root / "warmup" / "__init__.py").read_text(encoding="utf-8")
    block = re.search(r"^if TYPE_CHECKING:\n((?:    .*\n|\n)+)", source, re.MULTILINE)
    assert block is not None
    seen: dict[str, object] = {}
    exec(inspect.cleandoc("\n" + block[1]), seen)  # noqa: S102  our own imports
    assert [n for n, v in seen.items() if n != "__builtins__" and getattr(warmup, n) is not v] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'warmup' has no attribute 'instal'"):
        _ = warmup.instal


def test_every_public_error_is_a_warmup_error() -> None:
    """Whoever catches WarmupError catches every error that the package names."""
    names = [name for name in warmup.__all__ if name.endswith("Error")]
    kinds = [getattr(warmup, name) for name in names]
    assert [issubclass(kind, warmup.WarmupError) for kind in kinds] == [True] * len(names)


def test_every_public_object_says_what_it_is() -> None:
    objects = [getattr(warmup, name) for name in warmup.__all__ if name != "__version__"]
    assert [value.__name__ for value in objects if not inspect.getdoc(value)] == []
