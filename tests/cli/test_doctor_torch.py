"""`warmup doctor --torch`: what it reads in the sources of another torch, made here."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest
from own_processes import Done

from warmup.diagnostics import torch_source
from warmup.inductor import internals

Command = Callable[..., Done]
BASE = """
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Generic
if TYPE_CHECKING:
    from nowhere import typed
class Base(Generic[T]):
    @classmethod
    def made(cls, a): pass
@dataclass
class Record(Base):
    name: str
    of_class: ClassVar[int] = 0
    late: int = field(init=False)
    layout: str = ""
class Tracker(Base):
    def __init__(self, limit): self.seen = []
tracker = Tracker(3)
@lru_cache
def asked(key): return key
def grows(a): return a
def alters(a): return a
"""
HERE = {
    "torch/__init__.py": "raise ImportError('nothing here is imported')",
    "torch/version.py": "__version__ = '2.13.0'",
    "torch/_C/_x.pyi": "def native(a): ...",
    "torch/put.py": "def put(module):\n    module._dirty = True",
    "torch/config.py": "import sys\nfrom torch.put import put\nput(sys.modules[__name__])",
    "torch/base.py": BASE,
    "torch/door/__init__.py": "from .inner import *\nfrom ..base import Base as B",
    "torch/door/inner.py": "from torch.base import asked\nfrom torch._C._x import native, built",
}
CHANGED = BASE.replace("grows(a)", "grows(a, b)").replace("alters(a): return a", "alters(a): pass")
THERE = HERE | {"torch/base.py": CHANGED, "torch/elsewhere.py": "def lost(a): ..."}
STATES = {
    "torch.base:Record(name,layout)": ("same", ""),
    "torch.base:Record.made(a)": ("same", ""),
    "torch.base:tracker.seen": ("same", ""),
    "torch.base:asked.cache_clear": ("same", ""),
    "torch.config:_dirty": ("same", ""),
    "torch.door:B.made(a)": ("same", ""),
    "torch.door:inner.native(a)": ("same", ""),
    "torch.base:alters(a)": ("other body", ""),
    "torch.base:grows(a)": ("changed", "gains b"),
    "torch.door:asked(name)": ("breaks", "takes (key), expected 'name' at position 0"),
    "torch._D.x:name": ("gone", "no torch._D.x"),
    "torch.base:typed": ("gone", "no typed"),
    "torch.base:Base.lost": ("gone", "Base has no lost"),
    "torch.base:lost": ("gone", "no lost; lost is in torch/elsewhere.py"),
    "torch.door.inner:built": ("unseen", "no source of torch._C._x"),
    "triton.compiler:hash": ("unseen", "no source of triton.compiler"),
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with THERE; HERE is installed, and the internals are those of STATES."""
    for folder, sources in (("here", HERE), ("there", THERE)):
        for name, text in sources.items():
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(text)
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "here/torch/x.py"), is_package=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    monkeypatch.setattr(torch_source, "version_for", lambda _: SimpleNamespace(internals=()))
    for name in ("INTERNALS", "ASSEMBLER_INTERNALS", "ASSUMED_GPU_INTERNALS"):
        monkeypatch.setattr(internals, name, tuple(STATES))
    words = {"inductor/a.py": {"torch", "made"}, "models/b.py": {"torch", "made", "lost"}}
    monkeypatch.setattr(torch_source, "_uses", lambda: words)
    return tmp_path / "there"


def test_each_internal_has_its_state_and_our_files(made: Path, run_main: Command) -> None:
    """Of a folder, of its torch, and of a wheel; the text names what is not the same."""
    with zipfile.ZipFile("torch.whl", "w") as wheel:
        for name, text in THERE.items():
            wheel.writestr(name, text)
    for path in (made, made / "torch", "torch.whl"):
        done = run_main("doctor", "--torch", str(path), "--json")
        found = {each["name"]: each for each in json.loads(done.stdout)["names"]}
        assert {name: (each["state"], each["said"]) for name, each in found.items()} == STATES
    files = [found[f"torch.base:{name}"]["files"] for name in ("Record.made(a)", "Base.lost")]
    assert (done.returncode, files) == (1, [["inductor/a.py"], ["models/b.py"]])
    lines = run_main("doctor", "--torch", "torch.whl").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    at = lines.index("gone       torch.base: lost")
    assert lines[at + 1].strip() == "no lost; lost is in torch/elsewhere.py; models/b.py"
    assert " ".join(lines[-2:]).endswith("1 other body, 1 changed, 1 breaks, 4 gone, 2 unseen")


def test_what_is_no_torch_is_an_error(made: Path, run_main: Command) -> None:
    """A damaged wheel, a path that is not there, a source that is too long or not Python."""
    Path("empty").mkdir()
    Path("damaged.whl").write_bytes(b"PK\x03\x04 and no more")
    with zipfile.ZipFile("bomb.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("torch/__init__.py", "")
        wheel.writestr("torch/version.py", b"#" * (1 << 22))
    (made / "torch/base.py").write_text("def f(:")
    for name, said in (
        ("empty", "no torch/__init__.py"),
        ("damaged.whl", "BadZipFile: File is not a zip file"),
        ("absent.whl", "No such file or directory"),
        ("bomb.whl", "torch/version.py is longer than 2 MiB"),
        ("there", "torch/base.py cannot be parsed: SyntaxError"),
    ):
        done = run_main("doctor", "--torch", name)
        assert (done.returncode, said in done.stderr) == (3, True), done.stderr
