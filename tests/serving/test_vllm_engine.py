"""`vllm_command`: the command that starts vLLM's engine for a build, without vLLM."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from warmup.core.errors import SettingsError  # noqa: E402  where torch is installed
from warmup.serving.engines import vllm_command  # noqa: E402


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config, on a machine with vLLM and two GPUs."""
    tmp_path.joinpath("config.json").write_text("{}")
    found = importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return tmp_path


def arguments_of(command: list[str]) -> dict[str, Any]:
    assert command[:3] == [sys.executable, "-m", "warmup.serving.engines"]
    found: dict[str, Any] = json.loads(command[3])
    return found


def test_the_engine_has_random_weights_and_the_sizes(model: Path) -> None:
    """The sizes are sorted and join the user's other compilation settings."""
    engine = {"max_model_len": 64, "compilation_config": {"mode": 3}}
    assert arguments_of(vllm_command(model, [8, 1], ranks=2, engine=engine)) == {
        "skip_tokenizer_init": True,
        "max_model_len": 64,
        "model": str(model),
        "load_format": "dummy",
        "tensor_parallel_size": 2,
        "compilation_config": {"mode": 3, "compile_sizes": [1, 8]},
    }


def test_what_cannot_be_started_is_refused(model: Path, tmp_path: Path) -> None:
    """The config itself names its folder; a folder without one is refused."""
    assert vllm_command(model / "config.json", [1]) == vllm_command(model, [1])
    with pytest.raises(SettingsError, match=r"has no config\.json"):
        vllm_command(tmp_path / "org" / "name", [1])
    cases: tuple[tuple[list[int], int, Mapping[str, Any], str], ...] = (
        ([], 1, {}, "compile sizes none"),
        ([0, 2], 1, {}, "compile sizes 0,2"),
        ([2, 2], 1, {}, "compile sizes 2,2"),
        ([2], 0, {}, "a tensor parallel size of 0"),
        ([2], 3, {}, "needs 3 GPUs, and this machine has 2"),
        ([2], 1, {"model": "x", "load_format": "auto"}, "model, load_format cannot be"),
        ([2], 1, {"compilation_config": {"compile_sizes": [4]}}, "compilation_config"),
        ([2], 1, {"compilation_config": 3}, "compilation_config"),
    )
    for sizes, ranks, engine, says in cases:
        with pytest.raises(SettingsError, match=says):
            vllm_command(model, sizes, ranks=ranks, engine=engine)


def test_without_vllm_the_environment_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=f"vLLM is not installed for {sys.executable}"):
        vllm_command(model, [1])
