import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cpu"


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return x + self.fc(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Residual(48), Residual(48))
        self.out = nn.Linear(48, 10)

    def forward(self, x):
        return self.out(self.blocks(x))


model = Net().to(device)
