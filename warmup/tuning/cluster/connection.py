"""`connected`: this process as the driver of a Ray cluster, and Ray, which is an extra."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

from warmup.core.error_text import first_line, shown
from warmup.core.errors import SettingsError
from warmup.core.notices import print_notice

# Errors of a call whose actor, node or connection is lost; Ray's own are added to them.
_CONNECTION_ERRORS: Final = (ConnectionError, TimeoutError)


def import_ray() -> Any:
    """Return the module ``ray``.

    Raises:
        SettingsError: Ray is not installed.
    """
    # `uv run` would else be started on every node; this build names its own programs.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        import ray
    except ImportError as error:
        raise SettingsError(
            f"--cluster needs Ray: {error}", "pip install 'inductor-warmup[ray]'"
        ) from None
    return ray


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to the cluster at *address*, and yield the module ``ray``; disconnect at the end.

    *address* is ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``. A connection that this process
    already has is used, and stays. In the context ``sys.stdout`` is ``sys.stderr``: a thread of
    Ray's (2.60, ``listen_error_messages``) prints there that a worker was lost, while stdout has
    the report alone. What is printed before and after goes where it did.

    Raises:
        SettingsError: Ray is not installed, or no cluster answers at *address*.
    """
    ray = import_ray()
    with contextlib.redirect_stdout(sys.stderr):
        if ray.is_initialized():
            yield ray
            return
        _connect(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    init = functools.partial(ray.init, address=address, log_to_driver=False, logging_level="ERROR")
    try:
        try:
            init()
        except ConnectionAbortedError as error:
            # For each client Ray's server forks a process, which in rare cases hangs (2.60).
            said = _last_line(error)
            print_notice(f"--cluster {shown(address)}: {said}; connecting once more")
            init()
    except ImportError as error:
        raise SettingsError(
            f"--cluster {shown(address)}: {error}", "pip install 'inductor-warmup[ray]'"
        ) from None
    except ConnectionAbortedError as error:
        raise SettingsError(
            f"--cluster {shown(address)}: the cluster's server for clients fails twice: "
            f"{_last_line(error)}",
            "see the logs of its head, or name the address of the cluster itself, HOST:PORT",
        ) from None
    except (*_CONNECTION_ERRORS, ValueError, RuntimeError) as error:
        raise SettingsError(
            f"--cluster {shown(address)}: no cluster answers: {first_line(error)}",
            "start one with `ray start --head`, and name its address",
        ) from None


def _last_line(error: ConnectionAbortedError) -> str:
    """Return what ends the text of *error*, where Ray has a traceback of its server."""
    return shown((str(error).splitlines() or ["no reason"])[-1])


def losses(ray: Any) -> tuple[type[Exception], ...]:
    """Return the errors that say that an actor, its node or the connection to it is lost."""
    return (ray.exceptions.RayError, *_CONNECTION_ERRORS)


def placement_on(node_id: str) -> Any:
    """Return the scheduling strategy of an actor that the node *node_id* alone may have."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)
