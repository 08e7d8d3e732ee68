"""Language models of ESPnet, SpeechBrain and icefall: their own scores, and errors about what is not read."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.cli import app as rescorer
from rescorer.errors import BundleError, ConfigError
from rescorer.models.bundle import find_vector_size
from rescorer.trie import build_trie
from rescorer.units.checkpoints import MAX_LINE, Checkpoint, read_settings
from rescorer.units.files import UnitConfig, load_unit_model, make_model
from rescorer.units.importing import import_model, score_alone
from rescorer.units.recurrent import RecurrentConfig
from rescorer.units.toolkits import PADDING_SCORE, read_source
from rescorer_training.cli import app as train
from tests.support.unit_models import LetterTokenizer

pytest.importorskip("sentencepiece")
pytest.importorskip("tokenizers")
MODELS = Path(__file__).parents[1] / "golden" / "units" / "toolkits"
PEER = json.loads((MODELS / "scores.json").read_text())["models"]


def read(folder):
    """Read a model of any toolkit, from a folder whose name begins with the toolkit's."""
    toolkit = folder.name.partition("-")[0]
    return read_source(toolkit, folder / "epoch-3.pt" if toolkit == "icefall" else folder)


@pytest.mark.parametrize("name", PEER)
def test_scores_are_those_of_the_toolkit(name, tmp_path):
    texts = [tuple(text.split()) for text in PEER[name]]
    form = "canonical" if name.startswith("espnet") else "upper"
    found = import_model(read(MODELS / name), tmp_path / "units", texts, text=form)
    assert found.check.max_difference < 1e-5
    model = load_unit_model(tmp_path / "units")
    assert model.vector_size == find_vector_size(found.config.decoder.to_dict())
    trie = build_trie(texts)
    scores = model.score(trie).sum_paths(trie)
    alone = [score_alone(model, found.config, words) for words in texts]
    for words, score, exact, expected in zip(texts, scores, alone, PEER[name].values(), strict=True):
        assert score == pytest.approx(exact, abs=1e-4)
        if (
            expected is None
        ):  # SpeechBrain gives -inf to texts with an unknown piece, which is its padding too
            assert PADDING_SCORE - 50 < score < PADDING_SCORE
        else:
            assert score == pytest.approx(expected, abs=1e-4 * (len(words) + 1))
            assert exact == pytest.approx(expected, abs=2e-5)


words = st.sampled_from(["a", "ab", "abc", "b", "on", "abcdefg"])
texts = st.lists(words, max_size=6).map(tuple)


@pytest.mark.parametrize("name", ["espnet-lstm", "espnet-gru", "espnet-rnn_relu", "speechbrain-gru"])
@settings(max_examples=5, deadline=None)
@given(batch=st.lists(st.tuples(texts, st.one_of(st.just(()), texts)), min_size=1, max_size=8))
def test_scores_of_a_trie_are_those_of_one_text_at_a_time(name, batch):
    foreign = read(MODELS / name)
    tokenizer = LetterTokenizer()
    tokenizer.size = foreign.decoder.vocabulary_size
    config = UnitConfig(foreign.decoder, (1, 2), 3)
    model = make_model(config, foreign.tensors, tokenizer, context_cache_bytes=1 << 16)
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    for _ in range(2):  # the second time, contexts are cached
        found = model.score(trie).sum_paths(trie)
        expected = [score_alone(model, config, *pair) for pair in batch]
        np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """An imported LSTM."""
    folder = tmp_path_factory.mktemp("imported") / "units"
    import_model(read(MODELS / "espnet-lstm"), folder, [("the", "cat", "sat")])
    return folder


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_recurrent_networks_have_other_precisions(imported, dtype):
    trie = build_trie([("the", "cat", "sat"), ("a", "dog")])
    exact = load_unit_model(imported).score(trie).sum_paths(trie)
    try:
        model = load_unit_model(imported, dtype=dtype)
    except ConfigError as error:
        pytest.skip(str(error))
    np.testing.assert_allclose(model.score(trie).sum_paths(trie), exact, rtol=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": {"kind": "lstm"}}, "missing 4 required"),
        ({"decoder.kind": "rnn"}, "kind is 'rnn'; expected one of lstm, gru, elman"),
        ({"decoder.layers": 10**6}, "layers is 1000000"),
        ({"decoder.blocks": [0]}, "the size of a block is 0"),
        ({"decoder.embedding_size": 9}, r"embedding.weight is 15×8; expected 15×9"),
        ({"units": ["<unk>"]}, "1 units; expected 15"),
        ({"units": "all"}, "'units' is invalid"),
        ({"units": ["<unk>"] * 15}, "has '<unk>' twice"),
        ({"units": [str(number) for number in range(15)]}, "has no <unk>"),
        ({"units": ["<unk>", *map(str, range(14))]}, "only 1 of the 22 units of the tokenizer"),
    ],
)
def test_refuses_damaged_folders(imported, tmp_path, change, message):
    folder = Path(shutil.copytree(imported, tmp_path / "units"))
    values = json.loads((folder / "config.json").read_text())
    for key, value in change.items():
        *outer, last = key.split(".")
        (values[outer[0]] if outer else values)[last] = value
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(BundleError, match=message):
        load_unit_model(folder)


