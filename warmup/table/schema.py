"""`Table`: provenance, policy and rows, as plain data. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from warmup.core.device import CallCost, Runtime
from warmup.core.errors import SettingsError
from warmup.core.roofline import Peaks
from warmup.core.rows import CUBLASLT, L2, MAX_TOP_K, SEED, TOP_K, Method, OptionValue, Row

SCHEMA_VERSION: Final = 3
MAX_TABLE_BYTES: Final = 256 * 1024 * 1024  # a table of 100,000 rows has 100 to 200 MB
MAX_ASSUMPTIONS: Final = 64
MAX_ASSUMPTION: Final = 4096  # letters of one of them
MAX_COSTS: Final = 1024
MAX_REASON: Final = 512


@dataclass(frozen=True, slots=True)
class Provenance:
    """The device and runtime that rows were tuned on, the version of warmup, and the time.

    ``created`` is the time of the first row in UTC, ISO 8601. ``peaks`` are None in a table of an
    earlier warmup. ``assumptions`` are what builds took because nobody named it, such as inferred
    inputs. ``calls`` has what a call of a bucket costs, by model and bucket, sorted; empty on a
    CPU.
    """

    runtime: Runtime
    warmup: str
    created: str
    peaks: Peaks | None = None
    assumptions: tuple[str, ...] = ()
    calls: tuple[tuple[str, CallCost], ...] = ()

    def assuming(self, texts: Iterable[str]) -> Provenance:
        """Return this provenance with *texts* among its assumptions, each once, the last 64."""
        union = tuple(dict.fromkeys((*self.assumptions, *texts)))
        return replace(self, assumptions=union[-MAX_ASSUMPTIONS:])

    def costing(self, calls: Iterable[tuple[str, CallCost]]) -> Provenance:
        """Return this provenance with *calls* in place of those of the same name, 1024 at most."""
        union = dict(self.calls) | dict(calls)
        return replace(self, calls=tuple(sorted(union.items())[:MAX_COSTS]))


# What a policy says was measured everywhere; absent in tables of earlier builds.
SEARCH_FIELDS: Final = {  # by kind
    "launch": "launch_search",
    "reduction": "reduction_search",
    "split": "split_search",
    "grouped_mm": "grouped_search",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How rows were measured, and the inductor options that serving must share.

    ``options`` are those of inductor's config that `install` sets. ``tolerance`` has by dtype the
    largest relative L2 error that the build accepted, of a bucket's output against eager mode and
    of a candidate against its reference. ``searches`` has the kinds of which every decision has a
    row: ``launch``, also where inductor lists one config; ``reduction``, for those that may be
    persistent or looped; ``split``, for those of fixed sizes that inductor's rule splits;
    ``grouped_mm``. With ``invariant`` a row of a GEMM's output has the same bits in
    all buckets, and a kernel that reduces has one launch config for each length of a row.
    """

    mode: str
    options: Mapping[str, OptionValue]
    timing: Method
    seed: int
    tolerance: Mapping[str, float]
    searches: frozenset[str] = frozenset()
    invariant: bool = False


def compare_policies(a: Policy, b: Policy) -> tuple[tuple[str, object, object], ...]:
    """Return each field in which two policies differ, with both values."""
    fields: list[tuple[str, object, object]] = [
        (f"policy {name}", getattr(a, name), getattr(b, name))
        for name in ("mode", "seed", "invariant")
    ]
    fields += [
        (f"policy {name}", kind in a.searches, kind in b.searches)
        for kind, name in SEARCH_FIELDS.items()
    ]
    fields += [
        (f"policy timing {name}", getattr(a.timing, name), getattr(b.timing, name))
        for name in Method.__slots__
    ]
    for label, values_a, values_b in (
        ("option", a.options, b.options),
        ("tolerance", a.tolerance, b.tolerance),
    ):
        fields += [
            (f"policy {label} {name}", values_a.get(name), values_b.get(name))
            for name in sorted({*values_a, *values_b})
        ]
    return tuple(field for field in fields if field[1] != field[2])


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of a table, as in its journal: rows, keys to remove, and a provenance, if any.

    An entry with a ``digest`` has nothing else: entries before it are in the table with the digest.
    """

    rows: Mapping[str, Row] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    provenance: Provenance | None = None
    digest: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.removed or self.provenance)


@dataclass(frozen=True, slots=True)
class Table:
    """All rows for one device and runtime, by key, of every row kind."""

    provenance: Provenance
    policy: Policy
    rows: Mapping[str, Row] = field(default_factory=dict)
    # Kept by `warmup.table.codec`; `dataclasses.replace` does not copy it.
    _digest: str | None = field(default=None, init=False, repr=False, compare=False)

    def with_entries(self, entries: Sequence[Entry]) -> Table:
        """Return this table with the changes of *entries* of its journal, in their order."""
        if not entries:
            return self
        provenance, rows = self.provenance, dict(self.rows)
        for entry in entries:
            provenance = entry.provenance or provenance
            rows.update(entry.rows)
            for key in entry.removed:
                rows.pop(key, None)
        return replace(self, provenance=provenance, rows=rows)


# `choose_policy`: the policy of a build, from the options of its caller and the device type.

GEMM_BACKENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "cpu": ("ATEN", "CPP"),
    "cuda": ("ATEN", "TRITON"),
}
FURTHER_BACKENDS: Final = {"cpu": (), "cuda": (CUBLASLT,)}  # where a build names them
DEFAULT_MODE: Final = "max-autotune-gemm"
# Mode of a build -> the options that it switches on beside GEMM selection. Serving sets them too,
# because they also change the graph (decomposition.py); rows then answer, and nothing is measured.
BUILD_MODES: Final[Mapping[str, Mapping[str, bool]]] = {
    "max-autotune-gemm": {},
    "max-autotune": {"max_autotune_pointwise": True, "coordinate_descent_tuning": True},
    "max-autotune-no-cudagraphs": {
        "max_autotune_pointwise": True,
        "coordinate_descent_tuning": True,
    },
}
TOLERANCE: Final[Mapping[str, float]] = {"f64": 1e-7, "f32": 1e-3, "f16": 5e-3, "bf16": 2e-2}
MOST_TIMES: Final = 1.5  # an error may be so many times the larger of eager's and default mode's
# Default mode counts where its error is at most so many times the larger of the floor and eager's
# error: a larger one is no rounding, and must not excuse the table.
MOST_DEFAULT: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The options of a build that decide its policy, as on the command line; None for a default."""

    mode: str = DEFAULT_MODE
    backends: str | None = None
    tolerance: float | None = None
    l2: str | None = None
    fused_top_k: int | None = None
    invariant: bool = False


