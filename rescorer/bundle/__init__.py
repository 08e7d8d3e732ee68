"""Read, verify and publish model bundles; needs neither torch nor KenLM.

A bundle is a folder:

manifest.json          schema, name, version, sha256 of every other file, how the models were trained
text.json              normaliser settings
ngram/model.arpa.gz    or an n-gram table, or a KenLM binary
neural/                config.json, model.safetensors, vocabulary.txt
weights/default.json   stream and LM weights, λ, word and OOV terms, fingerprints of the tuning lists
reranker/NAME/         config.json, parameters.safetensors; optional
phrases/NAME.txt       names and phrases that requests can ask for, one per line; optional

``Bundle`` describes a bundle without its language models; ``model_loading`` loads the models.
"""

from rescorer.bundle.manifest import (
    MANIFEST,
    PHRASES,
    TEXT,
    WEIGHTS,
    ModelKind,
    list_phrase_files,
    list_weights_files,
    newest_version,
    read_manifest,
)
from rescorer.bundle.publishing import publish, seal
from rescorer.bundle.reading import Bundle, read_bundle, read_normaliser
from rescorer.bundle.rerankers import RERANKERS, hash_used_models, read_rerankers
from rescorer.bundle.weights import check_weights, read_weights

__all__ = [
    "MANIFEST",
    "PHRASES",
    "RERANKERS",
    "TEXT",
    "WEIGHTS",
    "Bundle",
    "ModelKind",
    "check_weights",
    "hash_used_models",
    "list_phrase_files",
    "list_weights_files",
    "newest_version",
    "publish",
    "read_bundle",
    "read_manifest",
    "read_normaliser",
    "read_rerankers",
    "read_weights",
    "seal",
]
