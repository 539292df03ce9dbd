"""`compile_into_cache`: what a compile worker of inductor does for one launch config.

Workers import this module, so it imports as little as it can.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HEURISTICS_LOGGER = "torch._inductor.runtime.triton_heuristics"


def compile_into_cache(
    name: str, path: str, config: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """Compile the kernel *name* in the file *path* with one *config* into Triton's cache.

    A config that does not compile leaves nothing there: the parent compiles it again, and finds out
    why. *environment* has the folders of the caches, which may change while the worker lives.
    """
    os.environ.update(environment)
    from torch._inductor.runtime.compile_tasks import _reload_python_module, _set_triton_ptxas_path
    from torch._inductor.runtime.triton_heuristics import config_from_dict

    _set_triton_ptxas_path()
    logging.getLogger(_HEURISTICS_LOGGER).setLevel(logging.CRITICAL)  # the parent has the reason
    # A worker's own kernel may be compiled already, and sent away without its function.
    module = _reload_python_module(Path(path).stem, path, set_sys_modules=False)
    kernel: Any = getattr(module, name)
    kernel.configs = [config_from_dict(dict(config))]
    with contextlib.suppress(Exception):  # a compiler may raise anything; the parent sees it again
        kernel.precompile(warm_cache_only=True)
