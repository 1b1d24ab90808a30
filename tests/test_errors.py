"""Errors are part of the interface: what cannot be explained is refused with the remedy."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import pickle
import re
import types
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import plrp

REFUSED = (ValueError, TypeError, IndexError, plrp.UnsupportedOperation, plrp.TraceError)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


def refused(words: str, model=None, inputs=None, **options) -> str:
    """Explain must refuse, and its message must match `words` (a regular expression) and be short."""
    model = mlp() if model is None else model
    inputs = torch.randn(2, 4) if inputs is None else inputs
    with pytest.raises(REFUSED, match=words) as error:
        plrp.explain(model, inputs, **options)
    message = str(error.value)
    assert len(message) < 500
    assert message.strip().endswith((".", ")", "`", "'", "]", ":")) or len(message.split()) > 3
    return message


# ---------------------------------------------------------------- operations without a rule


class Exotic(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 6), nn.Linear(6, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.function(F.relu(self.before(x))))


UNSUPPORTED = {
    "cumprod": lambda h: h.cumprod(1),
    "fft.rfft": lambda h: torch.fft.rfft(h, n=10).abs(),
    "atan2": lambda h: torch.atan2(h, h.flip(1) + 1),
    "logsumexp": lambda h: h.logsumexp(1, keepdim=True).expand_as(h),
    "erfinv": lambda h: torch.erfinv(h.clamp(max=0.5)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_operation_without_a_rule_is_named_with_its_layer_and_the_remedy(name):
    with pytest.raises(plrp.UnsupportedOperation) as error:
        plrp.explain(Exotic(UNSUPPORTED[name]).eval(), torch.randn(2, 4))
    message = str(error.value)
    assert name in message
    assert "before" in message
    assert "rules={" in message  # for this call, not for the whole process


@pytest.mark.parametrize(
    "function", [lambda h: h * h.flip(1), lambda h: h[:, :3] * h[:, 3:], lambda h: h / (h.flip(1) + 1)]
)
def test_a_product_of_two_signals_without_a_gate_is_refused(function):
    model = Exotic(function)
    model.after = nn.LazyLinear(3)
    model(torch.randn(1, 4))
    with pytest.raises(plrp.UnsupportedOperation, match="before"):
        plrp.explain(model.eval(), torch.randn(2, 4), composite="epsilon-plus-flat")


def test_check_lists_every_unsupported_operation_at_once():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.b(F.relu(self.a(x)).cumprod(1))
            return self.c(torch.atan2(h, h.flip(1)))

    found = plrp.check(Two().eval(), torch.randn(2, 4))
    text = str(found)
    assert not found
    assert len(found.problems) == 2
    for word in ("cumprod", "atan2", "a", "b"):
        assert word in text
    assert plrp.check(mlp(), torch.randn(2, 4))
    assert not plrp.check(mlp(), torch.randn(2, 4)).problems


def test_a_branch_through_complex_numbers_is_refused_not_ignored():
    """Beside a supported branch it would otherwise count as a constant, without a word."""
    model = Exotic(lambda h: h + torch.fft.irfft(torch.fft.rfft(h), n=6)).eval()
    with pytest.raises(plrp.UnsupportedOperation, match="fft"):
        plrp.explain(model, torch.randn(2, 4))
    assert plrp.check(model, torch.randn(2, 4)).problems


def test_a_registered_rule_makes_an_operation_explainable():
    model = Exotic(torch.special.i0).eval()
    x = torch.randn(2, 4)
    with pytest.raises(plrp.UnsupportedOperation):
        plrp.explain(model, x)
    plrp.register_rule(torch.special.i0, "pass")
    try:
        passed = plrp.explain(model, x, layers=True)
    finally:
        plrp.unregister_rule(torch.special.i0)
    assert torch.isfinite(passed.relevance).all()

    @plrp.register_rule(torch.special.i0)
    def half(relevance: Tensor, output: Tensor, h: Tensor) -> Tensor:
        return relevance / 2

    try:
        halved = plrp.explain(model, x)
    finally:
        plrp.unregister_rule(torch.special.i0)
    assert torch.allclose(halved.relevance, passed.relevance / 2)
    with pytest.raises(plrp.UnsupportedOperation):
        plrp.explain(model, x)


class Middle(nn.Module):
    """Any module between two layers."""

    def __init__(self, module) -> None:
        super().__init__()
        self.before, self.module, self.after = nn.Linear(4, 6), module, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.module(F.relu(self.before(x))))


ADVICE = {  # what the refusal of a step says, and what it must not say
    "product": (lambda h: h * h.flip(1), r"\('mul'\).*rules=\{'mul': rule\}.*\(relevance, output, a, b\)", "'pass'"),
    "mean over the batch": (lambda h: h - h.mean(0), r"mixes the samples.*samples=None", "rules="),
    "elementwise": (torch.sinc, r"rules=\{torch\.sinc: rule\}.*'pass' if", "register_rule"),
    "a sample at a time": (
        lambda h: torch.stack([h[i] for i in range(len(h))]),
        r"takes some samples out of the batch.*whole batch at once",
        "rules=|mixes",
    ),
    "a layer on a row at a time": (
        lambda h: torch.stack([torch.ones(6, 6) @ row for row in h]),
        r"takes some samples out of the batch.*whole batch at once",
        "rules=|mixes|batch axis",
    ),
    "a layer on a map at a time": (
        lambda h: torch.stack([F.conv1d(row[None], torch.ones(1, 1, 1))[0] for row in h]),
        r"mixes the samples.*one sample at a time",
        "rules=|The input has no batch axis",
    ),
    "complex weights": (
        lambda h: (h.to(torch.complex64) @ torch.ones(6, 6, dtype=torch.complex64)).real,
        r"complex numbers.*real tensors",
        "rules=",
    ),
    "complex factor": (lambda h: (h * (1 + 2j)).abs(), r"complex numbers.*real tensors", "rules="),
    "scatter": (
        lambda h: h.scatter(1, torch.zeros(len(h), 1, dtype=torch.long), 1.5, reduce="add"),
        r"`reduce=` adds or multiplies.*rules=\{'scatter': rule\}",
        "register_rule",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
@pytest.mark.filterwarnings("ignore:The reduce argument")
def test_the_advice_fits_the_operation(name):
    step, said, unsaid = ADVICE[name]
    message = refused(said, Exotic(step).eval(), torch.randn(3, 4), composite="epsilon-plus-flat")
    assert not re.search(unsaid, message)


def test_decisions_are_no_scores():
    model = mlp()
    message = refused(r"torch\.int64.*argmax", lambda x: model(x).argmax(1))
    assert "script" not in message


def test_writes_into_a_view_of_fresh_memory_are_named_with_the_line_that_does_it():
    """As torchvision's detection models put their images into one batch."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()

    def batched(images: Tensor) -> Tensor:
        room = images.new_full((len(images), 3, 16, 16), 0.0)
        for number, image in enumerate(images):
            room[number, :, :12, :12].copy_(image)
        return model(room)

    message = refused(r"copy_.*\(test_errors\.py, line \d+, in batched\).*in place", batched, torch.rand(2, 3, 12, 12))
    assert "script" not in message


