"""`plrp explain`: photographs in, pictures of why out. Imports argparse only; the rest when it runs."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from itertools import count as counting
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.errors import UsageError, usage
from plrp.files import PICTURES
from plrp.settings import check_composite, count, proportion
from plrp.vision.photograph_settings import PhotographSettings, names

from .arguments import (
    Shown,
    add_options,
    add_pruning,
    add_settings,
    chosen,
    forwards,
    m_remedy,
    pruning_of,
    say,
    say_price,
    settings_of,
    tell,
    test_options,
)
from .photograph_log import PAGE as PAGE_OF_ALL
from .photograph_log import PhotographLog

if TYPE_CHECKING:
    from plrp.models.loading import LoadedModel
    from plrp.pruning import Pruning
    from plrp.view.layer_channels import ChannelPatches
    from plrp.vision.photograph_explanation import ExplainedPhotograph

EPILOG = """\
examples:
  plrp explain photo.jpg --model resnet50 -p 0.1 -o out.png
  plrp explain *.jpg --model vgg16 --compare 0.05,0.15,0.3 -o grids/
  plrp explain photo.jpg --beside gradcam,ig -o out.png      other methods' maps in the same picture
  plrp explain photo.jpg --model networks.py:build --weights best.pt --target dog --layers -o out.pdf
  plrp explain photo.jpg --model timm:convnext_tiny --save relevance.npz
  plrp explain photo.jpg --target "tabby cat" --against "tiger cat" -o why.png
  plrp explain photo.jpg --reference blur:8 --compare 0.05,0.15     why not the blurred photograph, and LRP beside it
  plrp explain photo.jpg --mask object.png -o page.html     to slide p in a browser
  plrp explain photo.jpg --page-p 0.05,0.2 --page-classes 1 --no-channels -o page.html     ready much sooner
  plrp explain photo.jpg --exemplars exemplars -o page.html     with patches that show what channels stand for
  plrp explain photo.jpg --model timm:vit_base_patch16_224 --layers     tokens that survive, heads
  plrp explain street.jpg --model fasterrcnn_resnet50_fpn --target "dog at 120,80"     one box
  plrp explain street.jpg --model deeplabv3_resnet50 --target dog     where a segmenter sees dogs