def edit(folder, file, old, new):
    """Replace a text in a file of a folder."""
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "message"),
    [
        ("espnet-lstm", "config.yaml", "lm: seq_rnn", "lm: transformer_opt", "lm is 'transformer_opt'"),
        ("espnet-lstm", "config.yaml", "nhid: 12", "rnn_type: sru", "rnn_type is 'sru'"),
        ("espnet-lstm", "config.yaml", "nhid: 12", "rnn_type: gru", "weight_ih_l0 is 48×8; expected 36×8"),
        ("espnet-lstm", "config.yaml", "- ▁the\n", "", "token_list has 14 units, but .* has 15"),
        ("espnet-lstm", "config.yaml", "token_list:\n", "token_list: 3\nx:\n", "'token_list' is not a list"),
        ("espnet-lstm", "config.yaml", "token_type: bpe", "token_type: phn", "token_type is 'phn'"),
        ("espnet-gru", "config.yaml", "- m\n", "- n\n", "has a unit twice"),
        ("espnet-gru", "config.yaml", "lm:", "lm: [", "cannot be read as YAML"),
        ("espnet-transformer", "config.yaml", "head: 4", "head: 3", "heads does not divide 16 values"),
        ("espnet-transformer", "config.yaml", "head: 4", "pos_enc: rel", "pos_enc is 'rel'"),
        ("speechbrain-after", "hyperparams.yaml", "nn.GELU", "nn.Tanh", "the activation is 'Tanh'"),
        ("speechbrain-after", "hyperparams.yaml", "TransformerLM\n", "Other\n", "no TransformerLM, whose"),
        ("speechbrain-after", "hyperparams.yaml", "nhead:", "attention_type: RoPEMHA\n    n:", "regularMHA"),
    ],
)  # fmt: skip
def test_refuses_settings_that_it_cannot_read_exactly(tmp_path, name, file, old, new, message):
    folder = Path(shutil.copytree(MODELS / name, tmp_path / name))
    edit(folder, file, old, new)
    with pytest.raises(BundleError, match=message):
        read(folder)


def test_finds_checkpoints_and_tokenizers_as_their_users_do(tmp_path):
    folder = tmp_path / "exp" / "espnet-lm"
    shutil.copytree(MODELS / "espnet-lstm", folder)
    expected = read(folder)
    (tmp_path / "data" / "token_list").mkdir(parents=True)
    (folder / "bpe.model").rename(tmp_path / "data" / "token_list" / "bpe.model")
    assert read(folder).tokenizer == expected.tokenizer
    (folder / "valid.loss.ave.pth").rename(folder / "3epoch.pth")
    assert read(folder).source["path"] == "espnet-lm/3epoch.pth"
    shutil.copyfile(folder / "3epoch.pth", folder / "4epoch.pth")
    with pytest.raises(BundleError, match=r"name one of its checkpoints .*\(found: 3epoch.pth, 4epoch.pth\)"):
        read(folder)
    assert read_source("espnet", folder / "4epoch.pth").source["path"] == "espnet-lm/4epoch.pth"
    named = (tmp_path / "data" / "token_list" / "bpe.model").rename(tmp_path / "other.model")
    with pytest.raises(ConfigError, match=r"was not found .*name its SentencePiece model by --tokenizer"):
        read_source("espnet", folder / "4epoch.pth")
    assert read_source("espnet", folder / "4epoch.pth", named).tokenizer == expected.tokenizer


