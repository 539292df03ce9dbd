"""Tables of every shape, for property tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from sample_tables import make_key, make_row

from warmup.core.device import CallCost, Device, Runtime
from warmup.core.rows import (
    L2,
    MAX_INT,
    MAX_TOP_K,
    Evidence,
    Family,
    Flag,
    Method,
    Rejection,
    Row,
    Scope,
    Search,
    Winner,
)
from warmup.keys.gemm import GEMM
from warmup.keys.kind import Kind
from warmup.keys.launch import LAUNCH
from warmup.keys.pad import PAD
from warmup.table.schema import SEARCH_FIELDS, Policy, Provenance, Table

PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=20)
COUNTS = st.none() | st.integers(1, MAX_INT)
VERSIONS = st.none() | PRINTABLE
TIMES = st.floats(1e-6, 1e9)
SHARES = st.none() | st.floats(0, 1e6)
DECISIONS = st.none() | st.booleans()
PLACES = st.dictionaries(st.integers(1, MAX_INT), st.none() | st.floats(1, 1e6), max_size=3).map(
    lambda ratios: tuple(sorted(ratios.items()))
)
WORDS = st.from_regex(r"tl\.[a-z0-9]{1,24}|[A-Za-z0-9_]{0,32}", fullmatch=True)
SIZES = st.sampled_from(["1", "16", "560", "1..", "2..8"])
KEYS = st.builds(
    "{} m={} n={} k={} bf16 a=row b=col out=f32 | epilogue={}".format,
    st.sampled_from(["mm", "addmm", "bmm"]),
    SIZES,
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(["none", "relu", "gelu_tanh,mul(bf16[1,2])"]),
)
PAD_KEYS = st.builds(
    "pad mm m={} n={} k=5 f16 a=row b=col free=ab".format, SIZES, st.integers(1, 5)
)
LAUNCH_KEYS = st.builds(
    "launch triton_poi_fused_{} x={} args=*bf16,i32 source=0123456789abcdef".format,
    st.sampled_from(["mul", "add_silu"]),
    st.integers(1, 5),
)


def _rows(kind: Kind, keys: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Row]]:
    winners = st.builds(
        Winner,
        st.sampled_from(sorted(kind.families)),
        st.from_regex(r"[A-Za-z0-9_.:]{1,128}", fullmatch=True),
        st.dictionaries(
            st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,63}", fullmatch=True),
            st.none() | st.booleans() | st.integers(-MAX_INT, MAX_INT) | WORDS,
            max_size=5,
        ).map(lambda kwargs: tuple(sorted(kwargs.items()))),
        st.none() | st.from_regex(r"[0-9a-f]{8,64}", fullmatch=True),
    )
    decided = st.builds(lambda winner, fused: replace(winner, fused=fused), winners, DECISIONS)
    winners = decided.map(lambda one: one if one.family is Family.TEMPLATE else one.choice)
    evidence = st.builds(
        Evidence,
        time_us=TIMES,
        library_us=st.none() | TIMES,
        runner_up=st.none() | PRINTABLE,
        runner_up_us=st.none() | TIMES,
        tried=st.integers(1, 100_000),
        rejected=st.dictionaries(st.sampled_from(Rejection), st.integers(1, 100_000)).map(
            lambda counts: tuple(sorted(counts.items()))
        ),
        spread=SHARES,
        band=SHARES,
        error=SHARES,
        tflops=SHARES,
        gbps=SHARES,
        peak_share=SHARES,
        clock_mhz=COUNTS,
        flags=st.lists(st.sampled_from(Flag), unique=True).map(tuple),
        scope=st.sampled_from(Scope),
        bare_us=st.none() | TIMES,
        search=st.sampled_from(Search),
        along=PLACES,
        kernels=st.none() | st.integers(1, 1000),
        library_kernels=st.none() | st.integers(1, 1000),
        spills=st.none() | st.integers(0, MAX_INT),
        registers=st.none() | st.integers(1, 1024),
    )
    return st.dictionaries(keys, st.builds(Row, winners, evidence), max_size=4)


COSTS = st.builds(CallCost, st.floats(0, 1e12), st.floats(0, 1e12), st.integers(0, MAX_INT))
CALLS = st.dictionaries(PRINTABLE, COSTS, max_size=3).map(
    lambda calls: tuple(sorted(calls.items()))
)
ROWS = st.tuples(_rows(GEMM, KEYS), _rows(LAUNCH, LAUNCH_KEYS), _rows(PAD, PAD_KEYS)).map(
    lambda kinds: kinds[0] | kinds[1] | kinds[2]
)
DEVICES = st.builds(
    Device,
    type=PRINTABLE,
    vendor=PRINTABLE,
    name=PRINTABLE,
    arch=PRINTABLE,
    sm_count=COUNTS,
    memory_gib=COUNTS,
    mig=VERSIONS,
    threads=COUNTS,
)
POLICIES = st.builds(
    Policy,
    mode=PRINTABLE,
    searches=st.frozensets(st.sampled_from(list(SEARCH_FIELDS))),
    options=st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,9}(\.[a-z_][a-z0-9_]{0,9})?", fullmatch=True),
        st.none()
        | st.booleans()
        | st.integers(-MAX_INT, MAX_INT)
        | st.floats(-1e30, 1e30)
        | PRINTABLE,
        max_size=4,
    ),
    timing=st.builds(
        Method,
        l2=st.sampled_from(L2),
        near_tie=st.floats(0, 1),
        max_spread=st.floats(0, 1),
        fused_top_k=st.integers(0, MAX_TOP_K),
    ),
    seed=st.integers(0, MAX_INT),
    tolerance=st.dictionaries(st.sampled_from(["bf16", "f16", "f32"]), st.floats(0, 1)),
)
RUNTIMES = st.builds(
    Runtime,
    device=DEVICES,
    torch=PRINTABLE,
    triton=VERSIONS,
    cuda=VERSIONS,
    driver=VERSIONS,
    cublas=VERSIONS,
)


@pytest.fixture(scope="session")
def tables() -> st.SearchStrategy[Table]:
    return st.builds(
        Table,
        st.builds(
            Provenance,
            RUNTIMES,
            warmup=PRINTABLE,
            created=PRINTABLE,
            assumptions=st.lists(PRINTABLE, max_size=3, unique=True).map(tuple),
            calls=CALLS,
        ),
        POLICIES,
        ROWS,
    )


@pytest.fixture(scope="session")
def row_sets() -> st.SearchStrategy[dict[str, Row]]:
    """Rows whose keys, winners and times often meet those of another draw."""
    keys = st.integers(1, 5).map(make_key)
    rows = st.builds(make_row, st.sampled_from(["mm_1", "mm_2"]), st.sampled_from([1.0, 2.0, 3.0]))
    return st.dictionaries(keys, rows)
