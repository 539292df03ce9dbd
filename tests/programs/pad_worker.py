"""The worker of a device, with inductor's pad_mm pass switched on on the CPU and stated times.

`collect_pads.py` starts it in place of `warmup.tuning.devices.worker`, and says what is stated.
"""

from __future__ import annotations

from build_unaligned import pad_on_cpu, state_times

from warmup.keys.pad import PADDED
from warmup.tuning.devices.worker import main

if __name__ == "__main__":
    pad_on_cpu()
    state_times(PADDED)
    main()
