"""`template_sources`: the source of each Triton template of this torch, as rows name it."""

from __future__ import annotations

import torch._inductor.kernel.bmm
import torch._inductor.kernel.mm  # noqa: F401  registers its templates, as the one above
from torch._inductor.select_algorithm import TritonTemplate


def template_sources() -> dict[str, str]:
    """Return the hash of the source of each template that is registered, by its uid.

    Templates register when their module of torch is imported, as those of matmuls are here.
    """
    templates = TritonTemplate.all_templates.values()
    return {one.uid: one.src_hash for one in templates if one.src_hash is not None}
