"""`RecordingOrder`: what `warmup build -- COMMAND` asks of each Python process of the command.

The order travels in the environment, as JSON, so that every process that the command starts has it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from warmup.core.errors import SettingsError

RECORDING_VARIABLE: Final = "WARMUP_RECORDING"
_ORIGIN_FILE: Final = "origin.json"
_LOG_FILE: Final = "audit.jsonl"
_REGIONS_FILE: Final = "regions.jsonl"
_TURN_FILE: Final = "turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOrder:
    """The table to complete, how to measure, and the folder that the processes share meanwhile.

    ``session`` names the recording in the cache keys of inductor, so that no graph of an earlier
    run answers in place of a compile. With ``after`` the processes measure nothing: their misses
    are tuned when the command has ended. ``options`` are the arguments of `PolicyOptions`. The
    other fields are those of `warmup.tuning.build.build`.
    """

    out: str
    folder: str
    session: str
    after: bool
    device: str
    options: dict[str, Any]
    search: str
    wait_for_quiet: float | None = None

    @property
    def origin(self) -> Path:
        """The file of an empty table with the runtime and the policy of the processes."""
        return Path(self.folder) / _ORIGIN_FILE

    @property
    def log(self) -> Path:
        """The file that the processes append events to where the user names none."""
        return Path(self.folder) / _LOG_FILE

    @property
    def regions(self) -> Path:
        """The file that the processes append to what can be measured only when they have ended."""
        return Path(self.folder) / _REGIONS_FILE

    @property
    def turn(self) -> Path:
        """The file whose lock is the right to measure."""
        return Path(self.folder) / _TURN_FILE

    def to_json(self) -> str:
        """Return the order as the value of its variable."""
        return json.dumps(asdict(self))


def order_in_environment() -> RecordingOrder | None:
    """Return the order that this process has; None in a process that nobody records.

    Raises:
        SettingsError: the variable is no order.
    """
    text = os.environ.get(RECORDING_VARIABLE)
    if not text:
        return None
    try:
        return RecordingOrder(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{RECORDING_VARIABLE} is no order of `warmup build -- COMMAND`: {error}",
            "unset it: only that command sets it",
        ) from error
