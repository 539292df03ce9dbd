"""`mm_unfolded`: keeps inductor from folding an add after a matmul into an addmm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch._inductor.fx_passes import post_grad

from warmup.inductor.internals import FOLDING_INTERNALS, check_internals
from warmup.inductor.patches import Patches


@contextlib.contextmanager
def mm_unfolded() -> Iterator[None]:
    """Compile an add after an mm as the epilogue of the mm while open, in every thread.

    Inductor does so on a GPU where every use of the sum is pointwise, which a key does not tell,
    and folds the add into an addmm elsewhere (fx_passes/post_grad.py, is_valid_addmm_fusion).

    Raises:
        InductorChangedError: the internal is gone or has another signature.
    """
    check_internals(FOLDING_INTERNALS)
    patches = Patches()
    patches.wrap(post_grad, "should_prefer_unfused_addmm", lambda _: lambda _match: True)
    try:
        yield
    finally:
        patches.restore()
