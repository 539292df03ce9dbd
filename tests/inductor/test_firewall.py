"""An exception of a hook is a counted miss, and the compile goes on as without a table."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import warmup
from warmup.core.errors import BuildError, MissError, MissReason, ProblemError
from warmup.core.events import Emitter, Event, HookEvent, Missed
from warmup.inductor import connect
from warmup.inductor.patches import Firewall, Patches
from warmup.keys.question import Settings
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss


class Noted:
    """Answers that note the misses that are reported, and raise *refusal* for each."""

    def __init__(self, *, tunes: bool = False, refusal: Exception | None = None) -> None:
        self.settings, self.refusal = Settings(measures=tunes), refusal
        self.misses: list[tuple[str, MissReason]] = []

    def emit(self, event: HookEvent) -> None:
        assert isinstance(event, Missed)
        self.misses.append((event.key, event.reason))
        if self.refusal is not None:
            raise self.refusal


def guarded(answers: Noted, hook: Callable[[Any], Any], function: Any = lambda x: x + 1) -> Any:
    return Firewall(answers).guard("Owner.method", function, hook)  # type: ignore[arg-type]


def pass_on(original: Any) -> Any:
    def hook(x: int) -> int:
        result: int = original(x)
        return result

    return hook


def failing_after(*calls: int) -> Callable[[Any], Any]:
    """Return what makes a hook that calls the original with each of *calls* and then raises."""

    def make(original: Any) -> Any:
        def hook(_x: int) -> int:
            raise KeyError([original(x) for x in calls])

        return hook

    return make


def test_a_hook_that_raises_is_a_miss_and_the_function_is_called() -> None:
    """Before its own call with the caller's arguments; else its first call that returned counts."""
    for given, expected in (((), 2), ((10,), 11), ((10, 100), 11)):
        answers, calls = Noted(), list[int]()

        def function(x: int, calls: list[int] = calls) -> int:
            calls.append(x)
            return x + 1

        assert guarded(answers, failing_after(*given), function)(1) == expected, given
        assert len(calls) == max(len(given), 1), given
        ((key, reason),) = answers.misses
        assert reason is MissReason.INTERNAL
        assert key.startswith("hook Owner.method: KeyError: "), key
        assert "test_firewall.py" not in key
        assert "outside of warmup" in key or "warmup/" in key


def test_what_torch_raises_passes_unchanged() -> None:
    """The same object, uncounted, however deep the hooks are nested."""
    error = ValueError("of torch")

    def function(_x: int) -> int:
        raise error

    answers = Noted()
    inner = guarded(answers, pass_on, function)
    with pytest.raises(ValueError, match="of torch") as caught:
        guarded(answers, pass_on, inner)(1)
    assert caught.value is error
    assert answers.misses == []


def test_refusals_pass() -> None:
    """A strict refusal always does; what ends a build, in a build alone."""
    refusal = MissError("key", "internal", None, ())

    def raising(error: Exception) -> Callable[[Any], Any]:
        def hook(_x: int) -> int:
            raise error

        return lambda _original: hook

    for tunes in (False, True):
        with pytest.raises(MissError):
            guarded(Noted(tunes=tunes), raising(refusal))(1)
    with pytest.raises(BuildError):
        guarded(Noted(tunes=True), raising(BuildError("no space", "make some")))(1)
    assert guarded(Noted(), raising(BuildError("no space", "make some")))(1) == 2
    assert guarded(Noted(tunes=True), raising(ProblemError("no key")))(1) == 2
    with pytest.raises(MissError):  # an internal fault is a miss, which strict serving refuses
        guarded(Noted(refusal=refusal), failing_after())(1)


def test_a_report_that_fails_ends_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a full log nor a variable that is neither on nor off."""
    assert guarded(Noted(refusal=OSError("disk full")), failing_after())(1) == 2
    monkeypatch.setenv("WARMUP_DEBUG", "loud")
    assert guarded(Noted(), failing_after())(1) == 2


class Silent:
    """An observer of compiles that looks at nothing."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args: None


def test_no_exception_leaves_any_hook_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hook of `attach` raises alone: torch's function is called, and the fault is counted."""
    hooks: list[tuple[str, Callable[..., Any]]] = []
    guard = Firewall.guard

    def guard_stub(
        self: Firewall, place: str, _function: Any, make: Any, plain: Any = None
    ) -> Callable[..., Any]:
        make(lambda *_args, **_kwargs: None)  # the hook itself can be made
        stubbed = guard(self, place, lambda *_args, **_kw: "torch's", failing_after(), plain)
        hooks.append((f"{place} {make.__qualname__}", stubbed))
        return stubbed

    monkeypatch.setattr(Firewall, "guard", guard_stub)
    seen: list[Event] = []
    lookup = Lookup({}, OnMiss.FALLBACK, Emitter([seen.append]))
    attached = connect().attach(lookup, {}, "t", observer=Silent(), quiet=True, ahead=True)
    attached.detach()
    assert len(hooks) > 40
    for name, hook in hooks:
        seen.clear()
        assert hook(SimpleNamespace(launchers=[]), "mm", []) == "torch's", name
        assert [event.fields["reason"] for event in seen] == ["internal"], name


# Places whose hooks raise as they are: a tool compiles there, and no user's program does.
OF_TOOLS = {
    "adapter.count_benchmarks": "`bench` counts what a backend measures",
    "hooks.count_launches": "a build, of one call of what it compiled: it compiles nothing",
    "options.mm_unfolded": "a build, of the region of one product: it returns a constant",
    "guards._reported": "`explain --assume`",
    "guards.record": "`explain` and `policy`, which compile for the guards alone",
    "options.compiling_with": "`bench`; it wraps no function",
}


def test_every_hook_has_a_firewall() -> None:
    """All hooks are put in place by `Patches`, with a firewall but in the tools."""
    found: dict[str, bool] = {}
    for path in sorted((Path(warmup.__file__).parent).rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for call in ast.walk(function):
                    is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                    if is_call and call.func.id == "Patches":
                        found[f"{path.stem}.{function.name}"] = bool(call.args)
    assert {place for place, is_guarded in found.items() if not is_guarded} == set(OF_TOOLS)
    assert {"adapter.attach", "cached_graphs.deferring_kernels"} <= found.keys()


def test_a_table_that_was_closed_below_another_leaves_no_frame() -> None:
    """Tables that replace each other while compiles overlap do not stack their hooks up."""

    class Owner:
        @classmethod
        def depth(cls, start: int) -> int:
            return len(inspect.stack()) - start

    def attach() -> Patches:
        patches = Patches(Firewall())

        def keep(original: Any) -> Any:
            return patches.keep_during(original)

        patches.wrap(Owner, "depth", keep)
        return patches

    own = Owner.__dict__["depth"]
    first = attach()
    once = Owner.depth(len(inspect.stack()))
    tables = [first]
    for _ in range(20):
        tables.append(attach())
        tables[-2].restore()
    assert Owner.depth(len(inspect.stack())) == once
    tables[-1].restore()
    assert Owner.__dict__["depth"] is own
    outer, inner = attach(), attach()
    outer.restore()
    wrapped = Owner.__dict__["depth"].__func__

    def wrap_as_a_stranger(cls: type, start: int) -> int:
        found: int = wrapped(cls, start)
        return found

    Owner.depth = classmethod(wrap_as_a_stranger)  # type: ignore[assignment, method-assign]
    inner.restore()  # below a stranger's wrapper: stays, and is inactive
    assert Owner.depth(len(inspect.stack())) > 0
