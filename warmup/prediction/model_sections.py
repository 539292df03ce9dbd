"""`with_times` and `with_pads`: a model file keeps one section when the other is fitted anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from warmup.core.errors import DeviceModelError
from warmup.prediction.device_model import DeviceModel
from warmup.prediction.model_file import origin_difference, read_device_model
from warmup.prediction.pad.pad_model import PadModel
from warmup.prediction.timing_lines import MeasuredOn


def with_times(path: Path, model: DeviceModel) -> DeviceModel:
    """Return *model*, which knows times, with the pad decisions of the file *path*, if it has some.

    A file that cannot be used, or is of another device or other versions, is replaced as a whole.
    """
    if not path.exists():
        return model
    try:
        before = read_device_model(path, needs_times=False)
    except DeviceModelError:
        return model
    is_same = origin_difference(before.on, model.on) is None
    return replace(model, pad=before.pad) if is_same else model


def with_pads(path: Path, on: MeasuredOn, pad: PadModel) -> DeviceModel:
    """Return the model of the file *path*, or without a file an empty one, with *pad*.

    *on* says where the samples were measured.

    Raises:
        DeviceModelError: the file cannot be used, or is of another device or other versions.
    """
    if not path.exists():
        return DeviceModel.of_pads(on, pad)
    before = read_device_model(path, needs_times=False)
    if (reason := origin_difference(before.on, on)) is not None:
        raise DeviceModelError(
            str(path), f"not written: the file is {reason} (the samples)", "name another file"
        )
    return replace(before, pad=pad)
