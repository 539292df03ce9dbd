"""`RangeArtifact`: a bucket that one dynamic artifact serves at all sizes of a range."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from warmup.buckets.dims import DynamicDim
from warmup.core.errors import ModelError
from warmup.inductor.adapter import mark_range
from warmup.inductor.artifacts import own_cache_entries, range_error
from warmup.serving.compiled.arguments import Arguments
from warmup.serving.compiled.bucket import BucketArtifact, ServingCall

if TYPE_CHECKING:
    import torch


class RangeArtifact(BucketArtifact):
    """A dynamic artifact for a whole interval, its kernels chosen for the upper end."""

    _error: ModelError | None = None  # the interval is too wide for one artifact

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[ServingCall, Any]:
        try:
            return super()._compile(args, kwargs)
        except Exception as error:
            too_wide = range_error(error, str(self))
            if too_wide is None:
                raise
            self._error = too_wide
            self.call = self._refuse
            raise too_wide from error

    def marked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments with each dynamic dim marked with its range."""
        aliases: set[int] = set()

        def mark(tensor: torch.Tensor, dim: DynamicDim) -> torch.Tensor:
            interval = self.intervals[dim.name]
            if interval.low == interval.high:
                return tensor
            if id(tensor) not in aliases:
                tensor = tensor.detach()  # marks are attributes: the caller's tensor gets none
                aliases.add(id(tensor))
            mark_range(tensor, dim.dim, interval.low, interval.high, hint=interval.high)
            return tensor

        return self.served.replace(args, kwargs, mark)

    def compiling(self) -> AbstractContextManager[None]:
        """Return a context in which other ranges are other cache entries."""
        return own_cache_entries(f"warmup-{self._ranges()}")

    def _ranges(self) -> str:
        """Return the interval of each dynamic dim as text, which does not depend on dims' names."""
        dims = (argument.dim for argument in self.served.arguments)
        texts = (
            f"{'.'.join(map(str, dim.path))}[{dim.dim}]={self.intervals[dim.name]}" for dim in dims
        )
        return ",".join(sorted(texts))

    def _refuse(self, *_args: Any, **_kwargs: Any) -> Any:
        """Raise the error of the first compile: another compile takes seconds and fails as well."""
        assert self._error is not None
        raise self._error
