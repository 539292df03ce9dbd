"""The house: one ordered list of folders, imports downward only, no circle, torch where it may be.

The list stands in `import_graph.FOLDERS`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from import_graph import (
    DOORS,
    FOLDERS,
    PAGE,
    SIBLINGS,
    START_UP,
    circles,
    drawing,
    folder_of,
    graph_of,
    imports_of,
    page_with,
    sources,
)
from own_processes import run_python

# What may be imported from outside the standard library; the longest prefix of a module counts.
THIRD_PARTY: Mapping[str, frozenset[str]] = {
    "core": frozenset({"filelock", "msgspec"}),
    "table": frozenset({"msgspec", "platformdirs"}),
    "inductor": frozenset({"torch", "sympy", "triton"}),
    "measuring": frozenset({"torch", "msgspec", "platformdirs", "pynvml"}),
    "models": frozenset({"torch"}),
    "models.pretrained": frozenset({"torch", "transformers"}),
    "serving": frozenset({"torch"}),
    "serving.audit": frozenset({"msgspec"}),
    "metrics": frozenset({"prometheus_client"}),
    "serving.engines": frozenset({"torch", "vllm"}),
    "tuning": frozenset({"torch", "msgspec"}),
    "tuning.ray_build": frozenset({"ray", "msgspec"}),
    "diagnostics": frozenset({"torch"}),
    "diagnostics.suggest": frozenset({"msgspec"}),
    "bench": frozenset({"torch"}),
    "bench.cells": frozenset({"torch", "matplotlib"}),
    "bench.attribution": frozenset({"torch", "msgspec"}),
    "bench.trace": frozenset({"torch", "msgspec"}),
    "cli": frozenset({"typer", "rich"}),
}
# The start-up file of `warmup run` waits for modules of torch that it never imports.
NAMES_INTERNALS = ("warmup.inductor", "warmup.serving.startup")
# Modules of one row kind, by the start of their names. They may import its words; every other
# module handles rows of all kinds through those of OF_EVERY_KIND.
OF_ONE_KIND = (
    *("warmup.inductor.gemm.", "warmup.inductor.launch.", "warmup.inductor.pad_mm"),
    *("warmup.inductor.reduction", "warmup.inductor.selections", "warmup.keys"),
    "warmup.inductor.kernel_plans",
    *("warmup.models.rebuilt", "warmup.models.padd", "warmup.models.weight_groups"),
    # These run a bucket once more with padded weights, the kind `weight`.
    *("warmup.tuning.session", "warmup.tuning.weights"),
    "warmup.bench.attribution",
    "warmup.tuning.exchange",  # torch's files, of GEMMs
    *("warmup.tuning.trials", "warmup.tuning.tuner", "warmup.tuning.worker"),  # GEMM trials
)
OF_EVERY_KIND = frozenset(
    {
        *("warmup.keys.kind", "warmup.keys.registry"),
        "warmup.keys.question",  # `Answers`, which every kind's hooks ask
    }
)
# Each folder on the left imports none of the folders and modules on the right.
WALLS: Mapping[str, tuple[str, ...]] = {
    "core": ("bench", "cli", "diagnostics", "tuning.ray_build", "serving.engines"),
    "keys": ("bench", "cli", "diagnostics", "tuning.ray_build", "serving.engines"),
    "table": ("bench", "cli", "diagnostics", "tuning.ray_build", "serving.engines"),
    "inductor": ("bench", "cli", "diagnostics", "tuning.ray_build", "serving.engines"),
    "serving": ("tuning",),
}
INTERNALS = re.compile(r"torch\._(inductor|dynamo)\b[\w.:]*")


def allowed_outside(module: str) -> frozenset[str]:
    parts = module.split(".")[1:]
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((THIRD_PARTY[name] for name in prefixes if name in THIRD_PARTY), frozenset())


def fault_of(module: str, imported: str) -> str | None:
    """Return what is wrong with *module* importing *imported*, None where it is allowed."""
    top = imported.partition(".")[0]
    if top != "warmup":
        fine = {*sys.stdlib_module_names, *allowed_outside(module)}
        return None if top in fine else f"{module} imports {imported}"
    own, other = folder_of(module), folder_of(imported)
    if own in DOORS or own == other or module == START_UP:
        return None
    if other in DOORS or FOLDERS.index(other) > FOLDERS.index(own):
        return f"{module} imports {imported}, which stands above it"
    if {own, other} <= SIBLINGS:
        return f"{module} imports {imported}, which stands beside it"
    return None


def faults(texts: Mapping[str, str]) -> list[str]:
    known = frozenset(texts)
    found = [
        fault
        for name, text in texts.items()
        for imported in imports_of(text, name, known)
        if (fault := fault_of(name, imported)) is not None
    ]
    return [*found, *(f"circle: {', '.join(circle)}" for circle in circles(graph_of(texts)))]


def internals_named(source: str) -> list[str]:
    """Return each internal of torch that *source* imports, reaches by attributes or spells."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        else:
            continue
        found += [name for name in names if INTERNALS.fullmatch(name)]
    return found


