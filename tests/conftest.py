"""Programs run in processes of their own, what those are told, and a row kind."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_python import prepare, run_forked
from own_processes import NO_WAIT, ROOT, codes_of, environment

from warmup.core.rows import Family
from warmup.keys.kind import Kind
from warmup.keys.registry import KINDS

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


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist hand out files as they stand, not those with the fewest tests last."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that compile: none of those that are left takes a worker long."""
    items.sort(key=lambda item: item.path.parent.name not in _COMPILING)


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, str]]:
    """``run_once("mlp", "-m", "warmup", ..., NAME="value")``: a folder, and what Python printed."""
    # The first worker that wants *name* runs it in a folder of that name, from empty caches, in a
    # forked process; the others wait and get the same.
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
                env = {**environment(), **caches, **variables}
                done = run_forked(*words, env=env, cwd=folder)
                assert done.returncode in codes_of(words), done.stderr[-4000:]
                said.write_text(done.stdout)
        return folder, said.read_text()

    return run


@pytest.fixture(scope="session")
def variables(run_once: Callable[..., tuple[Path, str]]) -> dict[str, str]:
    """What processes that compile are told, so that they wait less; no answer depends on it."""
    # Where the caches are empty, every process first compiles and loads one probe for each set of
    # vector instructions: 6 s, more than most models here. They are tried here, once; if this CPU
    # runs what it reports, inductor is told so. The caches themselves still start empty: neither a
    # probe nor a graph, a kernel or a timing is carried over. Of a source that several processes
    # write, the compiler's answer is a copy (`programs/g++`). And threads that wait sleep, since
    # the workers share the cores.
    folder, said = run_once("probes", "-c", _PROBES)
    probed = {"TORCHINDUCTOR_VEC_ISA_OK": "1"} if said == "1\n" else {}
    # Several runs, one after the other with the same compiler and headers, may share a folder.
    outputs = Path(os.environ.get("TESTS_CXX_OUTPUTS", folder / "compiled"))
    outputs.mkdir(exist_ok=True)
    found = {
        **NO_WAIT,
        "OMP_WAIT_POLICY": "passive",
        "CXX": str(ROOT / "tests" / "programs" / "g++"),
        "TESTS_CXX": os.environ.get("CXX", "g++"),
        "TESTS_CXX_OUTPUTS": str(outputs),
        **probed,
    }
    prepare({**environment(), **found})
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
    """A row kind that no module of warmup knows, in the registry while the test runs."""
    # One of its keys: ``toy cat m=1..8 n=4 via=sum f32 tag=7``.
    monkeypatch.setitem(KINDS, _TOY.name, _TOY)
    return _TOY


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT
