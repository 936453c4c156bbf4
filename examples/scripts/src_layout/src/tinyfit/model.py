from torch import nn


def build(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, 1))
