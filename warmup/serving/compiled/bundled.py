"""`BundledArtifacts`: serves buckets by the compiled artifacts of the installed table's bundle."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from warmup.core.artifact_form import ArtifactForm
from warmup.core.error_text import first_line
from warmup.core.errors import BundleError, ModelError
from warmup.core.events import logger
from warmup.models.model_form import form_of
from warmup.models.outputs import worst_error
from warmup.serving.compiled.ahead import ArgumentNames, argument_names, serving_call
from warmup.table.policy import MOST_TIMES

if TYPE_CHECKING:
    from warmup.inductor.ahead_of_time import LoadedArtifact
    from warmup.serving.compiled.bucket import BucketArtifact, ServedModel, ServingCall
    from warmup.serving.handle import Handle
    from warmup.serving.unpack_bundle import UnpackedBundle

_TOO_MANY: Final = "more arguments than forward takes by position"


class ArtifactRefusedError(Exception):
    """An artifact does not fit; the text says why. It never leaves this module."""


@dataclass
class BundledArtifacts:
    """The artifacts of a bundle for one mode, by bucket.

    ``served`` has the buckets that an artifact serves, ``refused`` why another artifact does not,
    ``misfits`` counts calls of a served bucket that its artifact was not compiled for.
    """

    bundle: UnpackedBundle
    handle: Handle
    forms: Mapping[str, ArtifactForm]
    served: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    misfits: int = 0
    _loaded: dict[str, LoadedArtifact] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(
        self, bucket: BucketArtifact, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[ServingCall, Any] | None:
        """Return the function that serves *bucket* and the result of this call.

        The artifact is loaded, its form is compared with the model, and its first result with that
        of the uncompiled model. None where the bundle has no artifact of the bucket, and where the
        artifact does not fit: the log and an event say why.
        """
        name = str(bucket)
        form = self.forms.get(name)
        if form is None or name in self.refused:
            return None
        try:
            call, result = self._checked(form, bucket, args, kwargs)
        except ArtifactRefusedError as error:
            self.refused[name] = str(error)
            self._loaded.pop(name, None)  # it holds memory of the device
            logger.warning("the artifact of %s is not used: %s; it is compiled", name, error)
            self.handle.artifact(name, (), str(error))
            return None
        if name not in self.served:
            self.served.append(name)
            self.handle.artifact(name, form.rows, None)
        return call, result

    def counts(self) -> tuple[tuple[str, ...], Mapping[str, str], int]:
        """Return the served buckets, the refused ones with reasons, and the misfits, so far."""
        return tuple(self.served), dict(self.refused), self.misfits

    def _checked(
        self,
        form: ArtifactForm,
        bucket: BucketArtifact,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[ServingCall, Any]:
        model = bucket.served.model
        try:
            names = argument_names(model)
        except ModelError as error:
            raise ArtifactRefusedError(str(error)) from error
        loaded = self._loaded.get(form.bucket) or self._load(form, bucket.served)
        self._loaded[form.bucket] = loaded
        arguments = names.named(args, kwargs)
        if arguments is None or not loaded.fits(model, arguments):
            reason = _TOO_MANY if arguments is None else loaded.misfit(model, arguments)
            raise ArtifactRefusedError(f"the first call is of another kind: {reason}")
        expected = model(*args, **kwargs)
        try:
            result = loaded.run(model, arguments)
            distance, limit = worst_error(expected, result, bucket.served.tolerance)
        except Exception as error:  # such as little memory, or outputs of another structure
            raise ArtifactRefusedError(f"its first call failed ({first_line(error)})") from error
        limit = max(limit, MOST_TIMES * form.error)
        if not distance <= limit:
            raise ArtifactRefusedError(
                f"its output is {distance:.2e} away from the uncompiled model's (relative L2, "
                f"limit {limit:.0e})"
            )
        return serving_call(model, loaded, names, self._otherwise(bucket, loaded, names)), result

    def _load(self, form: ArtifactForm, served: ServedModel) -> LoadedArtifact:
        """Load the artifact of *form* if the model of *served* is the one that it was made from."""
        from warmup.inductor.ahead_of_time import changed_source, load_ahead

        difference = form.model.difference(form_of(served.model)) or changed_source(form.sources)
        if difference is not None:
            raise ArtifactRefusedError(difference)
        try:
            return load_ahead(self.bundle.read_artifact(form.content))
        except Exception as error:  # torch unpickles it, which may raise anything
            raise ArtifactRefusedError(f"it cannot be loaded ({first_line(error)})") from error

    def _otherwise(
        self, bucket: BucketArtifact, loaded: LoadedArtifact, names: ArgumentNames
    ) -> ServingCall:
        """Return a function that serves calls that the artifact does not fit, and counts them."""
        model = bucket.served.model

        def otherwise(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.misfits += 1
                count = self.misfits
            if count & (count - 1) == 0:
                arguments = names.named(args, kwargs)
                reason = _TOO_MANY if arguments is None else loaded.misfit(model, arguments)
                message = "%s: the artifact is for another kind of call (%s; %d such calls so far)"
                logger.warning(message, bucket, reason, count)
            return bucket.compiled_here(*args, **kwargs)

        return otherwise


def bundled_artifacts(
    served: ServedModel, buckets: Sequence[BucketArtifact], handle: Handle | None
) -> BundledArtifacts | None:
    """Return the artifacts of the bundle of *handle* for *buckets* in the mode of *served*.

    None without any; the log says so where the bundle has others.
    """
    if handle is None or handle.bundle is None or not handle.bundle.artifacts:
        return None
    mode, names, path = served.mode or "default", set(map(str, buckets)), handle.bundle.path
    try:
        all_forms = handle.bundle.artifact_forms()
    except BundleError as error:
        logger.warning("artifacts of the bundle %s are not used: %s", path, error)
        return None
    forms = {form.bucket: form for form in all_forms if form.mode == mode and form.bucket in names}
    if not forms:
        message = "no artifact of the bundle %s is for these buckets in the mode %s; it has %s"
        others = ", ".join(sorted(f"{form.bucket} ({form.mode})" for form in all_forms))
        logger.warning(message, path, mode, others)
        return None
    return BundledArtifacts(handle.bundle, handle, forms)
