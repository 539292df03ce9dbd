"""Write the generated parts of the reference pages from the code.

    python docs/reference/generate.py            # write cli.md, errors.md and events.md
    python docs/reference/generate.py --check    # exit code 1 where a page is not up to date

A part stands between ``<!-- NAME -->`` and ``<!-- end -->``; NAME is a function of `PARTS`. What a
part says is written beside the code: in the help of a command, the docstring of an error class, the
docstring under a member of an enumeration.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from warmup.cli import streams as exit_codes
from warmup.cli.app import app
from warmup.cli.build import SETTINGS
from warmup.core import errors

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "warmup"
PAGES = ("cli", "errors", "events")
_PART = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_COMMON = {"quiet", "verbose", "help", "version"}
_USUAL = 3  # exit code of an error
_SHARED_BY = 4  # commands that have an option in the same words, to list it once


def sources() -> Iterator[ast.Module]:
    """Yield the syntax tree of every module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def documented(module: str, name: str) -> dict[str, tuple[str, str]]:
    """Return the members of the enumeration *name*: value and docstring, by name."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    members: dict[str, tuple[str, str]] = {}
    for node, after in zip(found.body, [*found.body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = " ".join(str(after.value.value).split())
            assert text, f"{name}.{node.targets[0].id} has no docstring"
            members[node.targets[0].id] = (ast.literal_eval(node.value), text)
    return members


def commands() -> str:
    """Return every command: its help, its own options, and the names of the shared ones."""
    found = [
        (path, command)
        for path, command in _commands("warmup", get_command(app))
        if not getattr(command, "commands", None)
    ]
    rows_of = {path: {o.opts[0]: _option(o) for o in _options(command)} for path, command in found}
    counts = Counter(row for rows in rows_of.values() for row in rows.values())
    shared = [row for row, count in counts.items() if count >= _SHARED_BY]
    lines = ["## Shared options", "", "These mean the same in each command that lists them.", ""]
    lines += [*shared, ""]
    for path, command in found:
        words = " ".join((command.help or "").split("\f")[0].split())
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        usage = " ".join(_argument(each) for each in arguments)
        lines += [f"## {path.removeprefix('warmup ')}", "", f"    {path} {usage}".rstrip(), ""]
        lines += [words, ""]
        names = [f"`{name}`" for name, row in rows_of[path].items() if row in shared]
        if rows := [row for row in rows_of[path].values() if row not in shared]:
            lines += [*rows, ""]
        if names:
            lines += [f"Shared: {', '.join(names)}.", ""]
        if path == "warmup build":
            lines += ["Settings of `--set NAME=VALUE`:", ""]
            lines += [f"- `{name}`: {meaning}." for name, (_, meaning) in SETTINGS.items()] + [""]
        if command.epilog:
            lines += [f"    {line.strip()}" for line in _examples(command.epilog)] + [""]
    return "\n".join(lines)


def _options(command: Any) -> list[Any]:
    options = [each for each in command.params if each.param_type_name == "option"]
    return [each for each in options if each.name not in _COMMON]


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(f"{path} {name}", inner)


def _argument(parameter: Any) -> str:
    name = parameter.metavar or str(parameter.name).upper()
    return str(name) if name.startswith("[") or parameter.required else f"[{name}]"


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    is_named = default not in (None, False, (), []) and not callable(default)
    shown = f" (`{default}`)" if is_named else ""
    return f"- {names}{shown}: {_cell(parameter.help or '')}"


def _examples(epilog: str) -> list[str]:
    return [line for line in epilog.splitlines() if line.strip().startswith("warmup ")]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def error_classes() -> str:
    """Return every error and warning: base, meaning, and an exit code other than 3."""
    rows: list[str] = []
    for root in (errors.WarmupError, errors.WarmupWarning):
        for kind, depth in _tree(root, 0):
            code = getattr(kind, "exit_code", _USUAL)
            shown = "" if code == _USUAL else f" (exit code {code})"
            text = (kind.__doc__ or "").partition("\n\n")[0]
            rows.append(f"{'  ' * depth}- `{kind.__name__}`{shown}: {_cell(text)}")
    return "\n".join(rows) + "\n"


def _tree(kind: type, depth: int) -> Iterator[tuple[type, int]]:
    yield kind, depth
    subclasses: list[type] = kind.__subclasses__()
    for inner in subclasses:
        yield from _tree(inner, depth + 1)


def codes() -> str:
    """Return every exit code that stands in `warmup.cli.streams`, with its comment."""
    text = Path(exit_codes.__file__).read_text(encoding="utf-8")
    rows = ["| Code | Meaning |", "| --- | --- |", "| 0 | success; for `check`: ready |"]
    for value, comment in re.findall(r"^EXIT_\w+(?:: \w+)? = (\d+)  # (.+)$", text, re.MULTILINE):
        rows.append(f"| {value} | {_cell(comment)} |")
    return "\n".join(rows) + "\n"


def events() -> str:
    """Return every event with the fields that the package gives it when it is emitted."""
    names = documented("core/events.py", "EventName")
    fields: dict[str, set[str]] = {name: set() for name in names}
    for tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "emit":
                name = ast.unparse(node.args[0]).removeprefix("EventName.") if node.args else ""
                fields.get(name, set()).update(word.arg for word in node.keywords if word.arg)
    rows = ["| Event | When | Fields |", "| --- | --- | --- |"]
    for name, (value, text) in names.items():
        listed = ", ".join(f"`{each}`" for each in sorted(fields[name]))
        rows.append(f"| `{value}` | {_cell(text)} | {listed} |")
    return "\n".join(rows) + "\n"


def reasons() -> str:
    """Return every reason of a miss, and what to do."""
    from warmup.core.errors import MissReason

    rows = ["| Reason | Meaning | What to do |", "| --- | --- | --- |"]
    for value, text in documented("core/errors.py", "MissReason").values():
        rows.append(f"| `{value}` | {_cell(text)} | {_cell(MissReason(value).advice)} |")
    return "\n".join(rows) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (commands, error_classes, codes, events, reasons)
}


def fill(text: str) -> str:
    """Return *text* with each of its parts written anew."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}{found[3]}", text)


def main() -> None:
    """Write the pages, or check them."""
    paths = [HERE / f"{name}.md" for name in PAGES]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    filled = {path: fill(text) for path, text in texts.items()}
    if "--check" in sys.argv:
        sys.exit(filled != texts)
    for path, text in filled.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