@pytest.mark.parametrize("name", PEER)
def test_licences_of_all_toolkits_are_kept(name, tmp_path):
    folder = shutil.copytree(MODELS / name, tmp_path / name)
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    (folder / "LICENSE").write_text("Name us.")
    foreign = read(folder)
    assert (foreign.source["licence"], foreign.licence) == ("cc-by-4.0", b"Name us.")


def test_refuses_other_networks_with_the_reason(tmp_path):
    path = tmp_path / "epoch-1.pt"
    torch.save({"model": {"encoder.layers.0.norm": torch.zeros(3)}}, path)
    with pytest.raises(BundleError, match=r"no input_embedding.weight; .* icefall's TransformerLM"):
        read_source("icefall", path)
    with pytest.raises(BundleError, match="is a folder; name one of its checkpoints"):
        read_source("icefall", tmp_path)
    with pytest.raises(BundleError, match=r"no embedding; expected an RNNLM or TransformerLM"):
        read_source("speechbrain", path)
    with pytest.raises(BundleError, match=r"lm\.ckpt: is missing"):
        read_source("speechbrain", tmp_path)


def test_refuses_lower_case_for_a_model_of_upper_case(tmp_path):
    with pytest.raises(ConfigError, match=r"all letters of the tokenizer are upper case.*--text upper"):
        import_model(read(MODELS / "icefall"), tmp_path / "units", [("the", "cat")])


class Evil:
    def __reduce__(self):
        return print, ("code ran",)


def save(path, values):
    torch.save(values, path)
    return path


def test_runs_no_code_of_pickles(tmp_path, capsys):
    path = save(tmp_path / "evil.pth", {"lm.encoder.weight": Evil()})
    with pytest.raises(BundleError, match=r"contains Python objects .* torch\.save\(model\.state_dict\(\)"):
        Checkpoint(path)
    assert "code ran" not in capsys.readouterr().out


def test_refuses_damaged_checkpoints(tmp_path):
    whole = (MODELS / "espnet-lstm" / "valid.loss.ave.pth").read_bytes()
    path = tmp_path / "damaged.pth"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BundleError, match=r"not an archive of torch 1.6 or later, or is damaged"):
        Checkpoint(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(BundleError, match="not an archive of torch"):
        Checkpoint(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", b"\0" * (1 << 20))
    with pytest.raises(BundleError, match="its archive is compressed"):
        Checkpoint(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"nonsense")
    with pytest.raises(BundleError, match="cannot be read as a checkpoint of torch"):
        Checkpoint(path)
    with pytest.raises(BundleError, match="expected the weights of a model by name"):
        Checkpoint(save(path, [torch.zeros(2)]))


def test_refuses_tensors_that_are_larger_than_the_file(tmp_path):
    values = {"view": torch.zeros(1).expand(1 << 40), "whole": torch.zeros(3, dtype=torch.int64)}
    checkpoint = Checkpoint(save(tmp_path / "large.pth", values))
    with pytest.raises(BundleError, match="'view' claims more values than the file has"):
        checkpoint.take("view")
    with pytest.raises(BundleError, match=r"'whole' is empty or of the type torch.int64"):
        checkpoint.take("whole")
    with pytest.raises(BundleError, match="'other' is missing"):
        checkpoint.take("other")


def test_reads_no_more_than_the_file_if_a_pickle_claims_a_larger_storage(tmp_path):
    source = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, source)
    with zipfile.ZipFile(source) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in files if name.endswith("data.pkl"))
    changed = files[name].replace(b"K\x03tq", b"J\x00\x00\x00\x40tq")
    assert changed != files[name]
    path = tmp_path / "large.pth"
    with zipfile.ZipFile(path, "w") as archive:
        for other, data in files.items():
            archive.writestr(other, changed if other == name else data)
    torch.testing.assert_close(Checkpoint(path).take("a"), torch.zeros(3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a: " + "x" * MAX_LINE, "a line of more than 4,096 bytes"),
        ("[\n" * 5000, "has 5,000 brackets"),
        ("- a\n- b\n", "expected settings by name"),
        ("a: &a {b: 1}\n<<: *a\n", "cannot be read as YAML"),
        ("a: !!python/object/apply:os.system [ls]", "cannot be read as YAML"),
        ("- " * 2000, "expected settings by name|cannot be read as YAML"),
    ],
)
def test_reads_yaml_in_bounds(tmp_path, data, message):
    (tmp_path / "config.yaml").write_text(data)
    with pytest.raises(BundleError, match=message):
        read_settings(tmp_path / "config.yaml")


