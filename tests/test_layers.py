"""Floors: imports go down or stay, and only warmup/inductor names what is inside torch."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

WORDS = {
    *{"errors", "events", "files", "bucket", "axis", "histogram", "runtime", "choice"},
    *{"kind", "kinds", "problem", "padding", "kernel", "weight", "spelling"},
    *{"method", "samples", "peaks", "trial", "judging", "child"},
    *{"search", "tile", "guard", "regret"},
}
PARTS = {"table", "bundle", "inductor", "measuring"}
VERBS = {
    *{
        "lookup",
        "models",
        "policies",
        "agreement",
        "building",
        "underway",
        "destination",
        "ground",
        "extent",
        "widening",
        "outcome",
        "rebuilding",
        "standin",
        "operands",
    },
    *{"report", "serving", "preparing", "running", "checking", "priming", "diagnosing"},
    *{"auditing", "ledger", "misses", "exposition"},
    *{"tuner", "trialing", "fusing", "inquiry", "precision", "comparing", "benching", "charts"},
    *{"explaining", "elsewhere", "tuning"},
    *{"compiling", "dynamic"},
    *{"suggesting"},
    *{"packing", "unpacking"},
}
EDGES = {"", "__main__", "cli", "startup"}
FLOORS = {name: floor for floor, names in enumerate((WORDS, PARTS, VERBS, EDGES)) for name in names}
# What may be imported from outside the standard library, by the first part of a module's name.
THIRD_PARTY = {
    "table": {"filelock", "platformdirs"},
    "inductor": {"torch", "sympy", "triton"},
    "measuring": {"torch", "platformdirs", "pynvml"},
    "precision": {"torch"},
    "preparing": {"torch"},
    "destination": {"torch"},
    "ground": {"torch"},
    "tuner": {"torch"},
    "tuning": {"torch"},
    "unpacking": {"torch"},
    "serving": {"torch"},
    "trialing": {"torch"},
    "fusing": {"torch"},
    "inquiry": {"torch"},
    "comparing": {"torch"},
    "compiling": {"torch"},
    "dynamic": {"torch"},
    "benching": {"torch", "triton", "liger_kernel", "quack", "helion"},
    "charts": {"matplotlib"},
    "explaining": {"torch"},
    "agreement": {"torch"},
    "models": {"torch"},
    "underway": {"torch"},
    "priming": {"torch"},
    "operands": {"torch"},
    "standin": {"torch"},
    "cli": {"typer", "rich"},
}
NAMES_INSIDE_TORCH = {"inductor", "startup"}  # startup waits for modules that it never imports
INSIDE_TORCH = re.compile(r"torch\._(inductor|dynamo)\b[\w.:]*")

Import = tuple[str, str]


def part_of(module: str) -> str:
    """Return the first part of a module's name below the package, empty for the package."""
    return module.partition(".")[2].partition(".")[0]


