"""The entry point for engines, `warmup.serving.engines:register`, in processes without one."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from own_processes import PROGRAMS, ROOT, Done, environment
from sample_tables import make_table

from warmup.serving import engines as plugin
from warmup.serving.audit import audit
from warmup.table.codec import digest_of
from warmup.table.store import read, write

pytestmark = pytest.mark.long

FINDERS = "print(sum(type(each).__name__ == 'TableStartup' for each in sys.meta_path))"
REGISTER = "import sys; from warmup.serving.engines import register; register(); register(); "
# What vLLM has where the plugin is called: torch is there, and functions were decorated.
SERVE = """
import sys, types, torch
from warmup.serving.engines import register
engine = sys.modules["vllm.envs"] = types.SimpleNamespace(environment_variables={})
register()
print("torch._inductor" in sys.modules, torch.cuda.is_initialized())
@torch.compile
def unused(x):
    return x
from warmup.serving.handle import installed
print(installed())
print(engine.environment_variables["warmup_table"]())
sys.path.insert(0, sys.argv[1])
from run_mlp import serve
serve([16])
"""


def python(folder: Path, code: str, table: Path | None, *before: str, **extra: str) -> Done:
    settings = {"WARMUP_TABLE": str(table)} if table is not None else {}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    log = {"WARMUP_AUDIT_LOG": str(folder / "audit.jsonl")}
    words = [sys.executable, *before, "-c", code, str(PROGRAMS)]
    env = {**environment(), **caches, **log, **settings, **extra}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    write(path, make_table())
    return path


def test_the_package_names_the_plugin_for_both_engines() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        expected = {"warmup": f"{plugin.__name__}:{plugin.register.__name__}"}
        assert project["entry-points"][group] == expected


def test_nothing_happens_without_a_table(tmp_path: Path) -> None:
    """No finder waits, torch is not imported, and no log is begun."""
    done = python(tmp_path, f"{REGISTER}{FINDERS}; print('torch' in sys.modules)", None)
    assert (done.stdout.split(), done.stderr) == (["0", "False"], "")
    assert not (tmp_path / "audit.jsonl").exists()


def test_a_plugin_that_is_called_again_waits_once(table: Path, tmp_path: Path) -> None:
    """Also under `warmup run`, which has started the same finder before."""
    assert python(tmp_path, REGISTER + FINDERS, table).stdout == "1\n"
    run = ("-m", "warmup", "run", "--table", str(table), "--", sys.executable)
    assert python(tmp_path, REGISTER + FINDERS, None, *run).stdout == "1\n"


def test_a_process_that_compiles_is_answered_by_the_table(
    built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The plugin imports no inductor, decorating installs nothing, the first compile does."""
    done = python(tmp_path, SERVE, built[0], WARMUP_FREEZING="1")
    assert done.returncode == 0, done.stderr
    tag = f"warmup-{digest_of(read(built[0]))[:32]}"
    assert done.stdout.splitlines() == ["False False", "None", tag, "served 16"]
    report = audit([tmp_path / "audit.jsonl"])
    assert (report.runs, sum(report.hits.values()), report.miss_count) == (1, 2, 0)


def test_a_table_that_cannot_be_read_is_loud(tmp_path: Path) -> None:
    """The audit log and stderr name it, a FIFO is not waited for; strict is an error as well."""
    absent, register = tmp_path / "absent.json", "import warmup.serving.engines as e; e.register()"
    for failed, (on_miss, code) in enumerate((("fallback", 0), ("strict", 1)), 1):
        done = python(tmp_path, register, absent, WARMUP_ON_MISS=on_miss)
        assert done.returncode == code, on_miss
        assert done.stderr.startswith("warmup plugin: no table in process "), on_miss
        assert "TableNotFoundError: no table at " in done.stderr.splitlines()[0], on_miss
        assert audit([tmp_path / "audit.jsonl"]).failed == failed, on_miss
    os.mkfifo(tmp_path / "fifo")
    done = python(tmp_path, REGISTER, absent, WARMUP_AUDIT_LOG=str(tmp_path / "fifo"))
    assert (done.returncode, done.stderr.count("warmup plugin: no table")) == (0, 2)


def test_another_installed_table_is_an_error_that_names_both(table: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    write(other, make_table(created="2026-02-02T00:00:00Z"))
    code = f"import warmup; warmup.install({str(other)!r})\n{REGISTER}"
    done = python(tmp_path, code, table, WARMUP_QUIET="1", WARMUP_ALLOW_MISMATCH="1")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert all(digest_of(read(path))[:16] in last for path in (table, other))
