"""Write small random models by the classes of ESPnet, SpeechBrain and icefall, and their scores of texts.

    python tests/units/write_toolkit_models.py tests/golden/units/toolkits ICEFALL

It needs espnet, typeguard, speechbrain and hyperpyyaml (``pip install --no-deps``), sentencepiece, pyyaml and
torch; ICEFALL is a folder with icefall's ``rnn_lm/model.py``. The scores are those of each toolkit's own
rescorer or language model, in float64 (SpeechBrain's normalises in float32).
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import shutil
import sys
import types
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import sentencepiece
import torch
import yaml

sys.modules["torchaudio"] = types.ModuleType("torchaudio")  # not needed for text

from espnet2.lm.espnet_model import ESPnetLanguageModel  # noqa: E402
from espnet2.lm.seq_rnn_lm import SequentialRNNLM  # noqa: E402
from espnet2.lm.transformer_lm import TransformerLM as EspnetTransformer  # noqa: E402
from espnet2.text.char_tokenizer import CharTokenizer  # noqa: E402
from espnet2.text.sentencepiece_tokenizer import SentencepiecesTokenizer  # noqa: E402
from espnet2.text.token_id_converter import TokenIDConverter  # noqa: E402
from espnet2.text.word_tokenizer import WordTokenizer  # noqa: E402
from speechbrain.decoders.scorer import RNNLMRescorer, TransformerLMRescorer  # noqa: E402
from speechbrain.lobes.models.RNNLM import RNNLM  # noqa: E402
from speechbrain.lobes.models.transformer.TransformerLM import TransformerLM  # noqa: E402
from speechbrain.nnet.RNN import GRU  # noqa: E402

TEXTS = [
    "",
    "the",
    "the cat",
    "the cat sat",
    "the cat sat on the mat",
    "a dog sat",
    "a cat on the log",
    "the é cat",
]
N_PIECES = 40
Score = Callable[[str], float]


def train_pieces(folder: Path, name: str, upper: bool, **options: object) -> Path:
    """Train a SentencePiece model on the texts."""
    texts = [text.upper() if upper else text for text in TEXTS[1:-1]] * 3
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=N_PIECES, model_type="unigram",
        normalization_rule_name="identity", hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    (folder / name).write_bytes(model.getvalue())
    return folder / name


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    """Set all parameters to random values that give uneven scores."""
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() > 1
        is_gain = not is_matrix and "norm" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=1.0 if is_gain else 0.0, std=0.3 if is_matrix else 0.2)
    return model.eval()


def write_espnet(folder: Path, lm: str, token_type: str, **shape: object) -> Score:
    """Write a folder as ESPnet's training does."""
    folder.mkdir()
    if token_type == "bpe":
        tokenizer = SentencepiecesTokenizer(train_pieces(folder, "bpe.model", upper=False))
        pieces = [tokenizer.text2tokens(text) for text in TEXTS[2:-1]]
    else:
        tokenizer = CharTokenizer() if token_type == "char" else WordTokenizer()
        pieces = [tokenizer.text2tokens(text) for text in TEXTS[1:-1]]
    distinct = sorted({piece for text in pieces for piece in text}, reverse=True)
    units = ["<blank>", "<unk>", *distinct, "<sos/eos>"]
    network = (SequentialRNNLM if lm == "seq_rnn" else EspnetTransformer)(vocab_size=len(units), **shape)
    model = randomise(ESPnetLanguageModel(network, len(units)))
    torch.save(model.state_dict(), folder / "valid.loss.ave.pth")
    config = {
        "lm": lm, "lm_conf": shape, "model_conf": {"ignore_id": 0}, "token_list": units,
        "token_type": token_type, "bpemodel": "data/token_list/bpe.model" if token_type == "bpe" else None,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True))
    converter = TokenIDConverter(units)
    exact = model.double()

    def score(text: str) -> float:
        ids = torch.tensor([converter.tokens2ids(tokenizer.text2tokens(text))], dtype=torch.int64)
        found, _ = exact.nll(ids, torch.tensor([ids.shape[1]]))
        return -float(found.sum())

    return score


def write_speechbrain(folder: Path, model: torch.nn.Module, options: str, indices: Sequence[int]) -> Score:
    """Write a folder as SpeechBrain publishes them."""
    folder.mkdir()
    bos, eos = indices
    special = {"bos_id": bos or -1, "eos_id": eos or -1, "unk_id": 0}
    pieces = train_pieces(folder, "tokenizer.ckpt", upper=True, **special)
    tokenizer = sentencepiece.SentencePieceProcessor()
    tokenizer.Load(str(pieces))
    torch.save(randomise(model).state_dict(), folder / "lm.ckpt")
    settings = f"bos_index: {bos}\neos_index: {eos}\nblank_index: 0\n{options}"
    (folder / "hyperparams.yaml").write_text(settings)
    kind = RNNLMRescorer if isinstance(model, RNNLM) else TransformerLMRescorer
    rescorer = kind(model.double(), tokenizer, device="cpu", bos_index=bos, eos_index=eos, pad_index=0)
    return lambda text: float(rescorer.rescore_hyps([[text]])[0])


