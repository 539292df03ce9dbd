"""`tune_rebuilt`: tunes one problem with the module that was rebuilt from its key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from warmup.core.errors import BuildError
from warmup.core.rows import Winner
from warmup.tuning.bucket_compiler import BucketCompiler
from warmup.tuning.one_key import OneKeyLookup
from warmup.tuning.progress import Progress
from warmup.tuning.report import BucketResult
from warmup.tuning.session import Session
from warmup.tuning.setup import BuildSetup

if TYPE_CHECKING:
    from warmup.models.rebuilt import RebuiltProblem
    from warmup.tuning.tuner import Tuner


def tune_rebuilt(
    key: str,
    rebuilt: RebuiltProblem,
    setup: BuildSetup,
    progress: Progress,
    tuner: Tuner,
    *,
    number: tuple[int, int],
    named: Sequence[Winner] = (),
) -> BucketResult:
    """Tune the rebuilt module of *key*, serve it from the table and judge its output.

    *named* are the kernels to measure beside the library's, for the search ``imported``.

    Raises:
        BuildError: compiling failed, or the module did not ask for *key*.
    """
    others: list[str] = []
    compiler = BucketCompiler(
        setup=setup,
        model=rebuilt.model,
        progress=progress,
        tuner=tuner,
        make_lookup=partial(OneKeyLookup, wanted=key, others=others, named=named),
        is_rebuilt=True,
    )
    accepted = progress.table.policy.tolerance
    tolerance = dict.fromkeys(accepted, accepted[rebuilt.dtype])  # an epilogue may end in a cast
    session = Session(compiler=compiler, tolerance=tolerance)
    with rebuilt.settings():
        result = session.run_bucket(rebuilt.bucket, *number)
    if key in {*result.keys, *tuner.rows.not_tuned, *progress.distrusted}:
        return result
    if others:
        raise BuildError(f"the rebuilt module asks for another key: {others[0]}")
    raise BuildError("the rebuilt module leaves inductor nothing to choose")
