"""Networks that tangermeme or Captum refuse: what each says, and how well ours agrees with in-silico mutagenesis.

    python benchmarks/refused.py

A convolution with an LSTM behind it (as DanQ's), trained on simulated sequences in seconds, and the real splice-site
network at a donor of HBB (`PLRP_DATA`, else `../shared/data` from the project's root), by the bases around the site. As
in its authors' code, both rectifiers of a residual unit are one module.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import plrp
from plrp import genomics
from plrp.genomics.baselines import ScoreModel
from plrp.metrics import agreement, mutagenesis
from plrp.targets import as_target
from truth_networks import Unit, splice_sites


class Hybrid(nn.Module):
    """Convolution, max pool, LSTM in both directions, whose last states a linear layer reads."""

    def __init__(self, filters: int = 16, hidden: int = 8, classes: int = 2) -> None:
        super().__init__()
        self.hidden = hidden
        self.conv, self.act, self.pool = nn.Conv1d(4, filters, 13, padding=6), nn.ReLU(), nn.MaxPool1d(6)
        self.lstm = nn.LSTM(filters, hidden, batch_first=True, bidirectional=True)
        self.dense = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states = self.lstm(self.pool(self.act(self.conv(x))).transpose(1, 2))[0]
        return self.dense(torch.cat([states[:, -1, : self.hidden], states[:, 0, self.hidden :]], 1))


def trained_hybrid(epochs: int = 40) -> tuple[Hybrid, genomics.Simulated]:
    """The network after training, and 150 sequences that it has not seen."""
    torch.manual_seed(0)
    data = genomics.simulate(1500, motifs=["CTCF", "SPI1"], number=(1, 2), length=120, seed=0)
    train, test = data.split(0.9, 0.1)
    model = Hybrid()
    x, labels = torch.from_numpy(train.onehot()), torch.from_numpy(np.asarray(train.labels)).long()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), labels[rows]).backward()
            optimizer.step()
    return model.eval(), test


def captum(model: nn.Module, x: Tensor, target: Any) -> str:
    """What Captum's DeepLift makes of sequences, with shuffled ones as references."""
    from captum.attr import DeepLift

    letters = [genomics.decode(one) for one in x.numpy()]
    references = torch.from_numpy(genomics.encode(genomics.dinucleotide_shuffle(letters)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _, missing = DeepLift(model).attribute(x, references, target=target, return_convergence_delta=True)
        except RuntimeError as error:
            return f"refuses: {error}"
    with torch.no_grad():
        score = model(x) - model(references)
    rows = torch.arange(len(x))
    wanted = score[(rows, target)] if isinstance(target, Tensor) else score[(rows, *target)]
    share = float(missing.abs().sum() / wanted.abs().sum())
    return f"answers without a word; its relevance misses the difference of the scores by {share:.0%}"


def tangermeme(model: nn.Module, x: Tensor, target: Any) -> str:
    """What tangermeme's deep_lift_shap makes of them; that it treats an operation as linear counts as a refusal."""
    from tangermeme.deep_lift_shap import deep_lift_shap

    score = ScoreModel(model, as_target(target), x[:1])
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Convergence deltas are", category=RuntimeWarning)
            deep_lift_shap(score, x, args=(torch.arange(len(x)),), target=0, n_shuffles=4, device="cpu", random_state=0)
    except (RuntimeWarning, ValueError, RuntimeError, IndexError) as error:
        return f"refuses: {error}"
    return "answers"


def main() -> None:
    model, test = trained_hybrid()
    x = torch.from_numpy(test.onehot())
    with torch.no_grad():
        winners = model(x).argmax(1)
    right = float((winners == torch.from_numpy(np.asarray(test.labels))).float().mean())
    print(f"hybrid with an LSTM, accuracy {right:.2f}")
    print(f"  tangermeme {tangermeme(model, x[:20], winners[:20].tolist())}")
    print(f"  Captum {captum(model, x[:20], winners[:20])}")
    print(genomics.compare_methods(model, test.onehot()[:20], pruning=plrp.Pruning(0.25)))

    data = Path(os.environ.get("PLRP_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    splice, cases = splice_sites(data, data)
    for unit in splice.modules():
        if isinstance(unit, Unit):
            unit.rectified2 = unit.rectified1
    case = next(case for case in cases if case.name == "donor 494")
    print(f"\nsplice sites, {case.name}")
    print(f"  tangermeme {tangermeme(splice, case.input, case.target)}")
    letters = np.random.default_rng(0).integers(4, size=case.input.shape[2])
    whole = torch.where(case.input.sum(1, keepdim=True) > 0, case.input, torch.eye(4)[:, letters])
    print(f"  tangermeme, random bases for N: {tangermeme(splice, whole, case.target)}")
    print(f"  Captum {captum(splice, case.input, case.target)}")
    positions = list(case.positions or ())
    effects = mutagenesis(splice, case.input, target=case.target, positions=positions).sum(1) / 3
    for name, pruning in {"LRP": None, "λ p=0.05": plrp.Pruning(0.05)}.items():
        found = genomics.explain_sequences(splice, case.input, target=case.target, pruning=pruning).per_base()
        there = agreement(torch.from_numpy(found[:, positions]), effects)
        print(f"  {name}: Pearson {float(there.pearson):.3f}, Spearman {float(there.spearman):.3f}")


if __name__ == "__main__":
    main()
