"""`register`: the entry point that vLLM and SGLang call in each of their processes.

It has the name ``warmup`` in their groups ``vllm.general_plugins`` and ``sglang.srt.plugins``. The
settings are those that `warmup run` passes on in the environment.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from warmup.core.errors import SettingsError, WarmupError
from warmup.core.events import NO_TABLE
from warmup.serving.handle import installed
from warmup.serving.startup.sitecustomize import TableStartup
from warmup.table.cache_tags import cache_tag
from warmup.table.codec import digest_of
from warmup.table.discovery import find
from warmup.table.on_miss import OnMiss

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
        _check_installed(digest)
        _enter_vllm_key(_tag_of(digest, on_miss))
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


def _check_installed(digest: str) -> None:
    handle = installed()
    if handle is not None and handle.digest != digest:
        raise SettingsError(
            f"a table with the digest {handle.digest[:16]} is installed already, and WARMUP_TABLE "
            f"has the digest {digest[:16]}",
            "name the same table in both places, or unset WARMUP_TABLE",
        )


def _tag_of(digest: str, on_miss: str) -> str:
    return cache_tag(digest, tunes=on_miss == OnMiss.TUNE)


def _enter_vllm_key(tag: str) -> None:
    engine = sys.modules.get("vllm.envs")
    if engine is not None:
        engine.environment_variables.setdefault(VLLM_KEY, lambda: _tag_in_use(tag))


def _tag_in_use(tag: str) -> str:
    handle = installed()
    return tag if handle is None or handle.refused is None else NO_TABLE
