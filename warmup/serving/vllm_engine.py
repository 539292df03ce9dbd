"""`vllm_command`: a program that starts vLLM's engine, which compiles its graphs, and ends.

The program is this module, run in the environment of the engine: vLLM compiles a model's pieces for
its ranges and for each of ``compile_sizes`` while it starts, before any request. Weights are random
(vLLM's load format ``dummy``), so a folder with a config is enough.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warmup.core.error_text import printable
from warmup.core.errors import SettingsError

_ENGINE_CONFIG: Final = "config.json"
_COMPILATION: Final = "compilation_config"
_STATIC_SIZES: Final = "compile_sizes"
_OWN: Final = ("model", "load_format", "tensor_parallel_size")


def vllm_command(
    model: str | Path,
    sizes: Sequence[int],
    *,
    ranks: int = 1,
    engine: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the command that starts the engine of *model* for the static *sizes*, and ends.

    *model* is a folder in the form of transformers, or the ``config.json`` in it. *ranks* is the
    engine's tensor parallel size: each rank is a process with its share of every layer. *engine*
    are other arguments of vLLM's `LLM`, such as ``max_model_len`` or ``dtype``.

    Raises:
        SettingsError: *model* has no config, a size is not positive or given twice, vLLM is not
            installed here, *engine* has an argument that is named otherwise here, or there are
            fewer GPUs than *ranks*.
    """
    folder = _folder_of(Path(model))
    if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise SettingsError(
            f"compile sizes {_spell(sizes)} are not positive numbers of tokens, each once",
            "name those that the server will be started with, such as 1,8,64",
        )
    if ranks < 1:
        raise SettingsError(f"a tensor parallel size of {ranks}", "name at least 1")
    given = dict(engine or {})
    if refused := [name for name in _OWN if name in given]:
        raise SettingsError(
            f"{', '.join(refused)} cannot be among the arguments of the engine",
            "the model and the tensor parallel size are named apart, and weights are random",
        )
    compilation = given.pop(_COMPILATION, {})
    if not isinstance(compilation, Mapping) or _STATIC_SIZES in compilation:
        raise SettingsError(
            f"{_COMPILATION} is not an object, or has {_STATIC_SIZES}", "name the sizes apart"
        )
    if importlib.util.find_spec("vllm") is None:
        raise SettingsError(
            f"vLLM is not installed for {sys.executable}",
            "install warmup where the engine is installed, and build there",
        )
    _check_gpus(ranks)
    arguments = {
        "skip_tokenizer_init": True,
        **given,
        "model": str(folder),
        "load_format": "dummy",
        "tensor_parallel_size": ranks,
        _COMPILATION: {**compilation, _STATIC_SIZES: sorted(sizes)},
    }
    return [sys.executable, "-m", __name__, json.dumps(arguments)]


def is_on_gpu() -> bool:
    """Return whether an engine that is started here would run on a GPU."""
    import torch

    return torch.cuda.is_available()


def _folder_of(model: Path) -> Path:
    folder = model.parent if model.name == _ENGINE_CONFIG else model
    if not (folder / _ENGINE_CONFIG).is_file():
        raise SettingsError(
            f"{printable(str(model))} has no {_ENGINE_CONFIG}",
            "name a folder of a model of transformers, or its config.json; it needs no weights",
        )
    return folder.absolute()


def _spell(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes)) or "none"


def _check_gpus(ranks: int) -> None:
    """Raise where the machine has GPUs, and fewer than *ranks*; on a CPU ranks are processes."""
    import torch

    found = torch.cuda.device_count()
    if 0 < found < ranks:
        raise SettingsError(
            f"a tensor parallel size of {ranks} needs {ranks} GPUs, and this machine has {found}",
            "build on a machine like that which will serve",
        )


def _main() -> None:
    """Start the engine, which compiles everything, and let it end."""
    import vllm  # where the engine is installed: the command has looked for it

    vllm.LLM(**json.loads(sys.argv[1]))


if __name__ == "__main__":
    _main()
