"""Lower reductions for the stated H100, persistent or looped as rows say.

    echo '{"case": "layer norm", "way": "looped"}' | python cuda_reductions.py

One case a line on stdin, one result a line on stdout. ``way`` is what every row says; without it
there are no rows. ``x`` and ``r`` are the sizes, and ``ranged`` makes ``x`` a range from 2 to it.
``on_miss`` is ``tune`` for a build, whose stated times make the way ``wins`` the faster;
``search`` says whether the policy has its kind among ``searches``, and ``refuse`` makes every
config of a looped kernel refuse to load. ``looped_us`` states times of launch configs, of which few
are tried besides inductor's lists. ``parts`` is what every row of a reduction that inductor
splits says; without ``splits`` there are no such rows, and no question. The result has the kernels'
names, the events, the sources that a build generated to time them, and the questions about regions.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fake_gpu
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does

fake_gpu.pretend()

from torch._dynamo import device_interface  # noqa: E402  after the device is pretended
from torch._inductor import config  # noqa: E402
from torch._inductor.codecache import PyCodeCache  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.errors import warmup_error_in  # noqa: E402
from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.core.method import CandidateSource  # noqa: E402
from warmup.core.rows import Evidence, Row, Winner  # noqa: E402
from warmup.core.trial import (  # noqa: E402
    LiveSearch,
    Tuned,
)
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.launch import hooks as launch_search  # noqa: E402
from warmup.keys.question import Question, SearchQuestion  # noqa: E402
from warmup.keys.reduction import (  # noqa: E402
    LOOPED,
    PERSISTENT,
    split_into,
)
from warmup.keys.registry import kind_of  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402
from warmup.table.schema import OnMiss  # noqa: E402

EVIDENCE = Evidence(time_us=1.0, library_us=None, runner_up=None, runner_up_us=None, tried=1)
WAYS = {"persistent": PERSISTENT, "looped": LOOPED}
KERNEL = re.compile(r"\b(triton_\w+)\.run\(")
REFUSED: list[str] = []  # parts of configs that do not load
launch_search.MOST_CONFIGS = {CandidateSource.GRID: 1, CandidateSource.DESCENT: 2}  # type: ignore[misc]
torch._C._cuda_getCurrentRawStream = lambda _: 0  # type: ignore[attr-defined]
device_interface.CudaInterface.get_raw_stream = staticmethod(lambda _: 0)
WORK = fake_gpu.pretend_launches(
    lambda named: float(named["num_warps"]),
    lambda spelled: any(part in spelled for part in REFUSED),
)


def rms_norm(x: Any, w: Any) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "layer norm": lambda x, w: F.layer_norm(x, (x.shape[-1],), w),
    "rms norm": rms_norm,
    "softmax": lambda x, _: torch.softmax(x, -1),
    "column sums": lambda x, _: x.sum(0),
    "norm, and the input of it": lambda x, w: (x.relu(), rms_norm(x.relu(), w)),
    "norm of relu": lambda x, w: rms_norm(x.relu(), w),
    "norm of a norm": lambda x, w: rms_norm(torch.sort(rms_norm(x, w), stable=True)[0], w),
    "norm of what a sort wrote": lambda x, w: rms_norm(torch.sort(x, stable=True)[0], w),
    "sort": lambda x, _: torch.sort(x, stable=True)[0],
    "product of rows": lambda x, _: torch.cumsum(x, -1),
    "row sums": lambda x, _: x.float().sum(-1),
    "mean of rows": lambda x, _: x.mean(0),
    "variance": lambda x, _: x.float().var(-1),
    "largest": lambda x, _: x.abs().amax(),
    "argmax": lambda x, _: x.argmax(-1),
    "counted": lambda x, _: (x > 0).sum(-1),
}


def generate(case: dict[str, Any]) -> str:
    """Return the code that inductor generates for *case*."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    x, r = case.get("x", 4096), case.get("r", 768)
    rows = fake_gpu.make_range(shapes, 2, x, hint=x) if case.get("ranged") else x
    with mode:
        like: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda:0"}
        inputs = [torch.empty((rows, r), **like), torch.empty((r,), **like)]
        graph = make_fx(CASES[case["case"]], decomposition_table=select_decomp_table())(*inputs)
        graph.graph.eliminate_dead_code()
    with config.patch({"fx_graph_cache": False, "compile_threads": 1}):
        return fake_gpu.generate(graph, inputs, mode, shapes)


