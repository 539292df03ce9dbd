"""An exception of a hook is a counted miss, and the compile goes on as without a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from warmup.core.errors import BuildError, MissError, ProblemError
from warmup.core.miss_reasons import MissReason
from warmup.inductor.firewall import Firewall


class Noted:
    """Answers that note the misses that are reported, and raise *refusal* for each."""

    def __init__(self, *, tunes: bool = False, refusal: Exception | None = None) -> None:
        self.tunes, self.refusal = tunes, refusal
        self.misses: list[tuple[str, MissReason]] = []

    def miss(self, key: str, reason: MissReason, _fallback: str) -> None:
        """Note the miss."""
        self.misses.append((key, reason))
        if self.refusal is not None:
            raise self.refusal


def guarded(answers: Noted, hook: Callable[[Any], Any], function: Any = lambda x: x + 1) -> Any:
    return Firewall(answers).guard("Owner.method", function, hook)  # type: ignore[arg-type]


def pass_on(original: Any) -> Any:
    def hook(x: int) -> int:
        result: int = original(x)
        return result

    return hook


def fail_before(_original: Any) -> Any:
    def hook(_x: int) -> int:
        raise KeyError("ours")

    return hook


def fail_after(original: Any) -> Any:
    def hook(x: int) -> int:
        raise KeyError(original(x * 10))

    return hook


def test_a_hook_that_raises_is_a_miss_and_the_function_is_called() -> None:
    """Once: before its own call with the caller's arguments, or the hook's call that returned."""
    for hook, expected in ((fail_before, 2), (fail_after, 11)):
        answers, calls = Noted(), list[int]()

        def function(x: int, calls: list[int] = calls) -> int:
            calls.append(x)
            return x + 1

        assert guarded(answers, hook, function)(1) == expected, hook.__name__
        assert len(calls) == 1, hook.__name__
        ((key, reason),) = answers.misses
        assert reason is MissReason.INTERNAL
        assert key.startswith("hook Owner.method: KeyError: "), key
        assert (
            "test_firewall.py" not in key
        )  # the line is one of the package, or says that it is not
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
        guarded(Noted(refusal=refusal), fail_before)(1)


def test_a_report_that_fails_ends_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a full log nor a variable that is neither on nor off."""
    assert guarded(Noted(refusal=OSError("disk full")), fail_before)(1) == 2
    monkeypatch.setenv("WARMUP_DEBUG", "loud")
    assert guarded(Noted(), fail_before)(1) == 2
