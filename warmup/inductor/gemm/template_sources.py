"""`template_sources`: the source of each Triton template of torch and warmup, as rows name it."""

from __future__ import annotations

import torch._inductor.kernel.bmm
import torch._inductor.kernel.mm  # noqa: F401  registers its templates, as the one above
from torch._inductor.select_algorithm import TritonTemplate

import warmup.inductor.gemm.few_rows  # noqa: F401  registers the templates of warmup's own


def template_sources() -> dict[str, str]:
    """Return the hash of the source of each template that is registered, by its uid.

    Templates register when their module of torch is imported, as those of matmuls are here.
    """
    templates = TritonTemplate.all_templates.values()
    return {one.uid: one.src_hash for one in templates if one.src_hash is not None}
