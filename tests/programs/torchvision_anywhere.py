"""`import_torchvision`, for programs that import transformers or timm beside torch for a CPU."""

from __future__ import annotations

import importlib
import sys

import torch

_OPERATORS = ("nms", "qnms")


def import_torchvision() -> None:
    """Import torchvision, if it is installed, also where its operators cannot be loaded."""
    # PyPI has it for CUDA only. Beside torch for a CPU it then fails for want of operators that it
    # registers fakes for, and so does importing timm or parts of transformers. No model of the zoo
    # uses such an operator.
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return
    except RuntimeError:
        for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in _OPERATORS:
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", signature)
        importlib.import_module("torchvision")
