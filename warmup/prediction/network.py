"""`train_network`: times predicted by a network, to compare the device model with.

Twelve logarithms in, six hidden layers of 256, and log(exp(x) + floor) out, where the floor is the
shortest time of the training set. Its weights are not stored: as JSON they have megabytes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from warmup.prediction.features import CandidateConfig, GemmSizes
from warmup.prediction.training import TrainingProblem

NETWORK_FEATURES: Final = (
    *("item_bytes", "m", "n", "k", "bytes", "operations", "operations_per_byte"),
    *("block_m", "block_n", "block_k", "stages", "warps"),
)
HIDDEN_LAYERS, HIDDEN_WIDTH = 6, 256
_TRAINING_STEPS, _BATCH, _RATE = 1000, 512, 1e-3
_NETWORK_SEED: Final = 0


def train_network(
    problems: Sequence[TrainingProblem],
) -> Callable[[GemmSizes, Sequence[CandidateConfig]], list[float | None]]:
    """Return a function from sizes and configs to times in microseconds, trained on *problems*.

    Trained on the GPU, if there is any.
    """
    import torch
    from torch import nn

    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    pairs = [(one, config) for one in problems for config in sorted(one.times_us, key=str)]
    features = [network_features(one.sizes, config) for one, config in pairs]
    rows = torch.tensor(features, device=place)
    logs = [math.log(one.times_us[config]) for one, config in pairs]
    times = torch.tensor(logs, device=place)
    mean, spread = rows.mean(dim=0), rows.std(dim=0).clamp(min=1e-3)
    floor = float(times.min().exp())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_NETWORK_SEED)
        widths = [len(NETWORK_FEATURES), *[HIDDEN_WIDTH] * HIDDEN_LAYERS]
        layers: list[nn.Module] = []
        for inner, outer in itertools.pairwise(widths):
            layers += [nn.Linear(inner, outer), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(HIDDEN_WIDTH, 1)).to(place)
        optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, _RATE, total_steps=_TRAINING_STEPS
        )
        inputs = (rows - mean) / spread
        with _single_thread():
            for _ in range(_TRAINING_STEPS):
                part = torch.randint(len(rows), (_BATCH,), device=place)
                optimizer.zero_grad()
                found = _log_time(network, inputs[part], floor)
                loss = nn.functional.mse_loss(found, times[part])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()

    def predict(sizes: GemmSizes, configs: Sequence[CandidateConfig]) -> list[float | None]:
        features = [network_features(sizes, config) for config in configs]
        asked = torch.tensor(features, device=place)
        with torch.no_grad():
            found: list[float | None] = (
                _log_time(network, (asked - mean) / spread, floor).exp().tolist()
            )
        return found

    return predict


@contextlib.contextmanager
def _single_thread() -> Iterator[None]:
    """Let torch use one thread: on a busy machine threads wait for one another at each step."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def network_features(sizes: GemmSizes, config: CandidateConfig) -> list[float]:
    """Return the logarithms of `NETWORK_FEATURES`; 0 for the blocks of the library's kernel."""
    b, m, n, k = sizes.batch, sizes.m, sizes.n, sizes.k
    moved = b * ((m * k + k * n) * sizes.item_bytes + m * n * sizes.out_bytes)
    operations = 2 * b * m * n * k
    values = (sizes.item_bytes, b * m, n, k, moved, operations, operations / moved)
    blocks = (config.block_m, config.block_n, config.block_k, config.stages, config.warps)
    return [math.log(value) for value in values] + [math.log(max(block, 1)) for block in blocks]


def _log_time(network: Any, inputs: Any, floor: float) -> Any:
    import torch

    return torch.logaddexp(network(inputs).squeeze(1), inputs.new_tensor(math.log(floor)))
