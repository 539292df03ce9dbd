import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(1024)
        self.up = nn.Linear(1024, 2730)
        self.down = nn.Linear(2730, 1024)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
block = Block().eval().to("cuda", torch.bfloat16)
served = torch.compile(block, dynamic=False)
ranged = torch.compile(nn.Linear(1024, 512).to("cuda", torch.bfloat16))
total = torch.compile(lambda x: x.float().sum())
with torch.no_grad():
    for length in (16, 200):
        x = torch.randn(length, 1024, device="cuda", dtype=torch.bfloat16)
        print(length, served(x).shape)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=256)
    print(ranged(x).shape)
    print(total(torch.randn(2**22, device="cuda", dtype=torch.bfloat16)).shape)
