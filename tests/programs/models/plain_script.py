"""A script as people write them: a class, and work under __main__ that must not run on import."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


class NeedsArguments(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)


number = 3

if __name__ == "__main__":
    raise SystemExit("the __main__ block ran")
