"""The settings of explaining sequences, variants and files of sequences, and of searching for motifs.

No torch here: the commands make their options from these classes before they load anything.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from plrp.settings import LARGEST, Settings, amount, count, proportion, reference_named, setting

from .outputs import checked_target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from plrp.composites import Composite
    from plrp.pruning import Pruning

    from .motifs import Motif
    from .sequences import Ambiguous, Ends

Pooling: TypeAlias = Literal["present", "sum"]
Strand: TypeAlias = Literal["+", "-", "both", "info"]

COMPOSITE = "epsilon-gamma"
"""The rules for one-hot input: see `plrp.genomics.attribution`."""
SHUFFLED = "shuffled:20"
"""The references of DeepLIFT."""


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(Settings):
    """Which score of a model is explained, by which rules, and how it is pruned."""

    target: Any = setting(
        None,
        'the score to explain: class 3; track,position 0,141; "outputs[1][:, 0]"; "outputs.counts[:, 2:5].mean()"; '
        '"profile(outputs[0])"; or net.py:score, your function from the output to scores (default: the winning class)',
        metavar="TARGET",
        check=checked_target,
    )
    composite: str | Composite = setting(
        COMPOSITE, "rules per layer: a name, or gamma:0.25, alpha-beta:2, epsilon:0.01", metavar="NAME", stored=True
    )
    pruning: Pruning | None = None
    batch_size: int | None = setting(
        None,
        "sequences explained at once (default: by their length, at most 128; halved where memory is not enough)",
        metavar="N",
        check=count,
    )
    device: str | torch.device | None = setting(None, "such as cuda (default: the device of the model)")


@dataclass(frozen=True, kw_only=True)
class ReferenceSettings(ScoreSettings):
    """The same, for scores or for their differences to the scores of references."""

    composite: str | Composite = setting(
        None,
        f"rules per layer: a name, or gamma:0.25, alpha-beta:2, epsilon:0.01 (default: {COMPOSITE}; against a "
        "reference rescale, which is DeepLIFT's)",
        metavar="NAME",
        stored=True,
    )
    reference: Any = setting(
        None,
        f"explain why the score is not that of a reference, all of the difference: {SHUFFLED} (each sequence in 20 "
        "random orders with the same dinucleotides; results are means) or zeros (no letter anywhere). It takes as many "
        "times longer as there are references",
        metavar="NAME",
        check=reference_named("shuffled", "zeros"),
        stored=True,
    )

    def __post_init__(self) -> None:
        if self.composite is None or (self.composite == "auto" and self.reference is not None):
            object.__setattr__(self, "composite", COMPOSITE if self.reference is None else "rescale")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class SequenceSettings(ReferenceSettings):
    """How sequences are explained.

    - `target` as in `plrp.explain`. A list or tensor of classes has one per sequence. An index tuple `(track,
      position)` picks one value of a dense output. A text such as `"outputs[1][:, 0]"` picks from several outputs
      (`plrp.genomics.outputs`);
    - `reverse_complement`: explain both strands, for the class that wins on the given one, and average them position by
      position. If the target is not a class, the reverse strand needs a `reverse_target` (position p of the given
      strand is L − 1 − p there);
    - `hypothetical`: see `Hypothetical`; `pruning`: None is plain LRP;
    - `reference`: a name, a tensor or a callable as in `plrp.explain`. The relevance of a position then stands at the
      letter that is there, the part of the reference's letters with it.
    """

    reverse_complement: bool = setting(False, "average the relevance over both strands", stored=True)
    reverse_target: Any = setting(
        None, "the target on the other strand, needed if it is not a class", metavar="TARGET", check=checked_target
    )
    hypothetical: bool = setting(False, "score absent letters too, as TF-MoDISco needs it", stored=True)

    def rules(self) -> dict[str, Any]:
        """The keywords of `explain_sequences`."""
        return {one.name: getattr(self, one.name) for one in fields(SequenceSettings)}


@dataclass(frozen=True, kw_only=True)
class VariantSettings(ScoreSettings):
    """How variants are explained: `target` None is the class that wins on the reference, for both alleles.

    With `strand="both"` scores and relevance are averaged. Results always run along the plus strand.
    """

    width: int = setting(help="bases that the model reads", metavar="N", check=count)
    batch_size: int | None = setting(64, "variants explained at once", metavar="N", check=count)
    strand: Strand = setting(
        "+",
        "the strand that the model reads: the genome's, the other, the mean of both, or the STRAND of INFO",
        choices=("+", "-", "both", "info"),
    )
    reverse_target: Any = setting(
        None, "the target on the other strand, for --strand both", metavar="TARGET", check=checked_target
    )
    ends: Literal["skip", "pad"] = setting(
        "skip", "windows past the end of a contig: skip them, or pad with N", choices=("skip", "pad")
    )


@dataclass(frozen=True, kw_only=True)
class FileSettings(SequenceSettings):
    """How a file of sequences is read, explained and written, in addition to `SequenceSettings`.

    `pooling`, `ambiguous`: see `pool` and `encode`. `match`: None compares seqlets with known motifs in runs of up to
    200 sequences.
    """

    weights: str | Path | None = setting(
        None, "state dict for file.py:factory, or Keras weights (.h5) for model.json", metavar="FILE"
    )
    method: str = setting(
        "lrp",
        "lrp, with or without pruning; ism, in-silico mutagenesis, is exact and slow; deeplift is short for "
        f"--reference {SHUFFLED}",
        choices=("lrp", "ism", "gradient-input", "deeplift"),
    )
    genome: str | Path | None = setting(None, "genome of a BED file", metavar="FASTA")
    width: int | None = setting(None, "recentre intervals to this many bases", metavar="N", check=count)
    ends: Ends = setting(
        "refuse",
        "intervals past the end of a chromosome: refuse the file, skip them, or pad them with N",
        choices=("refuse", "skip", "pad"),
        stored=True,
    )
    pooling: Pooling = setting(
        "present",
        "relevance of a base: of the letter that is there, or the sum over all four",
        choices=("present", "sum"),
        stored=True,
    )
    ambiguous: Ambiguous = setting(
        "zero",
        "N and IUPAC codes: an empty column, equal shares of their letters, or refuse them",
        choices=("zero", "share", "error"),
        stored=True,
    )
    match: bool | None = setting(
        True,
        "match single seqlets to JASPAR, which takes long (default: in runs of up to 200 sequences)",
        action=argparse.BooleanOptionalAction,
    )
    part_size: int = setting(512, "sequences per part of the run", metavar="N", check=count, stored=True)
    largest: int = setting(
        LARGEST,
        "refuse files that unpack to more than this (default: 4GB)",
        flag="--largest-input",
        metavar="BYTES",
        check=amount,
    )

    def __post_init__(self) -> None:
        if self.method == "deeplift" and self.reference is None:
            object.__setattr__(self, "reference", SHUFFLED)
        if self.reference is not None and not isinstance(self.reference, str):
            raise TypeError(f"The reference of a file is a name, which its results carry, such as {SHUFFLED!r}.")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class MotifSettings(Settings):
    """How motifs are searched: see `find_motifs`."""

    target: Any = setting(
        None, "the target of the run once more, needed if it is net.py:score", metavar="TARGET", check=checked_target
    )
    reverse_target: Any = setting(
        None, "the reverse target of the run once more", metavar="TARGET", check=checked_target
    )
    limit: float = setting(0.05, "limit of the false discovery rate", flag="--fdr", metavar="F", check=proportion)
    share: float = setting(
        0.0,
        "first cut off relevance below this share of a sequence's strongest base (default: 0, nothing)",
        flag="--cut",
        metavar="SHARE",
        check=proportion,
    )
    sample: int = setting(1000, "sequences that are shuffled for the null", metavar="N", check=count)
    match: bool = setting(True, "do not match patterns to known motifs", flag="--no-match", action="store_false")
    database: Sequence[Motif] | None = None
    max_patterns: int = setting(
        10,
        "at most this many patterns for the prediction, and as many against it",
        flag="--patterns",
        metavar="N",
        check=count,
    )
    max_seqlets: int = 4000
    seed: int = setting(0, "seed of the shuffling", check=int)
    batch_size: int | None = None
    device: str | None = None
