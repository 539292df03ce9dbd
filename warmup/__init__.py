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
    from warmup.diagnostics.suggest import Suggestion, suggest
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
    from warmup.tuning.build import BuildOptions
    from warmup.tuning.model import build_model as build
    from warmup.tuning.report import BuildReport

# The names of each module but core.errors, which has the errors.
_NAMES = {
    "diagnostics.doctor": "Diagnosis diagnose",
    "diagnostics.explain": "Explanation explain",
    "diagnostics.suggest": "Suggestion suggest",
    "models.padding": "Prepared prepare",
    "serving.audit": "AuditReport audit",
    "serving.check": "CheckReport check",
    "serving.compile": "CompiledModel CompiledReport compile",
    "serving.handle": "Handle Report",
    "serving.install": "install",
    "serving.prime": "prime",
    "tuning.build": "BuildOptions",
    "tuning.report": "BuildReport",
}
# Names that their own module calls otherwise.
_RENAMED = {"build": ("tuning.model", "build_model"), "load": ("table.store", "read")}

__all__ = ["AdapterError", "AuditReport", "BuildError", "BuildOptions", "BuildReport"]
__all__ += ["BundleError", "CheckReport", "CompiledModel", "CompiledReport", "ContradictionWarning"]
__all__ += ["Diagnosis", "Explanation", "ForeignGraphError", "Handle", "MissError", "ModelError"]
__all__ += ["Prepared", "ProblemError", "Report", "SettingsError", "SizeError", "StaleTableWarning"]
__all__ += ["Suggestion", "TableError", "UncoveredError", "WarmupError", "WarmupWarning"]
__all__ += ["__version__", "audit", "build", "check", "compile", "diagnose", "explain", "install"]
__all__ += ["load", "prepare", "prime", "suggest"]

logging.getLogger("warmup").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'warmup' has no attribute {name!r}")
    homes = (home for home, names in _NAMES.items() if name in names.split())
    home, own = _RENAMED.get(name) or (next(homes, "core.errors"), name)
    return getattr(importlib.import_module(f"warmup.{home}"), own)


def __dir__() -> list[str]:
    return sorted(__all__)
