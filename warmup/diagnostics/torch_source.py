"""`read_torch`: which internals another torch has, read in its source and compared with ours.

That torch is a wheel or a folder. Nothing of it is imported, run or unpacked: modules are parsed,
and names are followed through imports, base classes and assignments as far as the source says.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import IO, Final

from warmup.core.errors import SettingsError, UnsupportedTorchError
from warmup.core.text import MIB, first_line, remedy_for, sentence, shown
from warmup.inductor import internals
from warmup.inductor.versions import VERSIONS, version_for

# A wheel is not trusted. Of torch 2.15, no module longer than 0.5 MiB is read.
_LONGEST_SOURCE: Final = 2 * MIB
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
_REMEDY: Final = "name a wheel of torch, or a folder with torch/ in it"
_PACKAGE: Final = Path(internals.__file__).parents[1]


class InternalState(StrEnum):
    """What another torch has of an internal. Where it breaks or is gone, a hook cannot attach."""

    SAME = "same"
    BODY = "other body"
    CHANGED = "changed"
    BREAKS = "breaks"
    GONE = "gone"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class InternalFinding:
    """What another torch has of the internal *name*, and our modules that use it."""

    name: str
    state: InternalState
    said: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TorchReport:
    """The internals in another torch; ``here`` is the version that they were compared with.

    Of a torch that is not ``supported``, the internals of the newest supported minor are reported.
    """

    torch: str
    here: str | None
    supported: bool
    names: tuple[InternalFinding, ...]

    @property
    def counts(self) -> dict[str, int]:
        states = [each.state for each in self.names]
        return {state.value: states.count(state) for state in InternalState}

    @property
    def broken(self) -> tuple[str, ...]:
        """The internals without which a hook cannot attach."""
        lost = (InternalState.BREAKS, InternalState.GONE)
        return tuple(each.name for each in self.names if each.state in lost)


def read_torch(path: Path) -> TorchReport:
    """Return what the torch in *path*, a wheel or a folder, has of each internal that warmup uses.

    It is compared with the torch that is installed here, if any, which is not imported either.

    Raises:
        SettingsError: *path* has no torch, or cannot be read.
    """
    with ExitStack() as stack:
        if gc.isenabled():  # trees have no cycles, and collections would visit each node many times
            gc.disable()
            stack.callback(gc.enable)
        other = stack.enter_context(_opened(path))
        installed = importlib.util.find_spec("torch")
        here: _Sources | None = None
        if installed and installed.origin and installed.submodule_search_locations is not None:
            here = stack.enter_context(_opened(Path(installed.origin).parent))
        supported = True
        try:
            version = version_for(other.version)
        except UnsupportedTorchError:
            version, supported = VERSIONS[max(VERSIONS)], False
        names = (
            *(*internals.INTERNALS, *version.internals),
            *(*internals.ASSEMBLER_INTERNALS, *internals.ASSUMED_GPU_INTERNALS),
        )
        uses = _uses()
        found = (
            InternalFinding(name, *_compare(name, other, here), _files_using(name, uses))
            for name in dict.fromkeys(names)
        )
        return TorchReport(other.version, here.version if here else None, supported, tuple(found))


def _compare(name: str, other: _Sources, here: _Sources | None) -> tuple[InternalState, str]:
    dotted, opening, wanted = name.partition("(")
    place = other.find(dotted)
    if place is None:
        return InternalState.GONE, other.whereabouts(dotted)
    if place.node is None:
        return InternalState.UNSEEN, f"no source of {place.module}"
    parameters = other.parameters(place)
    if opening and parameters is None:
        return InternalState.UNSEEN, "its parameters are not in the source"
    if opening and (fault := internals.parameter_fault(parameters or (), wanted)):
        return InternalState.BREAKS, fault
    mine = here.find(dotted) if here else None
    is_called = opening or not isinstance(place.node, ast.ClassDef)
    if here is None or mine is None or mine.node is None or not is_called:
        return InternalState.SAME, ""
    if parameters != (ours := here.parameters(mine)):
        return InternalState.CHANGED, _difference(parameters or (), ours or ())
    return (InternalState.SAME if place.body == mine.body else InternalState.BODY), ""


def _difference(theirs: Sequence[str], ours: Sequence[str]) -> str:
    more = ", ".join(name for name in theirs if name not in ours)
    less = ", ".join(name for name in ours if name not in theirs)
    changes = f"gains {more}" * bool(more), f"loses {less}" * bool(less)
    return sentence(*changes) or "has its parameters in another order"


# Which of our modules use an internal.


def _uses() -> dict[str, frozenset[str]]:
    paths = sorted({*_PACKAGE.rglob("*.py")} - {Path(internals.__file__)})
    texts = {path.relative_to(_PACKAGE).as_posix(): path.read_text("utf-8") for path in paths}
    return {path: frozenset(re.findall(r"[A-Za-z_]\w*", text)) for path, text in texts.items()}


def _files_using(name: str, uses: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    module, _, qualified = name.partition("(")[0].partition(":")
    parts = qualified.split(".")
    for wanted in ({*parts, module.rpartition(".")[2]}, {*parts}, {parts[-1]}):
        files = [path for path, words in uses.items() if {"torch", *wanted} <= words]
        hooks = [path for path in files if path.startswith("inductor/")]
        if files:
            return tuple(hooks or files)
    return ()


# What names stand for in the sources of a torch.


@dataclass(frozen=True, slots=True)
class _Place:
    # What a name stands for, and the module in which the names in the node are bound. A module is
    # its own tree. Without a node the name exists, and no source says more.
    module: str
    node: ast.AST | None

    @property
    def body(self) -> str:
        if self.node is None or isinstance(self.node, (ast.ClassDef, ast.Module)):
            return ""
        if isinstance(self.node, ast.FunctionDef):
            told = ast.get_docstring(self.node) is not None
            return "".join(map(ast.dump, (*self.node.decorator_list, *self.node.body[told:])))
        return ast.dump(self.node)


class _Scope:
    # What the statements of a module or a class bind: a node, or ``module:name`` of an import. Of
    # two branches the first counts, and nothing under TYPE_CHECKING. `fields` are annotated.

    def __init__(self, body: list[ast.stmt], package: Sequence[str]) -> None:
        self.bound: dict[str, ast.AST | str] = {}
        self.fields: dict[str, ast.AnnAssign] = {}
        self.stars: list[str] = []
        self._package = package
        self._bind(body)

    def _bind(self, body: list[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.ClassDef():
                    self.bound[node.name] = node
                case ast.Assign():
                    names = [each.id for each in node.targets if isinstance(each, ast.Name)]
                    self.bound |= dict.fromkeys(names, node.value)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    self.fields[name] = node
                    self.bound |= {name: node.value} if node.value else {}
                case ast.Import() | ast.ImportFrom():
                    self._bind_imports(node)
                case ast.If() | ast.Try() | ast.With():
                    self._bind(_branches(node))

    def _bind_imports(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for each in node.names:
                top = each.name.partition(".")[0]
                self.bound[each.asname or top] = f"{each.name if each.asname else top}:"
            return
        base = self._package[: len(self._package) - node.level + 1] if node.level else ()
        source = ".".join([*base, *filter(None, [node.module])])
        for each in node.names:
            self.bound[each.asname or each.name] = f"{source}:{each.name}"
            self.stars += [source] * (each.name == "*")


def _branches(node: ast.If | ast.Try | ast.With) -> list[ast.stmt]:
    if isinstance(node, ast.Try):
        caught = [statement for handler in node.handlers for statement in handler.body]
        return [*caught, *node.body, *node.orelse, *node.finalbody]
    if isinstance(node, ast.If):
        is_typing = ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        return [*node.orelse, *([] if is_typing else node.body)]
    return node.body


class _Sources:
    def __init__(
        self, path: Path, names: frozenset[str], open_file: Callable[[str], IO[bytes]]
    ) -> None:
        self.names, self._path, self._open = names, path, open_file
        self._trees: dict[str, ast.Module | None] = {}
        self._registering: set[str] = set()  # those that write or pass on their sys.modules
        self._hidden: dict[str, _Place] = {}  # of stubs, which may leave names out
        self._scopes: dict[int, _Scope] = {}

    @cached_property
    def version(self) -> str:
        """The version that torch/version.py names; a checkout has version.txt alone."""
        place = self.find("torch.version:__version__")
        if place and isinstance(place.node, ast.Constant):
            return str(place.node.value)
        return (self.read("version.txt") or b"unknown").decode(errors="replace").strip()

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, at most one more than a source may have; none if absent."""
        if name not in self.names:
            return b""
        with _blamed(self._path), self._open(name) as file:
            return file.read(_LONGEST_SOURCE + 1)

    def tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            stem = module.replace(".", "/")
            paths = (f"{stem}{end}" for end in ("/__init__.py", ".py", "/__init__.pyi", ".pyi"))
            path = next((each for each in paths if each in self.names), None)
            self._trees[module] = self._parsed(module, path) if path else None
        return self._trees[module]

    def _parsed(self, module: str, path: str) -> ast.Module:
        content, where = self.read(path), f"{shown(self._path)}: {path}"
        if len(content) > _LONGEST_SOURCE:
            limit = f"{_LONGEST_SOURCE // MIB} MiB"
            raise SettingsError(f"{where} is longer than {limit}", _REMEDY)
        if path.endswith(".pyi"):
            self._hidden[module] = _Place(module, None)
        if b"sys.modules[" in content:
            self._registering.add(module)
        try:
            return ast.parse(content)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise SettingsError(
                f"{where} cannot be parsed: {first_line(error)}",
                "name a whole torch, for a Python that is not newer than this one",
            ) from error

    def find(self, dotted: str) -> _Place | None:
        """Return what *dotted*, ``module:Class.name``, stands for; None where it is gone."""
        module, _, qualified = dotted.partition(":")
        try:
            place = self._module(module)
            for name in filter(None, qualified.split(".")):
                place = place and self._member(place, name)
        except RecursionError:  # names that stand for each other
            return _Place(module, None)
        return place

    def whereabouts(self, dotted: str) -> str:
        """Return what is left of a name that is gone, and which modules of its package have it."""
        module, _, qualified = dotted.partition(":")
        outer, _, inner = qualified.partition(".")
        if self.find(f"{module}:{outer}") is not None:
            return f"{outer} has no {inner}"
        # Another module of the package defines the name, or has it in a file of the same name.
        own = module.replace(".", "/")
        package, file = "/".join(own.split("/")[:-1][:2]), f"/{own.rpartition('/')[2]}.py"
        defined = re.compile(rf"^(?:class |def |){outer} *[(:=]".encode(), re.MULTILINE)
        elsewhere = [
            path
            for path in sorted(self.names - {f"{own}.py"})
            if path.startswith(f"{package}/") and path.endswith(".py")
            if (content := self.read(path)) and outer.encode() in content
            if path.endswith(file) or defined.search(content)
        ]
        lost = outer if self.tree(module) else module
        return f"no {lost}" + f"; {outer} is in {', '.join(elsewhere[:3])}" * bool(elsewhere)

    def _module(self, module: str) -> _Place | None:
        if (tree := self.tree(module)) is not None:
            return _Place(module, tree)
        package, _, name = module.rpartition(".")
        if package and self.tree(package) and package in self._registering:
            return self._global(package, name, frozenset())  # an alias of a module that moved
        # In torch, the extension torch._C alone has modules without a source.
        is_gone = module.startswith("torch.") and not f"{module}.".startswith("torch._C.")
        return None if is_gone else _Place(module, None)

    def _scope(self, place: _Place) -> _Scope:
        node = place.node
        assert isinstance(node, (ast.Module, ast.ClassDef))
        if id(node) not in self._scopes:
            package = place.module.split(".")
            init = "/".join([*package, "__init__.py"])
            if not {init, f"{init}i"} & self.names:
                package.pop()
            self._scopes[id(node)] = _Scope(node.body, package)
        return self._scopes[id(node)]

    def _member(self, place: _Place, name: str) -> _Place | None:
        match place.node:
            case ast.Module():
                return self._global(place.module, name, frozenset())
            case ast.ClassDef():
                return self._attribute(place, name)
            case ast.FunctionDef(decorator_list=decorators):
                # A cache gives a function `cache_clear`; what others give is not in the source.
                if name == "cache_clear" and "cache" in {_last(each)[-5:] for each in decorators}:
                    return place
                return _Place(place.module, None) if decorators else None
            case ast.Call(func=function):
                made = self._value(place.module, function)
                if made is not None and isinstance(made.node, ast.ClassDef):
                    return self._attribute(made, name, of_instance=True)
        return _Place(place.module, None)

    def _value(
        self, module: str, node: ast.AST | str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> _Place | None:
        """Return what an expression or an import stands for; itself where no source says that."""
        found = None
        match node:
            case str():
                source, _, name = node.partition(":")
                return self._global(source, name, seen) if name else self._module(source)
            case ast.Name(id=name):
                found = self._global(module, name, seen)
            case ast.Attribute(value=value, attr=name):
                owner = self._value(module, value)
                found = owner and self._member(owner, name)
        return found or _Place(module, node)

    def _global(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> _Place | None:
        place = self._module(module)
        if place is None or (module, name) in seen:
            return None
        if not isinstance(place.node, ast.Module):
            return _Place(module, None)
        scope, seen = self._scope(place), seen | {(module, name)}
        node = scope.bound.get(name)
        found = self._value(module, node, seen) if node is not None else None
        if found is None and self.tree(f"{module}.{name}") is not None:
            return self._module(f"{module}.{name}")  # `from . import name` is one too
        for star in scope.stars if not name.startswith("_") else ():
            found = found or self._global(star, name, seen)
        found = found or self._put(module, place.node.body, name)
        return found or self._hidden.get(module)

    def _put(self, module: str, body: list[ast.stmt], name: str) -> _Place | None:
        """Return the function that a module calls with itself, if it or its module has *name*."""
        for statement in body:
            match statement:
                case ast.Expr(value=ast.Call(func=called, args=[ast.Subscript()])):
                    made = self._value(module, called)
                    tree = self.tree(made.module) if made else None
                    for node in ast.walk(tree) if tree else ():
                        if name in {getattr(node, "attr", None), getattr(node, "name", None)}:
                            return made
        return None

    def _family(self, place: _Place, seen: frozenset[int] = frozenset()) -> Iterator[_Place]:
        """Yield a class and its bases; a base without a source too, unless it is Python's own."""
        yield place
        if isinstance(place.node, ast.ClassDef) and id(place.node) not in seen:
            for node in place.node.bases:
                plain = node.value if isinstance(node, ast.Subscript) else node
                base = self._value(place.module, plain)
                is_own = isinstance(base and base.node, ast.Name)  # a builtin
                if (
                    base
                    and not is_own
                    and base.module.partition(".")[0] not in sys.stdlib_module_names
                ):
                    yield from self._family(base, seen | {id(place.node)})

    def _attribute(self, owner: _Place, name: str, *, of_instance: bool = False) -> _Place | None:
        hidden = self._hidden.get(owner.module)
        for place in self._family(owner):
            if not isinstance(place.node, ast.ClassDef):
                hidden = hidden or _Place(place.module, None)
                continue
            scope = self._scope(place)
            node = scope.bound.get(name) or (scope.fields.get(name) if of_instance else None)
            if isinstance(node, str):
                return self.find(node)
            if isinstance(node, ast.Name):
                node = scope.bound.get(node.id, node)
            if isinstance(node, ast.AST):
                return _Place(place.module, node)
            for statement in ast.walk(place.node) if of_instance else ():
                match statement:
                    case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                        if ast.unparse(target) == f"self.{name}":
                            return _Place(place.module, statement)
        return hidden

    def parameters(self, place: _Place) -> tuple[str, ...] | None:
        node = place.node
        if isinstance(node, ast.FunctionDef):
            spec = node.args
            named = [*spec.posonlyargs, *spec.args, spec.vararg, *spec.kwonlyargs, spec.kwarg]
            names = tuple(each.arg for each in named if each)
            bound = any(_last(each) == "classmethod" for each in node.decorator_list)
            return names[1:] if bound else names
        if not isinstance(node, ast.ClassDef):
            return None
        for each in self._family(place):
            if not isinstance(each.node, ast.ClassDef):
                return None
            made = self._scope(each).bound.get("__init__")
            if isinstance(made, ast.FunctionDef):
                return (self.parameters(_Place(each.module, made)) or ())[1:]
            if any(_last(one).endswith("dataclass") for one in each.node.decorator_list):
                return self._fields(each)
        return ()

    def _fields(self, place: _Place) -> tuple[str, ...]:
        fields: dict[str, ast.AnnAssign] = {}
        for each in reversed([*self._family(place)]):
            fields |= self._scope(each).fields if isinstance(each.node, ast.ClassDef) else {}
        left_out = re.compile("ClassVar|init=False")
        return tuple(
            name for name, each in fields.items() if not left_out.search(ast.unparse(each))
        )


def _last(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2]


@contextmanager
def _opened(path: Path) -> Iterator[_Sources]:
    with ExitStack() as stack:
        with _blamed(path):
            if path.is_dir():
                root = path.resolve()
                if root.name == "torch" and not (root / "torch").is_dir():
                    root = root.parent
                files = [*root.glob("version.txt"), *root.glob("torch/**/*.py*")]
                files += root.glob("triton/**/*.py*")
                names = frozenset(each.relative_to(root).as_posix() for each in files)
                sources = _Sources(path, names, lambda name: (root / name).open("rb"))
            else:
                # A zipfile.Path would be shorter; a damaged wheel can hang that of Python 3.11.
                wheel = stack.enter_context(zipfile.ZipFile(path))
                sources = _Sources(path, frozenset(wheel.namelist()), wheel.open)
        if "torch/__init__.py" not in sources.names:
            raise SettingsError(f"{shown(path)} is no torch: no torch/__init__.py", _REMEDY)
        yield sources


@contextmanager
def _blamed(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = remedy_for(error, _REMEDY)
        raise SettingsError(f"{shown(path)}: {error.strerror}", remedy) from error
    except _BROKEN as error:
        raise SettingsError(f"{shown(path)}: {first_line(error)}", _REMEDY) from error
