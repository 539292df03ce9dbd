"""`predictor_at_misses`: what picks configs that nobody measured here, where no row answers."""

from __future__ import annotations

from dataclasses import replace

from warmup.core.counted import counted
from warmup.core.errors import DeviceModelError, DeviceModelWarning, SettingsError
from warmup.core.events import logger
from warmup.core.notices import warn
from warmup.core.runtime import Runtime
from warmup.prediction.model_file import read_device_model
from warmup.prediction.predictions import Predictions
from warmup.prediction.shipped_model import shipped_model
from warmup.serving.install_settings import InstallSettings
from warmup.table.imported_answers import ImportedAnswers
from warmup.table.on_miss import OnMiss
from warmup.table.time_predictor import TimePredictor


def predictor_at_misses(
    settings: InstallSettings, imported: ImportedAnswers, here: Runtime
) -> tuple[TimePredictor | None, str]:
    """Return what picks configs at misses, and a word that tells its answers from others.

    With ``on_miss="predict"`` it is the device model, None where that cannot be used; with
    ``on_miss="unverified"`` the *imported* configs of the table; None with any other.

    Raises:
        SettingsError: ``on_miss="predict"`` has no device model, and none ships for this device.
    """
    if settings.on_miss == OnMiss.UNVERIFIED:
        keys = counted(len(imported), "key")
        logger.warning("imported configs of %s are served, which nobody measured here", keys)
        return imported, OnMiss.UNVERIFIED.value
    if settings.on_miss != OnMiss.PREDICT:
        return None, ""
    if not settings.device_model:
        raise SettingsError(
            f"on_miss='predict' has no device model, and none ships for {here.device.name}",
            "name it in device_model, WARMUP_DEVICE_MODEL",
        )
    try:
        model = read_device_model(settings.device_model, here, needs_times=False)
    except DeviceModelError as error:
        warn(DeviceModelWarning(f"{error}: misses get the library's kernel"))
        return None, ""
    predictions = Predictions.of(model)
    return predictions, predictions.digest


def with_device_model(settings: InstallSettings, here: Runtime) -> InstallSettings:
    """Return *settings* with the device model that ships, where one is needed and none is named."""
    if settings.on_miss != OnMiss.PREDICT or settings.device_model:
        return settings
    return replace(settings, device_model=str(shipped_model(here) or ""))
