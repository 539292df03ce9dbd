"""Lower GEMMs with operations around them for the stated H100, fused or not as rows say.

    echo '{"case": "gelu", "fused": [true]}' | python cuda_fusion.py

``fused`` has a decision for each GEMM, in
the order of the graph: true, false or null. Every row has the same tile of the mm template.
``batch`` and ``seq`` are the sizes in front of the width, and ``ranged`` makes ``seq`` a range from
2 to it. With ``tunes`` there are no rows, and a tuner that is asked chooses them; with
``invariant`` a row is computed alike beside any number of rows. The result has the lines of the
generated code that launch kernels, the sources of templates, and the events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import fake_gpu
import h100  # before inductor looks for a device
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does
from h100 import EVIDENCE, Case, Gemm
from torch._inductor.virtualized import V

from warmup.core.roofline import PlannedKernel
from warmup.core.rows import Row, Winner
from warmup.core.trial import Tuned
from warmup.inductor.gemm.question import expect_padding
from warmup.inductor.kernel_plans import PlanWatch
from warmup.inductor.options import invariant_options
from warmup.inductor.patches import Patches
from warmup.keys.question import Question

WIDTH, WIDER, WORDS = 768, 3072, 128_256
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
OPTIONS = {**h100.GEMM_OPTIONS, "max_autotune_gemm": True}
Call = Callable[..., Any]


def mlp(x: Any, w: Any, b: Any, w2: Any, b2: Any) -> Any:
    return F.linear(F.gelu(F.linear(x, w, b)), w2, b2).relu()


def scaled_residual(x: Any, w: Any, b: Any, scale: Any, stream: Any) -> Any:
    return stream + scale * F.linear(x, w, b)


def normed_residual(x: Any, w: Any, b: Any, stream: Any) -> Any:
    added = stream + F.linear(x, w, b)
    return added, F.layer_norm(added, (added.shape[-1],))


def residual_stream(x: Any, w: Any, b: Any, w2: Any, b2: Any) -> Any:
    for _ in range(2):
        x = x + F.linear(F.layer_norm(x, (WIDTH,)).sin().repeat(1, 1, 4), w2, b2)
        x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (WIDTH,)), w, b)), w2, b2)
    return F.layer_norm(x, (WIDTH,))


def normed_embedding(x: Any, ids: Any, table: Any) -> Any:
    return F.layer_norm(x + F.embedding(ids, table), (WIDTH,))


# The function, and its inputs after x: "w" a weight, "b" a bias, "y" as large as the output, "v"
# and "c" the weight and bias of a second product, "i" and "e" words and the weight of an embedding.
CASES: dict[str, tuple[Call, str]] = {
    "relu": (lambda x, w, b: F.relu(F.linear(x, w, b)), "wb"),
    "gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), "wb"),
    "scaled residual": (scaled_residual, "wbby"),
    "residual, then a norm": (normed_residual, "wby"),
    "gated": (lambda x, w, other: F.silu(F.linear(x, w)) * F.linear(x, other), "ww"),
    "cast": (lambda x, w, b: F.linear(x, w, b).float(), "wb"),
    "mlp": (mlp, "wbvc"),
    "residual stream": (residual_stream, "wbvc"),
    "int8 operand": (lambda x, w: F.linear(x.to(torch.bfloat16), w), "w"),
    "embedding": (normed_embedding, "ie"),
    "relu of a batched product": (lambda x, y: F.relu(torch.bmm(x, y.transpose(1, 2))), "t"),
}


def graph_of(case: Case) -> h100.Graph:
    """Return the graph of *case* after the passes behind gradients, and its inputs."""
    function, letters = CASES[case["case"]]
    mode = h100.fakes()
    batch, seq = case.get("batch", 8), case.get("seq", 1370)
    if case.get("ranged"):
        seq = fake_gpu.make_range(mode.shape_env, 2, seq, hint=seq)
    front = (batch, seq) if batch else (seq,)
    sizes = {
        "w": (WIDER, WIDTH),
        "b": (WIDER,),
        "y": (*front, WIDER),
        "v": (WIDTH, WIDER),
        "c": (WIDTH,),
        "t": (*front, WIDTH),
        "i": front,
        "e": (WORDS, WIDTH),
    }
    first = torch.int8 if case["case"] == "int8 operand" else torch.bfloat16
    with mode:
        inputs = [h100.empty(*front, WIDTH, dtype=first)]
        inputs += [h100.empty(*sizes[letter]) for letter in letters]
        if letters[0] == "i":
            inputs[1] = inputs[1].long()
    graph = h100.trace(function, inputs, mode)
    h100.run_post_grad(graph, mode, **OPTIONS)
    h100.show_outputs(graph)
    return graph, inputs, mode


def generate(case: Case) -> str:
    return h100.generate(*graph_of(case), **OPTIONS)


def templates(case: Case) -> dict[str, Winner]:
    """Return the keys of the GEMMs in *case*, in order, each with the tile of the mm template."""
    found: dict[str, Winner] = {}

    def choose(gemm: Gemm) -> list[Any]:
        libraries = []
        for uid, candidates in gemm.candidates.items():
            for one in candidates:
                if uid.startswith("aten::"):
                    libraries.append(one)
                elif "tma" not in uid and one.params.to_kwargs().items() >= TILE.items():
                    found.setdefault(gemm.key, h100.winner_of(one))
        return libraries[:1]

    patches = Patches()
    expect_padding(patches)  # keys are those of an attached table
    with h100.choosing(choose):
        generate(case)
    patches.restore()
    return found


@dataclass(frozen=True, slots=True)
class Choosing:
    """A tuner that measures nothing and chooses what *rows* say."""

    rows: dict[str, Winner]

    def measure(self, question: Question) -> Tuned:
        key = question.problem.key
        return Tuned(key, Row(self.rows[key], EVIDENCE), ())

    def close(self) -> None:
        pass


class KeptPlans(PlanWatch):
    """Keeps the plan of the last graph, which is generated and not loaded here."""

    last: tuple[PlannedKernel, ...] = ()

    def _note_launches(self, generated: Any, scheduler: Any) -> None:
        super()._note_launches(generated, scheduler)
        self.last = tuple(self._of(V.graph).planned)


def answer(case: Case) -> dict[str, Any]:
    """Generate the code of *case* under a table with its decisions, and return what came of it."""
    known = templates(case)
    rows = {
        key: replace(one, fused=fused)
        for (key, one), fused in zip(known.items(), case["fused"], strict=True)
    }
    is_tuned = bool(case.get("tunes"))
    mode, tuner = ("tune", Choosing(rows)) if is_tuned else ("strict", None)
    served = {} if is_tuned else rows
    options = {**OPTIONS, **(invariant_options() if case.get("invariant") else {})}
    words = {"options": options, "fixes_rows": bool(case.get("invariant"))}
    code, result = h100.serve(lambda: generate(case), served, mode, tuner, **words)
    return {
        **result,
        "keys": list(rows),
        "launches": h100.launches_in(code),
        "templates": [source for name, source in h100.kernels_in(code) if "_tem_" in name],
        "plan": [asdict(kernel) for kernel in WATCH.last],
    }


WATCH = KeptPlans()

if __name__ == "__main__":
    WATCH.attach(Patches())
    h100.answer_each(answer)
