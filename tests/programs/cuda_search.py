"""Search for candidates on the stated H100 and print, as JSON, what was found and can be forced.

    echo '{"op": "mm", "m": 16, "n": 6144, "k": 4096, "search": "wide"}' | python cuda_search.py

One case a line on stdin, one result a line on stdout; cases as for cuda_lowering.py. ``neighbours``
are kwargs of winners of the mm template elsewhere. ``serve`` names a source: its last candidate
becomes a row, which is served. ``compile`` lists such sources: Triton compiles the candidate.
``compile_each`` is a source whose candidates are all compiled.
``asked`` says that the case is tuned, and what a tuner is asked is told.
"""

from __future__ import annotations

import functools
import itertools
import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# First, since it pretends the device before inductor looks for one.
from cuda_lowering import OPTIONS, SPARE, Unbuilt, answer_each, lower, rows_apart, serve
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.codecache import PyCodeCache
from torch._inductor.kernel.mm import mm_template
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.virtualized import V

from warmup.core.events import Emitter
from warmup.core.method import Search, SearchCounts
from warmup.core.rows import Family, Winner, portable_kwargs
from warmup.inductor import connect
from warmup.inductor.gemm.choices import identify
from warmup.inductor.gemm.key import describe
from warmup.inductor.gemm.search import GemmOperand, Selection, search, shared_bytes, tile_of
from warmup.keys.question import GemmQuestion, Question, SmallerSize
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss


def answer(case: dict[str, Any], generated: list[str]) -> dict[str, Any]:
    """Search for the candidates of the case and return what came of it."""
    if case.get("asked"):
        return ask(case)
    case = {"winner": "none", **case}
    wanted = case.get("compile", ())
    parts: list[SearchCounts] = []
    every: list[str] = []
    splits: list[int] = []
    last: dict[str, dict[str, Any]] = {}
    shared: dict[str, dict[str, int]] = {}
    each: list[dict[str, Any]] = []
    rows: dict[str, Winner] = {}

    class Searching(InductorChoices):
        def _finalize_template_configs(
            self,
            template_choices: Any,
            kernel_inputs: Any,
            templates: Any,
            op_name: str,
            kw: Any = None,
        ) -> Any:
            listed = super()._finalize_template_configs(
                template_choices, kernel_inputs, templates, op_name, kw
            )
            if not (config.max_autotune or config.max_autotune_gemm):
                return listed
            selection = Selection(
                connect().version, self, kernel_inputs, templates, op_name, kw or {}
            )
            found = search(selection, Search(case["search"]), listed, _neighbours(case))
            added = _by_source(found)
            ends = {source: choices[-1] for source, choices in added.items()}
            parts.append(found.searched)
            every.extend(_spell(choice) for choice in (*listed, *found.choices))
            last.update({source: _kwargs(choice) for source, choice in ends.items()})
            splits.extend(_splits(found.choices))
            shared.update({name: _compiled(ends[name]) for name in wanted if name in ends})
            own = added.get(case.get("compile_each", ""), [])
            each.extend({**_kwargs(choice), **_compiled(choice)} for choice in own)
            if case.get("serve") in ends:
                key = describe(op_name, kernel_inputs.nodes(), kernel_inputs.output_layout()).key
                winner = identify(Unbuilt(ends[case["serve"]]))
                assert winner is not None
                rows[key] = winner
            library = [choice for choice in listed if choice.template.uid.startswith("aten::")]
            return [choice for choice in library if choice.template.uid not in SPARE]

    with V.set_choices_handler(Searching()), config.patch(OPTIONS):
        _, shapes = lower(case)
    searched = functools.reduce(operator.add, parts)
    result: dict[str, Any] = {
        "every": every,
        "listed": searched.listed,
        "added": dict(searched.added),
        "pruned": dict(searched.pruned),
        "spilling": searched.spilling,
        "tried": searched.tried,
        "twice": len(every) - len(set(every)),
        "splits": splits,
        "last": last,
        "shared": shared,
        "each": each,
        "guards": [str(guard.expr) for guard in shapes.guards],
    }
    if rows:
        result["row"] = str(*rows.values())
        result["served"] = serve(case, rows, generated)
    return result