With several photographs, or a folder of them, -o and --save name a folder, or a file whose name becomes the beginning
of each result's name. A folder of results also has photographs.csv and photographs.html; the same command started
again explains the photographs that are missing there.
exit codes: 0 finished; 1 failed while working, or some photographs could not be read (the others are finished);
2 wrong usage: an option, or the file it names, cannot be used, or all photographs are missing; 130 interrupted
"""
PAGE = ".html"
FORMATS = (*PICTURES, PAGE)


def proportions(text: str) -> list[float]:
    """Shares of mass separated by commas, each once."""
    return list(dict.fromkeys(map(proportion, names(text)))) or [proportion(text)]


def dilation(text: str) -> int | str:
    """Pixels, or `auto`."""
    if text != "auto" and not text.isdigit():
        raise argparse.ArgumentTypeError(f"dilate is a number of pixels or auto, not {text!r}")
    return text if text == "auto" else int(text)


NETWORK: Shown = {
    "--model NAME": ("torchvision:NAME or just NAME, timm:NAME, or file.py:factory", str, "resnet50"),
    "--weights FILE": "state dict (.pth, .pt, .safetensors), a published name such as IMAGENET1K_V1, or random "
    "(default: the published weights, downloaded once)",
}
"""The options of a network that reads photographs."""

OUTPUT: Shown = {
    "-o --out PATH": "picture (.png, .svg, .pdf, .jpg, .webp), page (.html) or folder (default: PHOTO-plrp.png here)",
    "--save FILE": "also write relevance and settings as .npz, or a folder of them",
    **test_options("the map of -p, or each of --compare,"),
    "--mask FILE": "the object in white on black: a page shows the relevance inside it",
    "-q --quiet": "print nothing but errors",
}

DRAWING: Shown = {
    "--layers": "also draw …-layers and …-flow: how many neurons hold relevance at each depth, and which channels it "
    "flows through. With attention also …-tokens: the patches that survive at each depth, and the heads",
    "--exemplars DIR": "with --layers or a page: show patches beside the channels that plrp exemplars searched with "
    "this model; DIR is the folder that it wrote",
    "--colours NAME": ("red-blue, orange-purple, red-blue-dark, or a matplotlib name", str, "red-blue"),
    "--dilate N": ("grow relevant pixels by N so that single ones stay visible", dilation, "auto"),
    "--dpi DPI": ("resolution of .png, .jpg and .webp", count, 200),
}


def page_options(answers: str) -> Shown:
    """The options that say how much a page holds, and so how long it takes."""
    return {
        "--page-p P,P,…": (
            "the p of a page's slider, besides 0 and -p (default: from 0.02 on); fewer take less time",
            proportions,
        ),
        f"--page-{answers} N": (f"how many of the strongest {answers} a page holds (default: 3)", count),
        "--no-channels": "leave the relevance of single channels out of a page; channels are most of its work",
    }


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `plrp explain`."""
    parser = subparsers.add_parser(
        "explain",
        help="explain photographs: what a network saw, and where",
        description="Explains photographs with LRP and PLRP: top-5 classes, heatmaps, overlay and outline.",
        epilog=EPILOG,
    )
    parser.add_argument("photographs", nargs="+", metavar="PHOTO", help="JPEG, PNG, TIFF, WebP, …, or a folder of them")
    add_model(parser)
    how = parser.add_argument_group("explanation")
    add_pruning(how, default=0.05)
    add_settings(how, PhotographSettings, "target", "against", "composite", "reference")
    out = parser.add_argument_group("output")
    compare: Shown = {"--compare P,P,…": ("draw a grid of λ and M± for these p instead", proportions)}
    add_options(out, OUTPUT | page_options("classes") | compare)
    add_settings(out, PhotographSettings, "beside")
    add_options(out, DRAWING)
    parser.set_defaults(run=run)


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options that say which model sees photographs, and how."""
    model = parser.add_argument_group("model")
    own: Shown = {
        "--num-classes N": ("outputs of a model with your own weights", count),
        "--classes FILE": "names of the classes, one per line",
        "--resize N": ("shorter side before the crop (default: the model's)", count),
        "--crop N": ("side of the central crop (default: the model's)", count),
    }
    add_options(model, NETWORK | own)
    add_settings(model, PhotographSettings, "device")


def run(arguments: argparse.Namespace) -> int:
    """Explains every photograph; a bad one is reported and skipped."""
    check_composite(arguments.composite, arguments.reference)
    for option, given in (("--target", arguments.target), ("--against", arguments.against)):
        if given is not None and not given.strip():
            raise UsageError(f"{option} is empty: name a class, or leave it out.")
    photographs = [path for name in arguments.photographs for path in photographs_at(Path(name))]
    folder = any(Path(name).is_dir() for name in arguments.photographs)
    outputs = output_paths(arguments.out, photographs, ".png", "-plrp", folder)
    archives = output_paths(arguments.save, photographs, ".npz", "", folder) if arguments.save else None
    check_outputs(arguments, photographs, outputs, archives or ())
    with usage():
        from plrp.metrics.questions import POINTS
        from plrp.vision.photograph_explanation import photograph_reference

        model, prunings = prepared(arguments)
        exemplars = None if arguments.exemplars is None else searched(arguments.exemplars, model)
        reference = photograph_reference(arguments.reference, model, False if arguments.quiet else None)
        beside = arguments.beside
        if reference is not None and arguments.compare and "lrp" not in beside:
            beside = (*beside, "lrp")  # the grid is of differences: LRP goes beside it
        settings = settings_of(PhotographSettings, arguments, prunings=prunings, reference=reference, beside=beside)
    results: Sequence[Path | None] = archives or [None] * len(photographs)
    wanted = list(zip(photographs, outputs, results, strict=True))
    many = folder or (len(photographs) > 1 and in_folder(arguments.out))
    log = PhotographLog(outputs[0].parent, arguments, model) if many else None
    if log is not None:
        wanted = [one for one in wanted if not log.has(*one)]
        if len(wanted) < len(photographs):
            before = len(photographs) - len(wanted)
            say(f"plrp: {before} of {len(photographs)} photographs are explained already ({log.table})")
    if arguments.test:
        passes = arguments.budget + 4 * POINTS * len(prunings) * bool(arguments.compare)
        say_price(passes, arguments.quiet, len(wanted))
    queue = PhotographQueue(arguments, model, settings, exemplars, log)
    try:
        queue.explain(wanted)
    except KeyboardInterrupt:
        resume = "" if log is None else "; the same command explains the rest"
        say(f"plrp: interrupted; {queue.done} of {len(wanted)} photographs are done{resume}")
        return 130
    if log is not None and log.rows:
        log.write_page()
        say(f"plrp: all results in {log.table} and {log.folder / PAGE_OF_ALL}", arguments.quiet)
    if queue.broken and (queue.done > 1 or arguments.quiet):
        say(f"plrp: the arithmetic broke in explanations of {queue.broken} of {queue.done} photographs")
    if skipped := len(wanted) - queue.done:
        say(f"plrp: {queue.done} of {len(wanted)} photographs explained, {skipped} skipped")
    return 1 if skipped else 0


def check_outputs(
    arguments: argparse.Namespace, photographs: Sequence[Path], outputs: Sequence[Path], archives: Sequence[Path]
) -> None:
    """Refuse outputs, and options that do not go with them, before a model is loaded for nothing."""
    for paths, suffixes in ((outputs, FORMATS), (archives, (".npz",))):
        for path in paths:
            if path.suffix.lower() not in suffixes:
                raise UsageError(f"{path} should end in {', '.join(suffixes)}.")
    pages = [path.suffix.lower() == PAGE for path in outputs]
    some, every = any(pages), all(pages)
    names = ("mask", "beside", "against", "layers", "exemplars")
    mask, beside, against, layers, exemplars = chosen(arguments, *names).values()
    for sentence, wrong in {
        "--mask goes with one photograph and a page: -o page.html.": mask and (len(pages) > 1 or not every),
        "--beside draws pictures, and a page shows plrp's own maps: leave it out.": beside and some,
        "--against draws pictures; on a page each class is explained by itself: leave it out.": against and some,
        "--layers draws pictures, and a page has its layers already: leave it out.": layers and some,
        "--exemplars goes with --layers, or with a page: -o page.html.": exemplars and not layers and not every,
    }.items():
        if wrong:
            raise UsageError(sentence)
    page_size(arguments, "classes", every)
    overwritten = {path.resolve() for path in photographs} & {path.resolve() for path in outputs}
    if overwritten:
        raise UsageError(f"{overwritten.pop()} is a photograph; name another output with -o.")
    if not any(path.is_file() for path in photographs):
        raise UsageError(f"{photographs[0]} does not exist.")


@dataclass
class PhotographQueue:
    """Photographs explained one after the other; `done` counts them, `broken` those with broken arithmetic."""

    arguments: argparse.Namespace
    model: LoadedModel
    settings: PhotographSettings
    exemplars: ChannelPatches | None
    log: PhotographLog | None = None
    done: int = 0
    broken: int = 0

    def explain(self, wanted: Sequence[tuple[Path, Path, Path | None]]) -> None:
        """Explain, write and report each photograph, of which the results' files are given; bad ones are skipped."""
        from plrp.balance import unwarned
        from plrp.progress import progress
        from plrp.vision.photograph_explanation import explain_photograph
        from plrp.vision.photographs import BadImage, read_photograph

        pages = any(
            output.suffix.lower() == PAGE for _, output, _ in wanted
        )  # long work, shown in parts of a photograph
        show = False if self.arguments.quiet else None
        with progress("explaining", len(wanted), show, unit="share" if pages else "items", transient=True) as step:
            move_to = forwards(step)
            for number, (path, output, archive) in enumerate(wanted):
                move_to(number, 0, path.name)
                try:
                    photograph = read_photograph(path)
                    make_folder(output.parent)
                    with unwarned():  # the report says it
                        explanation = explain_photograph(photograph, self.model, self.settings)
                        self.test(explanation)
                except BadImage as error:
                    say(f"plrp: skipped: {error}")
                    continue
                with unwarned():
                    written = self.write(explanation, output, archive, partial(move_to, number))
                if self.log is not None:
                    self.log.add(explanation, output)
                self.report(explanation, written)

    def test(self, explanation: ExplainedPhotograph) -> None:
        """Ask the network about the map of -p, or about all maps of --compare, if --test says so."""
        if not self.arguments.test:
            return
        with usage():
            explanation.test(*(explanation.prunings if self.arguments.compare else ()), budget=self.arguments.budget)

    def report(self, explanation: ExplainedPhotograph, written: Sequence[Path]) -> None:
        """Count a photograph that is finished, and print its report."""
        from plrp.view.layer_channels import lattice_sentence, skipping_layers

        if not self.arguments.quiet:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000  # no limit in a pipe or file
            tell("\n".join(report(explanation, written, width, bool(self.arguments.target))))
            if not self.done and (layers := skipping_layers(explanation.trace)):
                tell(lattice_sentence(layers))
        self.done += 1
        self.broken += bool(explanation.broken)

    def write(
        self, explanation: ExplainedPhotograph, picture: Path, archive: Path | None, note: Callable[[float, str], None]
    ) -> list[Path]:
        """Write all files of one photograph, the picture or page last, so that it stands for a finished one."""
        from plrp.files import save_figure

        arguments, written = self.arguments, []
        if archive is not None:
            make_folder(archive.parent)
            explanation.save(archive)
            written.append(archive)
        if picture.suffix.lower() == PAGE:
            self.write_page(explanation, picture, note)
            return [picture, *written]
        if arguments.layers:
            beside = None
            if self.exemplars is not None:
                from plrp.concepts.channel_figures import patches

                reading = self.exemplars.reading
                beside = partial(patches, reading.exemplars, model=reading.model, data=reading.data)
            for name, figure in explanation.layer_figures(self.variant(explanation), beside).items():
                path = picture.with_name(f"{picture.stem}-{name}{picture.suffix}")
                save_figure(figure, path, dpi=arguments.dpi)
                written.append(path)
        draw = explanation.comparison if arguments.compare else explanation.figure
        save_figure(draw(colours=arguments.colours, dilate=arguments.dilate), picture, dpi=arguments.dpi)
        return [picture, *written]

    def write_page(self, explanation: ExplainedPhotograph, path: Path, note: Callable[[float, str], None]) -> None:
        """Write the page of one photograph, for every p of its slider."""
        from plrp.view import Page, photograph_bundle
        from plrp.vision.detection import is_detector
        from plrp.vision.photographs import DEFAULT, network_mask, read_mask

        mask, name = None, explanation.photograph.path.name
        if self.arguments.mask and is_detector(explanation.model.module):
            raise UsageError("--mask goes with classifiers and segmenters, which see a picture as it is cropped.")
        if self.arguments.mask:
            mask = network_mask(*read_mask(self.arguments.mask), explanation.model.preprocessing or DEFAULT)
        bundle = photograph_bundle(
            explanation,
            variant=self.variant(explanation),
            mask=mask,
            report=lambda done, total: note(done / total, f"{name}: {done} of {total} maps"),
            **page_size(self.arguments, "classes"),
        )
        if self.exemplars is not None:
            self.exemplars.show(
                bundle.facts["channels"],
                explanation.trace,
                lambda done, total: note(1, f"{name}: {done} of {total} patches of a layer"),
            )
        Page(bundle).save(path)

    def variant(self, explanation: ExplainedPhotograph) -> str:
        """The variant whose layers are drawn, or that a page starts with: --method, with the p nearest to -p."""
        from plrp.pruning import DEFAULT_P

        p = self.arguments.p if isinstance(self.arguments.p, float) else DEFAULT_P
        distance = {
            name: abs(float(pruning.p or 0.0) - p)
            for name, pruning in explanation.prunings.items()
            if pruning is not None and pruning.redistribution == self.arguments.redistribution
        }
        return min(distance, key=lambda name: distance[name])


