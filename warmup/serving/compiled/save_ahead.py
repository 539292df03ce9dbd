"""`ArtifactWriter`: compiles the calls of buckets ahead of time, into files for a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from warmup.core.artifact_form import ArtifactForm
from warmup.core.error_text import first_line
from warmup.core.errors import ModelError
from warmup.models.model_form import form_of
from warmup.models.outputs import tensors_of, worst_error
from warmup.serving.compiled.ahead import argument_names, serving_call
from warmup.table.policy import MOST_TIMES

if TYPE_CHECKING:
    from warmup.serving.compiled.bucket import BucketArtifact, ServingCall
    from warmup.serving.handle import Handle


@dataclass
class ArtifactWriter:
    """Saves each bucket's compiled call in *folder*, with the rows of *handle* that answered."""

    folder: Path
    handle: Handle
    mode: str
    written: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def serve(
        self, bucket: BucketArtifact, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[ServingCall, Any]:
        """Compile this call of *bucket*, save it, and return it with its result.

        Raises:
            ModelError: the call cannot be served from another process: it changes tensors, torch
                cannot save it, or its result is not the model's.
        """
        from warmup.inductor.ahead_of_time import compile_ahead, load_ahead

        model = bucket.served.model
        names = argument_names(model)
        arguments = names.named(args, kwargs)
        if arguments is None:
            raise ModelError("the call has more arguments than forward", "correct the inputs")
        versions = list(_versions(model, arguments))
        expected = model(**arguments)
        changed = [
            name for name, version in _versions(model, arguments) if (name, version) not in versions
        ]
        if changed:
            raise ModelError(
                f"a call changes {', '.join(changed[:3])}",
                "only calls that change no tensor are saved as artifacts",
            )
        before = self.handle.report().hits
        try:
            marked = names.named(*bucket.marked(args, kwargs)) or {}
            content, sources = compile_ahead(model, marked, self.mode)
            loaded = load_ahead(content)
        except Exception as error:
            raise ModelError(
                f"torch cannot save the compiled call: {first_line(error)}",
                "use --bundle or --bundle-graphs",
            ) from error
        rows = tuple(
            sorted(
                key
                for key, count in self.handle.report().hits.items()
                if count > before.get(key, 0)
            )
        )
        result = loaded.run(model, arguments)
        distance, limit = worst_error(expected, result, bucket.served.tolerance)
        if not distance <= limit:
            usual, _ = worst_error(
                expected, bucket.compiled_here(*args, **kwargs), bucket.served.tolerance
            )
            limit = max(limit, MOST_TIMES * usual)
        if not distance <= limit:
            raise ModelError(
                f"the saved call's output is {distance:.2e} away from the uncompiled model's "
                f"(relative L2, limit {limit:.0e})",
                "use --bundle or --bundle-graphs",
            )
        digest = hashlib.sha256(content).hexdigest()
        form = ArtifactForm(
            bucket=str(bucket),
            mode=self.mode,
            rows=rows,
            model=form_of(model),
            sources=sources,
            error=distance,
            content=digest,
        )
        text = form.to_json().encode()
        (self.folder / f"{digest}.bin").write_bytes(content)
        (self.folder / f"{hashlib.sha256(text).hexdigest()}.json").write_bytes(text)
        self.written[str(bucket)] = rows
        return serving_call(model, loaded, names, bucket.compiled_here), result


def _versions(model: torch.nn.Module, arguments: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the name of each tensor that a call could change, with torch's count of its changes."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield name, tensor._version  # noqa: SLF001  no public name
    for name, value in arguments.items():
        for tensor in tensors_of(value):
            yield name, tensor._version  # noqa: SLF001  as above
