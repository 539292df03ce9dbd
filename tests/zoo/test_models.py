"""Models that nobody here wrote, tiny, on CPU: built in one process, and served in a fresh one.

The first model needs `transformers`, of the extra `test`. The others need the extra `zoo`, which
.ci/nightly installs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("transformers") is None, reason="the extra test is not installed"),
]

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {
    "first": ("bert",),
    "decoders": ("qwen2", "gemma", "gpt2", "mixtral"),
    "encoders": ("modernbert", "t5", "whisper-encoder"),
    "images": ("vit", "swinv2", "convnext"),
    "others": ("whisper-decoder", "dit"),
}

Found = Mapping[str, Mapping[str, Any]]


def run(folder: Path, variables: Mapping[str, str], do: str, *names: str) -> Found:
    """Build or serve the models *names* in a fresh process with empty caches."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / do), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/programs/zoo.py"), do, *names],
        env={**os.environ, **variables, **caches},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: Found = json.loads(done.stdout.split("RESULT ")[1])
    return found


def test_no_model_is_measured_under_any_table(variables: Mapping[str, str], tmp_path: Path) -> None:
    """Without a row, and with rows whose winners inductor does not offer."""
    if find_spec("timm") is None:
        pytest.skip("the extra zoo is not installed")
    names = [f"zoo:{name}" for group in GROUPS.values() for name in group]
    for rows in ("none", "wrong blocks"):
        asked = json.dumps({"operators": names, "uncovered": "library", "rows": rows})
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/programs/serve_operators.py"), asked],
            env={
                **os.environ,
                **variables,
                "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / rows[:4]),  # graphs of the other rows fit
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert found.keys() == set(names)
        for name, one in found.items():
            assert (one["benchmarks"], one["counted"], one["problem"]) == (0, {}, None), name
            assert one["misses"], name


@pytest.mark.parametrize("group", GROUPS)
def test_a_model_is_served_from_its_table_alone(
    group: str, variables: Mapping[str, str], tmp_path: Path
) -> None:
    """Each decision that the build recorded is a hit, nothing misses, and nothing is measured."""
    if group != "first" and find_spec("timm") is None:
        pytest.skip("the extra zoo is not installed")
    built = run(tmp_path, variables, "build", *GROUPS[group])
    served = run(tmp_path, variables, "serve", *GROUPS[group])
    for name, asked in built.items():
        found = served[name]
        assert asked["asked"], name
        assert (asked["not_tuned"], asked["distrusted"]) == ({}, {}), name
        assert sorted(found["hits"]) == asked["asked"], name
        assert found["misses"] == found["uncovered"] == found["benchmarks"] == {}, name
        assert found["unused"] == [], name
        assert found["clean"], name
        assert found["error"] < 0.03, name
