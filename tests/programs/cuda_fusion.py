"""Lower GEMMs with operations around them for the stated H100, fused or not as rows say.

    echo '{"case": "gelu", "fused": [true]}' | python cuda_fusion.py

One case a line on stdin, one result a line on stdout. ``fused`` has a decision for each GEMM, in
the order of the graph: true, false or null. Every row has the same tile of the mm template.
``batch`` and ``seq`` are the sizes in front of the width, and ``ranged`` makes ``seq`` a range from
2 to it. With ``tunes`` there are no rows, and a tuner that is asked chooses them. The result has
the lines of the generated code that launch kernels, and the events.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fake_gpu
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does

fake_gpu.pretend()

from torch._inductor import config  # noqa: E402  after the device is pretended
from torch._inductor.choices import InductorChoices  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.core.rows import Evidence, Row, Winner  # noqa: E402
from warmup.core.trial import Tuned  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.gemm.choices import identify  # noqa: E402
from warmup.inductor.gemm.key import describe  # noqa: E402
from warmup.inductor.gemm.question import expect_padding  # noqa: E402
from warmup.inductor.patches import Patches  # noqa: E402
from warmup.keys.question import Question  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402
from warmup.table.schema import OnMiss  # noqa: E402

WIDTH, WIDER, WORDS = 768, 3072, 128_256
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
EVIDENCE = Evidence(time_us=1.0, library_us=None, runner_up=None, runner_up_us=None, tried=1)
OPTIONS = {"max_autotune_gemm_backends": "ATEN,TRITON", "max_autotune_gemm": True}
LAUNCH = re.compile(r"\b(?:triton_\w+\.run|extern_kernels\.\w+)\(.*")
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


def graph_of(case: dict[str, Any]) -> tuple[Any, list[Any], FakeTensorMode, ShapeEnv]:
    """Return the graph of *case* after the passes behind gradients, and its inputs."""
    function, letters = CASES[case["case"]]
    shapes = ShapeEnv()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    batch, seq = case.get("batch", 8), case.get("seq", 1370)
    if case.get("ranged"):
        seq = fake_gpu.make_range(shapes, 2, seq, hint=seq)
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
        inputs = [torch.empty((*front, WIDTH), dtype=first, device="cuda:0")]
        like = {"dtype": torch.bfloat16, "device": "cuda:0"}
        inputs += [torch.empty(sizes[letter], **like) for letter in letters]
        if letters[0] == "i":
            inputs[1] = inputs[1].long()
        graph = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
        graph.graph.eliminate_dead_code()
    with V.set_fake_mode(mode), config.patch(OPTIONS):
        post_grad_passes(graph, is_inference=True)
    make_outputs_visible(graph)
    return graph, inputs, mode, shapes


def make_outputs_visible(graph: Any) -> None:
    """Mark the outputs of *graph* as what the caller of the model sees, as torch.compile does."""
    (end,) = graph.graph.find_nodes(op="output")
    outputs = end.args[0] if isinstance(end.args[0], (list, tuple)) else [end.args[0]]
    end.meta |= {
        "user_visible_output_idxs": list(range(len(outputs))),
        "original_output_strides": [tuple(node.meta["val"].stride()) for node in outputs],
    }


def generate(case: dict[str, Any]) -> str:
    """Return the code that inductor generates for *case*."""
    graph, inputs, mode, shapes = graph_of(case)
    settings = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
    with config.patch({**settings, **OPTIONS}):
        return fake_gpu.generate(graph, inputs, mode, shapes)


class Unbuilt:
    """What `identify` needs of a choice, without generating its code."""

    def __init__(self, origin: Any) -> None:
        self.annotations = {"ktc": origin}


def templates(case: dict[str, Any]) -> dict[str, Winner]:
    """Return the keys of the GEMMs in *case*, in order, each with the tile of the mm template."""
    found: dict[str, Winner] = {}

    class Listing(InductorChoices):
        def _finalize_template_configs(
            self,
            template_choices: Any,
            kernel_inputs: Any,
            templates: Any,
            op_name: str,
            kw: Any = None,
        ) -> Any:
            kept = []
            key = describe(op_name, kernel_inputs.nodes(), kernel_inputs.output_layout()).key
            for uid, candidates in template_choices.items():
                for one in candidates:
                    kwargs = one.params.to_kwargs()
                    if uid.startswith("aten::"):
                        kept.append(one)
                    elif "tma" not in uid and kwargs.items() >= TILE.items() and key not in found:
                        winner = identify(Unbuilt(one))
                        assert winner is not None
                        found[key] = winner
            return kept[:1] or super()._finalize_template_configs(
                template_choices, kernel_inputs, templates, op_name, kw
            )

    patches = Patches()
    expect_padding(patches)  # keys are those of an attached table
    with V.set_choices_handler(Listing()):
        generate(case)
    patches.restore()
    return found


@dataclass(frozen=True, slots=True)
class Choosing:
    """A tuner that measures nothing and chooses what *rows* say."""

    rows: dict[str, Row]

    def measure(self, question: Question) -> Tuned:
        """Return the row of the question's key."""
        return Tuned(question.problem.key, self.rows[question.problem.key], ())

    def close(self) -> None:
        """There is nothing to end."""


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Generate the code of *case* under a table with its decisions, and return what came of it."""
    known = templates(case)
    rows = {
        key: Row(Winner(one.family, one.uid, one.kwargs, one.source_hash, fused), EVIDENCE)
        for (key, one), fused in zip(known.items(), case["fused"], strict=True)
    }
    events: list[Event] = []
    emitter = Emitter([events.append])
    lookup = Lookup(rows, OnMiss.STRICT, emitter)
    if case.get("tunes"):
        lookup = Lookup({}, OnMiss.FALLBACK, emitter, tuner=Choosing(rows))
    attachment = connect().attach(lookup, OPTIONS, "test", quiet=True)
    try:
        code = generate(case)
    finally:
        attachment.detach()
    return {
        "keys": list(rows),
        "winners": [str(row.winner) for row in rows.values()],
        "launches": LAUNCH.findall(code),
        "events": [{"name": event.name, **event.fields} for event in events],
    }


if __name__ == "__main__":
    for line in sys.stdin:
        done = run(json.loads(line))
        sys.stdout.write(json.dumps(done) + "\n")
        sys.stdout.flush()
