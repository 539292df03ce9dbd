"""`PadDecisions`: the hooks of the row kind ``pad``, for inductor's pad_mm pass.

The pass measures in every mode: ``pad_mm._should_pad`` first rules out GEMMs that need no padding,
then looks into its cache, then times the GEMM with and without padding
(torch/_inductor/fx_passes/pad_mm.py). Rows replace that cache, so rows are looked up exactly where
the pass would measure. A build is given the pass's two calls, and the region around the GEMM.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch._inductor.fx_passes import pad_mm
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode

from warmup.core.errors import MissReason, ProblemError
from warmup.core.events import Hit, Missed
from warmup.core.roofline import dtype_name
from warmup.core.rows import Winner
from warmup.inductor.gemm.key import dim_of, fp32_precision
from warmup.inductor.gemm.regions import hint_or_value, whole_region_of
from warmup.inductor.patches import Function, KindHooks, Patches
from warmup.inductor.versions import Version
from warmup.keys.gemm import Dim, Layout, layout_of
from warmup.keys.pad import AS_IS, PADDED, PadProblem
from warmup.keys.question import Answers, RegionQuestion

_BATCHED: Final = 3
_PRODUCTS: Final = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)
_BIAS_FORMS: Final = {0: "scalar", 1: "1d", 2: "2d", 3: "3d"}


class PadDecisions(KindHooks):
    """Answers whether to pad from *answers* while attached."""

    def __init__(self, version: Version, answers: Answers) -> None:
        super().__init__(version, answers)
        self._local = threading.local()

    def attach(self, patches: Patches) -> None:
        patches.on_restore(self._deactivate)
        patches.hook(pad_mm, "_should_pad", self._should_pad)
        patches.hook(pad_mm, "is_mm_compute_bound", self._is_mm_compute_bound)
        patches.hook(pad_mm, "get_cached_should_pad", self._get_cached_should_pad)
        patches.hook(
            pad_mm, "get_cached_base_mm_benchmark_time", self._get_cached_base_mm_benchmark_time
        )
        patches.hook(pad_mm, "get_do_bench", self._get_do_bench)
        patches.hook(pad_mm, "is_padded_faster", self._is_padded_faster)

    def _should_pad(
        self, original: Function, match: Any, mat1: Any, mat2: Any, op: Any, *args: Any, **kw: Any
    ) -> Any:
        if not self._active:
            return original(match, mat1, mat2, op, *args, **kw)
        bias = args[0] if args else kw.get("input")
        try:
            problem = describe_padding(match, mat1, mat2, op, bias)
            self._local.site = _PadSite(problem, match, mat1)
        except ProblemError as error:
            self._local.site, self._local.undescribed = None, f"pad ({error})"
        try:
            # Inductor may memoize decisions (runtime/caching, off by default), without our hooks.
            return inspect.unwrap(original)(match, mat1, mat2, op, *args, **kw)
        finally:
            self._local.site = None

    def _is_mm_compute_bound(
        self, original: Function, m: Any, k: Any, n: Any, dtype: torch.dtype
    ) -> Any:
        # Comparing symbols adds guards, which would split the range of a bucket. From torch
        # 2.12 on inductor compares hints itself.
        sizes = map(hint_or_value, (m, k, n)) if self._active else (m, k, n)
        return original(*sizes, dtype)

    def _get_cached_should_pad(self, original: Function, inductor_key: str) -> Any:
        if not self._active:
            return original(inductor_key)
        site = self._site
        if site is None:
            if not self._settings.measures:
                reason = MissReason.NOT_DESCRIBED
                self._answers.emit(Missed(self._local.undescribed, reason, str(AS_IS)))
            return None if self._settings.measures else False
        answer = self._answers.find(site.problem)
        if isinstance(answer, Winner):
            self._answers.emit(Hit(site.problem.key, str(answer)))
            return answer == PADDED
        if self._settings.measures:
            return None  # measure, whatever inductor's own cache says
        self._answers.emit(Missed(site.problem.key, answer, str(AS_IS)))
        return False

    def _get_cached_base_mm_benchmark_time(self, original: Function, inductor_key: str) -> Any:
        # With a cached time of the unpadded GEMM, the pass would not make its call for it.
        return None if self._measures else original(inductor_key)

    def _get_do_bench(self, original: Function) -> Any:
        if not self._measures:
            return original()
        calls = self._local.calls = []

        def keep_call(call: Callable[[], Any]) -> float:
            calls.append(call)
            return 0.0  # both calls are timed together in `is_padded_faster`

        return keep_call

    def _is_padded_faster(self, original: Function, *args: Any, **kw: Any) -> Any:
        if not self._measures:
            return original(*args, **kw)
        as_is, padded = self._local.calls
        calls = {AS_IS: lambda _number: as_is(), PADDED: lambda _number: padded()}
        question = _question(self._local.site, calls, {PADDED: _Product(padded)})
        return self._answers.measure(question) == PADDED

    @property
    def _measures(self) -> bool:
        return self._active and self._settings.measures and self._site is not None

    @property
    def _site(self) -> _PadSite | None:
        site: _PadSite | None = getattr(self._local, "site", None)
        return site


@dataclass(frozen=True, slots=True)
class _PadSite:
    problem: PadProblem
    match: Any
    mat1: Any


class _Product(TorchFunctionMode):
    def __init__(self, padded: Callable[[], Any]) -> None:
        super().__init__()
        self._padded = padded
        self._product: Callable[[], object] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = partial(func, *args, **(kwargs or {}))
        if func in _PRODUCTS:
            self._product = call
        return call()

    def __call__(self, _number: int) -> object:
        if self._product is None:
            with self:
                self._padded()
        assert self._product is not None
        return self._product()


def _question(
    site: _PadSite,
    calls: Mapping[Winner, Callable[[int], object]],
    least: Mapping[Winner, Callable[[int], object]],
) -> RegionQuestion:
    problem, alignment = site.problem, pad_mm.get_alignment_size(site.mat1)
    ends = [dim.high for dim in (problem.m, problem.n, problem.k) if not dim.is_static]
    region, reason = None, ""
    if any(end is None or end % alignment for end in ends):
        # The region has constant sizes: there the pass would pad this size too.
        reason = f"a range that does not end at a multiple of {alignment}"
    elif (region := whole_region_of(site.match.output_node())) is None:
        reason = "what surrounds the GEMM cannot be described"
    keys = problem.keys_in_region() if region is not None else frozenset[str]()
    return RegionQuestion(problem, tuple(calls), region, keys, reason, calls, least)


def describe_padding(match: Any, mat1: Any, mat2: Any, op: Any, bias: Any) -> PadProblem:
    """Return the padding problem of *mat1* and *mat2*; a ProblemError where no key describes it."""
    try:
        batch = mat1.shape[0] if mat1.dim() == _BATCHED else None
        free = [
            letter
            for letter, name in (("a", "mat1"), ("b", "mat2"))
            if pad_mm.should_exclude_padding_time(match, name)
        ]
        return PadProblem(
            op=str(op).rpartition(".")[2],
            m=_dim(mat1.shape[-2]),
            n=_dim(mat2.shape[-1]),
            k=_dim(mat1.shape[-1]),
            dtype=dtype_name(mat1.dtype),
            a=_layout(mat1),
            b=_layout(mat2),
            batch=None if batch is None else _dim(batch),
            bias=None if bias is None else _BIAS_FORMS[bias.dim()],
            free="".join(free),
            fp32=fp32_precision("cuda") if mat1.dtype is torch.float32 else None,
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ProblemError(f"{op}: {error}") from error


def _dim(size: Any) -> Dim:
    if isinstance(size, torch.SymInt):
        return dim_of(size.node.expr, size.node.shape_env)
    return Dim.of(int(size))


def _layout(tensor: Any) -> Layout:
    def is_equal(left: Any, right: Any) -> bool:
        return bool(statically_known_true(left == right))

    return layout_of(list(tensor.shape), list(tensor.stride()), is_equal, _dim)
