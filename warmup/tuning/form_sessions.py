"""`FormSessions`: the sessions of a build, one for each form in which it compiles the layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from warmup.buckets.bucket import Bucket
from warmup.core.errors import LayersError, SettingsError
from warmup.core.layers_form import LayersForm
from warmup.tuning.report import BucketResult
from warmup.tuning.session import Session

if TYPE_CHECKING:
    from warmup.models.padding.prepare import Prepared

_Found = TypeVar("_Found")
# Serving with ``auto`` takes either form, and whole graphs serve calls of another form beside it.
_FORMS_OF: Final[Mapping[str, tuple[LayersForm, ...]]] = {
    LayersForm.WHOLE: (LayersForm.WHOLE,),
    LayersForm.ONCE: (LayersForm.ONCE,),
    LayersForm.AUTO: (LayersForm.ONCE, LayersForm.WHOLE),
}


@dataclass
class FormSessions:
    """The ``sessions`` of one model, each of another form; with several, one may be refused."""

    sessions: tuple[Session, ...]

    @classmethod
    def of(cls, session: Session, layers: str) -> FormSessions:
        """Return the sessions of a build with *layers*."""
        return cls(tuple(session.in_form(form) for form in _FORMS_OF[layers]))

    @property
    def first(self) -> Session:
        """The session of the first form."""
        return self.sessions[0]

    def settle(self, bucket: Bucket) -> None:
        """Leave out the form that *bucket* cannot have, where there are several.

        The model is compiled without a table for it, to prove its layers equal.

        Raises:
            BuildError: that failed.
        """
        if len(self.sessions) > 1:
            self.each(lambda session: _prove(session, bucket))

    def each(self, run: Callable[[Session], Sequence[_Found]]) -> list[_Found]:
        """Return the results of *run* for each session.

        A session whose layers cannot be compiled once is left out from then on, and the build's
        observer gets the reason.

        Raises:
            LayersError: the layers cannot be compiled once, and there is no other form.
        """
        results: list[_Found] = []
        for session in self.sessions:
            try:
                results += run(session)
            except LayersError as error:
                others = tuple(other for other in self.sessions if other is not session)
                if not others:
                    raise
                self.sessions = others
                session.compiler.progress.observer.form_refused(
                    f"layers: only whole graphs are built, since {error.args[0]}"
                )
        return results

    def run_all(
        self, buckets: Sequence[Bucket], prepared: Prepared | None = None
    ) -> list[BucketResult]:
        """Run each of *buckets* in each form, until the build is done; the table keeps the forms.

        Runs with weights padded as *prepared* says are the second half of all runs.

        Raises as `Session.run_bucket` does.
        """
        forms = [session.compiler.form for session in self.sessions]
        count = len(buckets) * len(forms)
        total, offset = (2 * count, count) if prepared else (count, 0)
        padded = None if prepared is None else prepared.padded

        def run(session: Session) -> list[BucketResult]:
            compiler = session.compiler
            start = offset + forms.index(compiler.form) * len(buckets)
            results = []
            for number, bucket in enumerate(buckets, start):
                if not compiler.progress.is_done:
                    results.append(session.run_bucket(bucket, number, total, padded))
                    self._keep_form(bucket, compiler.form)
            return results

        return self.each(run)

    def recall(self, results: Sequence[BucketResult]) -> list[BucketResult]:
        """Return *results*, which an earlier build left; the table keeps their forms."""
        for result in results:
            self._keep_form(result.bucket, result.layers)
        return list(results)

    def run_again(
        self,
        before: BucketResult,
        number: int,
        total: int,
        prepared: Prepared | None,
    ) -> BucketResult:
        """Run the bucket of *before* once more, in its form, its weights padded as they were."""
        (session,) = (one for one in self.sessions if one.compiler.form is before.layers)
        padded = prepared.padded if prepared is not None and before.weights_padded else None
        return session.run_bucket(before.bucket, number, total, padded)

    def _keep_form(self, bucket: Bucket, form: LayersForm) -> None:
        compiler = self.first.compiler
        compiler.progress.keep_form(compiler.call_name(str(bucket)), form)


def check_layers(layers: str) -> None:
    """Check the word that says how layers are compiled.

    Raises:
        SettingsError: there is no such form.
    """
    if layers not in _FORMS_OF:
        raise SettingsError(f"layers={layers!r}", f"use one of {', '.join(LayersForm)}")


def _prove(session: Session, bucket: Bucket) -> tuple[()]:
    """Compile *bucket* without a table where its layers are to be compiled once.

    Raises:
        LayersError: they cannot be.
    """
    import torch

    if session.compiler.form is LayersForm.ONCE:
        with torch.no_grad():
            session.compiler.run_default(session.calls(bucket), str(bucket))
    return ()