def test_numpys_word_for_an_axis_is_understood():
    x = torch.randn(3, 4)
    torch.manual_seed(0)
    model = Exotic(lambda h: torch.cat([h, 2 * h], axis=1)[:, 3:9]).eval()
    found = plrp.explain(model, x)
    model.function = lambda h: torch.cat([h, 2 * h], 1)[:, 3:9]
    assert torch.equal(found.relevance, plrp.explain(model, x).relevance)
    model.function = lambda h: torch.stack([h, h], axis=1).sum(1)
    assert plrp.explain(model, x).closing().max() < 1e-6


def test_an_einsum_of_one_operand_moves_or_sums():
    x = torch.randn(3, 4)
    torch.manual_seed(0)
    model = Exotic(lambda h: torch.einsum("bij->bi", h.view(-1, 2, 3)).repeat(1, 3)).eval()
    found = plrp.explain(model, x)
    model.function = lambda h: h.view(-1, 2, 3).sum(2).repeat(1, 3)
    torch.testing.assert_close(found.relevance, plrp.explain(model, x).relevance)
    model.function = lambda h: torch.einsum("b i j -> b j i", h.view(-1, 2, 3)).flatten(1)
    found = plrp.explain(model, x)
    model.function = lambda h: h.view(-1, 2, 3).transpose(1, 2).flatten(1)
    assert torch.equal(found.relevance, plrp.explain(model, x).relevance)


