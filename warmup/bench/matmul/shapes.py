"""`Shape`: a matmul written M x K x N, and the ten shapes that are compared by default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import SettingsError

_MATMUL_TEXT: Final = re.compile(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})x([1-9][0-9]{0,6})")


@dataclass(frozen=True, slots=True)
class Shape:
    """A matmul of an M x K and a K x N matrix, both row-major: ``128x9216x4096``."""

    m: int
    k: int
    n: int

    def __str__(self) -> str:
        return f"{self.m}x{self.k}x{self.n}"

    @property
    def dims(self) -> str:
        """The shape in the text form of ``--dims``."""
        return f"m={self.m};k={self.k};n={self.n}"

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition for each step of K."""
        return 2 * self.m * self.k * self.n

    @property
    def elements(self) -> int:
        """Elements read or written when each operand is touched once."""
        return self.m * self.k + self.k * self.n + self.m * self.n


# The models that the shapes come from, as in torch's own microbenchmark inductor_mm.py.
MODELS: Final[Mapping[str, tuple[Shape, ...]]] = {
    "AlexNet": (Shape(128, 9216, 4096), Shape(128, 4096, 4096), Shape(128, 4096, 1000)),
    "BERT": (Shape(2048, 768, 768), Shape(2048, 768, 3072), Shape(2048, 3072, 768)),
    "GPT-2": (
        Shape(1024, 768, 768),
        Shape(1024, 768, 3072),
        Shape(1024, 3072, 768),
        Shape(1024, 768, 2304),
    ),
}
CLASSIC: Final = tuple(shape for shapes in MODELS.values() for shape in shapes)


def model_of(shape: Shape) -> str | None:
    """Return the model that *shape* comes from, None for a shape that is none of the ten."""
    return next((name for name, shapes in MODELS.items() if shape in shapes), None)


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return the shapes in ``"128x9216x4096,64x64x64"``, in the order given.

    Raises:
        SettingsError: a shape is malformed or repeated.
    """
    shapes: list[Shape] = []
    for word in text.split(","):
        match = _MATMUL_TEXT.fullmatch(word.strip())
        if match is None:
            raise SettingsError(
                f"--shapes: {word.strip()!r} is not MxKxN",
                "write --shapes 128x9216x4096,2048x768x768, each size below ten million",
            )
        m, k, n = map(int, match.groups())
        if Shape(m, k, n) in shapes:
            raise SettingsError(f"--shapes: {word.strip()} is given twice", "name each shape once")
        shapes.append(Shape(m, k, n))
    return tuple(shapes)
