"""`register`: the entry point that vLLM and SGLang call in each of their processes.

It has the name ``warmup`` in their groups ``vllm.general_plugins`` and ``sglang.srt.plugins``. The
settings are those that `warmup run` passes on in the environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from warmup.core.errors import SettingsError, WarmupError
from warmup.core.events import NO_TABLE
from warmup.core.text import printable
from warmup.serving.handle import installed
from warmup.serving.startup.sitecustomize import TableStartup
from warmup.table.codec import digest_of
from warmup.table.lookup import cache_tag
from warmup.table.schema import OnMiss
from warmup.table.store import find

# vLLM makes every entry of `vllm.envs.environment_variables` a part of the keys of its compiled
# graphs, and shows them in cache_key_factors.json (vllm/envs.py, compile_factors).
VLLM_KEY: Final = "warmup_table"


def register() -> None:
    """Install the table of ``WARMUP_TABLE`` before this process's first compile; nothing without.

    A process that compiles nothing imports no inductor and touches no GPU. vLLM's cache keys have
    the table's digest from now on. A second call, and a call under `warmup run`, adds nothing.

    A table that cannot be read is reported on stderr and in ``WARMUP_AUDIT_LOG``, and the process
    goes on without it; with ``WARMUP_ON_MISS=strict`` it is an error, here and in each compile.

    Raises:
        SettingsError: a table with another digest is installed.
        TableError: with ``strict``, the table is missing or damaged.
    """
    if not os.environ.get("WARMUP_TABLE"):
        return
    on_miss = os.environ.get("WARMUP_ON_MISS", "fallback")
    uncovered = os.environ.get("WARMUP_UNCOVERED", "library")
    startup = TableStartup(on_miss, uncovered, "warmup plugin")
    try:
        digest = digest_of(find(None, os.environ).table)
        handle = installed()
        if handle is not None and handle.digest != digest:
            raise SettingsError(
                f"a table with the digest {handle.digest[:16]} is installed already, and "
                f"WARMUP_TABLE has the digest {digest[:16]}",
                "name the same table in both places, or unset WARMUP_TABLE",
            )
        if (engine := sys.modules.get("vllm.envs")) is not None:
            tag = cache_tag(digest)
            engine.environment_variables.setdefault(VLLM_KEY, lambda: _tag_in_use(tag))
    except (WarmupError, OSError) as error:
        startup.report_failure(error)
        if on_miss == OnMiss.STRICT:
            _start(startup)  # an engine may go on after an error of a plugin
        if on_miss == OnMiss.STRICT or isinstance(error, SettingsError):
            raise
        return
    _start(startup)


def _start(startup: TableStartup) -> None:
    # By name: `warmup run` has the same class under another module's name.
    if not any(type(finder).__name__ == TableStartup.__name__ for finder in sys.meta_path):
        startup.start()


def _tag_in_use(tag: str) -> str:
    handle = installed()
    return tag if handle is None or handle.refused is None else NO_TABLE


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
    are other arguments of vLLM's `LLM`, such as ``max_model_len`` or ``dtype``. A SettingsError
    where one of them cannot be used, or vLLM is not installed here.
    """
    folder = Path(model).parent if Path(model).name == _ENGINE_CONFIG else Path(model)
    if not (folder / _ENGINE_CONFIG).is_file():
        raise SettingsError(
            f"{printable(str(model))} has no {_ENGINE_CONFIG}",
            "name a folder of a model of transformers, or its config.json; it needs no weights",
        )
    if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
        spelled = ",".join(map(str, sizes)) or "none"
        raise SettingsError(
            f"compile sizes {spelled} are not positive numbers of tokens, each once",
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
    import torch

    if 0 < (found := torch.cuda.device_count()) < ranks:  # on a CPU ranks are processes
        raise SettingsError(
            f"a tensor parallel size of {ranks} needs {ranks} GPUs, and this machine has {found}",
            "build on a machine like that which will serve",
        )
    arguments = {
        "skip_tokenizer_init": True,
        **given,
        "model": str(folder.absolute()),
        "load_format": "dummy",
        "tensor_parallel_size": ranks,
        _COMPILATION: {**compilation, _STATIC_SIZES: sorted(sizes)},
    }
    return [sys.executable, "-m", __name__, json.dumps(arguments)]


def is_on_gpu() -> bool:
    """Return whether an engine that is started here would run on a GPU."""
    import torch

    return torch.cuda.is_available()


def _main() -> None:
    import vllm  # where the engine is installed: the command has looked for it

    vllm.LLM(**json.loads(sys.argv[1]))


if __name__ == "__main__":
    _main()
