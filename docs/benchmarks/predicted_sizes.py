"""What a device model chooses for GEMMs with unaligned results, their sizes left out of the fit.

    python predicted_sizes.py TIMINGS.jsonl.gz OUT.json

A held-out report leaves out whole models, and is unsure about a category that one model alone has.
Here each such problem is left out by itself, with all of the same sizes, and the other sizes of its
layer stay: what happens at a size of a known layer that nobody built. OUT has for each problem why
the model is unsure, the config that it chooses, the predicted gain over the library and the
measured one, None where that config was not measured there.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from driver import say, write

from warmup.prediction.device_model import Predictor
from warmup.prediction.fitting import fit
from warmup.prediction.timing_lines import read_timings
from warmup.prediction.training import RANDOM, training_set


def main(timings: str, out: str) -> None:
    """Fit once for each of the problems, and write what was chosen."""
    training = training_set(read_timings([timings]))
    problems = []
    for one in training.problems:
        if one.sizes.is_out_aligned or one.source == RANDOM:
            continue
        kept = [other for other in training.problems if other.sizes != one.sizes]
        predictor = Predictor(fit(training, kept))
        choice = predictor.choose(one.sizes)
        measured_us = None if choice is None else one.times_us.get(choice.config)
        problem = {
            "key": one.key,
            "source": one.source,
            "unsure": predictor.unsure(one.sizes),
            "config": None if choice is None else asdict(choice.config),
            "predicted_gain": None if choice is None else round(choice.gain, 3),
            "gain": None if measured_us is None else round(one.library_us / measured_us, 3),
            "best_gain": round(one.library_us / one.best_us, 3),
        }
        problems.append(problem)
        say(problem)
    on = training.on
    origin = {"device": on.device, "torch": on.torch, "triton": on.triton}
    write(Path(out), {**origin, "method": training.method, "problems": problems})


if __name__ == "__main__":
    main(*sys.argv[1:])
