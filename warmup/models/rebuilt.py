"""`RebuiltProblem`: a small module, made from a key alone, that asks inductor for that key."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from warmup.buckets.bucket import Bucket
from warmup.core.errors import ProblemError
from warmup.keys.registry import kind_of
from warmup.models.loading import LoadedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltProblem:
    """A rebuilt module on its device, and the bucket whose inputs make it ask for the key.

    ``settings`` opens a context with the float precision that the key names, in which inductor
    leaves the op of the key as it is; the tolerance of ``dtype`` holds for the output.
    """

    model: LoadedModel
    bucket: Bucket
    settings: Callable[[], AbstractContextManager[None]]
    dtype: str


def rebuild(key: str, device: torch.device) -> RebuiltProblem:
    """Return a module on *device* that should ask for *key*: only compiling it shows whether.

    Raises:
        ProblemError: *key* is not a key, its kind needs the user's model, or no module can be made
            for the problem.
    """
    kind = kind_of(key)
    if kind.rebuild is None:
        raise ProblemError(
            f"a {kind.name} problem needs the model: "
            "run `warmup build --model ...` with this bucket"
        )
    kind.check(key)
    make: Callable[[str, torch.device], RebuiltProblem] = pkgutil.resolve_name(kind.rebuild)
    return make(key, device)