def searched(folder: str, model: LoadedModel) -> ChannelPatches:
    """The patches of channels from a folder of `plrp exemplars`, which must have used the same model."""
    from plrp.concepts.channel_figures import Reading
    from plrp.concepts.exemplar_results import Exemplars
    from plrp.concepts.numbered_inputs import FromPhotographs
    from plrp.concepts.search import weights_digest
    from plrp.runs.places import RunError
    from plrp.view.layer_channels import ChannelPatches

    try:
        exemplars = Exemplars.load(folder)
    except RunError as error:
        raise UsageError(str(error)) from None
    if exemplars.settings["weights_digest"] != weights_digest(model.module):
        raise UsageError(f"{folder} was searched with another model or other weights: name those.")
    inputs = FromPhotographs(exemplars.settings["photographs"], model)
    if inputs.names != exemplars.names:
        raise UsageError(f"{inputs.root} no longer holds the photographs of {folder}: bring them back, or search anew.")
    return ChannelPatches(Reading(exemplars, model, inputs))


def make_folder(folder: Path) -> None:
    """Make a folder for results where there is none, and say so: it may be a slip."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        say(f"plrp: made the folder {folder}")


def photographs_at(path: Path) -> list[Path]:
    """The photograph itself, or those of a folder, in order, except for pictures that this command drew."""
    from plrp.vision.photographs import SUFFIXES, photographs_in

    if not path.is_dir():
        return [path]
    photographs = [file for file in photographs_in(path) if not file.name.endswith("-plrp.png")]
    if not photographs:
        raise UsageError(
            f"{path} is a folder without photographs ({', '.join(SUFFIXES)}; folders inside it are not searched): name "
            "another, or files."
        )
    return photographs


def prepared(arguments: argparse.Namespace) -> tuple[LoadedModel, list[Pruning]]:
    """The model and the prunings that the arguments ask for; wrong arguments are refused before a model is loaded."""
    from plrp import models
    from plrp.models.checkpoints import OtherClasses
    from plrp.tape.refusals import check_device
    from plrp.vision.detection import is_detector
    from plrp.vision.heatmaps import colour_table
    from plrp.vision.other_methods import check_methods

    check_methods(arguments.beside)
    colour_table(arguments.colours)
    device = check_device(arguments.device)
    which = chosen(arguments, "weights", "num_classes")
    categories = class_names(arguments.classes) or models.published_categories(arguments.model, **which)
    check_classes(arguments, categories)
    prunings = prunings_of(arguments)
    try:
        model = models.load(arguments.model, quiet=arguments.quiet, **which)
    except OtherClasses as error:
        remedy = "--num-classes {}" if arguments.num_classes is None else "leave out --num-classes, or give {}"
        raise UsageError(error.words(remedy)) from error
    if arguments.classes:
        model = replace(model, categories=categories)
    preprocessing = model.preprocessing
    if is_detector(model.module):
        if arguments.crop:
            raise UsageError("A detector reads the whole picture: leave out --crop.")
        if arguments.resize:
            preprocessing = models.Preprocessing(arguments.resize, None)
    else:
        usual = preprocessing or models.Preprocessing()
        preprocessing = replace(usual, resize=arguments.resize or usual.resize, crop=arguments.crop or usual.crop)
    model = replace(model, module=model.module.to(device), preprocessing=preprocessing)
    check_classes(arguments, model.categories)
    return model, prunings


def prunings_of(arguments: argparse.Namespace) -> list[Pruning]:
    """The pruning of -p, or the grid of --compare: λ and M± (or the method asked for) for every p."""
    pruning = pruning_of(arguments)
    assert pruning is not None
    if not arguments.compare:
        return [pruning]
    gains = [None] if pruning.sparsity_gain is None else [None, pruning.sparsity_gain]
    other = "M-sign" if pruning.redistribution == "lambda" else pruning.redistribution
    return [
        replace(pruning, p=p, redistribution=method, sparsity_gain=gain)
        for gain in gains
        for method in ("lambda", other)
        for p in arguments.compare
    ]


def check_classes(arguments: argparse.Namespace, categories: Sequence[str] | None) -> None:
    """Refuse a class that is not there, where the classes are known."""
    from plrp.target_text import WrittenTarget, class_number

    for name in (WrittenTarget.read(arguments.target).name, arguments.against):
        if name is not None and categories is not None:
            class_number(name, categories)


def class_names(file: str | None) -> tuple[str, ...] | None:
    """The names of the classes in a file, one per line; None where none was given."""
    if file is None:
        return None
    try:
        names = Path(file).read_text("utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"the class names {file} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise UsageError(f"the class names {file} are no text in UTF-8: write one name per line.") from None
    if not any(map(str.strip, names)):
        raise UsageError(f"the class names {file} are empty: write one name per line.")
    return tuple(name.strip() for name in names if name.strip())


def page_size(arguments: argparse.Namespace, answers: str, page: bool = True) -> dict[str, Any]:
    """The keywords of a bundle that the options of `page_options` ask for; the options are refused without a page."""
    shares = arguments.page_p and [p for p in arguments.page_p if p]  # 0, which is LRP, is always there
    given = {
        "--page-p": ("proportions", shares),
        f"--page-{answers}": ("targets", getattr(arguments, f"page_{answers}")),
        "--no-channels": ("inside", "nothing" if arguments.no_channels else None),
    }
    given = {option: keyword for option, keyword in given.items() if keyword[1] is not None}
    if given and not page:
        raise UsageError(f"{next(iter(given))} goes with a page: -o page.html.")
    return dict(given.values())


def report(explanation: ExplainedPhotograph, written: Sequence[Path], width: int, named: bool) -> list[str]:
    """The printed lines of one photograph: where its score went, the classes, how sparse it is, and what broke. No line
    but those of the last kind exceeds `width`. `named`: the class was asked for by name, which others may share.
    """
    from plrp.spelling import shortened
    from plrp.vision.photograph_figures import percent

    rows = explanation.top()
    against = None if explanation.against is None else explanation.categories[explanation.against]
    for number in (explanation.target, explanation.against):
        if number is not None and explanation.categories[number] not in [name for name, _, _ in rows]:
            score, probability = float(explanation.logits[number]), float(explanation.probabilities[number])
            rows.append((explanation.categories[number], score, probability))
    longest = max(len(name) for name, _, _ in rows)
    in_words = width - 34 >= min(longest, 20)  # on a narrow terminal the marks are signs, so that names have room
    room = max(8, min(longest, width - (34 if in_words else 24)))
    where = "" if explanation.place is None else f", {explanation.target_name} {explanation.place.words}"
    lines = [f"{explanation.photograph.path}{where} → {', '.join(map(str, written))}"]
    lines += [] if explanation.reference is None else [f"  {explanation.reference.words()}"]
    for name, score, probability in rows:
        mark = "◂ explained" if name == explanation.target_name else "▹ against" if name == against else ""
        mark = mark if in_words else mark[:1]
        lines.append(f"  {shortened(name, room):<{room}}  {score:8.2f}  {percent(probability):>6} {mark}".rstrip())
    alike = namesakes(explanation) if named else []
    if alike:
        lines.append(f"  class {explanation.target} was taken; also there: {', '.join(alike)}")
    if explanation.photograph.transparent:
        lines.append("  its transparent parts were put on white")
    lines += [f"  {name}: {percent(share)} of pixels" for name, share in explanation.pixels().items()]
    lines = [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
    remedy = m_remedy("--method")
    said = {name: balance.words(remedy) for name, balance in explanation.broken.items()}
    lines += [f"  {name}: {said.get(name, remark)}" for name, remark in explanation.remarks.items()]
    return lines + [f"  {name}: {verdict.words()}" for name, verdict in explanation.verdicts.items()]


def namesakes(explanation: ExplainedPhotograph) -> list[str]:
    """Other classes whose names hold all words of the explained one: for `crane` also `crane bird (134)`."""
    words = set(explanation.target_name.lower().split())
    others = [n for n, name in enumerate(explanation.categories) if words <= set(name.lower().split())]
    return [f"{explanation.categories[n]} ({n})" for n in others if n != explanation.target]


def in_folder(given: str | None) -> bool:
    """Whether -o or --save names a folder."""
    return given is not None and (given.endswith(("/", "\\")) or Path(given).is_dir())


def output_paths(
    given: str | None, photographs: Sequence[Path], suffix: str, tail: str, folder: bool = False
) -> list[Path]:
    """Where each photograph's result goes; no two of them to the same place.

    A folder (existing, written with a slash at its end, or without a suffix for a `folder` of photographs) takes
    `NAME.suffix`; a file takes the one photograph, or `file-NAME.suffix` for several; nothing given is `NAME-plrp.png`
    in the current folder.
    """
    names: list[str] = []
    for stem in (path.stem for path in photographs):  # -2, -3, … where one is repeated (`a/1.jpg`, `b/1.jpg`)
        candidates = chain([stem], (f"{stem}-{number}" for number in counting(2)))
        names.append(next(name for name in candidates if name not in names))
    if given is None:
        return [Path(f"{name}{tail}{suffix}") for name in names]
    path = Path(given)
    if in_folder(given) or (folder and not path.suffix and not path.exists()):
        return [path / f"{name}{suffix}" for name in names]
    if not path.suffix:
        raise UsageError(f"{given} has no suffix: write {given}{suffix} for a file, {given}/ for a folder.")
    if len(photographs) == 1:
        return [path]
    return [path.with_name(f"{path.stem}-{name}{path.suffix}") for name in names]
