"""`warmup build`: sources, places and programs; what it refuses before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from own_processes import ROOT, Done
from sample_tables import make_key

pytest.importorskip("torch")

from warmup.serving.audit import encode_problems

RunMain = Callable[..., Done]
OUT = "--out t.json"
PROBLEMS = f"--problems m.json {OUT}"
MODEL = "--model m.py --seqlens 8"
STARTS = "open('started', 'w')"


def test_what_does_not_go_together_is_refused(run_main: RunMain) -> None:
    several = "--devices cpu,cpu"
    for words, code, said in (
        (f"{several} {MODEL} --retry all", 2, "cpu,cpu cannot be combined with --retry all"),
        (f"{several} {MODEL} --retry unstable", 2, "cannot be combined with --retry"),
        (f"{several} {PROBLEMS} --set problem_limit=soon", 3, "problem_limit 'soon' is no time"),
        (f"{several} {OUT} -- true", 2, "cannot be combined with --devices"),
        (f"--cluster auto {PROBLEMS} --dry-run", 2, "--cluster cannot be combined with --dry-run"),
        ("--cluster auto --model m.py", 2, "--cluster cannot be combined with --model"),
        (f"--cluster auto {PROBLEMS} --seqlens 8", 2, "--problems cannot be combined with --seq"),
        (f"--cluster auto {PROBLEMS} --set problem_limit=soon", 3, "problem_limit 'soon' is no"),
        (f"--cluster auto {OUT} -- true", 2, "cannot be combined with --cluster"),
        (f"{MODEL} --shard 1/2", 2, "--model cannot be combined with --shard"),
        (f"--model m.py {OUT} -- true", 2, "cannot be combined with --model"),
        (f"{OUT} --dry-run -- true", 2, "cannot be combined with --dry-run"),
        ("-- true", 2, "a program needs --out"),
        ("--model m.py --bundle b.zip", 2, "--model; --bundle takes no value, the bundle is writ"),
    ):
        done = run_main("build", *words.split())
        assert done.returncode == code, words
        assert said in " ".join(done.stderr.split()), words


def test_a_wrong_share_is_refused_and_an_empty_one_ends_with_0(
    run_main: RunMain, tmp_path: Path
) -> None:
    (tmp_path / "m.json").write_text(encode_problems({(make_key(16), "not_in_table"): 1}, ()))
    assert run_main("build", *PROBLEMS.split(), "--shard", "3/2").returncode == 2
    empty = run_main("build", *PROBLEMS.split(), "--shard", "2/2")
    assert (empty.returncode, "no table was written" in empty.stderr) == (0, True)


def test_a_cluster_needs_a_budget_that_is_a_time_and_ray(
    run_main: RunMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is an extra, and is imported when there is a problem to tune."""
    (tmp_path / "m.json").write_text(encode_problems({(make_key(16), "not_in_table"): 1}, ()))
    monkeypatch.setitem(sys.modules, "ray", None)
    for budget, said in (("--budget long", "--budget 'long' is no time"), ("", "needs Ray")):
        done = run_main("build", "--cluster", "auto", *PROBLEMS.split(), *budget.split())
        assert (done.returncode, said in " ".join(done.stderr.split())) == (3, True), said
    assert "inductor-warmup[ray]" in done.stderr


def test_a_program_that_asks_nothing_and_a_damaged_table_are_errors(
    run_main: RunMain, tmp_path: Path
) -> None:
    words = ("build", "--out", "t.json", "--", sys.executable, "-c", STARTS)
    (tmp_path / "t.json").write_text('{"schema": 1')
    assert (run_main(*words).returncode, (tmp_path / "started").exists()) == (3, False)
    assert (tmp_path / "t.json").read_text() == '{"schema": 1'
    (tmp_path / "t.json").unlink()
    done = run_main(*words)
    assert done.returncode == 3
    assert "no process of the command asked inductor for a choice" in done.stderr
    assert ((tmp_path / "started").exists(), (tmp_path / "t.json").exists()) == (True, False)


def test_a_build_does_not_warn_of_its_own_table(
    run_main: RunMain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program compiles under options of its own, and the rows are made for these."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "serve.py").write_text(
        "import torch\nwith torch.no_grad():\n    compiled = torch.compile(torch.nn.Linear(4, 4), "
        "options={'freezing': False})\n    compiled(torch.ones(2, 4))\nprint('compiled')\n"
    )
    program = f"{sys.executable} serve.py > said 2>&1"
    run_main("build", "--out", "t.json", "--", "sh", "-c", program)
    said = (tmp_path / "said").read_text()
    assert "compiled" in said
    assert "ContradictionWarning" not in said


def test_a_build_from_vllm_on_a_cpu_says_first_that_nothing_asks(
    run_main: RunMain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is a line before the engine starts, and the error's when it has ended."""
    engine = [sys.executable, "-c", STARTS]
    monkeypatch.setattr("warmup.serving.engines.vllm_command", lambda *_words, **_more: engine)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = run_main("build", "--from-vllm", 'm{"compile_sizes": [1]}', "--out", "t.json")
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("note: on a CPU vLLM's linears call oneDNN and ask inductor nothing")
    assert last.startswith("error: no process of the command asked inductor for a choice; on a CPU")
    assert done.returncode == 3
    for target in ("m{1", 'm{"compile_sizes": 8}', 'm{"tensor_parallel_size": "2"}'):
        done = run_main("build", "--from-vllm", target, "--out", "t.json")
        assert (done.returncode, done.stderr[:19]) == (3, "error: --from-vllm:"), target