def write_icefall(folder: Path, source: Path, **shape: object) -> Score:
    """Write a checkpoint and a tokenizer as icefall's recipes do."""
    folder.mkdir()
    utils = types.ModuleType("icefall.utils")
    utils.add_eos = utils.add_sos = None
    utils.make_pad_mask = lambda lengths: torch.zeros(int(lengths), dtype=torch.bool)
    sys.modules |= {"icefall": types.ModuleType("icefall"), "icefall.utils": utils}
    classes: dict[str, type] = {}
    exec((source / "rnn_lm" / "model.py").read_text(), classes)
    special = {"unk_id": 2, "bos_id": -1, "eos_id": -1, "user_defined_symbols": ["<blk>", "<sos/eos>"]}
    pieces = train_pieces(folder, "bpe.model", upper=True, **special)
    tokenizer = sentencepiece.SentencePieceProcessor()
    tokenizer.Load(str(pieces))
    model = randomise(classes["RnnLmModel"](vocab_size=tokenizer.GetPieceSize(), **shape))
    options = {"exp_dir": Path("rnn_lm") / "exp", "env_info": {"k2-version": "1"}, "batch_idx_train": 3}
    training = dict.fromkeys(("optimizer", "scheduler", "grad_scaler", "sampler"))
    torch.save({"model": model.state_dict(), **training, **options}, folder / "epoch-3.pt")
    exact = model.double()

    def score(text: str) -> float:
        units = torch.tensor([[1, *tokenizer.Encode(text), 1]])
        return -float(exact(units[:, :-1], units[:, 1:], torch.tensor([units.shape[1] - 1])).sum())

    return score


def write(folder: Path, icefall: Path) -> None:
    """Write all folders, and the scores of the texts."""
    torch.manual_seed(1)
    rnn = {"unit": 8, "nhid": 12, "nlayers": 2}
    attention = {"embed_unit": 8, "att_unit": 16, "head": 4, "unit": 20, "layer": 2}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 0}
    transformer = {"d_model": 16, "nhead": 4, "d_ffn": 20, "max_length": 40, **layers}
    described = (
        "model_size: 16\nactivation: !name:torch.nn.GELU\n"
        "lm_model: !new:speechbrain.lobes.models.transformer.TransformerLM.TransformerLM\n"
        "    d_model: !ref <model_size>\n    nhead: 4\n"
    )
    n_pieces = 24
    made: dict[str, Score] = {
        "espnet-lstm": write_espnet(folder / "espnet-lstm", "seq_rnn", "bpe", **rnn),
        "espnet-tied": write_espnet(folder / "espnet-tied", "seq_rnn", "bpe", unit=8, tie_weights=True),
        **{
            f"espnet-{kind}": write_espnet(folder / f"espnet-{kind}", "seq_rnn", "char", rnn_type=kind, **rnn)
            for kind in ("gru", "rnn_tanh", "rnn_relu")
        },
        "espnet-word": write_espnet(folder / "espnet-word", "seq_rnn", "word", unit=8, nlayers=1),
        "espnet-transformer": write_espnet(folder / "espnet-transformer", "transformer", "bpe", **attention),
        "espnet-sinusoidal": write_espnet(
            folder / "espnet-sinusoidal", "transformer", "char", pos_enc="sinusoidal", **attention
        ),
        "icefall": write_icefall(folder / "icefall", icefall, embedding_dim=8, hidden_dim=12, num_layers=2),
        "icefall-tied": write_icefall(
            folder / "icefall-tied", icefall, embedding_dim=8, hidden_dim=8, num_layers=1, tie_weights=True
        ),
    }  # fmt: skip
    small = {"embedding_dim": 8, "rnn_neurons": 12, "dnn_neurons": 10, "return_hidden": True}
    lstm = RNNLM(n_pieces, **small)
    made["speechbrain-lstm"] = write_speechbrain(folder / "speechbrain-lstm", lstm, "", (0, 0))
    gru = RNNLM(n_pieces, activation=torch.nn.ReLU, rnn_class=GRU, rnn_layers=1, dnn_blocks=2, **small)
    options = "lm: !new:speechbrain.lobes.models.RNNLM.RNNLM\n    activation: !name:torch.nn.ReLU\n"
    made["speechbrain-gru"] = write_speechbrain(folder / "speechbrain-gru", gru, options, (0, 0))
    after = TransformerLM(n_pieces, activation=torch.nn.GELU, **transformer)
    options = f"{described}    activation: !name:torch.nn.GELU\n    normalize_before: False\n"
    made["speechbrain-after"] = write_speechbrain(folder / "speechbrain-after", after, options, (1, 2))
    before = TransformerLM(n_pieces, normalize_before=True, d_embedding=8, **transformer)
    options = f"{described}    normalize_before: True\n"
    made["speechbrain-before"] = write_speechbrain(folder / "speechbrain-before", before, options, (1, 2))
    scores = {
        name: {text: finite(score(text.upper() if cased(name) else text)) for text in TEXTS}
        for name, score in made.items()
    }
    versions = {name: importlib.metadata.version(name) for name in ("espnet", "speechbrain", "torch")}
    data = json.dumps({"versions": versions, "models": scores}, indent=1, ensure_ascii=False)
    (folder / "scores.json").write_text(data + "\n", encoding="utf-8")


def finite(score: float) -> float | None:
    """A score for JSON; None for one of minus infinity."""
    return score if math.isfinite(score) else None


def cased(name: str) -> bool:
    """Whether a model reads upper-case text."""
    return not name.startswith("espnet")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with torch.no_grad():
        write(target, Path(sys.argv[2]))
