"""warmup: max-autotune ahead of time for torch.compile.

`build` tunes every bucket of a model and writes a table, `install` makes inductor take its choices
from a table, and `audit` counts hits and misses in the logs of servers. `suggest` picks buckets for
observed sizes, `prepare` pads weights as a table says, `compile` serves ranges of sizes, and
`explain` shows which ranges torch.compile makes. Before a server starts, `diagnose` checks the
machine, `check` the table, and `prime` compiles every bucket. `load` reads a table.

Importing warmup has no effects and does not import torch: each name is loaded from its own module
when it is first used.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from warmup.core.text import __version__

if TYPE_CHECKING:
    from warmup.core.errors import (
        AdapterError,
        BuildError,
        BundleError,
        ContradictionWarning,
        ForeignGraphError,
        MissError,
        ModelError,
        ProblemError,
        SettingsError,
        SizeError,
        StaleTableWarning,
        TableError,
        UncoveredError,
        WarmupError,
        WarmupWarning,
    )
    from warmup.diagnostics.doctor import Diagnosis, diagnose
    from warmup.diagnostics.explain import Explanation, explain
    from warmup.models.padding import Prepared, prepare
    from warmup.serving.audit import AuditReport, audit
    from warmup.serving.check import CheckReport, check
    from warmup.serving.compile import (
        CompiledModel,
        CompiledReport,
        compile,  # noqa: A004  the verb of torch
    )
    from warmup.serving.handle import Handle, Report
    from warmup.serving.install import install
    from warmup.serving.prime import prime
    from warmup.table.store import read as load
    from warmup.tuning.build import build
    from warmup.tuning.report import BuildReport
    from warmup.tuning.suggest import Suggestion, suggest

_HOMES = {
    "AdapterError": "core.errors",
    "AuditReport": "serving.audit",
    "BuildError": "core.errors",
    "BuildReport": "tuning.report",
    "BundleError": "core.errors",
    "CheckReport": "serving.check",
    "CompiledModel": "serving.compile",
    "CompiledReport": "serving.compile",
    "ContradictionWarning": "core.errors",
    "Diagnosis": "diagnostics.doctor",
    "Explanation": "diagnostics.explain",
    "ForeignGraphError": "core.errors",
    "Handle": "serving.handle",
    "MissError": "core.errors",
    "ModelError": "core.errors",
    "Prepared": "models.padding",
    "ProblemError": "core.errors",
    "Report": "serving.handle",
    "SettingsError": "core.errors",
    "SizeError": "core.errors",
    "StaleTableWarning": "core.errors",
    "Suggestion": "tuning.suggest",
    "TableError": "core.errors",
    "UncoveredError": "core.errors",
    "WarmupError": "core.errors",
    "WarmupWarning": "core.errors",
    "audit": "serving.audit",
    "build": "tuning.build",
    "check": "serving.check",
    "compile": "serving.compile",
    "diagnose": "diagnostics.doctor",
    "explain": "diagnostics.explain",
    "install": "serving.install",
    "prepare": "models.padding",
    "prime": "serving.prime",
    "suggest": "tuning.suggest",
}

__all__ = [
    "AdapterError",
    "AuditReport",
    "BuildError",
    "BuildReport",
    "BundleError",
    "CheckReport",
    "CompiledModel",
    "CompiledReport",
    "ContradictionWarning",
    "Diagnosis",
    "Explanation",
    "ForeignGraphError",
    "Handle",
    "MissError",
    "ModelError",
    "Prepared",
    "ProblemError",
    "Report",
    "SettingsError",
    "SizeError",
    "StaleTableWarning",
    "Suggestion",
    "TableError",
    "UncoveredError",
    "WarmupError",
    "WarmupWarning",
    "__version__",
    "audit",
    "build",
    "check",
    "compile",
    "diagnose",
    "explain",
    "install",
    "load",
    "prepare",
    "prime",
    "suggest",
]

logging.getLogger("warmup").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name == "load":
        return importlib.import_module("warmup.table.store").read
    if name in _HOMES:
        return getattr(importlib.import_module(f"warmup.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'warmup' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