def command(app, *arguments):
    """Run a command; return what it prints."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_lead_from_a_folder_of_espnet_to_rescored_lists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("the cat sat\na dog sat\nthe cat sat on the mat\n" * 4)
    text = ("--validation", "text", "--normaliser", "raw")
    printed = command(train, "import", "espnet", MODELS / "espnet-lstm", "-o", "rnn", *text)
    assert "seq_rnn: 2,619 parameters" in printed
    assert "start: '<sos/eos>' was chosen" in printed
    command(train, "bundle", "toy/1", "--units", "rnn=rnn", *text)
    texts = ["the cat sat", "a dog sat", "the cat", "a log"]
    hypotheses = [{"text": text, "scores": {"acoustic": -n}} for n, text in enumerate(texts)]
    lists = [{"id": text, "reference": text, "hypotheses": hypotheses} for text in texts]
    (tmp_path / "lists.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lists))
    command(rescorer, "tune", "lists.jsonl", "--bundle", "toy/1", "--free", "lm,word", "-o", "weights.json")
    options = ("--bundle", "toy/1", "--weights", "weights.json", "-o", "rescored.jsonl")
    command(rescorer, "rescore", "lists.jsonl", *options)
    found = json.loads((tmp_path / "rescored.jsonl").read_text().splitlines()[0])
    (best,) = (one for one in found["hypotheses"] if one["text"] == "the cat sat")
    assert best["components"]["rnn"] == pytest.approx(PEER["espnet-lstm"]["the cat sat"], abs=1e-3)


def test_a_tokenizer_is_named_for_toolkits_without_one_only(tmp_path):
    (tmp_path / "text").write_text("the cat\n")
    options = ("-o", tmp_path / "units", "--validation", tmp_path / "text", "--tokenizer", "bpe.model")
    with pytest.raises(ConfigError, match="--tokenizer is not for hf"):
        command(train, "import", "hf", tmp_path, *options)
    (tmp_path / "text").write_text("\n")
    with pytest.raises(
        ConfigError, match=r"--validation .*text has no words; expected one sentence per line"
    ):
        command(train, "import", "hf", *options[:-2], MODELS / "espnet-lstm")


def test_a_configuration_of_a_recurrent_network_survives_its_plain_form():
    config = RecurrentConfig("gru", 9, 4, 5, 2, blocks=(3, 2), block_activation="relu")
    assert RecurrentConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "message"),
    [
        ("espnet-lstm", "lm.rnn.weight_hh_l1", (48, 11), "weight_hh_l1 is 48×11; expected 48×12"),
        ("espnet-lstm", "lm.rnn.bias_hh_l1", (0,), "'rnn.bias_hh_l1' is empty"),
        ("espnet-lstm", "lm.decoder.weight", (15, 12, 1), "output.weight is 15×12×1; expected 15×12"),
        (
            "espnet-transformer",
            "lm.encoder.embed.0.weight",
            (17, 8),
            "'encoder.embed.0' and 'decoder' have other",
        ),
        ("espnet-transformer", "lm.encoder.embed.0.bias", (3,), "tensors do not fit each other"),
        ("espnet-transformer", "lm.encoder.embed.1.weight", (3,), "tensors do not fit each other"),
        ("espnet-transformer", "lm.encoder.encoders.1.self_attn.linear_k.weight", (3, 5), "do not fit each"),
        ("espnet-transformer", "lm.encoder.encoders.1.norm1.weight", (17,), "attention_norm.weight is 17"),
        ("speechbrain-gru", "dnn.norm_0.norm.bias", (3,), "blocks.1.norm.bias is 3; expected 10"),
        ("speechbrain-gru", "rnn.rnn.weight_hh_l0", (12, 12), "neither those of an LSTM nor of a GRU"),
        ("speechbrain-before", "embedding_proj.w.weight", (16, 7), "do not fit each other"),
        ("speechbrain-before", "positional_encoding.pe", (2, 40, 16), "positions.weight is"),
    ],
)
def test_refuses_tensors_of_other_shapes(tmp_path, name, tensor, shape, message):
    folder = Path(shutil.copytree(MODELS / name, tmp_path / name))
    (file,) = (
        path for path in folder.iterdir() if path.suffix in (".pth", ".ckpt") and "tok" not in path.name
    )
    tensors = torch.load(file, weights_only=True)
    assert tensor in tensors
    torch.save(tensors | {tensor: torch.zeros(shape)}, file)
    with pytest.raises(BundleError, match=message):
        read(folder)
