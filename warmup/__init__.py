"""warmup: max-autotune ahead of time for torch.compile. Importing it does nothing, and no torch.

`build` tunes every bucket and writes a table, `install` serves from one, `audit` reads what
happened. `suggest` picks buckets for observed sizes. `prepare` pads weights as a table says. Before
a start, `diagnose` looks at the machine, `check` at a table on it, and `prime` compiles every
bucket. Each name is loaded from its own module when it is first used.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warmup.auditing import AuditReport, audit
    from warmup.building import build
    from warmup.checking import CheckReport, check
    from warmup.compiling.compile import compile  # noqa: A004  the verb of torch
    from warmup.compiling.compiled import CompiledModel, CompiledReport
    from warmup.diagnosing import Diagnosis, diagnose
    from warmup.errors import (
        AdapterError,
        BuildError,
        BundleError,
        ContradictionWarning,
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
    from warmup.explaining.explain import Explanation, explain
    from warmup.outcome import BuildReport
    from warmup.preparing.prepare import Prepared, prepare
    from warmup.priming import prime
    from warmup.report import Report
    from warmup.serving import Handle, install
    from warmup.suggesting import Suggestion, suggest
    from warmup.table.store import read as load

__version__ = "0.1.0"

_HOMES = {
    "AdapterError": "errors",
    "AuditReport": "auditing",
    "BuildError": "errors",
    "BuildReport": "outcome",
    "BundleError": "errors",
    "CheckReport": "checking",
    "CompiledModel": "compiling.compiled",
    "CompiledReport": "compiling.compiled",
    "ContradictionWarning": "errors",
    "Diagnosis": "diagnosing",
    "Explanation": "explaining.explain",
    "Handle": "serving",
    "MissError": "errors",
    "ModelError": "errors",
    "Prepared": "preparing.prepare",
    "ProblemError": "errors",
    "Report": "report",
    "SettingsError": "errors",
    "SizeError": "errors",
    "StaleTableWarning": "errors",
    "Suggestion": "suggesting",
    "TableError": "errors",
    "UncoveredError": "errors",
    "WarmupError": "errors",
    "WarmupWarning": "errors",
    "audit": "auditing",
    "build": "building",
    "check": "checking",
    "compile": "compiling.compile",
    "diagnose": "diagnosing",
    "explain": "explaining.explain",
    "install": "serving",
    "prepare": "preparing.prepare",
    "prime": "priming",
    "suggest": "suggesting",
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
