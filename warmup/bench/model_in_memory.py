"""`model_in_memory`: a model made here, with a name that `build` can import it by."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from torch import nn

_MODULE_NAME: Final = "warmup_bench_model"


@contextlib.contextmanager
def model_in_memory(
    model: nn.Module, names: Sequence[str], inputs: Callable[..., Any]
) -> Iterator[str]:
    """Yield the target of *model*, whose example inputs are *inputs* of the dims called *names*."""

    def example_inputs(**sizes: int) -> Any:
        return inputs(*(sizes[name] for name in names))

    example_inputs.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    module = types.ModuleType(_MODULE_NAME)
    vars(module).update(model=model, example_inputs=example_inputs)
    sys.modules[_MODULE_NAME] = module
    try:
        yield f"{_MODULE_NAME}:model"
    finally:
        del sys.modules[_MODULE_NAME]
