"""A decoder and an encoder that nobody here wrote, tiny, on CPU; the other models are next door."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import check

pytest.importorskip("transformers", reason="the extra test is not installed")

NAMES = ("qwen2", "bert")


@pytest.fixture(scope="module")
def both(build_and_serve: Any) -> Any:
    return build_and_serve(*NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_transformers_is_served_from_its_table_alone(both: Any, name: str) -> None:
    """Each decision that the build recorded is a hit, nothing misses, and nothing is measured."""
    built, served = both
    check(built[name], served[name])
