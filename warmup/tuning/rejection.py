"""`reject_rows`: finds the rows that make a bucket's output wrong, and serves it without them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from warmup.core.errors import BuildError, OutputMismatchError
from warmup.table.policy import MOST_TIMES
from warmup.tuning.blame import find_to_blame
from warmup.tuning.bucket_run import BucketRun
from warmup.tuning.judge import MOST_ERROR, Judge
from warmup.tuning.report import Judgement
from warmup.tuning.served_bucket import ServedBucket
from warmup.tuning.weights.padding_rows import padding_keys

MOST_REJECTED: Final = 3  # rows found by bisection in one bucket; then all others are doubtful
_REPORT: Final = "report this with the model"
_NAME_DRAWN: Final = (
    "eager is as far away, as where a model draws random numbers: pass what it draws as an input "
    "with --input, or build it with the drawing turned off"
)


def reject_rows(
    run: BucketRun,
    served: ServedBucket,
    judge: Judge,
    judgement: Judgement,
    judged: Collection[str],
) -> tuple[ServedBucket, Judgement]:
    """Mark the rows to blame for the wrong outputs of *served*; return the bucket without them.

    *judgement* is that of these outputs. At most `MOST_REJECTED` rows are found, each by bisection
    over the rows of the bucket. If that is not enough, or fails, all rows are marked but those in
    *judged*, with which other buckets were right. A marked row keeps its evidence and is not
    served. Each step is reported to the build's observer.

    Raises:
        OutputMismatchError: the output is wrong also without any row (then no row is marked but
            those of padded weights), or without the rows that were marked.
    """
    trials = _RowTrials(run, judge)
    observer = run.compiler.progress.observer
    observer.output_wrong(run.name, len(served.keys), judgement)
    for _ in range(MOST_REJECTED):
        # Of rows that are wrong together the last is found: not one that other buckets need.
        keys = sorted(served.keys, key=lambda key: key in judged, reverse=True)
        try:
            blame = find_to_blame(keys, trials.is_wrong)
        except BuildError as error:
            return _reject_all(trials, served, judgement, judged, f"bisection failed ({error})")
        if blame.key is None:
            raise _no_row_to_blame(trials, judgement)
        before, together = judgement, "" if blame.is_alone else ", together with other rows"
        served, judgement = trials.distrust([blame.key], f"{before}{together}")
        observer.rows_rejected(
            f"{run.name}: 1 of {len(keys)} rows is not trusted{together}: {blame.key}: with it the "
            f"output is {before}; without it {judgement.error:.2e}. Its winner is not served, the "
            "library's kernel is; `warmup build` measures the key again without that winner"
        )
        if judgement.is_right:
            return served, judgement
    return _reject_all(trials, served, judgement, judged, f"{MOST_REJECTED} rows were not enough")


@dataclass(frozen=True, slots=True)
class _RowTrials:
    """Serves the bucket of ``run`` from some of its rows, judged by ``judge``."""

    run: BucketRun
    judge: Judge

    def is_wrong(self, keys: Sequence[str]) -> bool:
        """Whether the output is wrong from the rows of *keys* alone; each trial is reported."""
        judgement = self.judge.judge(self.run.serve_from(keys))
        self.run.compiler.progress.observer.rows_tried(self.run.name, len(keys), judgement)
        return not judgement.is_right

    def distrust(self, keys: Collection[str], reason: str) -> tuple[ServedBucket, Judgement]:
        """Mark the rows of *keys*, and serve the bucket without them."""
        text = f"bucket {self.run.name}: with it the output was {reason}"
        self.run.compiler.progress.distrust(keys, text)
        served = self.run.serve()
        return served, self.judge.judge(served.outputs)


def _reject_all(
    trials: _RowTrials,
    served: ServedBucket,
    judgement: Judgement,
    judged: Collection[str],
    why: str,
) -> tuple[ServedBucket, Judgement]:
    """Mark all rows of *served* but those in *judged*, and serve the bucket without them."""
    run = trials.run
    keys = [key for key in served.keys if key not in judged]
    problem = f"bucket {run.name}: the compiled output is {judgement}; {why}"
    if not keys:
        raise OutputMismatchError(problem, f"with its rows other buckets are right; {_REPORT}")
    served, after = trials.distrust(keys, f"{judgement}; no single row is to blame: {why}")
    told = f"its {len(keys)} rows that no other bucket was right with are not trusted"
    if not after.is_right:
        raise OutputMismatchError(problem, f"{told}, and without them it is {after}; {_REPORT}")
    run.compiler.progress.observer.rows_rejected(
        f"{problem}: {told}; without them it is {after}; `warmup build` measures them again"
    )
    return served, after


def _no_row_to_blame(trials: _RowTrials, judgement: Judgement) -> OutputMismatchError:
    """Return the error for an output that is wrong without any row; padded weights are marked."""
    run, progress = trials.run, trials.run.compiler.progress
    problem = f"bucket {run.name}: the compiled output is {judgement}, also without any row"
    weights = padding_keys(progress.rows, {group.structure for group in run.padded})
    if not weights:
        is_random = judgement.eager is not None and judgement.eager * MOST_TIMES > MOST_ERROR
        advice = _NAME_DRAWN if is_random else _REPORT
        return OutputMismatchError(problem, f"no row is to blame, and all stay; {advice}")
    progress.distrust(weights, f"bucket {run.name}: with padded weights the output was {judgement}")
    return OutputMismatchError(
        problem,
        f"the {len(weights)} rows that pad its weights are not trusted, and all stay; build again "
        "to serve these weights unpadded",
    )
