"""One meaning for one name in each package folder, and a docstring for what another imports."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from import_graph import folder_of, sources

# Names by which a caller finds the same thing in each of several files with one interface: one file
# for each minor of torch, one for each kernel library; and what Python or torch itself calls so.
SHARED = frozenset({"INTERNALS", "OPERATORS", "PAD_HEURISTICS", "__all__", "_aten", "logger"})


def classes_of(source: str) -> Iterator[str]:
    """Yield the name of each class at the top of *source*, without a leading underscore."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")


def constants_of(source: str) -> Iterator[str]:
    """Yield each name that is assigned at the top of *source*, without a leading underscore."""
    for node in ast.parse(source).body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id not in SHARED:
                yield target.id.lstrip("_")


def shared_names(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return each name that several modules of one package define, as PACKAGE.NAME, with them."""
    places = defaultdict[str, list[str]](list)
    for module, text in texts.items():
        for name in (*classes_of(text), *constants_of(text)):
            places[f"{module.rpartition('.')[0]}.{name}"].append(module)
    return {name: modules for name, modules in places.items() if len(modules) > 1}


def test_no_name_means_two_things_in_a_package() -> None:
    assert shared_names(sources()) == {}


def test_a_planted_second_meaning_is_caught() -> None:
    texts = sources()
    for statement in (
        "class Bucket: ...",
        "class _Bucket: ...",
        "MAX_BUCKETS = 8",
        "_MAX_BUCKETS: int = 8",
    ):
        planted = {**texts, "warmup.core.buckets": f"{texts['warmup.core.buckets']}\n{statement}"}
        assert "warmup.core.buckets" in str(shared_names(planted)), statement


def undocumented(texts: Mapping[str, str]) -> set[str]:
    """Return each function and class without a docstring that another folder imports."""
    imported = set[str]()
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            if folder_of(node.module) != folder_of(module):
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    return imported & {
        f"{module}.{node.name}"
        for module, text in texts.items()
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not ast.get_docstring(node)
    }


def test_what_another_folder_imports_has_a_docstring() -> None:
    texts = sources()
    assert undocumented(texts) == set()
    bare = {
        "warmup.core.bare": "def speak(): ...",
        "warmup.table.x": "from warmup.core.bare import speak",
    }
    assert undocumented({**texts, **bare}) == {"warmup.core.bare.speak"}
