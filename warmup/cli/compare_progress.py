"""How a comparison gets on, on stderr: a live line on a terminal, a line for each variant."""

from __future__ import annotations

from warmup.bench.compare.comparison import Start, Variant
from warmup.cli.live import LiveLine


class CompareProgress(LiveLine):
    """A `warmup.bench.compare.race.Observer` that draws."""

    def __init__(self) -> None:
        super().__init__("rounds")

    def variant_started(self, variant: Variant) -> None:
        """Name the variant that is starting."""
        self.show(f"{variant.name}: first outputs")

    def variant_ready(self, variant: Variant, start: Start) -> None:
        """Print what its start took."""
        self.say(
            f"{variant.name}: first outputs after {start.process_seconds:.1f} s, "
            f"{start.benchmarks} benchmarks"
        )

    def variant_failed(self, variant: Variant, reason: str) -> None:
        """Print why it is out."""
        self.say(f"{variant.name}: failed: {reason}")

    def round_finished(self, number: int, total: int) -> None:
        """Move the bar."""
        self.show("timing", done=number, total=total)
