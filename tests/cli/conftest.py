"""The command line within this process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from own_processes import Done

from warmup.cli import main


@pytest.fixture
def run_main(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """``run_main("show", "t.json")``: run it in an empty folder; exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(words, int(ended.value.code or 0), shown.out, shown.err)

    return run
