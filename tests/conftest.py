"""Small tables, programs run in processes of their own, and what those are told."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from forked_python import prepare, run_forked

from warmup.core.method import Method
from warmup.core.rows import Evidence, Family, Flag, Rejection, Row, Winner
from warmup.core.runtime import Device, Runtime
from warmup.keys.kind import Kind
from warmup.keys.registry import KINDS
from warmup.table import Policy, Provenance, Table

ROOT = Path(__file__).resolve().parents[1]

if importlib.util.find_spec("hypothesis"):  # the tests for a GPU run without it
    from hypothesis import settings

    settings.register_profile("fast", max_examples=50, deadline=None, database=None)
    settings.load_profile("fast")

# Folders of tests with real compiles on a CPU.
_COMPILING = ("end_to_end", "engines", "inductor", "models", "servers", "serving", "tuning", "zoo")
# Compiles and loads one probe for each set of vector instructions that this CPU reports.
_PROBES = """
from torch._inductor import cpu_vec_isa as found
reported = {*found.x86_isa_checker()}
expected = [each for each in found.supported_vec_isa_list if reported >= {*str(each).split()}]
print(int(expected == found.valid_vec_isa_list()))
"""

_DEVICE = Device(
    type="cuda", vendor="nvidia", name="NVIDIA H200", arch="sm_90", sm_count=132, memory_gib=140
)
_RUNTIME = Runtime(
    device=_DEVICE, torch="2.13.0", triton="3.7.0", cuda="13.0", driver="580.65", cublas="13.1.0"
)
_POLICY = Policy(
    mode="max-autotune-gemm",
    options={"max_autotune_gemm_backends": "ATEN,TRITON", "dynamic_scale_rblock": False},
    timing=Method(),
    seed=0,
    tolerance={"bf16": 0.01, "f32": 0.0001},
)


# A row kind of the tests' own, with a value for each property that is printed or compared.
_TOY = Kind(
    name="toy",
    pattern=re.compile(r"toy (?:cat|split) m=[0-9.]+ n=[0-9]+ via=[a-z]+ [a-z0-9]+ tag=[0-9]+"),
    words=("kind", "op", "dtype"),
    fixed=2,
    families=frozenset({Family.TEMPLATE}),
    nearest_by=("n",),
    ranges=("m",),
    hooks="toy.hooks:Toys",
    sites=frozenset({"toy_pass"}),
    question="via",
    hidden=frozenset({"tag"}),
    summary="toys",
    library_default="the toy on top",
)


def _make_runtime(**changes: str | int | None) -> Runtime:
    of_device = {name: changes.pop(name) for name in tuple(changes) if hasattr(_DEVICE, name)}
    return replace(_RUNTIME, device=replace(_DEVICE, **of_device), **changes)  # type: ignore[arg-type]


def _make_key(
    m: int | str = 560, *, op: str = "addmm", n: int | str = 1280, epilogue: str = "none"
) -> str:
    return f"{op} m={m} n={n} k=3420 bf16 a=row b=col bias=1d out=bf16 | epilogue={epilogue}"


def _make_row(uid: str = "triton_mm", time_us: float = 10.5, **kwargs: int | str | None) -> Row:
    named = kwargs or {"BLOCK_M": 64, "BLOCK_N": 128, "ACC_TYPE": "tl.float32", "num_warps": 4}
    winner = Winner(Family.TEMPLATE, uid, tuple(sorted(named.items())), "0123456789abcdef")
    evidence = Evidence(
        time_us=time_us,
        library_us=12.25,
        runner_up="bias_addmm",
        runner_up_us=11.5,
        tried=20,
        rejected=((Rejection.LAUNCH, 1),),
        spread=0.02,
        band=0.03,
        error=0.011,
        tflops=150.5,
        gbps=1200.25,
        peak_share=0.31,
        clock_mhz=1980,
        flags=(Flag.NEAR_TIE,),
    )
    return Row(winner, evidence)


def _make_table(
    rows: Mapping[str, Row] | None = None,
    *,
    runtime: Runtime = _RUNTIME,
    policy: Policy = _POLICY,
    created: str = "2026-01-02T03:04:05Z",
) -> Table:
    if rows is None:
        rows = {_make_key(560): _make_row(), _make_key(1024): _make_row(BLOCK_M=128)}
    return Table(Provenance(runtime, "0.1.0", created), policy, dict(rows))


# Other tests keep this machine busy all the time: waiting for quiet would be in vain.
_NO_WAIT = {"WARMUP_WAIT_FOR_QUIET": "0"}


def _environment() -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")},
        **_NO_WAIT,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }


def _run_python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=_environment(),
        cwd=cwd or ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _run_together(code: str, arguments: list[list[str]]) -> list[subprocess.Popen[str]]:
    """Start one process per argument list; each runs *code* after all of them said ready."""
    gated = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    head, _, body = code.partition("# go\n")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", head + gated + body, *words],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in arguments
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return processes


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist hand out files as they stand, not those with the fewest tests last."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that compile: none of those that are left takes a worker long."""
    items.sort(key=lambda item: item.path.parent.name not in _COMPILING)


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, str]]:
    """``run_once("mlp", "-m", "warmup", ..., NAME="value")``: a folder, and what Python printed.

    The first worker that wants *name* runs it in a folder of that name, from empty caches, in a
    forked process; the others wait and get the same.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def run(name: str, *words: str, **variables: str) -> tuple[Path, str]:
        from filelock import FileLock

        folder = shared / f"once-{name}"
        folder.mkdir(exist_ok=True)
        said = folder / "said"
        with FileLock(folder / "lock"):
            if not said.exists():
                caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
                env = {**_environment(), **caches, **variables}
                done = run_forked(*words, env=env, cwd=folder)
                assert done.returncode in {0, 4}, done.stderr[-4000:]
                said.write_text(done.stdout)
        return folder, said.read_text()

    return run


@pytest.fixture(scope="session")
def variables(run_once: Callable[..., tuple[Path, str]]) -> dict[str, str]:
    """What processes that compile are told, so that they wait less; no answer depends on it.

    Where the caches are empty, every process first compiles and loads one probe for each set of
    vector instructions: 6 s, more than most models here. They are tried here, once; if this CPU
    runs what it reports, inductor is told so. The caches themselves still start empty: neither a
    probe nor a graph, a kernel or a timing is carried over. Of a source that several processes
    write, the compiler's answer is a copy (`programs/g++`). And threads that wait sleep, since
    the workers share the cores.
    """
    folder, said = run_once("probes", "-c", _PROBES)
    probed = {"TORCHINDUCTOR_VEC_ISA_OK": "1"} if said == "1\n" else {}
    # Several runs, one after the other with the same compiler and headers, may share a folder.
    outputs = Path(os.environ.get("TESTS_CXX_OUTPUTS", folder / "compiled"))
    outputs.mkdir(exist_ok=True)
    found = {
        **_NO_WAIT,
        "OMP_WAIT_POLICY": "passive",
        "CXX": str(ROOT / "tests" / "programs" / "g++"),
        "TESTS_CXX": os.environ.get("CXX", "g++"),
        "TESTS_CXX_OUTPUTS": str(outputs),
        **probed,
    }
    prepare({**_environment(), **found})
    return found


@pytest.fixture(scope="module", autouse=True)
def inherited(request: pytest.FixtureRequest) -> Iterator[None]:
    """Processes that a file of ``_COMPILING`` starts inherit ``variables``."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in _COMPILING:
            for name, value in request.getfixturevalue("variables").items():
                patch.setenv(name, value)
        yield


