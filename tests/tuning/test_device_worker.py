"""The worker of a device, in this process: what it answers when a problem does not fit."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from warmup.core.errors import BuildError
from warmup.tuning import device_worker as worker
from warmup.tuning.device_host import ProblemTask, WorkerOrder
from warmup.tuning.request import BuildOptions

KEY = "bmm batch=4 m=16 n=96 k=64 f32 a=row b=row out=f32 fp32=ieee | epilogue=none"


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """What a worker on the CPU answers whose compiler ends with a lack of memory."""

    def fail(*_: object, **__: object) -> None:
        shortage = torch.OutOfMemoryError("CUDA out of memory.\nmore")
        raise BuildError("bucket m=16: compiling failed") from shortage

    monkeypatch.setattr(worker, "tune_rebuilt", fail)
    monkeypatch.setattr(worker, "time_control", lambda _tuner: 100.0)
    order = WorkerOrder(
        folder=str(tmp_path),
        turn=str(tmp_path / "turn"),
        parent=os.getpid(),
        options=BuildOptions(device="cpu", wait_for_quiet=0),
    )
    found: list[Mapping[str, Any]] = []

    def send(message: Mapping[str, Any]) -> None:
        found.append(message)

    task = ProblemTask(key=KEY)
    lines = [order.to_json(), task.to_json(), task.to_json()]
    requests = io.BytesIO("".join(json.dumps(line) + "\n" for line in lines).encode())
    worker.serve(requests, send)
    return found


def test_a_lack_of_memory_ends_the_worker(answers: list[Mapping[str, Any]]) -> None:
    """It is found among the causes of the error, and the second problem is not begun."""
    assert list(answers[0]) == ["ready"]
    assert answers[1:] == [{"lost": "ran out of memory: CUDA out of memory."}]
