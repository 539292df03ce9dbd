"""Keys of kind ``launch``: their ingredients, which text is refused, and which row is nearest."""

from __future__ import annotations

import string
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.core.errors import ProblemError
from warmup.core.rows import Family
from warmup.keys.kind import MAX_KEY_LENGTH
from warmup.keys.launch import LAUNCH, LaunchProblem
from warmup.keys.registry import check_key, ingredients_of, kind_of, nearest_row

CODE = (
    "def triton_poi_fused_mul_silu_3(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):\n    pass\n"
)
PLAIN = LaunchProblem.of("triton_poi_fused_mul_silu_3", {"x": 8192}, ["*bf16", "i32"], CODE)
CHANGES: dict[str, object] = {
    "kernel": "triton_red_fused_mul",
    "sizes": (("x", 4096),),
    "args": ("*bf16", "i64"),
    "source": "0123456789abcdef",
}
NAMES = st.from_regex(r"triton_(poi|red|per)_fused_[a-z_]{1,30}[a-z]", fullmatch=True)
PROBLEMS = st.builds(
    LaunchProblem.of,
    NAMES,
    st.dictionaries(st.sampled_from(["x", "y", "z", "r0_", "r1_"]), st.integers(0, 2**40)),
    st.lists(st.sampled_from(["*bf16", "*fp32", "i32", "i64", "tensordesc<bf16[64,64]>"])),
    st.text(max_size=200),
)


def key_of(x: int, *, name: str = "triton_poi_fused_mul", code: str = CODE) -> str:
    return LaunchProblem.of(name, {"x": x}, ["*bf16"], code).key


def test_a_key_reads_as_documented() -> None:
    """The key is kind, kernel, sizes, signature and a hash of the code, in this order."""
    start = "launch triton_poi_fused_mul_silu x=8192 args=*bf16,i32 source="
    assert PLAIN.key == start + PLAIN.source
    assert len(PLAIN.source) == 16
    assert set(PLAIN.source) <= set(string.hexdigits.lower())


@given(PROBLEMS)
def test_a_key_is_canonical_and_reads_back(problem: LaunchProblem) -> None:
    key = problem.key
    check_key(key)
    assert kind_of(key) is LAUNCH
    assert ingredients_of(key) == {
        "kind": "launch",
        "kernel": problem.kernel,
        **{name: str(size) for name, size in problem.sizes},
        "args": ",".join(problem.args) or "none",
        "source": problem.source,
    }


@given(NAMES, st.integers(0, 9999), st.integers(0, 9999))
def test_a_kernels_number_is_not_in_its_key(name: str, one: int, other: int) -> None:
    """The number that inductor appends counts kernels of one graph, and the code repeats it."""
    keys = {
        LaunchProblem.of(numbered, {"x": 8}, ["*bf16"], f"def {numbered}(in_ptr0):\n    pass").key
        for numbered in (f"{name}_{one}", f"{name}_{other}")
    }
    assert len(keys) == 1


def test_the_source_alone_tells_kernels_apart() -> None:
    """A number inside of a kernel's name stays."""
    assert LaunchProblem.of("triton_red_fused_mean_2_pow_10", {}, [], "").kernel.endswith("2_pow")
    # A compile worker's source and a loaded kernel's differ in blank lines at their ends.
    assert LaunchProblem.of("triton_a", {}, [], f"\n{CODE}\n\n").source == PLAIN.source
    # Kernels that differ in one operation have different sources.
    assert key_of(8, code=CODE.replace("pass", "return")) != key_of(8)


def test_one_changed_ingredient_changes_the_key() -> None:
    for name in [field.name for field in fields(LaunchProblem)]:
        assert replace(PLAIN, **{name: CHANGES[name]}).key != PLAIN.key  # type: ignore[arg-type]


def test_sizes_keep_inductors_order() -> None:
    """The sizes of a two-dimensional kernel are in the order of inductor's hints, y before x."""
    problem = LaunchProblem.of("triton_a", {"y": 512, "x": 1024}, ["*bf16"], CODE)
    assert " y=512 x=1024 " in problem.key


def test_a_kernel_without_sizes_or_arguments_has_a_key() -> None:
    """Sizes may be absent; a signature of constants only is ``none``."""
    problem = LaunchProblem.of("triton_a", None, [], CODE)
    assert problem.key == f"launch triton_a args=none source={problem.source}"


def test_a_long_name_is_cut() -> None:
    """Inductor joins the names of all fused operations; the source tells kernels apart."""
    key = LaunchProblem.of("triton_poi_" + "a" * 5000, {"x": 8}, ["*bf16"], CODE).key
    assert len(key) < MAX_KEY_LENGTH


def test_what_cannot_be_spelled_is_a_problem_error() -> None:
    for changes in (
        {"kernel": ""},
        {"kernel": "triton poi"},
        {"kernel": "3triton"},
        {"sizes": (("X", 8),)},
        {"sizes": (("x", -8),)},
        {"args": ("*bf16 ", "i32")},
        {"args": ("x=1",)},
        {"args": ("i32",) * MAX_KEY_LENGTH},
        {"source": "0123456789ABCDEF"},
        {"source": "short"},
    ):
        with pytest.raises(ProblemError):
            replace(PLAIN, **changes)  # type: ignore[arg-type]


def test_other_text_is_no_key() -> None:
    for key in (
        "launch",
        "launch ",
        PLAIN.key + " ",
        PLAIN.key + "\n",
        PLAIN.key.replace("launch ", "launch  "),
        PLAIN.key.replace(" source=", " hash="),
        PLAIN.key.replace("x=8192", "x=8192..9000"),
        PLAIN.key.replace(" args=*bf16,i32", ""),
    ):
        with pytest.raises(ProblemError):
            check_key(key)


def test_the_nearest_row_has_the_kernel_and_the_fewest_differences() -> None:
    assert nearest_row(key_of(64), [key_of(64, name="triton_poi_fused_add")]) == (None, ())
    # The nearest row has the closest size.
    rows = [key_of(4096), key_of(128), key_of(1024)]
    assert nearest_row(key_of(64), rows) == (key_of(128), ("x: row 128, here 64",))
    # A row of the same sizes and another source is named before one that differs in both.
    other = CODE.replace("pass", "return")
    rows = [key_of(128, code=other), key_of(64, code=other)]
    found, differs = nearest_row(key_of(64), rows)
    assert found == rows[1]
    assert [line.partition(":")[0] for line in differs] == ["source"]


def test_only_launch_winners_answer() -> None:
    assert LAUNCH.families == {Family.LAUNCH}
