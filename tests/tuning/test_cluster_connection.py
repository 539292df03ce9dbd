"""Connecting to a Ray cluster whose server for clients fails; Ray is made up here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from warmup.core.errors import SettingsError
from warmup.tuning.cluster.connection import connected

FAILED = "Initialization failure from server:\nTraceback ...\nRuntimeError: it did not start"
Ray = Callable[..., list[str]]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    """``ray(errors)``: Ray whose first calls of init raise these; returns what was called."""

    def made(*errors: Exception) -> list[str]:
        called: list[str] = []
        left = [*errors]

        def init(**given: object) -> None:
            called.append(f"init {given['address']}")
            if left:
                raise left.pop(0)

        module = SimpleNamespace(
            is_initialized=lambda: False, init=init, shutdown=lambda: called.append("shutdown")
        )
        monkeypatch.setitem(sys.modules, "ray", module)
        return called

    return made


def test_a_server_for_clients_that_fails_once_is_asked_again(
    ray: Ray, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second connection is used, and a line says why there was a second."""
    called = ray(ConnectionAbortedError(FAILED))
    with connected("ray://a:1"):
        pass
    assert called == ["init ray://a:1", "init ray://a:1", "shutdown"]
    assert capsys.readouterr().err == (
        "warmup: --cluster ray://a:1: RuntimeError: it did not start; connecting once more\n"
    )


def test_a_server_for_clients_that_fails_twice_is_an_error(ray: Ray) -> None:
    """The error has what Ray's server said last, and is not that no cluster answers."""
    called = ray(*[ConnectionAbortedError(FAILED)] * 2)
    said = r"ray://a:1: the cluster.s server for clients fails twice: RuntimeError: it did not"
    with pytest.raises(SettingsError, match=said), connected("ray://a:1"):
        pass
    assert called == ["init ray://a:1"] * 2


def test_a_cluster_that_does_not_answer_is_asked_once(ray: Ray) -> None:
    """Another error of the connection ends the command."""
    called = ray(ConnectionError("refused"))
    with pytest.raises(SettingsError, match="no cluster answers"), connected("a:1"):
        pass
    assert called == ["init a:1"]
