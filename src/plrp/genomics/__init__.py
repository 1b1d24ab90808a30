"""From DNA sequences to motifs: simulate or read, train, explain, draw, export.

- sequences: `encode`, `decode`, `reverse_complement`, `read_fasta`, `read_bed`, `read_intervals`, `read_npz`
- motifs: `motif`, `jaspar`, `jaspar_motifs`, `read_motifs`, `write_meme`
- data with known ground truth: `simulate`, `load_simulated`, `read_simdata`
- networks: `SequenceCNN`
- relevance per base: `explain_sequences`, `explain_batches`, `pool`; files of thousands: `explain_file`; behind
  tangermeme's interface: `attribute`
- variants: `variant_effects`, `explain_variants`, `read_vcf`
- other methods, and how far to trust each: `ism`, `gradient_input`, `deeplift`, `compare_methods`
- pictures: `draw_logo`, `plot_logos`, `logo_page`
- from relevance to motifs: `find_seqlets`, `find_patterns`, `find_hits`, `match_motifs`, `match_seqlets`
- files for other tools: `save_modisco`, `write_seqlets`, `write_bedgraph`, `write_parquet`, `export_run`;
  a page with a genome browser: `write_browser`

matplotlib, pyjaspar, memelite and pyarrow are imported by the functions that need them: `pip install
'plrp[genomics]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.lazy import lazily

if TYPE_CHECKING:
    from .attribution import Attribution, Hypothetical, attribute, explain_batches, explain_sequences, pool
    from .baselines import Comparison, Mutations, compare_methods, deeplift, gradient_input, ism
    from .browser import write_browser
    from .export import (
        base_table,
        export_run,
        save_modisco,
        write_bedgraph,
        write_modisco_h5,
        write_parquet,
        write_seqlets,
    )
    from .jobs import explain_file
    from .logo import draw_logo, logo_page, plot_logos
    from .motifs import Motif, jaspar, jaspar_motifs, motif, read_motifs, write_jaspar, write_meme
    from .network import History, SequenceCNN
    from .outputs import OutputScore
    from .seqlets import Hits, Seqlets, find_hits, find_patterns, find_seqlets, match_motifs, match_seqlets
    from .sequence_settings import FileSettings, ScoreSettings, SequenceSettings, VariantSettings
    from .sequences import (
        Genome,
        Interval,
        SequenceError,
        Sequences,
        decode,
        encode,
        from_onehot,
        read_bed,
        read_fasta,
        read_intervals,
        read_npz,
        reverse_complement,
        write_fasta,
    )
    from .simulation import Simulated, dinucleotide_shuffle, load_simulated, read_labels, read_simdata, simulate
    from .variant_files import explain_variants
    from .variants import Variant, VariantEffect, VariantEffects, read_vcf, variant_effects

__all__ = [
    "Attribution", "Comparison", "FileSettings", "Genome", "History", "Hits", "Hypothetical", "Interval", "Motif",
    "Mutations", "OutputScore", "ScoreSettings", "Seqlets", "SequenceCNN", "SequenceError", "SequenceSettings",
    "Sequences", "Simulated", "Variant", "VariantEffect", "VariantEffects", "VariantSettings", "attribute",
    "base_table", "compare_methods", "decode", "deeplift", "dinucleotide_shuffle", "draw_logo", "encode",
    "explain_batches", "explain_file", "explain_sequences", "explain_variants", "export_run", "find_hits",
    "find_patterns", "find_seqlets", "from_onehot", "gradient_input", "ism", "jaspar", "jaspar_motifs",
    "load_simulated", "logo_page", "match_motifs", "match_seqlets", "motif", "plot_logos", "pool", "read_bed",
    "read_fasta", "read_intervals", "read_labels", "read_motifs", "read_npz", "read_simdata", "read_vcf",
    "reverse_complement", "save_modisco", "simulate", "variant_effects", "write_bedgraph", "write_browser",
    "write_fasta", "write_jaspar", "write_meme", "write_modisco_h5", "write_parquet", "write_seqlets",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)
