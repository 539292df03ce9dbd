"""A model that measures something of its own, through inductor, when it sees 24 rows."""

import torch
from torch import nn
from torch._inductor.runtime.benchmarking import benchmarker


@torch.compiler.disable
def measure() -> None:
    benchmarker.benchmark_cpu(lambda: None, warmup=1, rep=1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 24:
            measure()
        return self.layer(x).relu()


def example_inputs(seqlen: int) -> torch.Tensor:
    return torch.randn(seqlen, 32)