def test_check_lists_refusals_of_the_recording_too_and_leaves_the_model_alone():
    def step(h: Tensor) -> Tensor:
        changed = h.clone()
        changed.sin_()
        scale = float(h.sum())
        return torch.atan2(h * scale + changed, h.flip(1)).cumprod(1)

    model = Exotic(step).eval()
    before = copy.deepcopy(model.state_dict())
    found = plrp.check(model, torch.randn(2, 4))
    said = " ".join(problem[0] for problem in found.problems)
    assert [word in said for word in ("sin_", "__float__", "atan2", "cumprod")] == [True] * 4
    assert "4 problems" in str(found)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    one = plrp.check(Exotic(lambda h: h.cumprod(1)).eval(), torch.randn(2, 4))
    assert "1 problem (in 4 operations, 2 conv or linear layers)" in str(one)
    assert not plrp.check(lambda x: mlp()(x).argmax(1), torch.randn(2, 4))


def test_check_never_writes_into_the_models_parameters():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            self.seen.add_(h.sum(0))
            return h

    model = Counts().eval()
    found = plrp.check(model, torch.randn(2, 4))
    assert "buffer of the model" in found.problems[0][2]
    assert not model.seen.any()


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(6)], ids=["dropout", "batchnorm"])
def test_a_model_in_training_mode_is_refused(layer):
    model = nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 3)).train()
    assert "eval()" in refused(r"eval\(\)", model)
    assert model.training
    if isinstance(layer, nn.BatchNorm1d):
        assert int(layer.num_batches_tracked) == 0, "a refused model is untouched"
        assert not layer.running_mean.any()


def test_training_mode_without_dropout_or_batch_statistics_is_harmless():
    model = mlp()
    expected = plrp.explain(model, torch.ones(2, 4)).relevance
    assert torch.equal(plrp.explain(model.train(), torch.ones(2, 4)).relevance, expected)
    inert = nn.Sequential(model[0], nn.ReLU(), nn.Dropout(0.0), model[2]).train()
    assert torch.equal(plrp.explain(inert, torch.ones(2, 4)).relevance, expected)


def test_functional_dropout_that_is_active_is_refused():
    model = Exotic(lambda h: F.dropout(h, 0.5)).eval()
    refused("(?i)dropout", model)


def test_batch_statistics_of_a_norm_without_running_ones_are_refused():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)).eval()
    refused("(?i)batch", model)


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_model_that_hides_its_operations_is_refused():
    refused("(?i)script", torch.jit.script(mlp()))


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_part_matters_when_it_is_called():
    model = Middle(nn.ReLU()).eval()
    x = torch.randn(2, 4)
    expected = plrp.explain(model, x).relevance
    model.unused = torch.jit.script(nn.Linear(6, 6))
    assert torch.equal(plrp.explain(model, x).relevance, expected)
    model.module = torch.jit.script(nn.ReLU())
    assert "rules={torch.jit.ScriptModule" in refused("'module' is a TorchScript module", model, x)
    found = plrp.explain(model, x, rules={torch.jit.ScriptModule: "pass"})
    assert torch.equal(found.relevance, expected)