def choose_policy(
    asked: PolicyOptions, device_type: str, switches: Mapping[str, bool | int | str]
) -> Policy:
    """Return the policy of a build with the options *asked* on a *device_type*, or a SettingsError.

    *switches* are the inductor options that decide what is measured, with the values that switch
    measurements off, and those of an invariant build.
    """
    if asked.mode not in BUILD_MODES:
        raise SettingsError(
            f"--mode {asked.mode!r} is not a mode", f"use one of {', '.join(BUILD_MODES)}"
        )
    options: dict[str, bool | int | float | str | None] = {
        **switches,
        "max_autotune_gemm_backends": _backends(asked.backends, device_type),
        "max_autotune_gemm_search_space": "DEFAULT",
    }
    if device_type == "cpu":
        # The C++ GEMM template needs constant weights (utils.py, use_cpp_gemm_template).
        options["freezing"] = True
    else:
        has_triton = "TRITON" in str(options["max_autotune_gemm_backends"])
        options["max_autotune_conv_backends"] = "ATEN,TRITON" if has_triton else "ATEN"
    options |= BUILD_MODES[asked.mode]
    if BUILD_MODES[asked.mode]:
        # With these options its split size is measured while compiling, and no row could record it.
        options["triton.mix_order_reduction"] = False
    if asked.invariant and CUBLASLT in str(options["max_autotune_gemm_backends"]):
        why = f"--invariant cannot choose algorithms of {CUBLASLT}"
        raise SettingsError(why, f"remove {CUBLASLT} from --set backends, or --invariant")
    limit = asked.tolerance
    searches = {"launch"} if asked.invariant else SEARCH_FIELDS.keys()
    return Policy(
        mode=asked.mode,
        options=options,
        timing=choose_method(asked, device_type),
        seed=SEED,
        tolerance=dict(TOLERANCE if limit is None else dict.fromkeys(TOLERANCE, limit)),
        searches=frozenset(() if device_type == "cpu" else searches),  # all are of Triton
        invariant=asked.invariant,
    )


def options_served(policy: Policy, *, freezes: bool) -> dict[str, OptionValue]:
    """Return the options of *policy* that a compile gets.

    ``freezing`` is among them only where the caller *freezes*: a weight that changes after the
    compile is ignored then. Without, it stays as the program has it.
    """
    return {key: value for key, value in policy.options.items() if freezes or key != "freezing"}


def choose_method(asked: PolicyOptions, device_type: str) -> Method:
    """Return how candidates are timed, by default as they will be served, or a SettingsError."""
    # On a GPU that is from a cold L2. A CPU is timed warm.
    l2 = asked.l2
    top_k = TOP_K if asked.fused_top_k is None else asked.fused_top_k
    if not 0 <= top_k <= MAX_TOP_K:
        raise SettingsError(f"fused_top_k={top_k}", f"give a number from 0 to {MAX_TOP_K}")
    if l2 is not None and l2 not in set(L2):
        raise SettingsError(f"l2 {l2!r} is unknown", f"use one of {', '.join(L2)}")
    if device_type == "cpu":
        if l2 == L2.COLD:
            raise SettingsError("a CPU is timed warm", "drop the option")
        return Method(l2=L2.WARM, fused_top_k=top_k)
    return Method(l2=L2(l2 or L2.COLD), fused_top_k=top_k)


def _backends(text: str | None, device_type: str) -> str:
    known = GEMM_BACKENDS[device_type]
    if text is None:
        return ",".join(known)
    known += FURTHER_BACKENDS[device_type]
    chosen = [word.strip().upper() for word in text.split(",")]
    unknown = [word for word in chosen if word not in known]
    if unknown or len(set(chosen)) != len(chosen):
        raise SettingsError(
            f"backends {text!r} cannot be used on {device_type}",
            f"choose among {', '.join(known)}; only these can be fed back at serving",
        )
    return ",".join(word for word in known if word in chosen)


# `OnMiss` and `Uncovered`: what a `Lookup` does where no row answers.


class OnMiss(StrEnum):
    """What `Lookup` does when no row answers."""

    FALLBACK = "fallback"
    STRICT = "strict"


OnMissName = Literal["fallback", "strict"]  # of the members above


class Uncovered(StrEnum):
    """What `Lookup` does where inductor would measure something that no row kind covers."""

    LIBRARY = "library"
    MEASURE = "measure"
    FORBID = "forbid"