def words_of_one_kind(module: str, imported: frozenset[str]) -> list[str]:
    """Return which modules of a single row kind's words *module* imports and should not."""
    if module.startswith(OF_ONE_KIND):
        return []
    return sorted(name for name in imported - OF_EVERY_KIND if name.startswith("warmup.keys."))


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return sources()


def test_the_folders_are_those_of_the_list(root: Path) -> None:
    """warmup/ holds the folders of the list, at most 13, and nothing else beside its files.

    Importing a folder named like a public function would replace the function.
    """
    import warmup

    names = {path.name for path in (root / "warmup").iterdir() if path.name != "__pycache__"}
    assert names == {*FOLDERS, "__init__.py", "__main__.py", "metrics.py", "py.typed"}
    assert len(FOLDERS) <= 13
    assert {*FOLDERS} & {*warmup.__all__} == set()


def test_imports_go_downward_without_circles(texts: dict[str, str]) -> None:
    assert faults(texts) == []


def test_no_import_passes_a_wall(texts: dict[str, str]) -> None:
    """Serving starts no building, and the lower folders know no bench, no engine and no cluster."""
    graph = graph_of(texts)
    passed = [
        f"{name} imports {other}"
        for name, imported in graph.items()
        if name != START_UP
        for wall in WALLS.get(folder_of(name), ())
        for other in imported
        if f"{other}.".startswith(f"warmup.{wall}.")
    ]
    assert passed == []


def test_only_inductor_names_internals_of_torch(texts: dict[str, str]) -> None:
    found = {
        name: names
        for name, text in texts.items()
        if not name.startswith(NAMES_INTERNALS) and (names := internals_named(text))
    }
    assert found == {}


def test_only_its_own_modules_know_a_row_kind(texts: dict[str, str]) -> None:
    found = {name: words_of_one_kind(name, imported) for name, imported in graph_of(texts).items()}
    assert {name: words for name, words in found.items() if words} == {}


def test_a_planted_row_kind_is_caught(texts: dict[str, str]) -> None:
    for statement in (
        "from warmup.keys.pad import AS_IS",
        "def f():\n    from warmup.keys import gemm",
    ):
        imported = frozenset(imports_of(statement, "warmup.table.lookup", frozenset(texts)))
        assert words_of_one_kind("warmup.table.lookup", imported) != [], statement


