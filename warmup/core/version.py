"""The version of warmup, for whoever must not import the root package."""

from typing import Final

__version__: Final = "0.1.0"
