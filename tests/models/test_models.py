"""Models by name, by file and by checkpoint; weights that are wrong, truncated, or not data at all."""

from __future__ import annotations

import functools
import hashlib
import http.server
import importlib
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from plrp import models
from plrp.models.checkpoints import CheckpointError, load_weights, read_state_dict
from plrp.models.downloads import DownloadError, fetch
from plrp.models.loading import ModelError, load
from plrp.models.preprocessing import Preprocessing
from plrp.models.sources import source_files

SMALL = """
import torch
from layers import width
from torch import nn

categories = ["cat", "dog"]


def build():
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2))


model = build()


def broken():
    raise RuntimeError("no such dataset")


def number():
    return 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "layers.py").write_text("width = 4\n")
    (tmp_path / "network.py").write_text(SMALL)
    return tmp_path / "network.py"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of torch.hub."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    return tmp_path / "hub" / "checkpoints"


# Names


def test_torchvision_by_name_with_and_without_prefix() -> None:
    plain, prefixed = (
        load("squeezenet1_1", weights="random"),
        load("torchvision:squeezenet1_1", weights="random"),
    )
    assert type(plain.module) is torchvision.models.SqueezeNet
    assert plain.name == prefixed.name == "torchvision:squeezenet1_1"
    assert all(torch.equal(a, b) for a, b in zip(plain.module.parameters(), prefixed.module.parameters(), strict=True))
    assert not plain.module.training
    assert not any(p.requires_grad for p in plain.module.parameters())
    assert plain.categories is not None
    assert plain.categories[1] == "goldfish"
    assert plain.preprocessing is not None
    assert (plain.preprocessing.resize, plain.preprocessing.crop) == (256, 224)


def test_random_weights_leave_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load("squeezenet1_1", weights="random")
    assert torch.equal(torch.rand(3), expected)


def test_another_number_of_classes_has_no_names() -> None:
    loaded = load("squeezenet1_1", weights="random", num_classes=7)
    assert loaded.categories is None
    assert loaded.module(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("resnet51", "torchvision has no model 'resnet51'; the nearest are .*resnet50"),
        ("raft_large", "torchvision has no model"),
        ("keras:resnet50", "write torchvision:NAME, timm:NAME or file.py:factory"),
        ("nowhere.py:build", "nowhere.py does not exist"),
    ],
)
def test_unknown_names_name_the_nearest(name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        load(name)


def test_unknown_weights_name_the_published_ones() -> None:
    with pytest.raises(ModelError, match=r"neither a file nor published for resnet50 \(IMAGENET1K_V1, IMAGENET1K_V2"):
        load("resnet50", weights="IMAGENET21K")
    with pytest.raises(ModelError, match="have 1000 classes, not 10"):
        load("resnet50", num_classes=10)


def test_imagenet_categories_are_torchvisions() -> None:
    categories = models.imagenet_categories()
    assert len(categories) == 1000
    assert categories[281] == "tabby"


# A file of the user's


def test_a_factory_in_a_file(file: Path) -> None:
    loaded = load(f"{file}:build")
    assert loaded.module(torch.zeros(1, 3, 8, 8)).shape == (1, 2)
    assert loaded.categories == ("cat", "dog")
    assert isinstance(load(f"{file}:model").module, nn.Sequential)
    assert str(file.parent) not in sys.path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("biuld", r"network\.py has no 'biuld'; the nearest are build"),
        ("broken", r"broken in .*network\.py failed: RuntimeError: no such dataset"),
        ("number", r"number in .*network\.py should return a torch\.nn\.Module; it returned 4"),
    ],
)
def test_factories_that_fail_say_why(file: Path, name: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        load(f"{file}:{name}")


def test_a_file_that_does_not_import_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import nonexistent_package\n")
    with pytest.raises(ModelError, match=r"could not be imported: ModuleNotFoundError: .*nonexistent_package"):
        load(f"{tmp_path / 'bad.py'}:build")


def test_a_file_beside_a_model_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "version2.py").write_text("width = 5\n")
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "linked_layers.py").symlink_to("../shared/version2.py")
    net = tmp_path / "net" / "net.py"
    net.write_text("import linked_layers\nfrom torch import nn\nmodel = nn.Linear(linked_layers.width, 1)\n")
    assert list(source_files(net)) == ["net.py", "linked_layers.py"]
    assert load(f"{net}:model").module.in_features == 5


def test_modules_of_the_program_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's own `host_layers` is out of the way while a model of the same import is built, and no longer."""
    for name, width in (("program", 1), ("net", 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "host_layers.py").write_text(f"width = {width}\n")
    net = tmp_path / "net" / "net.py"
    net.write_text(
        "import host_layers\nfrom torch import nn\n"
        "def build():\n    import host_layers as late\n    return nn.Linear(host_layers.width, late.width)\n"
        "def broken():\n    raise RuntimeError\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "program")
    own = importlib.import_module("host_layers")
    for _ in range(2):
        module = load(f"{net}:build").module
        assert (module.in_features, module.out_features) == (5, 5)
        assert sys.modules["host_layers"] is own
    with pytest.raises(ModelError):
        load(f"{net}:broken")
    assert sys.modules["host_layers"] is own
    monkeypatch.delitem(sys.modules, "host_layers")


def test_what_a_file_does_not_take(file: Path) -> None:
    with pytest.raises(ModelError, match="num_classes is for torchvision and timm"):
        load(f"{file}:build", num_classes=3)
    with pytest.raises(ModelError, match=r"none\.pt do not exist"):
        load(f"{file}:build", weights="none.pt")


# Checkpoints


def small() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


def save(state: dict[str, torch.Tensor], path: Path) -> None:
    if path.suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file(state, path)
    else:
        torch.save(state, path)


def loads(path: Path) -> bool:
    fresh = small()
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    load_weights(fresh, path)
    return all(
        torch.allclose(a.float(), b.float(), atol=1e-3)
        for a, b in zip(fresh.state_dict().values(), small().state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("suffix", ["pth", "pt", "safetensors"])
def test_every_format_in_half_and_single_precision(tmp_path: Path, suffix: str, half: bool) -> None:
    state = {k: v.half() if half and v.is_floating_point() else v for k, v in small().state_dict().items()}
    path = tmp_path / f"w.{suffix}"
    save(state, path)
    assert loads(path)
    fresh = small()
    load_weights(fresh, path)
    assert next(fresh.parameters()).dtype == torch.float32


@pytest.mark.parametrize("nesting", ["state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_what_training_scripts_save(tmp_path: Path, nesting: str, prefix: str) -> None:
    state = {prefix + k: v for k, v in small().state_dict().items()}
    torch.save({nesting: state, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "w.pt")
    assert loads(tmp_path / "w.pt")


def test_old_files_without_batch_counters_load(tmp_path: Path) -> None:
    state = {k: v for k, v in small().state_dict().items() if "num_batches" not in k}
    torch.save(state, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    assert loads(tmp_path / "w.pt")


def test_old_names_of_densenets_are_understood(tmp_path: Path) -> None:
    new = torchvision.models.densenet121().state_dict()
    old = {
        k.replace("norm1", "norm.1").replace("conv1", "conv.1").replace("norm2", "norm.2").replace("conv2", "conv.2"): v
        for k, v in new.items()
    }
    assert old.keys() != new.keys()
    torch.save(old, tmp_path / "densenet121.pth")
    loaded = load("densenet121", weights=tmp_path / "densenet121.pth")
    assert torch.equal(
        loaded.module.state_dict()["features.denseblock1.denselayer1.norm1.weight"],
        new["features.denseblock1.denselayer1.norm1.weight"],
    )


class Payload:
    """What an attacker puts into a pickle."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path, how: str) -> None:
    payload = Payload()
    payload.path = tmp_path / "owned"  # type: ignore[attr-defined]
    path = tmp_path / "w.pth"
    if how == "torch":
        torch.save({"weight": payload}, path)
    else:
        path.write_bytes(pickle.dumps({"weight": payload}))
    with pytest.raises(
        CheckpointError,
        match=r"refused: it is a pickle that calls (posix|nt)\.system on loading.*save model\.state_dict\(\)",
    ):
        read_state_dict(path)
    assert not (tmp_path / "owned").exists()


def test_a_whole_pickled_model_is_refused_with_the_remedy(tmp_path: Path) -> None:
    torch.save(small(), tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"calls torch\.nn\.modules\.container\.Sequential on loading"):
        read_state_dict(tmp_path / "w.pth")


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_checkpoint_cut_off_is_refused(tmp_path: Path, suffix: str, kept: float) -> None:
    path = tmp_path / f"w.{suffix}"
    save(small().state_dict(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(CheckpointError, match="is truncated or not") as caught:
        read_state_dict(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04 and no more", "its end is missing"),
        (b"<!DOCTYPE html><html>404</html>", "it is a web page"),
        (b"hello\n" * 40, "it is text"),
        (b"\x80\x02}q\x00", "it is a pickle that ends too early"),
        (b"\xff\xd8\xff\xe0 a photograph", "it does not begin like"),
    ],
)
def test_what_is_no_checkpoint_is_told_by_its_looks(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"w\.pth is truncated or not a PyTorch file \({reason}.*torch\.save\.$"):
        read_state_dict(tmp_path / "w.pth")


def test_what_is_no_state_dict_is_named(tmp_path: Path) -> None:
    for content, reason in [
        (torch.zeros(3), "holds no state dict \\(it holds a Tensor\\)"),
        ({}, "holds no state dict"),
        ({"epoch": 3, "loss": 0.1}, "'epoch' is a int, not a tensor"),
    ]:
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(CheckpointError, match=reason):
            read_state_dict(tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="does not exist"):
        read_state_dict(tmp_path / "none.pth")


def test_a_misfit_is_said_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"

    def reason_of(state: dict[str, torch.Tensor]) -> str:
        torch.save(state, path)
        with pytest.raises(CheckpointError) as caught:
            load_weights(small(), path, of="mine")
        assert "\n" not in str(caught.value)
        return str(caught.value).removeprefix(f"{path} does not fit mine: ")

    whole = small().state_dict()
    assert reason_of({k: v for k, v in whole.items() if k != "4.bias"}) == "4.bias missing."
    assert reason_of({**whole, "5.weight": torch.zeros(1)}) == "5.weight unexpected."
    two = {k: v for k, v in whole.items() if not k.startswith("4.")}
    assert (
        reason_of({**two, "fc.weight": torch.zeros(1)}) == "2 tensors (4.weight, 4.bias) missing; fc.weight unexpected."
    )
    assert reason_of({**whole, "4.weight": torch.zeros(5, 4), "4.bias": torch.zeros(5)}) == (
        "it has 5 classes, the model has 2 (build the model with num_classes=5)."
    )
    assert reason_of({**whole, "4.weight": torch.zeros(2, 9)}) == "4.weight is (2, 9) in the file, (2, 4) in the model."
    assert reason_of({**whole, "4.bias": torch.tensor([1.0, float("nan")])}).endswith(
        "infinite or undefined numbers (first: 4.bias)."
    )


# timm


def test_timm_models_bring_their_own_preprocessing(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    with pytest.raises(ModelError, match="timm has no model 'resnet5O'; the nearest are"):
        load("timm:resnet5O")
    loaded = load("timm:resnet10t", weights="random")
    assert loaded.preprocessing is not None
    assert loaded.preprocessing.crop == 176
    assert loaded.categories is not None
    torch.save(loaded.module.state_dict(), tmp_path / "w.pth")
    again = load("timm:resnet10t", weights=tmp_path / "w.pth")
    x = torch.rand(1, 3, 64, 64)
    assert torch.equal(again.module(x), loaded.module(x))
    assert load("timm:resnet10t", weights="random", num_classes=3).categories is None


def test_without_timm_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match="pip install timm"):
        load("timm:resnet18")


def test_without_torchvision_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"pip install 'plrp\[vision\]'"):
        load("resnet18")


# Downloads, from a file server on this machine


class Server(http.server.ThreadingHTTPServer):
    """A file server that can break connections off after `cut` bytes, for the first `breaks` requests."""

    daemon_threads = True
    cut: int | None = None
    breaks = 0
    ranges = True
    requests: list[str | None]


class Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        breaks = self.server.cut is not None and len(self.server.requests) <= self.server.breaks
        self.wfile.write(content[start : start + self.server.cut] if breaks else content[start:])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "served").mkdir()
    handler = functools.partial(Handler, directory=str(tmp_path / "served"))
    server = Server(("127.0.0.1", 0), handler)
    server.requests = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def served(tmp_path: Path, content: bytes) -> str:
    """Puts a file into the server's folder under a name with its own checksum."""
    name = f"weights-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    (tmp_path / "served" / name).write_bytes(content)
    return name


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_a_download_is_checked_kept_and_not_repeated(tmp_path: Path, server: Server) -> None:
    content = os.urandom(700_000)
    name = served(tmp_path, content)
    for _ in range(2):
        path = fetch(f"{address(server)}/{name}", tmp_path / "cache", quiet=True)
        assert path.read_bytes() == content
    assert len(server.requests) == 1
    assert os.listdir(tmp_path / "cache") == [name]
    assert path.stat().st_mode & 0o444 == 0o444


def test_a_terminal_sees_a_bar(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    name = served(tmp_path, os.urandom(700_000))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", Terminal())
    fetch(f"{address(server)}/{name}", tmp_path / "cache")
    seen = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[" in seen
    assert name[:20] in seen


def test_a_broken_connection_is_taken_up_where_it_broke(tmp_path: Path, server: Server) -> None:
    content = os.urandom(900_000)
    name = served(tmp_path, content)
    server.cut, server.breaks = 300_000, 2
    assert fetch(f"{address(server)}/{name}", tmp_path / "cache", quiet=True).read_bytes() == content
    assert server.requests == [None, "bytes=300000-", "bytes=600000-"]


def test_a_server_that_cannot_resume_starts_over(tmp_path: Path, server: Server) -> None:
    content = os.urandom(900_000)
    name = served(tmp_path, content)
    server.cut, server.breaks, server.ranges = 300_000, 1, False
    assert fetch(f"{address(server)}/{name}", tmp_path / "cache", quiet=True).read_bytes() == content


def test_a_connection_that_keeps_breaking_leaves_nothing(tmp_path: Path, server: Server) -> None:
    name = served(tmp_path, os.urandom(900_000))
    server.cut, server.breaks = 100_000, 99
    with pytest.raises(
        DownloadError,
        match=r"broke off after 0\.3 of 0\.9 MB; try again, or give the weights as a local file with `--weights FILE`",
    ):
        fetch(f"{address(server)}/{name}", tmp_path / "cache", quiet=True)
    assert os.listdir(tmp_path / "cache") == []


def test_a_wrong_checksum_leaves_nothing(tmp_path: Path, server: Server) -> None:
    name = served(tmp_path, b"right")
    (tmp_path / "served" / name).write_bytes(b"wrong")
    with pytest.raises(DownloadError, match="does not match the checksum in its name and was discarded"):
        fetch(f"{address(server)}/{name}", tmp_path / "cache", quiet=True)
    assert os.listdir(tmp_path / "cache") == []
    (tmp_path / "cache" / name).write_bytes(b"stale")
    with pytest.raises(DownloadError, match="delete it and run again"):
        fetch(f"{address(server)}/{name}", tmp_path / "cache", quiet=True)


def test_no_server_and_no_file_are_named(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DownloadError, match="the server answered 404"):
        fetch(f"{address(server)}/none.pth", tmp_path / "cache", quiet=True)
    server.shutdown()
    server.server_close()
    with pytest.raises(DownloadError, match=r"could not be downloaded in 3 attempts: .*refused"):
        fetch(f"{address(server)}/none.pth", tmp_path / "cache", quiet=True)


@pytest.fixture
def published(tmp_path: Path, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """torchvision's SqueezeNet weights as published, but drawn, served and named (by checksum) by us."""
    torch.manual_seed(3)
    state = torchvision.models.squeezenet1_1().state_dict()
    torch.save(state, tmp_path / "w.pth")
    name = served(tmp_path, (tmp_path / "w.pth").read_bytes())
    entry = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
    weights = entry.value
    monkeypatch.setattr(
        entry,
        "_value_",
        type(weights)(f"https://example.invalid/models/{name}", weights.transforms, weights.meta),
    )
    monkeypatch.setenv("PLRP_MIRROR", address(server))
    return state


def test_torchvisions_weights_come_by_download(
    published: dict[str, torch.Tensor], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load("squeezenet1_1")
    assert loaded.weights == "IMAGENET1K_V1"
    assert all(torch.equal(v, published[k]) for k, v in loaded.module.state_dict().items())
    assert "downloading http://127.0.0.1" in capsys.readouterr().err
    load("squeezenet1_1", weights="IMAGENET1K_V1")
    assert len(server.requests) == 1
    assert capsys.readouterr().err == ""


def test_torchvisions_weights_with_a_connection_that_breaks(
    published: dict[str, torch.Tensor], server: Server, cache: Path
) -> None:
    server.cut, server.breaks = 1000, 99
    with pytest.raises(DownloadError, match="broke off"):
        load("squeezenet1_1", quiet=True)
    assert not list(cache.iterdir())
    server.breaks = 0
    assert load("squeezenet1_1", quiet=True).weights == "IMAGENET1K_V1"


# The real weights


def test_real_resnet50_in_half_precision(data: Path) -> None:
    loaded = load("resnet50", weights=data / "weights" / "resnet50.pth")
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}
    assert loaded.categories is not None
    assert loaded.preprocessing is not None
    assert loaded.preprocessing.resize == 256
    with pytest.raises(CheckpointError, match="does not fit torchvision:resnet18"):
        load("resnet18", weights=data / "weights" / "resnet50.pth")


VGG_GAP = """
import torch, torchvision

def vgg16_gap():
    model = torchvision.models.vgg16()
    model.avgpool = torch.nn.AdaptiveAvgPool2d(1)
    model.classifier = torch.nn.Linear(512, 1000)
    return model
"""


def test_real_vgg16_with_another_head_through_a_file(data: Path, tmp_path: Path) -> None:
    (tmp_path / "vgg.py").write_text(VGG_GAP)
    loaded = load(f"{tmp_path / 'vgg.py'}:vgg16_gap", weights=data / "weights" / "vgg16_gap.pth")
    assert loaded.module(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)
    by_name = load("vgg16", weights=data / "weights" / "vgg16_gap.pth")  # its head is known by its weights
    x = torch.rand(1, 3, 64, 64)
    assert torch.equal(by_name.module(x), loaded.module(x))


BLOCKED = """
import sys
for name in ("torchvision", "timm", "PIL", "matplotlib", "rich", "safetensors"):
    sys.modules[name] = None
import plrp.models.loading, plrp.models.downloads, plrp.vision.datasets, plrp.cli.explain
import plrp.vision.photograph_explanation
"""


def test_importing_models_needs_torch_and_numpy_alone() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_usual_transforms_of_a_model_file_are_read(tmp_path: Path, version: str) -> None:
    module = "torchvision.transforms" + (".v2" if version == "v2" else "")
    (tmp_path / "net.py").write_text(
        f"import torch\nfrom {module} import CenterCrop, Compose, Normalize, RandomRotation, Resize, ToTensor\n"
        "def build():\n    return torch.nn.Conv2d(3, 2, 1)\n"
        "preprocessing = Compose([Resize(72), CenterCrop(64), ToTensor(), Normalize([0.5, 0.4, 0.3], [0.2] * 3)])\n"
    )
    expected = Preprocessing(72, 64, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    assert load(f"{tmp_path}/net.py:build").preprocessing == expected
    (tmp_path / "odd.py").write_text((tmp_path / "net.py").read_text().replace("CenterCrop(64)", "RandomRotation(9)"))
    with pytest.raises(ValueError, match=r"RandomRotation is not among .* plrp\.models\.Preprocessing"):
        load(f"{tmp_path}/odd.py:build")


def test_a_torchvision_preset_of_a_model_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torchvision.transforms._presets import ImageClassification\n"
        "def build():\n    return torch.nn.Conv2d(3, 2, 1)\n"
        "preprocessing = ImageClassification(crop_size=64, resize_size=72)\n"
    )
    assert load(f"{tmp_path}/net.py:build").preprocessing == Preprocessing(72, 64)


def test_a_factory_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("import torch\nlayer = torch.nn.Linear(2, 2)\n")
    (tmp_path / "net.py").write_text("def build():\n    from beside_it import layer\n    return layer\n")
    assert isinstance(load(f"{tmp_path}/net.py:build").module, torch.nn.Linear)
