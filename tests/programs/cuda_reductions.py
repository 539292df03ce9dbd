"""Lower reductions for the stated H100, persistent or looped as rows say.

    echo '{"case": "layer norm", "way": "looped"}' | python cuda_reductions.py

``way`` is what every row says; without it there are no rows. ``x`` and ``r`` are the sizes, and
``ranged`` makes ``x`` a range from 2 to it. ``on_miss`` is ``tune`` for a build, whose stated times
make the way ``wins`` the faster; ``search`` says whether the policy has its kind among
``searches``, and ``refuse`` makes every config of a looped kernel refuse to load. ``parts`` is
what every row of a reduction that inductor splits says; without ``splits`` there are no such rows,
and no question. The result has the kernels' names, the events, the sources that a build generated
to time them, and the questions about regions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import fake_gpu
import h100  # before inductor looks for a device
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does
from h100 import Case
from torch._dynamo import device_interface
from torch._inductor.codecache import PyCodeCache

from warmup.core.rows import CandidateSource, Winner
from warmup.core.trial import LiveSearch, Tuned
from warmup.inductor.launch import hooks as launch_search
from warmup.keys.question import Question, SearchQuestion
from warmup.keys.reduction import LOOPED, PERSISTENT, split_into
from warmup.keys.registry import kind_of

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


def generate(case: Case) -> str:
    mode = h100.fakes()
    x, r = case.get("x", 4096), case.get("r", 768)
    rows = fake_gpu.make_range(mode.shape_env, 2, x, hint=x) if case.get("ranged") else x
    with mode:
        inputs = [h100.empty(rows, r), h100.empty(r)]
    return h100.generate(h100.trace(CASES[case["case"]], inputs, mode), inputs, mode)


class CallingTuner(h100.StatedTuner):
    """Calls the kernel of each way, and keeps what came of it by name: None, or its error.

    Of the launch configs of a kernel those of default mode are tried, without grid and descent.
    """

    def __init__(self, wins: str | None) -> None:
        super().__init__(lambda winner: 1.0 if winner.uid == wins else 2.0)
        self.called: dict[str, str | None] = {}
        self.library = ""

    def measure(self, question: Question) -> Tuned | None:
        if not isinstance(question, SearchQuestion) or question.makes_row:
            return super().measure(question)
        search = replace(question.search, more=lambda _: {})
        return super().measure(replace(question, search=search))

    def measure_search(self, key: str, search: LiveSearch) -> Tuned | None:
        if kind_of(key).name == "reduction":
            self.library = str(search.listed[0])
            self.called |= {way.uid: reason for way, reason in search.uncompiled.items()}
            for way, call in search.calls.items():
                call(0)
                self.called[way.uid] = None
        return super().measure_search(key, search)


def generate_noting(case: Case, sources: list[str]) -> str:
    """Generate *case*; note sources that are loaded to be timed, and give them CPU tensors."""
    load = PyCodeCache.load

    def note(source: str, *args: Any, **kwargs: Any) -> Any:
        sources.append(source)
        return load(source.replace("device='cuda:0'", "device='cpu'"), *args, **kwargs)

    with patch.object(PyCodeCache, "load", note):
        return generate(case)


def answer(case: Case) -> dict[str, Any]:
    """Generate the code of *case* under a table, and return what came of it."""
    kind = frozenset({"split" if case.get("splits") else "reduction"})
    rows: dict[str, Winner] = {}
    if "way" in case or "parts" in case:
        winner = WAYS[case["way"]] if "way" in case else split_into(case["parts"])
        _, asked = h100.serve(lambda: generate(case), {}, "fallback", searches=kind)
        rows = {event["key"]: winner for event in asked["events"]}
    WORK.clear()
    REFUSED[:] = ["R0_BLOCK"] if case.get("refuse") else []
    sources: list[str] = []
    tuner = CallingTuner(case.get("wins"))
    code, result = h100.serve(
        lambda: generate_noting(case, sources),
        rows,
        case.get("on_miss", "strict"),
        tuner,
        searches=kind if case.get("search", True) else frozenset(),
    )
    return {
        **result,
        "code": code,
        "kernels": KERNEL.findall(code or ""),
        "sources": sources,
        "called": tuner.called,
        "library": tuner.library,
        "questions": [
            {
                "key": asked.key,
                "ways": [str(way) for way in asked.variants],
                "steps": [] if asked.region is None else [s.target for s in asked.region.steps],
            }
            for asked in tuner.questions
        ],
    }


if __name__ == "__main__":
    h100.answer_each(answer)
