"""Train a linear layer."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(96, 64)

    def forward(self, x):
        return F.relu(self.fc(x))


def main(args):
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=args.lr)
    for step in range(args.steps):
        loss = net(torch.randn(8, 96)).sum()
        loss.backward()
        opt.step()
        print(step, loss.item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    main(parser.parse_args())