@pytest.mark.filterwarnings("ignore")
def test_a_traced_jit_model_is_refused():
    refused("(?i)script|jit", torch.jit.trace(mlp(), torch.randn(2, 4)))


def test_a_compiled_model_that_hides_its_operations_is_refused():
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(2, 4)
    with pytest.raises(REFUSED, match="compile"):
        plrp.explain(compiled, x)


def test_a_model_whose_output_does_not_depend_on_the_input_is_refused():
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(x.shape[0], 3)

    refused("(?i)depend", Constant().eval())


def test_a_detached_forward_is_no_silent_gradient():
    """numpy in the middle cuts the tape: refused, never a quiet zero."""

    class ThroughNumpy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.from_numpy(x.detach().numpy() * 2))

    with pytest.raises(REFUSED):
        plrp.explain(ThroughNumpy().eval(), torch.randn(2, 4))


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_inputs_that_are_not_finite_are_refused(bad):
    x = torch.randn(2, 4)
    x[1, 2] = bad
    refused("(?i)nan|inf|finite", inputs=x)


def test_activations_that_are_not_finite_are_refused_naming_the_layer():
    model = mlp()
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    message = refused("(?i)nan|inf|finite", model)
    assert "'2'" in message or "`2`" in message or '"2"' in message or " 2 " in message


def test_an_overflow_inside_the_model_is_refused_naming_the_layer():
    class Overflow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.huge, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            with torch.no_grad():
                self.huge.weight.fill_(3e38)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.huge(F.relu(self.first(x)) + 1))

    assert "huge" in refused("(?i)nan|inf|finite", Overflow().eval())


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integer_inputs_are_refused(dtype):
    refused("(?i)float", inputs=torch.ones(2, 4).to(dtype))


def test_complex_inputs_are_refused():
    refused("(?i)float|complex|real", inputs=torch.ones(2, 4, dtype=torch.complex64))


def test_inputs_without_a_batch_axis_are_refused():
    refused("(?i)batch", inputs=torch.randn(4))
    refused("(?i)batch", inputs=torch.tensor(1.0))
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(0), nn.Linear(4 * 36, 3)).eval()
    refused("(?i)batch", conv, torch.randn(3, 8, 8))


def test_inputs_that_are_no_tensors_are_refused():
    for bad in ([[1.0, 2.0, 3.0, 4.0]], "x", None, {"x": torch.randn(2, 4)}):
        with pytest.raises(REFUSED, match=r"(?i)tensor"):
            plrp.explain(mlp(), bad)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_photographs_name_is_refused_with_code_that_reads_it(kind, tmp_path, monkeypatch):
    pil = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    pil.fromarray(np.full((300, 260, 3), 99, np.uint8)).save("photo.png")
    model = nn.Sequential(nn.Conv2d(3, 2, 16, stride=16), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 14 * 14, 3)).eval()
    message = refused("not a tensor", model, kind("photo.png"))
    explained, read = (eval(code, {"plrp": plrp, "model": model}) for code in re.findall("`(.+?)`", message))
    assert torch.equal(explained.relevance["LRP"], plrp.explain(model, read).relevance[0])
    with pil.open("photo.png") as picture:
        assert "explain_photograph" in refused(r"a picture \(.*\), not a tensor", model, picture)


def test_inputs_of_different_batch_sizes_are_refused():
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y.mean(0)

    refused("(?i)batch|samples", Two().eval(), (torch.randn(2, 4), torch.randn(3, 4)))


# ---------------------------------------------------------------- targets


@pytest.mark.parametrize("target", [3, -4, [0, 5], torch.tensor([0, 3]), (7,), (0, 0)], ids=str)
def test_a_target_out_of_range_is_refused(target):
    refused("(?i)target|class|index", target=target)


@pytest.mark.parametrize("target", [[0], [0, 1, 2], torch.tensor([0, 1, 2])], ids=str)
def test_a_target_of_the_wrong_length_is_refused(target):
    refused("(?i)target|sample|batch|one", target=target)


