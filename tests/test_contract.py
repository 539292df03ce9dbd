"""The public contract: what users, scripts and log readers rely on, against a committed list.

`python tests/test_contract.py` prints the contract of the checkout. A difference is a change that
users see: it needs a CHANGELOG line, and the committed list is changed on purpose.
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMITTED = Path(__file__).with_name("contract.json")
_PLACE = re.compile(r"0x[0-9a-f]+")


def _parameters(function: Callable[..., Any]) -> list[str]:
    return [
        f"{parameter.kind.description} {parameter.name}"
        + ("" if parameter.default is parameter.empty else f" = {_default(parameter.default)}")
        for parameter in inspect.signature(function).parameters.values()
    ]


def _default(value: object) -> str:
    return _PLACE.sub("", str(value) if isinstance(value, enum.Enum) else repr(value))


def _public_names() -> dict[str, Any]:
    """Return each public name: parameters of a function; bases and public members of a class."""
    import warmup
    from warmup import metrics

    found: dict[str, Any] = {"metrics": sorted(metrics.__all__)}
    for name in warmup.__all__:
        thing = getattr(warmup, name)
        if inspect.isclass(thing):
            ours = [base for base in thing.__mro__ if base.__module__.startswith("warmup")]
            members = {member for base in ours for member in (*vars(base), *_annotated(base))}
            public = sorted(member for member in members if not member.startswith("_"))
            found[name] = {"bases": [base.__name__ for base in ours[1:]], "members": public}
        else:
            found[name] = _parameters(thing) if callable(thing) else str(thing)
    return found


def _annotated(kind: type) -> list[str]:
    return list(getattr(kind, "__annotations__", {}))


def _commands() -> dict[str, list[str]]:
    """Return each command with its arguments and options as click lists them, but for typer's."""
    from typer.main import get_command

    from warmup.cli.app import app

    root: Any = get_command(app)
    commands = {"warmup": root, **{f"warmup {name}": root.commands[name] for name in root.commands}}
    return {
        path: [_spell(each) for each in command.params if "completion" not in str(each.name)]
        for path, command in sorted(commands.items())
    }


def _spell(parameter: Any) -> str:
    many = " ..." if getattr(parameter, "multiple", False) or parameter.nargs == -1 else ""
    names = "/".join((*parameter.opts, *parameter.secondary_opts))
    return f"{names}{many} = {_default(parameter.default)}"


def _exit_codes() -> dict[str, int]:
    from warmup.cli import streams as exit_codes
    from warmup.core import errors

    kinds = [errors.WarmupError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    own = {name: getattr(exit_codes, name) for name in dir(exit_codes) if name.startswith("EXIT_")}
    return {**{kind.__name__: kind.exit_code for kind in kinds}, **own}


def _events() -> dict[str, list[str]]:
    """Return each event with the names of the fields that the package gives it when it emits it."""
    from warmup.core.events import EventName

    found: dict[str, set[str]] = {name.name: set() for name in EventName}
    for node in _nodes():
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "emit" and node.args:
            name = ast.unparse(node.args[0]).removeprefix("EventName.")
            if name in found:
                found[name] |= {word.arg or "**" for word in node.keywords}
    return {EventName[name].value: sorted(fields) for name, fields in found.items()}


def _nodes() -> Iterator[ast.AST]:
    for path in sorted((ROOT / "warmup").rglob("*.py")):
        yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def _words() -> dict[str, list[str]]:
    from warmup.core.errors import MissReason
    from warmup.core.rows import L2, Family, Flag, Launch, Rejection, Search

    closed = (Family, Flag, MissReason, Rejection, Launch, L2, Search)
    return {one.__name__: [str(member.value) for member in one] for one in closed}


# Objects whose names are data: keys, options, dtypes, buckets.
OPEN = ("/rows/*", "/policy/options", "/policy/tolerance", "/provenance/calls")


def _table_paths() -> list[str]:
    """Return the path of each value in the shipped tables, with keys and positions left out."""
    found: set[str] = set()

    def visit(value: Any, path: str) -> None:
        found.add(path)
        if isinstance(value, dict):
            is_open = path in OPEN
            for name, inner in value.items():
                is_name = is_open or path == "/rows" or path.endswith("/kwargs")
                visit(inner, f"{path}/{'*' if is_name else name}")
        elif isinstance(value, list):
            for inner in value:
                visit(inner, f"{path}/*")

    for path in sorted((ROOT / "tables").rglob("*.json")):
        visit(json.loads(path.read_text(encoding="utf-8")), "")
    return sorted(found)


def _schemas() -> dict[str, object]:
    from warmup.core.events import EVENT_SCHEMA, LOG_MARKER
    from warmup.table.schema import SCHEMA_VERSION

    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "warmup").rglob("*.py"))]
    variables = {found for text in texts for found in re.findall(r"WARMUP_[A-Z_]*[A-Z]", text)}
    return {
        "table": SCHEMA_VERSION,
        "event": EVENT_SCHEMA,
        "log marker": LOG_MARKER,
        "environment": sorted(variables),
    }


def _digests() -> dict[str, str]:
    from warmup.table.codec import digest_of
    from warmup.table.store import read

    tables = sorted((ROOT / "tables").rglob("*.json"))
    return {str(path.relative_to(ROOT)): digest_of(read(path)) for path in tables}


def _key_kinds() -> dict[str, list[object]]:
    from warmup.keys.registry import KINDS

    return {
        name: [kind.pattern.pattern, list(kind.words), sorted(kind.families)]
        for name, kind in KINDS.items()
    }


PARTS: dict[str, Callable[[], Any]] = {
    "public names": _public_names,
    "commands": _commands,
    "exit codes": _exit_codes,
    "events": _events,
    "words": _words,
    "table paths": _table_paths,
    "schemas": _schemas,
    "table digests": _digests,
    "keys": _key_kinds,
}


def test_the_contract_is_the_committed_one() -> None:
    """Each part of the public contract is what the committed list says, and none is empty."""
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    assert list(committed) == list(PARTS)
    for part, read in PARTS.items():
        assert committed[part], part
        assert json.loads(json.dumps(read())) == committed[part]


if __name__ == "__main__":
    json.dump({part: make() for part, make in PARTS.items()}, sys.stdout, indent=1)
    sys.stdout.write("\n")
