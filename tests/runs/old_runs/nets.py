"""The networks of the old runs: every weight is a fixed number."""

import torch


def filled(network: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for weights in network.parameters():
            weights.copy_(((torch.arange(weights.numel()) * 7 % 11) / 4 - 1).reshape(weights.shape))
    return network.eval()


def pictures() -> torch.nn.Module:
    return filled(
        torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32, 3))
    )


def sequences() -> torch.nn.Module:
    return filled(
        torch.nn.Sequential(
            torch.nn.Conv1d(4, 3, 5),
            torch.nn.ReLU(),
            torch.nn.AdaptiveMaxPool1d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(3, 2),
        )
    )
