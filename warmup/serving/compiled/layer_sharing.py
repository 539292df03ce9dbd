"""`LayerSharing`: whether the buckets of a model share the artifacts of its repeated layers."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from warmup.core.counted import counted
from warmup.core.errors import LayersError, SettingsError
from warmup.core.events import logger
from warmup.core.layers_form import LayersForm

if TYPE_CHECKING:
    from torch import nn

    from warmup.models.proved_layers import ProvedLayers
    from warmup.models.repeated_groups import LayerGroup
    from warmup.models.sharing_cost import SharingCost


LAYERS_VARIABLE: Final = "WARMUP_LAYERS"


def layers_form(named: str | None, default: str | None = None) -> LayersForm:
    """Return the form *named*, or else *default*, ``WARMUP_LAYERS`` or whole graphs.

    Raises:
        SettingsError: there is no such form.
    """
    word = named or default or os.environ.get(LAYERS_VARIABLE) or LayersForm.WHOLE
    if word not in set(LayersForm):
        raise SettingsError(f"layers={word!r}", f"use one of {', '.join(LayersForm)}")
    return LayersForm(word)


@dataclass(frozen=True, slots=True)
class SharedLayersReport:
    """How the repeated layers of a model were compiled so far.

    ``shared`` layers use ``artifacts`` artifacts in each bucket; ``refusal`` says why whole graphs
    are compiled instead. ``changes`` counts calls that found a layer or a weight changed, after
    which the layers were proved equal again; ``otherwise`` counts calls that whole graphs served
    because layers were proved equal for another form of call. ``costs`` has the time of shared
    layers over that of one graph, for each bucket in which it was measured; where it is ``slower``,
    the bucket is compiled as a whole graph.
    """

    shared: int
    artifacts: int
    changes: int
    otherwise: int
    refusal: str | None
    costs: Mapping[str, float] = field(default_factory=dict)
    slower: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.refusal is not None:
            text = f"layers: whole graphs, since {self.refusal}"
        else:
            artifacts = counted(self.artifacts, "artifact")
            slower = "".join(f", {each} faster in one graph" for each in self.slower)
            text = f"layers: {self.shared} share {artifacts} in each bucket{slower}"
        changes = f", {counted(self.changes, 'change')}" if self.changes else ""
        calls = counted(self.otherwise, "call")
        otherwise = f", {calls} of another form" if self.otherwise else ""
        return f"{text}{changes}{otherwise}"


class LayerSharing:
    """What the buckets of one model share about its repeated layers, in *groups*.

    ``refusal`` says why whole graphs are compiled, None while layers are shared.
    """

    def __init__(self, form: LayersForm, groups: tuple[LayerGroup, ...]) -> None:
        self.form, self.groups = form, groups
        self.refusal: str | None = None
        self._counts: Counter[str] = Counter()
        self._costs: dict[str, SharingCost] = {}
        self._shared = self._artifacts = 0  # a later proof changes the lists of the earlier one
        self._lock = threading.Lock()

    @classmethod
    def of(cls, model: nn.Module, form: LayersForm) -> LayerSharing | None:
        """Return what is shared about the layers of *model*; None for whole graphs.

        Raises:
            LayersError: the layers must be compiled once, and there are no repeated layers.
        """
        from warmup.models.repeated_groups import find_groups

        if form is LayersForm.WHOLE:
            return None
        sharing = cls(form, find_groups(model))
        if not sharing.groups:
            sharing.refuse("the model has no repeated layers")
        return sharing

    def refuse(self, reason: str) -> None:
        """Compile whole graphs from now on, and log why.

        Raises:
            LayersError: the layers must be compiled once.
        """
        if self.form is LayersForm.ONCE:
            raise LayersError(reason)
        with self._lock:
            self.refusal = reason
        logger.warning("layers: whole graphs are compiled, since %s", reason)

    def add(self, proved: ProvedLayers) -> None:
        """Note what was proved; log the first time which layers share artifacts."""
        with self._lock:
            is_first = self._artifacts == 0
            self._shared = sum(len(each.layers) for each in proved.artifacts)
            self._artifacts = len(proved.artifacts)
        if is_first:
            logger.info("layers: %s", proved)

    @property
    def is_measured(self) -> bool:
        """Whether a bucket takes the faster way."""
        return self.form is LayersForm.AUTO

    def measured(self, bucket: str, cost: SharingCost) -> None:
        """Note the *cost* of sharing in *bucket*, and log which way is taken."""
        with self._lock:
            self._costs[bucket] = cost
        if cost.is_slower:
            logger.warning("layers: %s: a whole graph, since sharing takes %s", bucket, cost)
        else:
            logger.info("layers: %s: shared, which takes %s", bucket, cost)

    def unmeasured(self, bucket: str, reason: str) -> None:
        """Log that the layers of *bucket* are shared, and why no time says whether they should."""
        logger.warning("layers: %s: shared, not compared with one graph: %s", bucket, reason)

    def count(self, what: str, message: str) -> None:
        """Count *what*, "changes" or "otherwise"; log *message* at each power of two."""
        with self._lock:
            self._counts[what] += 1
            count = self._counts[what]
        if count & (count - 1) == 0:
            logger.warning("%s (%s so far)", message, counted(count, "time"))

    def report(self) -> SharedLayersReport:
        """Return the counts so far."""
        return SharedLayersReport(
            shared=self._shared,
            artifacts=self._artifacts,
            changes=self._counts["changes"],
            otherwise=self._counts["otherwise"],
            refusal=self.refusal,
            costs={bucket: round(cost.ratio, 3) for bucket, cost in self._costs.items()},
            slower=tuple(bucket for bucket, cost in self._costs.items() if cost.is_slower),
        )
