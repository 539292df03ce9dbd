"""`__version__`: the version of warmup, for modules that must not import the root package."""

from typing import Final

__version__: Final = "0.1.0"
