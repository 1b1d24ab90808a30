"""Keras files: graphs restated in numpy with channels last, as Keras has them; refusals; real Keras where installed."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plrp
from plrp.genomics import explain_sequences
from plrp.genomics.network import load_model
from plrp.models.checkpoints import CheckpointError
from plrp.models.keras import load_keras, load_keras_weights
from plrp.models.sources import source_of_module

h5py = pytest.importorskip("h5py")
RNG = np.random.default_rng(3)


def layer(kind: str, name: str, reads: list[str] | None = None, **settings: Any) -> dict[str, Any]:
    """A layer as Keras 2 writes it."""
    nodes = [[[one, 0, 0, {}] for one in reads]] if reads else []
    return {"class_name": kind, "name": name, "config": {"name": name, **settings}, "inbound_nodes": nodes}


def numbers(*shape: int) -> np.ndarray:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def write(path: Path, config: dict[str, Any] | None, weights: dict[str, dict[str, np.ndarray]]) -> Path:
    """An .h5 as `model.save` writes it, or without a config as `save_weights` does."""
    with h5py.File(path, "w") as file:
        group = file
        if config is not None:
            file.attrs["model_config"] = json.dumps(config)
            group = file.create_group("model_weights")
        group.attrs["layer_names"] = [name.encode() for name in weights]
        for name, arrays in weights.items():
            own = group.create_group(name)
            own.attrs["weight_names"] = [f"{name}/{part}:0".encode() for part in arrays]
            for part, array in arrays.items():
                own[f"{name}/{part}:0"] = array
    return path


DANQ = {
    "conv": {"kernel": numbers(5, 4, 6), "bias": numbers(6)},
    "norm": {"gamma": numbers(6), "beta": numbers(6), "mean": numbers(6), "variance": numbers(6) ** 2 + 0.5},
    "both": {
        f"{way}_lstm/{part}": array
        for way in ("forward", "backward")
        for part, array in (("kernel", numbers(6, 12)), ("recurrent_kernel", numbers(3, 12)), ("bias", numbers(12)))
    },
    "dense": {"kernel": numbers(10 * 6, 4), "bias": numbers(4)},
    "out": {"kernel": numbers(4, 1), "bias": numbers(1)},
}
DANQ_CONFIG = {
    "class_name": "Model",
    "config": {
        "layers": [
            layer("InputLayer", "x", batch_input_shape=[None, 34, 4]),
            layer("Conv1D", "conv", ["x"], padding="valid", strides=[1], dilation_rate=[1], activation="relu"),
            layer("BatchNormalization", "norm", ["conv"], axis=-1, epsilon=1e-3, scale=True, center=True),
            layer("MaxPooling1D", "pool", ["norm"], pool_size=[3], strides=[3], padding="valid"),
            layer(
                "Bidirectional",
                "both",
                ["pool"],
                merge_mode="concat",
                layer=layer(
                    "LSTM", "lstm", return_sequences=True, activation="tanh", recurrent_activation="sigmoid", units=3
                ),
            ),
            layer("Flatten", "flat", ["both"]),
            layer("Dense", "dense", ["flat"], activation="relu"),
            layer("Dropout", "drop", ["dense"], rate=0.5),
            layer("Dense", "out", ["drop"], activation="sigmoid"),
        ],
        "input_layers": [["x", 0, 0]],
        "output_layers": [["out", 0, 0]],
    },
}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm(x: np.ndarray, kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Step by step, (length, channels) to (length, units), gates i f c o."""
    h = c = np.zeros(len(recurrent))
    steps = []
    for row in x:
        i, f, g, o = np.split(row @ kernel + h @ recurrent + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        steps.append(h)
    return np.array(steps)


def danq(x: np.ndarray) -> np.ndarray:
    """One sequence (length, 4) through the net of `DANQ`, in float64."""
    w = {name: [array.astype(np.float64) for array in arrays.values()] for name, arrays in DANQ.items()}
    kernel, bias = w["conv"]
    x = np.array([np.einsum("kc,kco->o", x[p : p + 5], kernel) for p in range(len(x) - 4)]) + bias
    gamma, beta, mean, variance = w["norm"]
    x = gamma * (np.maximum(x, 0) - mean) / np.sqrt(variance + 1e-3) + beta
    x = np.array([x[p : p + 3].max(0) for p in range(0, len(x) - 2, 3)])
    x = np.concatenate([lstm(x, *w["both"][:3]), lstm(x[::-1], *w["both"][3:])[::-1]], 1)
    x = np.maximum(x.ravel() @ w["dense"][0] + w["dense"][1], 0)
    return sigmoid(x @ w["out"][0] + w["out"][1])


def onehot(count: int, length: int) -> np.ndarray:
    return np.eye(4, dtype=np.float32)[RNG.integers(0, 4, (count, length))]


def test_a_danq_runs_as_keras_would_and_is_explained(tmp_path: Path) -> None:
    model = load_model(str(write(tmp_path / "danq.h5", DANQ_CONFIG, DANQ)))
    x = onehot(3, 34)
    here = torch.from_numpy(x).transpose(1, 2).contiguous()
    assert np.allclose(model(here).detach().numpy(), [danq(one) for one in x.astype(np.float64)], atol=1e-5)
    found = plrp.explain(model, here, composite="epsilon-gamma", pruning=plrp.Pruning(p=0.2))
    assert (found.closing() < 1e-4).all()
    assert (found.relevance.abs().sum((1, 2)) > 0).all()


def test_architecture_and_weights_in_two_files(tmp_path: Path) -> None:
    (tmp_path / "danq.json").write_text(json.dumps(DANQ_CONFIG))
    whole = load_keras(write(tmp_path / "danq.h5", DANQ_CONFIG, DANQ))
    apart = load_model(str(tmp_path / "danq.json"), write(tmp_path / "weights.h5", None, DANQ))
    x = torch.from_numpy(onehot(2, 34)).transpose(1, 2).contiguous()
    assert torch.equal(whole(x), apart(x))


@pytest.mark.parametrize("length", [17, 18, 19, 20])
@pytest.mark.parametrize(("width", "stride", "dilation"), [(4, 1, 1), (5, 2, 1), (4, 3, 1), (3, 1, 2)])
def test_same_padding_is_odd_on_the_right(tmp_path: Path, length: int, width: int, stride: int, dilation: int) -> None:
    weights = {"conv": {"kernel": numbers(width, 4, 2)}}
    settings = {"padding": "same", "strides": [stride], "dilation_rate": [dilation], "use_bias": False}
    pools = [
        layer("MaxPooling1D", "most", pool_size=[3], strides=[2], padding="same"),
        layer("AveragePooling1D", "mean", pool_size=[3], strides=[2], padding="same"),
    ]
    x = onehot(1, length)

    def windows(values: np.ndarray, wide: int, step: int, apart: int) -> list[np.ndarray]:
        count, reach = -(-len(values) // step), apart * (wide - 1) + 1
        left = max((count - 1) * step + reach - len(values), 0) // 2
        places = [np.arange(wide) * apart + k * step - left for k in range(count)]
        return [(p, (p >= 0) & (p < len(values))) for p in places]  # type: ignore[misc]

    after_conv = np.array(
        [
            np.einsum("kc,kco->o", x[0][np.clip(p, 0, length - 1)] * inside[:, None], weights["conv"]["kernel"])
            for p, inside in windows(x[0], width, stride, dilation)
        ]
    )
    for pool, reduce in zip(pools, (np.max, np.mean), strict=True):
        config = {"class_name": "Sequential", "config": [layer("Conv1D", "conv", **settings), pool]}
        model = load_keras(write(tmp_path / "net.h5", config, weights))
        expected = [reduce(after_conv[p[inside]], axis=0) for p, inside in windows(after_conv, 3, 2, 1)]
        found = model(torch.from_numpy(x).transpose(1, 2))[0].T
        assert np.allclose(found.detach().numpy(), expected, atol=1e-5)


def test_weights_alone_go_layer_by_layer_into_a_module(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv1d(4, 6, 5), nn.BatchNorm1d(6, eps=1e-3)
            self.lstm = nn.LSTM(6, 3, batch_first=True, bidirectional=True)
            self.dense, self.out = nn.Linear(60, 4), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.max_pool1d(self.norm(self.conv(x).relu()), 3)
            return self.out(self.dense(self.lstm(x.transpose(1, 2))[0].flatten(1)).relu()).sigmoid()

    net = Net().eval()
    file = write(tmp_path / "weights.h5", None, DANQ)
    load_keras_weights(net, file)
    x = torch.from_numpy(onehot(2, 34)).transpose(1, 2).contiguous()
    assert torch.allclose(net(x), load_keras(write(tmp_path / "whole.h5", DANQ_CONFIG, DANQ))(x), atol=1e-6)
    net.out = nn.Linear(5, 1)
    with pytest.raises(CheckpointError, match=r"out .* does not fit out"):
        load_keras_weights(net, file)
    with pytest.raises(CheckpointError, match=r"5 layers with weights .* the model 1"):
        load_keras_weights(nn.Conv1d(4, 6, 5), file)


def test_cudnn_has_kernels_of_its_own_order(tmp_path: Path) -> None:
    kernel, recurrent, bias = numbers(4, 12), numbers(3, 12), numbers(24)
    config = {
        "class_name": "Sequential",
        "config": [layer("CuDNNLSTM", "lstm", return_sequences=True, units=3)],
    }
    model = load_keras(
        write(tmp_path / "a.h5", config, {"lstm": {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias}})
    )
    # as Keras converts them: each gate's kernel holds its transpose's numbers, row after row
    plain = np.hstack([np.reshape(np.ravel(gate), (3, 4)).T for gate in np.hsplit(kernel, 4)])
    steps = np.hstack([gate.T for gate in np.hsplit(recurrent, 4)])
    x = onehot(1, 9)
    found = model(torch.from_numpy(x).transpose(1, 2))[0].T
    assert np.allclose(found.detach().numpy(), lstm(x[0], plain, steps, bias[:12] + bias[12:]), atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (layer("Lambda", "code", function="abc"), r"code is a Lambda, .* would run code"),
        (layer("Conv2D", "flat", kernel_size=[1, 2]), "flat is a Conv2D"),
        (layer("Activation", "strange", activation="hard_swish"), "'hard_swish' is not known"),
        (layer("LSTM", "lstm", recurrent_activation="hard_sigmoid"), "recurrent_activation is hard_sigmoid"),
        (layer("GRU", "lstm"), "reset_after=False"),
        (layer("Concatenate", "join", axis=1), "joins axis 1"),
        (layer("LSTM", "lstm", return_state=True), r"its states are outputs of their own \(return_state\)"),
        (layer("BatchNormalization", "norm", axis=[0]), "norm, a BatchNormalization, .* its axis is 0"),
        (layer("LayerNormalization", "scaled", axis=[1, 2]), r"its axis is \[1, 2\]"),
        (layer("LayerNormalization", "scaled", rms_scaling=True), "rms_scaling"),
        (layer("Softmax", "shares", axis=0), "its axis is 0"),
        (layer("GlobalMaxPooling1D", "pool", keepdims=True), "keepdims"),
        (layer("GlobalAveragePooling1D", "pool", keepdims=True), "keepdims"),
        (
            layer(
                "Bidirectional", "lstm", layer=layer("LSTM", "f", units=3), backward_layer=layer("LSTM", "b", units=3)
            ),
            "backward_layer",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    weights = {"lstm": {"kernel": numbers(4, 12), "recurrent_kernel": numbers(3, 12), "bias": numbers(12)}}
    weights["norm"] = {name: numbers(4) ** 2 for name in ("gamma", "beta", "mean", "variance")}
    weights["scaled"] = {"gamma": numbers(4), "beta": numbers(4)}
    config = {"class_name": "Sequential", "config": {"layers": [wrong]}}
    with pytest.raises(CheckpointError, match=said):
        load_keras(write(tmp_path / "net.h5", config, weights))


def test_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="weights without an architecture"):
        load_keras(write(tmp_path / "weights.h5", None, DANQ))
    (tmp_path / "text.h5").write_text("no")
    with pytest.raises(CheckpointError, match="not an HDF5 file"):
        load_keras(tmp_path / "text.h5")
    linked = write(tmp_path / "linked.h5", DANQ_CONFIG, DANQ)
    with h5py.File(linked, "a") as file:
        del file["model_weights/conv"]
        file["model_weights/conv"] = h5py.ExternalLink(str(tmp_path / "weights.h5"), "conv")
    with pytest.raises(CheckpointError, match="is a link"):
        load_keras(linked)
    (tmp_path / "net.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="not that of a Keras model"):
        load_keras(tmp_path / "net.json", tmp_path / "weights.h5")


@pytest.mark.slow
def test_real_keras_models_give_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    k = keras.layers
    x = first = k.Input((60, 4))
    for dilation in (1, 2):
        x = k.Add()(
            [
                k.Conv1D(4, 5, padding="same", activation="exponential")(x),
                k.Conv1D(4, 3, padding="same", dilation_rate=dilation)(x),
            ]
        )
    profile = keras.Model(first, [k.Cropping1D(5)(x), k.Dense(2, activation="softmax")(k.GlobalAveragePooling1D()(x))])
    inner = keras.Sequential([k.Input((60, 4)), k.Conv1D(4, 5, activation="elu"), k.BatchNormalization()])
    x = inner(first)
    x = k.Bidirectional(k.GRU(3, return_sequences=True, reset_after=True), merge_mode="sum")(x)
    nested = keras.Model(first, k.TimeDistributed(k.Dense(2))(k.LayerNormalization()(x)))
    given = onehot(3, 60)
    for model in (profile, nested):
        model.save(tmp_path / "model.h5")
        expected = model.predict(given, verbose=0)
        found = load_keras(tmp_path / "model.h5")(torch.from_numpy(given).transpose(1, 2).contiguous())
        pairs = zip(expected, found, strict=True) if isinstance(expected, list) else [(expected, found)]
        for there, here in pairs:
            here = here.transpose(1, 2) if here.dim() == 3 else here
            assert np.allclose(here.detach().numpy(), there, atol=1e-5)


def test_dense_layers_of_sequences_and_strands(tmp_path: Path) -> None:
    """Relevance of a Keras model over both strands is that of any module."""
    model = load_keras(write(tmp_path / "danq.h5", DANQ_CONFIG, DANQ))
    x = onehot(2, 34).transpose(0, 2, 1)
    found = explain_sequences(model, x, reverse_complement=True)
    assert found.per_base().shape == (2, 34)


# --- a real network ---------------------------------------------------------------------------------------------------


class DeePaCLSTM(nn.Module):
    """DeePaC's sensitive LSTM: the last states of both directions, for a read (batch, 4, 250) and its other strand."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 384, batch_first=True, bidirectional=True)
        self.dense = nn.Linear(768, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.strand(x) + self.strand(x.flip((1, 2)))

    def strand(self, x: torch.Tensor) -> torch.Tensor:
        states = self.lstm(x.transpose(1, 2))[0]
        return self.dense(torch.cat([states[:, -1, :384], states[:, 0, 384:]], 1))


@pytest.mark.slow
def test_deepac_reads_both_strands_and_is_explained() -> None:
    """Output: as Keras computes it, from the numbers of the file alone. Ledger: closes, with and without pruning."""
    home = Path(os.environ.get("PLRP_DEEPAC", Path.home() / ".cache" / "plrp-deepac"))
    file = home / "deepac" / "builtin" / "weights" / "nn-img-sensitive-lstm.h5"
    if not file.exists():
        pytest.skip(f"{file.name} is absent: unpack the wheel of deepac==0.14.1 into the folder that PLRP_DEEPAC names")
    model = DeePaCLSTM().eval()
    load_keras_weights(model, file)
    read = onehot(1, 250)

    with h5py.File(file) as stored:
        both = stored["bidirectional_1/bidirectional_1"]
        kernel, bias = (stored["dense_1/dense_1"][f"{name}:0"][()].astype(float) for name in ("kernel", "bias"))

        def last_state(letters: np.ndarray, direction: str) -> np.ndarray:
            one = both[f"{direction}_cu_dnnlstm_1"]
            inputs, steps, shift = (one[f"{n}:0"][()].astype(float) for n in ("kernel", "recurrent_kernel", "bias"))
            plain = np.hstack([np.reshape(np.ravel(gate), (384, 4)).T for gate in np.hsplit(inputs, 4)])
            turned = np.hstack([gate.T for gate in np.hsplit(steps, 4)])
            return lstm(letters, plain, turned, shift[:1536] + shift[1536:])[-1]

        expected = 0.0
        for strand in (read[0], read[0, ::-1, ::-1]):
            states = np.concatenate([last_state(strand, "forward"), last_state(strand[::-1], "backward")])
            expected += float((states @ kernel + bias)[0])

    x = torch.from_numpy(read).transpose(1, 2).contiguous()
    assert float(model(x)) == pytest.approx(expected, rel=1e-3)
    for pruning in (None, plrp.Pruning(p=0.1)):
        found = plrp.explain(model, x, target=0, composite="attnlrp", pruning=pruning)
        assert float(found.score) == pytest.approx(expected, rel=1e-3)
        assert float(found.closing()) < 1e-4
        assert not found.balance.problems[0]
        assert found.relevance.abs().sum() > 0


def test_an_axis_of_one_is_that_of_the_channels_after_flatten_alone(tmp_path: Path) -> None:
    weights = {"norm": {name: numbers(12) ** 2 + 0.5 for name in ("gamma", "beta", "mean", "variance")}}
    norm = layer("BatchNormalization", "norm", axis=[1], epsilon=1e-3)
    flat = {"class_name": "Sequential", "config": {"layers": [layer("Flatten", "flat"), norm]}}
    model = load_keras(write(tmp_path / "flat.h5", flat, weights))
    x = onehot(2, 3)
    own = weights["norm"]
    expected = (x.reshape(2, -1) - own["mean"]) / np.sqrt(own["variance"] + 1e-3) * own["gamma"] + own["beta"]
    found = model(torch.from_numpy(x).transpose(1, 2)).detach().numpy()
    assert np.allclose(found, expected, atol=1e-5)
    wrong = {"class_name": "Sequential", "config": {"layers": [norm]}}
    model = load_keras(write(tmp_path / "wrong.h5", wrong, weights))
    with pytest.raises(ValueError, match="along axis 1, the positions"):
        model(torch.zeros(1, 12, 12))


@pytest.mark.parametrize("end", [False, True])
def test_only_the_first_output_of_a_layer_is_read(tmp_path: Path, end: bool) -> None:
    config = {
        "layers": [layer("InputLayer", "in"), layer("Activation", "act", ["in"], activation="relu")],
        "input_layers": [["in", 0, 0]],
        "output_layers": [["act", 0, int(end)]],
    }
    config["layers"][1]["inbound_nodes"][0][0][2] = int(not end)
    with pytest.raises(CheckpointError, match=rf"output 1 of {'act' if end else 'in'} is read"):
        load_keras(write(tmp_path / "net.h5", {"class_name": "Functional", "config": config}, {}))


@pytest.mark.parametrize(
    "ends", [None, [], [[]], ["act"], ["act", "0", 0], [["act", 0, 0], ["act"]], 3, {"y": ["act"]}]
)
@pytest.mark.parametrize("which", ["input_layers", "output_layers"])
def test_ends_that_name_no_layer_are_refused(tmp_path: Path, which: str, ends: Any) -> None:
    layers = [layer("InputLayer", "in"), layer("Activation", "act", ["in"], activation="relu")]
    config = {"layers": layers, "input_layers": ["in", 0, 0], "output_layers": {"y": ["act", 0, 0]}}
    assert (
        load_keras(write(tmp_path / "net.h5", {"class_name": "Functional", "config": config}, {}))(torch.ones(1)) == 1
    )
    with pytest.raises(CheckpointError, match=f"its {which} do not name layers"):
        load_keras(write(tmp_path / "no.h5", {"class_name": "Functional", "config": config | {which: ends}}, {}))


def test_a_run_knows_a_keras_model_by_the_names_of_its_layers(tmp_path: Path) -> None:
    """They are part of the digest in `run.json`: a run that 0.2.0 began is refused when one of them changes."""
    model = load_keras(write(tmp_path / "danq.h5", DANQ_CONFIG, DANQ))
    own = {name for name in source_of_module(model).splitlines() if name.startswith("plrp.")}
    assert own == {f"plrp.models.keras.{name}" for name in ("KerasModel", "_Channels", "_Flat", "_Pool", "_Recurrent")}
    assert "(pool): _Pool()" in repr(model)


@pytest.mark.parametrize("kind", ["Sequential", "Functional"])
def test_a_config_without_layers_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(CheckpointError, match="its config lists no layers"):
        load_keras(write(tmp_path / "net.h5", {"class_name": kind, "config": {}}, {}))


def test_the_epsilon_of_norms_that_a_file_does_not_hold_is_said(tmp_path: Path) -> None:
    weights = {"norm": {name: numbers(4) ** 2 for name in ("gamma", "beta", "mean", "variance")}}
    path = write(tmp_path / "weights.h5", None, weights)
    with pytest.warns(UserWarning, match=r"by default 1e-3 in Keras; yours have others: 0 \(1e-05\)"):
        load_keras_weights(nn.Sequential(nn.BatchNorm1d(4)), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_keras_weights(nn.Sequential(nn.BatchNorm1d(4, eps=1e-3)), path)
