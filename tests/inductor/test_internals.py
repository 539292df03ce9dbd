"""Every internal that warmup uses exists in the installed torch, and each is listed."""

from __future__ import annotations

import ast
import importlib.util
import logging
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch._inductor.compile_fx  # the modules of inductor import each other, in this order only

from warmup.core.errors import InductorChangedError, SettingsError, UnsupportedTorchError
from warmup.core.events import Emitter
from warmup.diagnostics.torch_source import InternalState, read_torch
from warmup.inductor import connect
from warmup.inductor.internals import (
    ASSEMBLER_INTERNALS,
    ASSUMED_GPU_INTERNALS,
    INTERNALS,
    check_internals,
)
from warmup.inductor.launch.hooks import LaunchConfigs
from warmup.inductor.patches import Patches
from warmup.inductor.versions import version_for
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss

FOLDER = Path(__file__).resolve().parents[2] / "warmup" / "inductor"
EVERY_LIST = (*INTERNALS, *ASSEMBLER_INTERNALS, *ASSUMED_GPU_INTERNALS)


def test_each_internal_is_there_and_in_the_source() -> None:
    """With its parameters: by import, and as `doctor --torch` reads it without one."""
    report = read_torch(Path(torch.__file__).parent)
    assert {*INTERNALS, *version_for(torch.__version__).internals} < {
        each.name for each in report.names
    }
    for each in report.names:
        if each.state is not InternalState.UNSEEN or importlib.util.find_spec("triton"):
            check_internals((each.name,))
            assert each.state is InternalState.SAME, each


def imported_internals() -> set[tuple[str, str]]:
    """Every (module, name) that warmup/inductor imports from torch's private parts."""
    found: set[tuple[str, str]] = set()
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                private = node.module.startswith(("torch._", "torch.utils._"))
                found |= {(node.module, alias.name) for alias in node.names if private}
    return found


def test_each_imported_internal_is_listed() -> None:
    """Every name that warmup imports from torch._inductor or torch._dynamo is in the list."""
    for module, name in sorted(imported_internals()):
        listed = {entry.partition("(")[0] for entry in EVERY_LIST}
        as_module = any(entry.startswith(f"{module}.{name}:") for entry in listed)
        as_name = any(
            entry == f"{module}:{name}" or entry.startswith(f"{module}:{name}.") for entry in listed
        )
        assert as_module or as_name, (module, name)


def test_a_missing_internal_fails_with_its_name() -> None:
    for name in (
        "torch._inductor.choices:NoSuchChoices",
        "torch._inductor.no_such_module:anything",
        "torch._inductor.utils:fresh_cache(another_parameter)",
    ):
        with pytest.raises(InductorChangedError) as failed:
            check_internals((name,))
        assert name.partition(":")[0] in str(failed.value)


def test_an_unsupported_torch_is_one_clear_error() -> None:
    """A torch outside the range raises UnsupportedTorchError with found and supported versions."""
    for version in ("2.10.1", "2.16.0", "3.0.0", "garbage"):
        with pytest.raises(UnsupportedTorchError, match=r"supported: 2\.11 to 2\.15") as failed:
            version_for(version)
        assert version in str(failed.value)


def _snapshot() -> dict[str, object]:
    from torch._dynamo import convert_frame
    from torch._inductor import choices, compile_fx, config, select_algorithm, virtualized
    from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
    from torch._inductor.runtime import benchmarking

    owners = (
        convert_frame,
        compile_fx,
        select_algorithm,
        select_algorithm.AlgorithmSelectorCache,
        choices.InductorChoices,
        CppGemmTemplate,
        benchmarking.Benchmarker,
        benchmarking.TritonBenchmarker,
        benchmarking.InductorBenchmarker,
    )
    savers = list(select_algorithm.get_algorithm_selector_cache().feedback_saver_fns)  # made lazily
    found: dict[str, object] = {
        f"{owner.__name__}.{name}": value for owner in owners for name, value in vars(owner).items()
    }
    found["savers"] = savers
    found["tag"] = torch.compiler.config.cache_key_tag
    found["handlers"] = dict(vars(virtualized.threadlocal))
    found["registered"] = getattr(choices, "registered_inductor_choices", tuple)()
    found["options"] = config.get_config_copy()
    found["filters"] = list(logging.getLogger("torch._inductor.select_algorithm").filters)
    return found


def _attach(quiet: bool) -> None:
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]))
    options = {"max_autotune_gemm_backends": "ATEN"}
    connect().attach(lookup, options, "tag", quiet=quiet).detach()


def test_detaching_leaves_no_trace() -> None:
    """Every attribute, option, cache tag, saver and log filter is as before attaching."""
    for quiet in (False, True):
        before = _snapshot()
        _attach(quiet)
        assert _snapshot() == before, quiet


def test_a_failed_attach_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _snapshot()
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]))
    monkeypatch.setattr(LaunchConfigs, "attach", lambda _, patches: patches.hook(torch, "x", id))
    with pytest.raises(InductorChangedError, match=r"torch\.x is gone"):
        connect().attach(lookup, {}, "tag")
    assert _snapshot() == before


def test_a_table_sets_no_option_that_a_build_does_not_write() -> None:
    """Options are an allow-list: a hand-made table cannot reach the rest of inductor's config."""
    for option in (
        {"cpp.cxx": "evil"},
        {"max_autotune": "yes"},
        {"freezing": 3},
        {"no_such_option": 1},
    ):
        lookup = Lookup({}, OnMiss.FALLBACK, Emitter([]))
        with pytest.raises(SettingsError, match=next(iter(option))):
            connect().attach(lookup, option, "tag")


def test_a_wrapper_put_over_ours_stays() -> None:
    """Restoring keeps a wrapper that other code put around the attribute since."""

    class Owner:
        def method(self) -> str:
            return "original"

    patches = Patches()
    patches.wrap(Owner, "method", lambda original: lambda self: "ours+" + original(self))
    ours = Owner.method
    Owner.method = lambda self: "theirs+" + ours(self)  # type: ignore[method-assign]
    patches.restore()
    assert Owner().method().startswith("theirs+")
