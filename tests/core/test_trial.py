"""Trials between processes: plain JSON, and equal when they arrive."""

from __future__ import annotations

import json
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from warmup.core.method import L2, Launch, Method
from warmup.core.rows import MAX_INT, Family, Rejection, Winner
from warmup.core.trial import (
    Candidate,
    Fill,
    Outcome,
    Samples,
    TensorSpec,
    Trial,
    ViewSpec,
    trial_from_json,
    trial_to_json,
)

WORDS = st.text(max_size=12)
SHAPES = st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 2**31)), max_size=4).map(
    lambda pairs: (tuple(size for size, _ in pairs), tuple(stride for _, stride in pairs))
)
OFFSETS = st.integers(0, 2**40)
TENSORS = st.builds(
    lambda shape, offset, dtype, fill: TensorSpec(*shape, offset, dtype, fill),
    SHAPES,
    OFFSETS,
    st.sampled_from(["bfloat16", "float32", "int8", "float8_e4m3fn"]),
    st.sampled_from(Fill),
)
VIEWS = st.builds(
    lambda base, shape, offset: ViewSpec(base, *shape, offset), st.integers(0, 5), SHAPES, OFFSETS
)
KWARGS = st.dictionaries(
    WORDS, st.none() | st.booleans() | st.integers(-MAX_INT, MAX_INT) | WORDS, max_size=4
)
WINNERS = st.builds(
    lambda family, uid, kwargs, source: Winner(family, uid, tuple(sorted(kwargs.items())), source),
    st.sampled_from(Family),
    WORDS,
    KWARGS,
    st.none() | WORDS,
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INT, MAX_INT) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
CANDIDATES = st.builds(Candidate, WINNERS, st.dictionaries(WORDS, PLAIN, max_size=3))
TIMES = st.floats(0, 1e9)
TRIALS = st.builds(
    Trial,
    key=WORDS,
    op=WORDS,
    device=WORDS,
    operands=st.lists(TENSORS, max_size=3).map(tuple),
    views=st.lists(VIEWS, max_size=3).map(tuple),
    out=TENSORS,
    candidates=st.lists(CANDIDATES, max_size=3).map(tuple),
    library=WINNERS,
    method=st.builds(
        Method,
        launch=st.sampled_from(Launch),
        l2=st.sampled_from(L2),
        near_tie=st.floats(0, 1),
        max_spread=st.floats(0, 1),
    ),
    alpha=st.floats(-10, 10),
    beta=st.floats(-10, 10),
    tolerance=st.none() | st.floats(0, 1),
    seed=st.integers(0, 2**62),
    floor_us=st.none() | TIMES,
    doubtful_us=st.none() | TIMES,
    environment=st.dictionaries(WORDS, WORDS, max_size=2),
)
LIBRARY = Winner(Family.EXTERN, "aten::mm")


@given(TRIALS)
def test_a_trial_arrives_as_it_was_sent(trial: Trial) -> None:
    """Through the text of JSON and back every field is equal, and of the same type."""
    arrived = trial_from_json(json.loads(json.dumps(trial_to_json(trial))))
    assert arrived == trial
    assert repr(arrived) == repr(trial)


def test_every_field_of_a_trial_is_sent() -> None:
    """A field that is not sent would arrive as its default."""
    spec = TensorSpec((2,), (1,), 0, "float32")
    trial = Trial(
        key="k",
        op="mm",
        device="cpu",
        operands=(spec,),
        views=(),
        out=spec,
        candidates=(),
        library=LIBRARY,
        method=Method(),
    )
    assert set(trial_to_json(trial)) == {field.name for field in fields(Trial)}


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


def test_an_outcome_has_the_median_time_if_any() -> None:
    assert Outcome(winner=LIBRARY, samples=Samples((3.0, 1.0, 2.0))).time_us == 2.0
    # An outcome may have no time.
    for case, outcome in {
        "not timed": Outcome(winner=LIBRARY),
        "rejected": Outcome(
            winner=LIBRARY, samples=Samples((1.0,)), rejection=Rejection.IMPLAUSIBLE
        ),
    }.items():
        assert outcome.time_us is None, case
