"""Lets inductor offer its C++ GEMM template for weights that are inputs, as a GPU's templates are.

    python choices_for_inputs.py WORDS OF WARMUP...

runs the command line of warmup so, with a policy that freezes no weights.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any


def offer_templates_for_inputs() -> None:
    """Replace inductor's check of the C++ GEMM template in this process."""
    from torch._inductor import utils
    from torch._inductor.kernel import mm

    original = utils.use_cpp_gemm_template

    def use(*args: Any, **kwargs: Any) -> Any:
        kwargs["require_constant_mat2"] = False
        return original(*args, **kwargs)

    mm.use_cpp_gemm_template = use


def freeze_no_weights() -> None:
    """Make each build of this process choose a policy that freezes no weights, as on a GPU."""
    import warmup.tuning.build as tuning_build

    choose = tuning_build.choose_policy

    def choose_unfrozen(*args: Any) -> Any:
        policy = choose(*args)
        options = {name: value for name, value in policy.options.items() if name != "freezing"}
        return replace(policy, options=options)

    tuning_build.choose_policy = choose_unfrozen


def _main() -> None:
    from warmup.cli import main

    freeze_no_weights()
    offer_templates_for_inputs()
    sys.exit(main())


if __name__ == "__main__":
    _main()