@pytest.fixture
def heeded_ctrl_c() -> Iterator[None]:
    """Ctrl-C reaches children; whoever runs the tests in the background may ignore it, for all."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def toy_kind(monkeypatch: pytest.MonkeyPatch) -> Kind:
    """A row kind that no module of warmup knows, in the registry while the test runs.

    One of its keys: ``toy cat m=1..8 n=4 via=sum f32 tag=7``.
    """
    monkeypatch.setitem(KINDS, _TOY.name, _TOY)
    return _TOY


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def make_runtime() -> Callable[..., Runtime]:
    """``make_runtime(driver="581", sm_count=78)``: an H200 with changed fields."""
    return _make_runtime


@pytest.fixture(scope="session")
def make_key() -> Callable[..., str]:
    """``make_key(1024, op="mm", n=64, epilogue="relu")``: one GEMM key."""
    return _make_key


@pytest.fixture(scope="session")
def make_row() -> Callable[..., Row]:
    """``make_row("triton_mm", 8.5, BLOCK_M=32)``: one row."""
    return _make_row


@pytest.fixture(scope="session")
def make_table() -> Callable[..., Table]:
    """``make_table({key: row}, created=...)``: a table; two rows when none are given."""
    return _make_table


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_python("-m", "warmup", ...)``: the finished process, with this checkout importable."""
    return _run_python


@pytest.fixture(scope="session")
def run_together() -> Callable[[str, list[list[str]]], list[subprocess.Popen[str]]]:
    """Start processes at one moment: what follows ``# go`` in the code waits for all of them."""
    return _run_together