@dataclass(slots=True)
class Silent:
    """A tuner that measures nothing, and keeps what it was asked."""

    questions: list[GemmQuestion] = field(default_factory=list)
    smaller_sizes: list[dict[str, Any]] = field(default_factory=list)

    def measure(self, question: Question) -> None:
        assert isinstance(question, GemmQuestion), question.problem.key
        self.questions.append(question)
        self.smaller_sizes += [_at_smaller_size(question, one) for one in question.smaller_sizes]

    def close(self) -> None:
        pass


def ask(case: dict[str, Any]) -> dict[str, Any]:
    """Tune the case and return what the tuner was asked."""
    tuner = Silent()
    search_word = Search(case["search"])
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]), tuner=tuner, search=search_word)
    attachment = connect().attach(lookup, OPTIONS, "test", quiet=True)
    try:
        _, shapes = lower({"winner": "none", **case})
    finally:
        attachment.detach()
    (question,) = tuner.questions
    assert question.searched is not None
    return {
        "word": question.searched.search,
        "tried": question.searched.tried,
        "added": dict(question.searched.added),
        "offered": len(question.candidates) + len(question.uncompiled),
        "has_library": question.library in [one.winner for one in question.candidates],
        "size": question.size,
        "key": question.problem.key,
        "strides": [view.strides for view in question.views],
        "rows_apart": rows_apart(_sources(question)),
        "smaller_sizes": tuner.smaller_sizes,
        "guards": [str(guard.expr) for guard in shapes.guards],
    }


def _sources(question: GemmQuestion) -> str:
    specs = (one.spec for one in question.candidates if "template" in one.spec)
    return "".join(Path(spec["template"]["module_path"]).read_text() for spec in specs)


def _at_smaller_size(question: GemmQuestion, smaller: SmallerSize) -> dict[str, Any]:
    """Return what is asked there: the output, grids by tile, and which kernels are not the same."""
    asked = smaller.question_for([candidate.winner for candidate in question.candidates])
    before = {candidate.winner: candidate.spec for candidate in question.candidates}
    assert asked.out is not None
    templates = [one for one in asked.candidates if "template" in one.spec]
    return {
        "size": smaller.size,
        "out": asked.out.sizes,
        "grids": [
            (dict(one.winner.kwargs), one.spec["extra"][0], one.spec["extra"][-3:])
            for one in templates
        ],
        "missing": len(question.candidates) - len(asked.candidates),
        "changed": sum(one.spec["template"] != before[one.winner]["template"] for one in templates),
    }


def _neighbours(case: dict[str, Any]) -> list[Winner]:
    return [
        Winner(Family.TEMPLATE, mm_template.uid, portable_kwargs(kwargs) or ())
        for kwargs in case.get("neighbours", ())
    ]


def _by_source(found: Any) -> dict[str, list[Any]]:
    """Return the choices that a search added, by their source."""
    choices = iter(found.choices)
    return {
        str(source): list(itertools.islice(choices, count))
        for source, count in found.searched.added
    }


def _splits(choices: list[Any]) -> list[int]:
    kwargs = (choice.params.to_kwargs() for choice in choices)
    return [named["k_split"] for named in kwargs if "k_split" in named]


def _kwargs(choice: Any) -> dict[str, Any]:
    return {"uid": choice.template.uid, **choice.params.to_kwargs()}


def _spell(choice: Any) -> str:
    return str(sorted(map(str, _kwargs(choice).items())))


def _compiled(choice: Any) -> dict[str, int]:
    """Return the shared memory that Triton takes for *choice*, and what was foretold."""
    taken: list[int] = []
    CachingAutotuner._make_launchers = lambda kernel: taken.extend(
        getattr(result.kernel, "metadata", result.kernel).shared
        for result in kernel.compile_results
    )
    choice.layout = choice.inputs.output_layout(flexible=False)
    request = choice.choice.bmreq
    module = PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path)
    getattr(module, request.kernel_name).precompile()
    tile = tile_of(choice)
    assert tile is not None
    itemsize = choice.inputs.dtype().itemsize
    foretold = shared_bytes(tile, GemmOperand(itemsize), GemmOperand(itemsize), has_warpgroups=True)
    return {"taken": taken[0], "foretold": foretold}


if __name__ == "__main__":
    answer_each(answer)
