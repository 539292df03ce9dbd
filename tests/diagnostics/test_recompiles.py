"""`explain` without compiling: which sizes are compiled, the ranges, and the causes of guards."""

from __future__ import annotations

from warmup.diagnostics.explain import CauseKind, cause_of, cover
from warmup.inductor.guards import Artifact, Guard, SourceLine


def at_least(low: int) -> Guard:
    return Guard(f"s >= {low}", lambda size: size >= low, is_linear=True, place=None)


def at_most(high: int) -> Guard:
    return Guard(f"s <= {high}", lambda size: size <= high, is_linear=True, place=None)


def test_compiles_are_bounded_and_unexpected_ones_explained() -> None:
    """Where every size needs its own artifact, compiling stops, and the next size is uncovered."""
    own = cover(lambda n: [Artifact(0, n, (at_least(n), at_most(n)))], (1, 99), 99, 5)
    assert (own.tried, own.uncovered) == ((1, 99, 2, 3, 4), 5)
    # Dynamo's reason is kept where the guards of an earlier artifact allow the size.
    artifacts = [Artifact(0, 16, (at_least(2),)), Artifact(0, 64, (at_least(2),), "len(x) == 16")]
    found = cover(lambda _: [artifacts.pop(0)], (16, 64), 64, 16)
    assert [span.unexpected for span in found.spans] == ["", "len(x) == 16"]


def test_the_cause_follows_from_the_source_line() -> None:
    """A line of torch is a heuristic, a limit or the model's; an unlisted line is unknown."""
    for path, function, kind in (
        ("torch/_inductor/fx_passes/pad_mm.py", "is_mm_compute_bound", CauseKind.HEURISTIC),
        ("torch/_inductor/utils.py", "use_triton_tma_template", CauseKind.HEURISTIC),
        ("torch/_refs/__init__.py", "expand", CauseKind.LIMIT),
        ("torch/_dynamo/variables/tensor.py", "evaluate_expr", CauseKind.MODEL),
        ("/home/me/serve.py", "forward", CauseKind.MODEL),
        ("torch/somewhere.py", "else_", CauseKind.UNKNOWN),
    ):
        guard = Guard("s < 3420", lambda size: size < 3420, True, SourceLine(path, 1, function))
        assert cause_of(guard).kind is kind, path


def test_hard_limits_of_torch_are_named() -> None:
    """0/1 specialisation and 32-bit indices are limits, without a source line too."""
    for guard, word in (
        (Guard("s >= 2", lambda s: s >= 2, True, None, is_default=True), "0/1"),
        (Guard("1024*s <= 2147483647", lambda s: s < 2**21, True, None), "32-bit"),
    ):
        cause = cause_of(guard)
        assert cause.kind is CauseKind.LIMIT, guard
        assert word in cause.sentence, guard
