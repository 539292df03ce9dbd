import torch
from torch import nn


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(96, 64)
        self.text = nn.Linear(80, 64)

    def forward(self, image_features, text_features, *, scale: float = 1.0):
        a, b = self.image(image_features), self.text(text_features)
        return scale * (a * b).sum(-1), a, b
