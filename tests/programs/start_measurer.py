"""A process that starts a child for measurements, says its process ID, and waits to be killed.

``start_measurer.py run MODE`` gives ``fake_measurer.py`` a trial, ``start`` only starts it.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from warmup.core.rows import Family, Method, Winner
from warmup.core.trial import Candidate, TensorSpec, Trial
from warmup.measuring.trial_process import TrialProcess

FAKE = Path(__file__).with_name("fake_measurer.py")

if __name__ == "__main__":
    process = TrialProcess([sys.executable, str(FAKE), sys.argv[2]])
    process.start()
    if sys.argv[1] == "run":
        spec, library = TensorSpec((1,), (1,), 0, "float32"), Winner(Family.EXTERN, "aten::mm")
        trial = Trial(
            key="k",
            op="mm",
            device="cpu",
            operands=(),
            views=(),
            out=spec,
            candidates=(Candidate(library),),
            library=library,
            method=Method(),
        )
        threading.Thread(target=process.run, args=(trial,), daemon=True).start()
    time.sleep(2)  # the child is at its candidate by then
    sys.stdout.write(f"{process.pid}\n")
    sys.stdout.flush()
    time.sleep(3600)
