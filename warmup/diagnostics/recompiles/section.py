"""`Section`: the explanation of one dim of a model, with or without gradients."""

from __future__ import annotations

from dataclasses import dataclass

from warmup.diagnostics.recompiles.causes import Cause


@dataclass(frozen=True, slots=True)
class Price:
    """What serving ``size`` by the winners of the first size of its range costs in the GEMMs.

    Times in microseconds are sums over GEMMs: of the winners for this size (``own_us``) and of the
    first size's winners at this size (``first_us``), measured as a table has it for ``measured``
    of the ``gemms``, and predicted by a device model for ``predicted`` of them.
    """

    size: int
    gemms: int
    measured: int
    own_us: float
    first_us: float
    predicted: int
    predicted_own_us: float
    predicted_first_us: float
    unknown: int

    @property
    def cost(self) -> float | None:
        """The measured times' growth as a share; None where nothing was measured."""
        return self.first_us / self.own_us - 1 if self.measured else None

    @property
    def predicted_cost(self) -> float | None:
        """The predicted times' growth as a share; None where nothing was predicted."""
        own = self.predicted_own_us
        return self.predicted_first_us / own - 1 if self.predicted else None


@dataclass(frozen=True, slots=True)
class Span:
    """The sizes that one artifact serves: ``low`` to ``high``, both inclusive, None for no end.

    All of them run the kernels that were chosen for ``tuned_at``, the size at which the artifact
    was compiled. ``sizes`` are the requested sizes that it serves. With ``conditions`` it serves
    only the sizes that meet them. ``unexpected`` is dynamo's reason for compiling where an earlier
    artifact should have served ``tuned_at``, else empty.
    """

    graph: int
    low: int
    high: int | None
    tuned_at: int
    sizes: tuple[int, ...]
    low_cause: Cause | None
    high_cause: Cause | None
    conditions: tuple[Cause, ...] = ()
    unexpected: str = ""
    unbound: tuple[str, ...] = ()
    prices: tuple[Price, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of the model and the code it comes from; with graph breaks there are several."""

    number: int
    function: str
    path: str
    line: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """The explanation of one dim, with or without gradients.

    ``sizes`` are the given sizes; ``requests`` says how often each was requested, where a histogram
    did. ``for_gradients`` are the keys of tunings that exist only because gradients are on.
    ``tried`` has the sizes that were compiled or found to be served, ``held`` the other dims with
    their sizes. ``uncovered`` is the smallest size without an artifact, None when every size up to
    ``largest`` has one.
    """

    dim: str
    grad: bool
    sizes: tuple[int, ...]
    largest: int
    held: tuple[tuple[str, int], ...]
    graphs: tuple[Graph, ...]
    tried: tuple[int, ...]
    uncovered: int | None
    requests: tuple[tuple[int, int], ...] = ()
    for_gradients: tuple[str, ...] = ()