@pytest.mark.parametrize("target", [1.5, "cat", torch.tensor([0.5, 1.0]), [0.2, 1]], ids=str)
def test_a_target_of_the_wrong_kind_is_refused(target):
    refused("(?i)target", target=target)


@pytest.mark.parametrize("target", [True, False, np.bool_(True), [True, False], (True,), torch.tensor(True)], ids=repr)
@pytest.mark.parametrize("scores", [1, 3])
def test_truth_values_are_no_target(target, scores):
    model = mlp() if scores > 1 else nn.Sequential(mlp(), nn.Linear(3, 1), nn.Flatten(0)).eval()
    with pytest.raises((TypeError, ValueError) if isinstance(target, Tensor) else TypeError, match="target"):
        plrp.explain(model, torch.randn(2, 4), target=target)


@pytest.mark.parametrize("target", [None, 1, [0, 1]], ids=str)
def test_a_dense_output_needs_its_target_spelled_out(target):
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Conv1d(3, 3, 3)).eval()
    refused("(?i)target", model, torch.randn(2, 2, 12), target=target)


def test_a_dict_output_needs_a_callable_target():
    class Dict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.fc(x)}

    refused("(?i)callable|function|target", Dict().eval())
    refused("(?i)callable|function|target", Dict().eval(), target=1)


