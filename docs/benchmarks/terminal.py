"""The terminal of README.md: what a build and an audit print first, in an empty folder.

    python docs/benchmarks/terminal.py          # write results/terminal.json for render.py
    python docs/benchmarks/terminal.py --check  # exit code 1 where the tool prints something else

Numbers and digests may differ from run to run: the check compares the lines without their digits.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from driver import ROOT, caches_in, python_path, say, write

RESULT = Path(__file__).resolve().parent / "results" / "terminal.json"
BUILD = "warmup build --model mlp.py --seqlens 16,64 --out mlp.json"
SERVE = "python serve.py --table mlp.json --buckets 16,64"
AUDIT = "warmup audit audit.jsonl --fail-on miss,uncovered,silent"
_VARYING = re.compile(r"[0-9a-f]{8,}|\d+(\.\d+)?|, \d+ unstable")


def printed() -> list[str]:
    """Return each shown command with the first line that it prints."""
    lines = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for example in ("mlp.py", "serve.py"):
            (folder / example).write_bytes((ROOT / "examples" / example).read_bytes())
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("WARMUP_")},
            **caches_in(f"{folder}/caches"),
            "PYTHONPATH": python_path(),
            "COLUMNS": "100",
            "WARMUP_AUDIT_LOG": "audit.jsonl",
        }
        for command in (BUILD, SERVE, AUDIT):
            program, *words = command.split()
            module = ["-m", "warmup"] if program == "warmup" else []
            done = subprocess.run(
                [sys.executable, *module, *words],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if command != SERVE:
                lines += [f"$ {command}", done.stdout.splitlines()[0]]
    return lines


def main() -> None:
    """Write the result, or compare it."""
    lines = printed()
    if "--check" in sys.argv:
        shown = json.loads(RESULT.read_text(encoding="utf-8"))["lines"]
        plain = [[_VARYING.sub("#", line) for line in each] for each in (lines, shown)]
        if plain[0] != plain[1]:
            say("the README shows:", *shown, "the tool prints:", *lines, sep="\n")
            sys.exit(1)
        return
    write(RESULT, {"lines": lines})


if __name__ == "__main__":
    main()