class CallingTuner(fake_gpu.StatedTuner):
    """Calls the kernel of each way, and keeps what came of it by name: None, or its error.

    Of the launch configs of a kernel those of default mode are tried, without the grid and the
    descent, unless *looped_us* states what a looped kernel takes where a persistent one takes 1 us;
    then ``searched`` has what each search added. ``written`` has the shapes and dtypes that the
    kernel of each way wrote.
    """

    def __init__(self, wins: str | None, looped_us: float | None) -> None:
        def time_us(winner: Winner) -> float:
            if looped_us is not None:
                return looped_us if "R0_BLOCK" in str(winner) else 1.0
            return 1.0 if winner.uid == wins else 2.0

        super().__init__(time_us)
        self.called: dict[str, str | None] = {}
        self.written: dict[str, list[str]] = {}
        self.configs: list[list[str]] = []
        self.library = ""
        self.searched: list[dict[str, int]] = []
        self.looped_us = looped_us

    def measure(self, question: Question) -> Tuned | None:
        if not isinstance(question, SearchQuestion) or question.makes_row:
            return super().measure(question)
        search = question.search
        self.configs.append([str(winner) for winner in search.calls])
        if self.looped_us is None:
            search = replace(search, more=lambda _: {})
            return super().measure(replace(question, search=search))
        tuned = super().measure(question)
        self.searched.append(dict(search.counts().added))
        return tuned

    def measure_search(self, key: str, search: LiveSearch) -> Tuned | None:
        if kind_of(key).name == "reduction":
            self.library = str(search.listed[0])
            self.called |= {way.uid: reason for way, reason in search.uncompiled.items()}
            for way, call in search.calls.items():
                call(0)
                self.called[way.uid] = None
                tensors = search.written(way)
                self.written[way.uid] = [f"{tuple(one.shape)} {one.dtype}" for one in tensors]
        return super().measure_search(key, search)


class Generated:
    """Keeps the sources that are loaded to be timed, and gives their kernels tensors of the CPU."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self._load = PyCodeCache.load

    def __enter__(self) -> list[str]:
        def load(source: str, *args: Any, **kwargs: Any) -> Any:
            self.sources.append(source)
            return self._load(source.replace("device='cuda:0'", "device='cpu'"), *args, **kwargs)

        PyCodeCache.load = load  # type: ignore[method-assign,assignment]
        return self.sources

    def __exit__(self, *_: object) -> None:
        PyCodeCache.load = self._load  # type: ignore[method-assign]


def searches_of(case: dict[str, Any]) -> frozenset[str]:
    """Return the kind that *case* is about."""
    return frozenset({"split" if case.get("splits") else "reduction"})


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Generate the code of *case* under a table, and return what came of it."""
    events: list[Event] = []
    tuner = CallingTuner(case.get("wins"), case.get("looped_us"))
    rows: dict[str, Row] = {}
    if "way" in case:
        rows = {key: Row(WAYS[case["way"]], EVIDENCE) for key in keys_of(case)}
    if "parts" in case:
        rows = {key: Row(split_into(case["parts"]), EVIDENCE) for key in keys_of(case)}
    lookup = Lookup(
        rows,
        emitter=Emitter([events.append]),
        **fake_gpu.answering(case.get("on_miss", "strict"), tuner),
        searches=searches_of(case) if case.get("search", True) else frozenset(),
    )
    WORK.clear()
    REFUSED.clear()
    if case.get("refuse"):
        REFUSED.append("R0_BLOCK")
    code, error = "", None
    attachment = connect().attach(lookup, {}, "test", quiet=True)
    try:
        with Generated() as sources:
            code = generate(case)
    except Exception as raised:  # noqa: BLE001  whatever it is, a test says what it should be
        own = warmup_error_in(raised)
        error = f"{type(own or raised).__name__}: {own or raised}"
    finally:
        attachment.detach()
    return {
        "error": error,
        "code": code,
        "kernels": KERNEL.findall(code),
        "events": [{"name": event.name, **event.fields} for event in events],
        "sources": sources,
        "called": tuner.called,
        "library": tuner.library,
        "configs": tuner.configs,
        "written": tuner.written,
        "searched": tuner.searched,
        "compiled": list(WORK.compiled),
        "questions": [
            {
                "key": asked.key,
                "ways": [str(way) for way in asked.variants],
                "steps": [] if asked.region is None else [s.target for s in asked.region.steps],
            }
            for asked in tuner.questions
        ],
    }


def keys_of(case: dict[str, Any]) -> list[str]:
    events: list[Event] = []
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([events.append]), searches=searches_of(case))
    attachment = connect().attach(lookup, {}, "test", quiet=True)
    try:
        generate(case)
    finally:
        attachment.detach()
    return [event.fields["key"] for event in events]


if __name__ == "__main__":
    for line in sys.stdin:
        done = run(json.loads(line))
        sys.stdout.write(json.dumps(done) + "\n")
        sys.stdout.flush()