class ModelOutput(OrderedDict):
    """As transformers has them: a dict whose items are its attributes too."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __setitem__(self, key, value) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __reduce__(self):
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))


@dataclasses.dataclass
class ImageOutput(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Plain:
    logits: Tensor
    features: Tensor | None = None


class Named(NamedTuple):
    logits: Tensor
    features: Tensor | None = None


@pytest.mark.parametrize("kind", [ImageOutput, Plain, Named], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("softmax", [False, True])
def test_outputs_with_attributes_keep_them_for_the_target(kind, softmax):
    model, x = mlp(), torch.randn(2, 4)

    def wrapped(x: Tensor):
        scores = model(x)
        return kind(logits=scores.softmax(1) if softmax else scores)

    found = plrp.explain(wrapped, x, target=lambda output: output.logits[:, 1])
    assert torch.equal(found.relevance, plrp.explain(model, x, target=1).relevance)
    assert type(found.logits) is kind
    refused(r"returns a \w+, not a tensor.*output\.logits\[:, 0\]", wrapped, x)
    refused(r"failed on the model's output.*logits.*AttributeError", wrapped, x, target=lambda output: output.scores)


def test_a_callable_target_must_give_one_score_per_sample():
    refused("(?i)score|sample|one", target=lambda out: out)
    refused("(?i)score|sample|one", target=lambda out: out.sum())
    refused("(?i)score|sample|one|tensor", target=lambda out: 1.0)


# ---------------------------------------------------------------- composites and rules


def test_an_unknown_composite_names_the_known_ones():
    assert "epsilon-plus-flat" in refused("epsilon-plus-flat", composite="epsilon-plus-flt")


def test_an_override_of_an_unknown_layer_is_refused_with_the_nearest_name():
    composite = plrp.Composite(
        [(plrp.composites.is_any, plrp.rules.Epsilon())], layers={"20": plrp.rules.ZPlus()}, name="x"
    )
    refused(r"'20'.*nearest: 2", composite=composite)


def test_inputs_outside_the_box_are_refused():
    conv = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)).eval()
    x = torch.rand(2, 2, 8)
    plrp.explain(conv, x, composite=plrp.composite("epsilon-gamma-box", low=0.0, high=1.0))
    refused("(?i)box", conv, x + 1, composite=plrp.composite("epsilon-gamma-box", low=0.0, high=1.0))
    for low, high, box in (
        (None, 0.5, "[own extreme, 0.5]"),
        (torch.zeros(2, 8), torch.tensor(0.25), "[tensor, 0.25]"),
        (-1, 0.5, "[-1, 0.5]"),
    ):
        composite = plrp.composite("epsilon").with_layers({"0": plrp.rules.ZBox(low, high)})
        refused(f"leaves the box {re.escape(box)}", conv, x, composite=composite)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_input_one_rounding_outside_the_box_lies_on_its_edge(dtype, size):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(dtype).eval()
    composite = plrp.composite("epsilon-gamma-box", low=-0.3 * size, high=1.7 * size)
    edges = torch.tensor([[-0.3, 0.5, 1.7]], dtype=torch.float64).mul(size).to(dtype)
    outside = torch.nextafter(edges, torch.tensor([[-9.0, 0.5, 9.0]], dtype=dtype) * size)
    found = plrp.explain(model, outside, target=0, composite=composite)
    on_edge = plrp.explain(model, edges, target=0, composite=composite)
    torch.testing.assert_close(found.relevance, on_edge.relevance, rtol=1e-4, atol=1e-7 * size)
    refused("(?i)box", model, edges * (1 + 1e-4), target=0, composite=composite)


def test_a_composite_without_a_rule_for_a_layer_is_refused():
    composite = plrp.Composite([(plrp.composites.is_conv, plrp.rules.Epsilon())], name="convs only")
    refused("(?i)rule", composite=composite)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.0, 0.0), (-1.0, -2.0)])
def test_alpha_minus_beta_must_be_one_and_neither_negative(alpha, beta):
    with pytest.raises(ValueError, match=r"(?i)alpha"):
        plrp.rules.AlphaBeta(alpha=alpha, beta=beta)


@pytest.mark.parametrize("gamma", [-0.25, float("nan")])
def test_gamma_must_not_be_negative(gamma):
    with pytest.raises(ValueError, match=f"^Gamma needs gamma ≥ 0, got {gamma}"):
        plrp.rules.Gamma(gamma)


# ---------------------------------------------------------------- pruning


@pytest.mark.parametrize("p", [1.0, -0.1, 1.5, float("nan"), float("inf"), "0.1", False, True], ids=str)
def test_p_outside_zero_to_one_is_refused(p):
    for name, options in (
        ("p", {"p": p}),
        ("p_negative", {"p": 0.1, "p_negative": p}),
        ("layers['fc']", {"p": 0.1, "layers": {"fc": p}}),
    ):
        with pytest.raises(ValueError, match=rf"^{re.escape(name)} is the share of mass"):
            plrp.Pruning(**options)


@pytest.mark.parametrize(
    ("p", "name"),
    [(None, "layers"), ((None, 0.5), "layers"), ([None, None], "layers"), ((0.5, None), "p_negative of layers")],
)
def test_a_single_layer_has_numbers(p, name):
    for options in ({}, {"p": None, "sparsity_gain": 1.0}):
        with pytest.raises(ValueError, match=rf"^{name}\['fc'\] is the share of mass to prune, .* < 1, got None\.$"):
            plrp.Pruning(layers={"fc": p}, **options)


@pytest.mark.parametrize("gain", [0.0, -1.0, float("nan"), float("inf"), "1"])
def test_a_gain_that_is_not_positive_is_refused(gain):
    with pytest.raises(ValueError, match=r"^sparsity_gain is a number > 0"):
        plrp.Pruning(sparsity_gain=gain)


def test_neither_p_nor_gain_is_refused():
    with pytest.raises(ValueError, match=r"(?i)p"):
        plrp.Pruning(p=None)


def test_unknown_redistributions_and_measures_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="lambda"):
        plrp.Pruning(redistribution="mu")
    with pytest.raises(ValueError, match="gini"):
        plrp.Pruning(sparsity_gain=1.0, measure="entropy")


def test_an_unknown_layer_is_refused_with_the_nearest_names():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.middle, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.middle(F.relu(self.stem(x)))))

    message = refused("midle", Named().eval(), pruning=plrp.Pruning(layers={"midle": 0.3}))
    [nearest] = difflib.get_close_matches("midle", ["stem", "middle", "head"], 1)
    assert nearest in message


def test_two_names_of_one_tensor_with_different_p_are_refused():
    class Fan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.left, self.right = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.stem(x))
            return self.left(h) + self.right(h)

    model = Fan().eval()
    message = refused("left", model, pruning=plrp.Pruning(layers={"left": 0.3, "right": 0.4}))
    assert "right" in message
    x = torch.randn(2, 4)
    same = plrp.explain(model, x, pruning=plrp.Pruning(p=0.1, layers={"left": 0.3, "right": 0.3}))
    one = plrp.explain(model, x, pruning=plrp.Pruning(p=0.1, layers={"left": 0.3}))
    assert torch.equal(same.relevance, one.relevance)


def test_a_first_layer_named_for_pruning_is_refused():
    """Its input is never pruned: a p given for it would be silently ignored."""
    refused("(?i)first", pruning=plrp.Pruning(layers={"0": 0.3}))


def test_a_pruning_is_immutable_printable_and_survives_a_dict():
    pruning = plrp.Pruning(
        p=0.2,
        p_negative=0.3,
        redistribution="M",
        conserve=False,
        sparsity_gain=0.7,
        measure="gini",
        layers={"fc": 0.1},
    )
    with pytest.raises((AttributeError, TypeError, dataclasses.FrozenInstanceError)):
        pruning.p = 0.5
    with pytest.raises(TypeError):
        pruning.layers["fc"] = 0.9
    assert plrp.Pruning.from_dict(pruning.to_dict()) == pruning
    assert hash(pruning) == hash(plrp.Pruning.from_dict(pruning.to_dict()))
    for word in ("0.2", "0.3", "M", "gini", "fc"):
        assert word in repr(pruning)


def test_a_mapping_changed_afterwards_does_not_change_the_pruning():
    layers = {"fc": 0.1}
    pruning = plrp.Pruning(layers=layers)
    layers["fc"] = 0.9
    assert pruning.layers["fc"] == 0.1


def test_layers_not_asked_for_say_how_to_ask():
    explanation = plrp.explain(mlp(), torch.randn(2, 4))
    assert not explanation.layers


# ---------------------------------------------------------------- layers that are not there


def test_a_layer_that_is_not_there_is_answered_with_a_sentence():
    none, one, all_of_them = (plrp.explain(mlp(), torch.randn(2, 4), layers=kept) for kept in (False, ["0"], True))
    for explanation in (none, one, all_of_them):
        for name in ("7", "1"):  # nothing, and a ReLU
            with pytest.raises(KeyError, match=rf"no conv or linear layer '{name}' .*: 0, 2\."):
                explanation.layers[name]
    with pytest.raises(
        KeyError, match=r"'2' was not kept, and neither was that of any other: explain with layers=True"
    ):
        none.layers["2"]
    with pytest.raises(KeyError, match=r"layer '2' was not kept, only that of 0"):
        one.layers["2"]
    assert list(all_of_them.layers) == ["0", "2"]
    assert all_of_them.layers.get("7") is None
    pieces = plrp.explain(mlp(), torch.randn(2, 4), layers=["0"], micro_batch=1)
    for copied in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one.layers), pieces):
        layers = getattr(copied, "layers", copied)
        assert isinstance(layers, dict)
        assert layers["0"].shape == (2, 4)
        with pytest.raises(KeyError, match="only that of 0"):
            layers["2"]


def test_a_layer_that_no_relevance_reaches_says_so():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.unseen = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"seen": self.seen(x), "unseen": self.unseen(x * 2)}

    explanation = plrp.explain(Two().eval(), torch.randn(2, 4), target=lambda out: out["seen"][:, 0], layers=True)
    with pytest.raises(KeyError, match="No relevance reaches layer 'unseen'"):
        explanation.layers["unseen"]


# ---------------------------------------------------------------- what is no model, and inputs that do not fit it


def test_what_is_no_model_is_refused_with_the_remedy():
    loaded = types.SimpleNamespace(module=mlp())
    for model, remedy in (
        ("resnet50", r"plrp\.models\.load\('resnet50'\)\.module"),
        (nn.ReLU, r"is a class.*`ReLU\(…\)\.eval\(\)`"),
        (loaded, r"give its `\.module`"),
        (None, "NoneType"),
        (torch.randn(2, 4), r"the model comes first, plrp\.explain\(model, inputs\)"),
        ((torch.randn(2, 4),), "the model comes first"),
        (mlp().state_dict(), "OrderedDict, neither a module nor a function"),
    ):
        with pytest.raises(TypeError, match=remedy):
            plrp.explain(model, torch.randn(2, 4))
    with pytest.raises(TypeError, match="the model comes first"):
        plrp.explain(torch.randn(2, 4), mlp())


def test_an_explanation_in_place_of_its_relevance_is_told_what_to_pass():
    explanation = plrp.explain(mlp(), torch.randn(2, 4))
    for measure in (plrp.metrics.gini, plrp.metrics.entropy, plrp.vision.heatmap):
        with pytest.raises(TypeError, match=r"pass explanation\.relevance"):
            measure(explanation)


def test_inputs_of_another_dtype_or_device_than_the_weights_say_so():
    with pytest.raises(TypeError, match=r"input is torch\.float64, the model's weights are torch\.float32: convert"):
        plrp.trace(mlp(), torch.randn(2, 4).double())
    with pytest.raises(TypeError, match=r"input is cpu, the model's weights are meta: convert"):
        plrp.trace(mlp().to("meta"), torch.randn(2, 4))
    with pytest.raises(RuntimeError, match="shapes"):  # what the model itself says of other misfits stays
        plrp.trace(mlp(), torch.randn(2, 5))
    with pytest.raises(TypeError, match=r"float\(\)"):
        plrp.trace(mlp(), torch.ones(2, 4, dtype=torch.long))


def test_a_detour_of_tokens_without_a_batch_axis_is_seen() -> None:
    class Detour(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.Embedding(12, 4), nn.Linear(4, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            weight = torch.from_numpy(ids.numpy() * np.arange(len(ids))).float()
            return self.fc((self.table(ids) * weight[:, None]).sum(0))

    torch.manual_seed(0)
    with pytest.raises(REFUSED, match=r"tape|record|see"):
        plrp.explain(Detour().eval(), torch.tensor([3, 1, 4, 5, 9, 2]), samples=None, target=(0,))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantised_layers_are_refused_by_that_name() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(plrp.UnsupportedOperation, match="as it was before its layers were quantised"):
        plrp.explain(quantised, torch.randn(1, 8))


def test_a_class_by_name_is_answered_with_where_names_are_known():
    refused("got the name 'meerkat': a model knows its classes by number.*explain_photograph", target="meerkat")


def test_a_composite_of_zennit_is_answered_with_our_name():
    class EpsilonAlpha2Beta1Flat:
        pass

    refused("write composite='epsilon-alpha2-beta1-flat'", composite=EpsilonAlpha2Beta1Flat())
    refused("got dict", composite={})


def test_channels_last_are_answered_with_the_permutation():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    model(torch.rand(1, 3, 8, 8))
    message = refused("looks like .batch, height, width, channel.", model.eval(), torch.rand(2, 8, 8, 3))
    assert "x.permute(0, 3, 1, 2)" in message
    with pytest.raises(RuntimeError, match="channels"):  # neither first nor last: torch's own words
        plrp.explain(model, torch.rand(2, 5, 8, 8))


def test_printing_names_a_target_that_is_no_class():
    def margin(output: Tensor) -> Tensor:
        return output[:, 1] - output[:, 0]

    found = plrp.explain(mlp(), torch.randn(2, 4), target=margin)
    score = ", ".join(f"{float(s):.4g}" for s in found.score)
    assert f"target: margin, scores {score}" in str(found).splitlines()