def test_a_planted_import_is_caught(texts: dict[str, str]) -> None:
    """An import upward, to a sibling, or of a package that the folder must do without fails."""
    for module, statement in (
        ("warmup.keys.gemm", "from warmup.table import Table"),
        ("warmup.core.events", "from warmup.table.store import read"),
        ("warmup.core.errors", "import platformdirs"),
        ("warmup.core.errors", "import warmup"),
        ("warmup.core.device", "def f():\n    import torch"),
        ("warmup.table.store", "from warmup.inductor import connect"),
        ("warmup.table.store", "from warmup import inductor"),
        ("warmup.table.store", "def f():\n    import torch"),
        ("warmup.table.lookup", "import torch"),
        ("warmup.table.merge", "import warmup.measuring.selection"),
        ("warmup.inductor.adapter", "from warmup.table.codec import decode"),
        ("warmup.inductor.adapter", "if TYPE_CHECKING:\n    from warmup.table import Table"),
        ("warmup.inductor.adapter", "from warmup import serving"),
        ("warmup.inductor.adapter", "import warmup"),
        ("warmup.serving.audit", "def f():\n    import torch"),
        ("warmup.serving.install", "from warmup.tuning.session import BuildSession"),
        ("warmup.serving.install", "from warmup.cli import main"),
        ("warmup.serving.install", "import rich"),
        ("warmup.bench.cells", "import ray"),
        ("warmup.cli.output", "import numpy"),
        ("warmup.cli.output", "def f():\n    import torch"),
        ("warmup", "import torch"),
    ):
        (imported,) = imports_of(statement, module, frozenset(texts))
        assert fault_of(module, imported) is not None, (module, statement)


def test_a_planted_circle_is_caught(texts: dict[str, str]) -> None:
    """Two modules of one folder that import each other fail, however the import is written."""
    for statement in (
        "from warmup.core.files import replace_file",
        "def f():\n    from warmup.core.files import replace_file",
        "if TYPE_CHECKING:\n    from warmup.core.files import replace_file",
    ):
        back = f"{texts['warmup.core.files']}\nfrom warmup.core.errors import WarmupError\n"
        forth = f"{texts['warmup.core.errors']}\n{statement}\n"
        planted = {**texts, "warmup.core.files": back, "warmup.core.errors": forth}
        assert faults(planted) == ["circle: warmup.core.errors, warmup.core.files"], statement


def test_a_downward_import_is_allowed(texts: dict[str, str]) -> None:
    for module, statement in (
        ("warmup.table.store", "from warmup.core import errors"),
        ("warmup.table.store", "from warmup.table import Table"),
        ("warmup.inductor.adapter", "import torch._inductor"),
        ("warmup.serving.install", "from warmup.table.lookup import Lookup"),
        ("warmup.diagnostics.explain", "import torch"),
        ("warmup.cli.app", "from warmup.tuning.build import build"),
    ):
        (imported,) = imports_of(statement, module, frozenset(texts))
        assert fault_of(module, imported) is None, (module, statement)


def test_a_planted_internal_is_caught() -> None:
    for statement in (
        "import torch._inductor.config",
        "from torch._inductor import config",
        "from torch import _inductor",
        "def f(): return torch._dynamo.reset",
        "importlib.import_module('torch._inductor.config')",
    ):
        assert internals_named(statement) != []


def test_the_drawing_is_that_of_the_code(texts: dict[str, str]) -> None:
    """docs/explanation/layers.md has the drawing that `python tests/import_graph.py` makes."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with(page, drawing(texts))


def test_importing_leaves_the_heavy_packages_alone() -> None:
    for statement, unwanted in (
        ("import warmup", {"torch", "triton", "rich", "typer", "platformdirs"}),
        (
            "import warmup; [getattr(warmup, name) for name in warmup.__all__]",
            {"torch", "triton", "rich", "typer"},
        ),
        (
            "import warmup.table.store, warmup.table.lookup, warmup.serving.audit",
            {"torch", "rich", "typer"},
        ),
        (
            "import warmup.serving.install, warmup.tuning.build, warmup.cli.app",
            {"torch", "triton", "rich"},
        ),
    ):
        code = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
        loaded = set(json.loads(run_python("-c", code).stdout))
        assert (loaded & unwanted, "warmup" in loaded) == (set(), True), (statement, unwanted)


def test_importing_has_no_effect(tmp_path: Path) -> None:
    done = run_python("-B", "-c", "import warmup", cwd=tmp_path)
    assert (done.stdout, done.stderr, list(tmp_path.iterdir())) == ("", "", [])