def imports_of(source: str, module: str, known: set[str]) -> Iterator[Import]:
    """Yield (module, imported module) for every import at any depth of *source*."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((module, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0, f"{module}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield module, inner if inner in known else node.module


def broken(found: Import) -> str | None:
    """Return what is wrong with one import, None when the floors allow it."""
    module, imported = found
    part, top = part_of(module), imported.partition(".")[0]
    if top != "warmup":
        allowed = {*sys.stdlib_module_names, *THIRD_PARTY.get(part, ())}
        return None if top in allowed else f"{module} imports {imported}"
    other = part_of(imported)
    is_version = other == "" and FLOORS[part] == 2
    is_sibling = FLOORS[part] == FLOORS[other] == 1 and part != other
    if is_version or (FLOORS[other] <= FLOORS[part] and not is_sibling):
        return None
    return f"{module} (floor {FLOORS[part]}) imports {imported} (floor {FLOORS[other]})"


def inside_torch(source: str) -> list[str]:
    """Return what *source* imports, reaches by attributes or spells of what is inside torch."""
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
        found += [name for name in names if INSIDE_TORCH.fullmatch(name)]
    return found


@pytest.fixture(scope="module")
def sources(root: Path) -> dict[str, str]:
    """The source of every module of the package, by its dotted name."""
    found = {}
    for path in sorted((root / "warmup").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def test_every_module_has_a_floor(sources: dict[str, str]) -> None:
    """No module stands outside the four floors, and no floor names a module that is gone."""
    assert {part_of(module) for module in sources} == set(FLOORS)


def test_imports_go_downward(sources: dict[str, str]) -> None:
    """No import at any depth goes up a floor, to the sibling, or to an undeclared package."""
    known = set(sources)
    imports = [found for name in known for found in imports_of(sources[name], name, known)]
    assert [wrong for found in sorted(imports) if (wrong := broken(found))] == []


def test_only_inductor_names_what_is_inside_torch(sources: dict[str, str]) -> None:
    """torch._inductor and torch._dynamo are imported, reached and named in warmup/inductor only."""
    found = {
        name: names
        for name, source in sources.items()
        if part_of(name) not in NAMES_INSIDE_TORCH and (names := inside_torch(source))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("warmup.problem", "from warmup.table import Table"),
        ("warmup.events", "from warmup.table.store import read"),
        ("warmup.errors", "import filelock"),
        ("warmup.errors", "import warmup"),
        ("warmup.runtime", "def f():\n    import torch"),
        ("warmup.table.store", "from warmup.inductor import connect"),
        ("warmup.table.store", "from warmup import inductor"),
        ("warmup.table.store", "def f():\n    import torch"),
        ("warmup.table.merge", "import warmup.lookup"),
        ("warmup.inductor.live", "from warmup.table.codec import decode"),
        ("warmup.inductor.live", "if TYPE_CHECKING:\n    from warmup.table import Table"),
        ("warmup.inductor", "from warmup import serving"),
        ("warmup.inductor.live", "import warmup"),
        ("warmup.lookup", "import torch"),
        ("warmup.auditing", "def f():\n    import torch"),
        ("warmup.serving", "from warmup.cli import main"),
        ("warmup.serving", "from warmup import cli"),
        ("warmup.serving", "import rich"),
        ("warmup.cli.render", "import numpy"),
        ("warmup", "import torch"),
    ],
)
def test_a_planted_violation_is_caught(
    sources: dict[str, str], module: str, statement: str
) -> None:
    """Each kind of forbidden import is told by the checker of this file."""
    (found,) = imports_of(statement, module, set(sources))
    assert broken(found) is not None


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("warmup.building", "import warmup"),
        ("warmup.table.store", "from warmup import errors"),
        ("warmup.table.store", "from warmup.table import Table"),
        ("warmup.inductor.live", "import torch._inductor"),
        ("warmup.serving", "from warmup.lookup import Lookup"),
        ("warmup.cli.app", "from warmup.building import build"),
    ],
)
def test_what_the_floors_allow_is_allowed(
    sources: dict[str, str], module: str, statement: str
) -> None:
    """The checker of this file lets downward imports pass."""
    (found,) = imports_of(statement, module, set(sources))
    assert broken(found) is None


@pytest.mark.parametrize(
    "statement",
    [
        "import torch._inductor.config",
        "from torch._inductor import config",
        "from torch import _inductor",
        "def f(): return torch._dynamo.reset",
        "importlib.import_module('torch._inductor.config')",
    ],
)
def test_a_planted_name_inside_torch_is_caught(statement: str) -> None:
    """Each way to reach what is inside torch is told by the checker of this file."""
    assert inside_torch(statement) != []


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import warmup", {"torch", "triton", "rich", "typer", "filelock", "platformdirs"}),
        (
            "import warmup; [getattr(warmup, name) for name in warmup.__all__]",
            {"torch", "triton", "rich", "typer"},
        ),
        ("import warmup.table.store, warmup.lookup, warmup.auditing", {"torch", "rich", "typer"}),
        ("import warmup.serving, warmup.building, warmup.cli.app", {"torch", "triton", "rich"}),
    ],
)
def test_importing_leaves_the_heavy_packages_alone(
    run_python: Callable[..., subprocess.CompletedProcess[str]], statement: str, unwanted: set[str]
) -> None:
    """A fresh process that imports warmup has not loaded what it may never need."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    loaded = set(json.loads(run_python("-c", code).stdout))
    assert (loaded & unwanted, "warmup" in loaded) == (set(), True)


def test_importing_has_no_effect(
    run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Importing warmup makes no file and prints nothing."""
    done = run_python("-B", "-c", "import warmup", cwd=tmp_path)
    assert (done.stdout, done.stderr, list(tmp_path.iterdir())) == ("", "", [])
