"""Results of other libraries become lists: those that installed libraries make, and objects of that shape."""

from __future__ import annotations

import json
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from rescorer import InvalidList, LimitExceeded
from rescorer.formats.speech_services import read_whisper
from rescorer.recognisers import (
    MAX_HYPOTHESES,
    from_espnet,
    from_nemo,
    from_pyctcdecode,
    from_transformers,
    from_vosk,
    from_whisper,
)

WORDS = ("<pad>", "<s>", "</s>", "<unk>", "the", "sea", "see", "was", "calm", "a", "ship", "lay")


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **marks)


@pytest.fixture(scope="module")
def speech_model():
    """A speech model of transformers with random weights, made from its configuration."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    torch.manual_seed(3)
    names = {"layers": 1, "ffn_dim": 16, "attention_heads": 2}
    sizes = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in names.items()}
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.Speech2TextConfig(
        vocab_size=len(WORDS),
        d_model=16,
        input_feat_per_channel=8,
        conv_channels=16,
        max_source_positions=64,
        max_target_positions=32,
        init_std=0.6,
        **sizes,
        **marks,
    )
    return transformers.Speech2TextForConditionalGeneration(config).eval()


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 0.6])
def test_beams_of_transformers_have_the_log_probability_of_their_tokens(
    speech_model, tokenizer, length_penalty
):
    import torch

    torch.manual_seed(4)
    beams = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 6, "length_penalty": length_penalty}
    output = speech_model.generate(
        input_features=torch.randn(2, 40, 8), return_dict_in_generate=True, output_scores=True, **beams
    )
    lists = from_transformers(
        output, tokenizer, num_return_sequences=3, length_penalty=length_penalty, ids=["u1", "u2"]
    )
    assert [nbest.id for nbest in lists] == ["u1", "u2"]
    texts = [hypothesis.text for nbest in lists for hypothesis in nbest.hypotheses]
    assert texts == [
        text.strip() for text in tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    ]
    steps = speech_model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    expected = torch.where(steps.isfinite(), steps, 0.0).sum(axis=1)
    scores = [score for nbest in lists for score in nbest.streams["first_pass"]]
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    lengths = {int((indices >= 0).sum()) for indices in output.beam_indices}
    assert len(lengths) > 1  # or the division would not show


def test_what_transformers_lacks_is_named(tokenizer):
    with pytest.raises(TypeError, match=r"output is of type ndarray; .* return_dict_in_generate=True"):
        from_transformers(np.zeros((2, 3)), tokenizer)
    array = SimpleNamespace(tolist=lambda: [[0], [0]])
    output = SimpleNamespace(sequences=[[4], [5]], sequences_scores=array, beam_indices=array)
    with pytest.raises(TypeError, match="decoder is of type NoneType; expected a processor or tokenizer"):
        from_transformers(output)
    with pytest.raises(TypeError, match="2 sequences, and num_return_sequences is 3"):
        from_transformers(output, tokenizer, num_return_sequences=3)


def test_hypotheses_of_a_ctc_processor_are_lists():
    one = SimpleNamespace(text=["a b", "a"], logit_score=[-1.0, -1.5], lm_score=[-3.0, -2.5])
    (nbest,) = from_transformers(one, ids="u1")
    assert nbest.streams == {"acoustic": (-1.0, -1.5), "lm": (-2.0, -1.0)}
    columns = {name: [values, values] for name, values in vars(one).items()}
    assert [nbest.id for nbest in from_transformers(SimpleNamespace(**columns))] == ["1", "2"]
    with pytest.raises(TypeError, match="n_best=5"):
        from_transformers(SimpleNamespace(text="a", logit_score=-1.0, lm_score=-1.0))


def test_beams_of_pyctcdecode_have_acoustic_scores():
    pyctcdecode = pytest.importorskip("pyctcdecode", reason="pyctcdecode is not installed")
    decoder = pyctcdecode.build_ctcdecoder(["", " ", "a", "b"])
    logits = np.log(np.random.default_rng(1).dirichlet(np.ones(4), size=12))
    beams = decoder.decode_beams(logits)
    (nbest,) = from_pyctcdecode(beams, ids="u1")
    assert [hypothesis.text for hypothesis in nbest.hypotheses] == [beam[0] for beam in beams]
    assert list(nbest.streams) == ["acoustic"]
    assert nbest.streams["acoustic"] == pytest.approx([beam[-2] for beam in beams])
    hot = decoder.decode_beams(logits, hotwords=["ab"])
    assert set(from_pyctcdecode([hot, beams])[0].streams) == {"acoustic", "lm"}


def test_beams_by_their_shape():
    beam = namedtuple("OutputBeam", "text last_lm_state text_frames logit_score lm_score")(
        "a", None, [], -2, -3
    )
    assert from_pyctcdecode([beam])[0].streams == {"acoustic": (-2.0,), "lm": (-1.0,)}
    with pytest.raises(TypeError, match=r"beams\[0\] is of type str; expected the beams of decode_beams"):
        from_pyctcdecode(["a b"])


class NemoHypothesis(SimpleNamespace):
    y_sequence = ()


def test_results_of_nemo():
    best = NemoHypothesis(text="a b", score=np.float32(-1.5))
    timed = NemoHypothesis(
        text="a",
        score=-2.5,
        timestamp={"word": [{"word": "a", "start": 0.5, "end": 0.75, "start_offset": 1}]},
    )
    several = SimpleNamespace(n_best_hypotheses=[best, timed])
    for result in (several, [several], [[best, timed]], ([best], [[best, timed]])):
        (nbest,) = from_nemo(result, ids="u1")
        assert nbest.streams == {"first_pass": (-1.5, -2.5)}
        assert nbest.hypotheses[1].fields == {"words": [{"word": "a", "start_s": 0.5, "duration_s": 0.25}]}
    assert len(from_nemo([best, timed])) == 2
    with pytest.raises(TypeError, match="return_hypotheses=True"):
        from_nemo(["a b", "a"])


def test_results_of_espnet():
    found = namedtuple("Hypothesis", "yseq score scores")
    result = [
        ("a b", ["a", "b"], [1, 2], found((), np.float64(-3.0), {"decoder": -1.0, "ctc": np.float32(-2.0)})),
        ("a", ["a"], [1], found((), -4.0, {"decoder": -2.0, "ctc": -2.0})),
    ]
    (nbest,) = from_espnet(result, ids="u1")
    assert nbest.streams == {"first_pass": (-3.0, -4.0), "decoder": (-1.0, -2.0), "ctc": (-2.0, -2.0)}
    assert [nbest.id for nbest in from_espnet([result, result], ids="call")] == ["call-1", "call-2"]
    with pytest.raises(TypeError, match="Speech2Text"):
        from_espnet([["a b"]])


SEGMENTS = [
    {"id": 0, "start": 0.0, "end": 2.0, "text": " a b", "tokens": [1, 2, 3], "avg_logprob": -0.5, "seek": 0},
    {"id": 1, "start": 2.0, "end": 3.0, "text": " c", "tokens": [1], "avg_logprob": -0.25, "seek": 0},
]


def test_segments_of_whisper_are_read_as_from_its_files(tmp_path):
    path = tmp_path / "talk.json"
    path.write_text(json.dumps({"text": " a b c", "segments": SEGMENTS}))
    expected = list(read_whisper(path))
    assert from_whisper({"text": " a b c", "segments": SEGMENTS}, ids="talk") == expected
    objects = (SimpleNamespace(**segment, words=object()) for segment in SEGMENTS)  # of faster-whisper
    assert from_whisper(objects, ids="talk") == expected


def test_decoding_results_of_whisper_are_hypotheses_of_one_list():
    decoding = pytest.importorskip("whisper.decoding", reason="openai-whisper is not installed")
    results = [
        decoding.DecodingResult(np.zeros(3), "en", None, [1, 2, 3], text, score, 0.01, 0.4, 1.1)
        for text, score in (("the see", -0.25), ("the sea", -0.5))
    ]
    (nbest,) = from_whisper(results)
    assert [hypothesis.text for hypothesis in nbest.hypotheses] == ["the see", "the sea"]
    assert nbest.streams == {"first_pass": (-1.0, -2.0)}
    assert "audio_features" not in nbest.hypotheses[0].fields
    assert len(from_whisper(results[0])[0].hypotheses) == 1


def test_results_of_vosk():
    alternatives = [
        {"text": "a b", "confidence": 297.5, "result": [{"word": "a", "start": 0.5, "end": 1.0}] * 2},
        {"text": "a", "confidence": 296.0},
    ]
    plain = {"text": "c", "result": [{"word": "c", "start": 0, "end": 1, "conf": 0.5}]}
    several, single, partial = from_vosk(
        [json.dumps({"alternatives": alternatives}), plain, '{"partial": "a b"}'], ids="call"
    )
    assert several.id == "call-1"
    assert several.streams == {"first_pass": (297.5, 296.0)}
    assert several.hypotheses[0].fields["words"][0] == {"word": "a", "start_s": 0.5, "duration_s": 0.5}
    assert single.streams == {}
    assert single.hypotheses[0].fields["words"][0]["confidence"] == 0.5
    assert partial.hypotheses[0].partial
    assert not single.hypotheses[0].partial
    with pytest.raises(TypeError, match=r"result\[0\] is a text that is not JSON"):
        from_vosk("a b")
    with pytest.raises(TypeError, match=r"result\[0\] is of type dict; expected the JSON of Result"):
        from_vosk({"words": []})
    with pytest.raises(InvalidList, match="list 'u1', hypothesis 1, first_pass"):
        from_vosk({"alternatives": [alternatives[0], {"text": "b"}]}, ids="u1")


@pytest.mark.parametrize("convert", [from_pyctcdecode, from_nemo, from_espnet, from_whisper, from_vosk])
@pytest.mark.parametrize("value", [None, 3, b"a", object()])
def test_other_objects_are_type_errors(convert, value):
    with pytest.raises(TypeError, match=r"is of type .*; expected"):
        convert(value)


class Numbers(list):
    """Stands for a tensor."""

    tolist = list.copy


def generated(scores=(-1.0, -2.0), indices=((0, 1), (0, -1))) -> SimpleNamespace:
    """What ``generate`` of transformers returns for two sequences."""
    return SimpleNamespace(sequences=[], sequences_scores=Numbers(scores), beam_indices=Numbers(indices))


def decoder(texts) -> SimpleNamespace:
    return SimpleNamespace(batch_decode=lambda *_, **__: texts)


def test_sequences_of_transformers_by_their_shape():
    (nbest,) = from_transformers(generated(), decoder(["a ", "b"]), num_return_sequences=np.int64(2))
    assert (nbest.texts, nbest.streams) == (["a", "b"], {"first_pass": (-2.0, -2.0)})


@pytest.mark.parametrize(
    ("output", "texts", "options", "message"),
    [
        (generated(scores=(-1.0,)), ["a", "b"], {}, "sequences_scores is of type Numbers; expected .* 2 seq"),
        (generated(indices=(3, 4)), ["a", "b"], {}, "beam indices is of type int"),
        (generated(scores=(-1.0, None)), ["a", "b"], {}, "a sequence score is of type NoneType"),
        (generated(), ["a", None], {}, "decoder.batch_decode is of type list; expected a list of texts"),
        (generated(), "ab", {}, "decoder.batch_decode is of type str"),
        (generated(), ["a", "b"], {"num_return_sequences": "2"}, "num_return_sequences is of type str"),
        (generated(), ["a", "b"], {"num_return_sequences": True}, "num_return_sequences is of type bool"),
        (
            generated(),
            ["a", "b"],
            {"num_return_sequences": np.ones(2)},
            "is of type ndarray; expected an int",
        ),
        (generated(), ["a", "b"], {"length_penalty": "1"}, "length_penalty is of type str"),
        (generated(), ["a", "b"], {"ids": 3}, "ids is of type int; expected a text, or a text for each list"),
    ],
)
def test_parts_of_transformers_that_do_not_fit_are_type_errors(output, texts, options, message):
    with pytest.raises(TypeError, match=message):
        from_transformers(output, decoder(texts), **options)


@pytest.mark.parametrize(("penalty", "indices"), [(1e6, ((0, 1), (0, 1))), (-1.0, ((-1,), (-1,)))])
def test_a_penalty_that_cannot_be_undone_names_the_list(penalty, indices):
    with pytest.raises(InvalidList, match="list '1', hypothesis 0, first_pass: the score is inf"):
        from_transformers(generated(indices=indices), decoder(["a", "b"]), length_penalty=penalty)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([["a", "b"]], [[-1.0]], [[-1.0, -2.0]]), "output.logit_score is of type list; expected .* 2 seq"),
        (([["a"], None], [[-1.0]] * 2, [[-1.0]] * 2), "output.text is of type NoneType"),
        (([["a"]] * 2, [[-1.0]], [[-1.0]] * 2), "output.logit_score is of type list"),
    ],
)
def test_columns_of_a_ctc_processor_that_do_not_fit_are_type_errors(columns, message):
    output = SimpleNamespace(**dict(zip(("text", "logit_score", "lm_score"), columns, strict=True)))
    with pytest.raises(TypeError, match=message):
        from_transformers(output)


def test_scorers_of_espnet_need_names():
    hypothesis = SimpleNamespace(score=-1.0, scores=[-1.0])
    with pytest.raises(TypeError, match=r"result\[0\] scores is of type list"):
        from_espnet([("a", [], [], hypothesis)])


def test_whisper_may_have_heard_nothing():
    assert from_whisper(iter([])) == from_whisper({"text": "", "segments": []}) == []


class Several:
    """A score with several elements, of which libraries say so by errors of their own."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __float__(self) -> float:
        raise self._error("only one element tensors can be converted")


@pytest.mark.parametrize("error", [TypeError, ValueError, RuntimeError])
def test_a_score_of_several_elements_is_a_type_error(error):
    with pytest.raises(TypeError, match="logit_score is of type Several; expected a single number"):
        from_pyctcdecode([("a", None, None, Several(error), -1.0)])


def test_a_score_that_is_too_large_names_its_place():
    with pytest.raises(InvalidList, match="list 'u1', hypothesis 0, acoustic: the score is inf"):
        from_pyctcdecode([("a", None, None, 10**400, -1.0)], ids="u1")


def test_lists_are_bounded_and_named():
    hypothesis = {"text": "a", "confidence": 1.0}
    with pytest.raises(LimitExceeded, match="more than 10,000 elements"):
        from_vosk({"alternatives": [hypothesis] * (MAX_HYPOTHESES + 1)})
    with pytest.raises(TypeError, match="ids has 1 values for 2 lists"):
        from_vosk([{"text": "a"}] * 2, ids=["u1"])
    with pytest.raises(InvalidList, match="finite"):
        from_vosk({"alternatives": [{"text": "a", "confidence": float("nan")}]})
