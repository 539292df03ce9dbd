"""Trials between processes: plain JSON, and equal when they arrive."""

from __future__ import annotations

import json
from dataclasses import fields

from warmup.core.rows import L2, Family, Method, Winner
from warmup.core.trial import (
    Candidate,
    Contenders,
    Fill,
    Region,
    Step,
    TensorSpec,
    Trial,
    ViewSpec,
    trial_from_json,
    trial_to_json,
)

LIBRARY = Winner(Family.EXTERN, "aten::mm", (("a", None), ("b", 2), ("c", True), ("d", "x")), "f00")
SPEC = TensorSpec((2, 3), (3, 1), 5, "bfloat16", Fill.POSITIVE)
STEP = Step("aten.mm.default", ({"input": 0}, [1, None], 0.5), {"dtype": {"dtype": "float32"}})


def test_a_trial_arrives_as_it_was_sent() -> None:
    """Through the text of JSON and back every field is equal, and of the same type."""
    trial = Trial(
        key="k",
        op="mm",
        device="cpu",
        operands=(SPEC,),
        views=(ViewSpec(0, (2,), (1,), 1 << 40),),
        out=SPEC,
        candidates=(Candidate(LIBRARY, {"a": [None, {"b": 1}]}),),
        library=LIBRARY,
        method=Method(l2=L2.WARM, near_tie=0.5),
        alpha=0.5,
        beta=2.0,
        tolerance=1e-3,
        floor_us=1.5,
        doubtful_us=2.5,
        tolerances={"float32": 1e-3},
        seed=1 << 62,
        environment={"A": "1"},
        region=Region((SPEC,), (STEP,), (0,), (12,)),
        options={"freezing": True, "x": None},
        known=(("other", LIBRARY),),
        contenders=Contenders(((LIBRARY, 1.5),), 2.5, (LIBRARY,), 2, fuses=True),
        prefers_fewer=True,
        notes_bits=True,
        bars_library=True,
        only_screens=True,
    )
    arrived = trial_from_json(json.loads(json.dumps(trial_to_json(trial))))
    assert (arrived, repr(arrived)) == (trial, repr(trial))
    defaults = {each.name: each.default for each in fields(Trial)}
    assert [name for name, value in defaults.items() if getattr(trial, name) == value] == []


def test_a_span_reaches_from_the_storage_to_the_last_element() -> None:
    """The offset and the gaps between rows count; elements of an expanded dim count once."""
    for sizes, strides, offset, span in (
        ((2, 3), (3, 1), 0, 6),
        ((2, 3), (1, 2), 0, 6),
        ((2, 3), (8, 1), 0, 11),
        ((2, 3), (3, 1), 5, 11),
        ((4, 3), (0, 1), 0, 3),
        ((), (), 2, 3),
        ((0, 3), (3, 1), 4, 4),
    ):
        assert TensorSpec(sizes, strides, offset, "float32").span == span
