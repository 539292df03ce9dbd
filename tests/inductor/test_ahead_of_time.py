"""Which torch can compile ahead of time, and whether sources have changed since."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from warmup.core.artifact_form import SourceLines
from warmup.inductor.ahead_of_time import changed_source, refusal_of_torch
from warmup.inductor.internals import ARTIFACT_INTERNALS, check_internals


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.12.1"])
def test_an_old_torch_is_refused_by_its_version(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The reason has the version that is here, and the first that can."""
    monkeypatch.setattr(torch, "__version__", version)
    assert refusal_of_torch() == (f"torch {version} cannot save compiled calls, torch 2.13 can")


def test_newer_versions_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """From torch 2.13 on."""
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    assert refusal_of_torch() is None


def test_the_internals_of_artifacts_are_those_of_this_torch() -> None:
    """They are checked where an artifact is loaded, and have not changed."""
    check_internals(ARTIFACT_INTERNALS)


def test_a_changed_source_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the module and its lines."""
    (tmp_path / "traced_net.py").write_text("a = 1\nb = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "traced_net", raising=False)
    lines = SourceLines("traced_net", 1, 3, "00" * 32)
    assert changed_source([lines]) == "traced_net, lines 1 to 2, has changed"


@pytest.mark.parametrize("source", ["", "raise RuntimeError('not here')", "a ="])
def test_a_module_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Whatever its import raises: the artifact is refused, and the start goes on."""
    if source:
        (tmp_path / "no_such_net.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    reason = changed_source([SourceLines("no_such_net", 1, 3, "00" * 32)])
    assert reason is not None
    assert reason.startswith("no_such_net, which it was traced from, cannot be imported (")
