"""Bundles with real compiles on CPU: each start is a forked process with empty caches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from own_processes import MODELS, PROGRAMS, Done, python_in, warmup_in

BATCHED = f"{MODELS / 'batched.py'}:Batched"
PRIMED = ("--prime", "--model", BATCHED, "--seqlens", "8")
Bundled = tuple[Path, dict[str, Any]]


def serve(folder: Path, bundled: Path) -> dict[str, Any]:
    """Serve the table in *bundled* with its bundle, from caches in *folder*."""
    words = (str(PROGRAMS / "serve_bundle.py"), BATCHED, "t.json", "8")
    found: dict[str, Any] = json.loads(python_in(folder, *words, cwd=bundled).stdout)
    return found


def check(folder: Path, bundled: Path, *words: str, code: int = 0) -> Done:
    """Run `warmup check` on the table in *bundled*, from caches in *folder*."""
    command = ("-m", "warmup", "check", "t.json", "--device", "cpu")
    return python_in(folder, *command, *words, code=code, cwd=bundled)


def test_a_bundled_start_compiles_nothing(bundled: Bundled, tmp_path: Path) -> None:
    """The build says how much is in it; kernels and graph come from it, with eager's outputs."""
    folder, said = bundled
    assert (said["bundle"]["path"], said["bundle"]["kernels"] > 0) == ("t.bundle", True)
    assert said["bundle"]["size"] == (folder / "t.bundle").stat().st_size
    assert said["bundle"]["graphs"] > 0
    served = serve(tmp_path, folder)
    assert (served["refused"], served["compiled"]) == (None, [])
    assert (served["from_cache"], served["misses"]) == (1, 0)
    assert served["error"] < 1e-5


@pytest.mark.long
def test_a_build_whose_bundle_cannot_be_written_says_so_in_a_line(
    bundled: Bundled, tmp_path: Path
) -> None:
    """The table is complete all the same. Where an option names the bundle, that is an error."""
    shutil.copy(bundled[0] / "t.json", tmp_path)
    (tmp_path / "t.bundle").mkdir()
    words = ("build", "--device", "cpu", "--model", BATCHED, "--seqlens", "8", "--out", "t.json")
    said = "it cannot be written (it is a folder)"
    for option, code, line in (
        ((), 0, f"no bundle, so that a start compiles its kernels: {said}"),
        (("--no-bundle",), 0, ""),
        (("--bundle",), 3, f"t.bundle: {said}; make the bundle again with `warmup build`"),
    ):
        done = warmup_in(tmp_path, *words, *option, code=code)
        assert line in done.stdout + done.stderr, option
        assert ("bundle" in done.stdout + done.stderr) is bool(line), option


@pytest.mark.long
def test_a_check_unpacks_a_bundle_only_to_prime(bundled: Bundled, tmp_path: Path) -> None:
    """The bundle is that beside the table."""
    for words, said in ((), "fits"), (PRIMED, "; 0 kernels compiled that it lacks"):
        done = check(tmp_path, bundled[0], *words)
        (line,) = [one for one in done.stdout.splitlines() if one.startswith("bundle    ")]
        assert line.startswith("bundle    t.bundle: "), words
        assert line.endswith(said), words
        assert (list(tmp_path.rglob("*.so")) == []) is (not words), words


@pytest.mark.long
def test_priming_goes_on_without_a_bundle_that_does_not_fit(
    bundled: Bundled, tmp_path: Path
) -> None:
    """A named one is a problem, one beside the table a remark."""
    shutil.copy(bundled[0] / "t.json", tmp_path)
    bad = tmp_path / "t.bundle"
    bad.write_bytes(b"")
    for words, kind, code in ((), "warning", 0), (("--bundle", str(bad)), "error", 11):
        done = check(tmp_path, tmp_path, *PRIMED, *words, code=code)
        assert f"{kind}: bundle {bad if words else bad.name} is not used: it is no " in done.stderr
        assert "primed    1 of 1 buckets" in done.stdout, words
