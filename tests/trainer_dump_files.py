"""Small files as the trainers of TRL and verl write them."""

from __future__ import annotations

import json

import pandas as pd
from conftest import tiny_tokenizer

EOS = 1


def messages(text):
    return [{"role": "user", "content": text, "images": None}]


def trl_file(path, **columns):
    table = {
        "step": [1, 1, 1, 2],
        "prompt": [messages("ab"), messages("ab"), messages("cd"), messages("ab")],
        "completion": [[{"role": "assistant", "content": text}] for text in ("xy", "xyz", "x", "xyzq")],
        "accuracy": [1.0, 0.0, 1.0, 0.0],
        "advantage": [0.7, -0.7, 0.0, 0.0],
    }
    pd.DataFrame(table | columns).to_parquet(path)
    return path


def verl_file(path, rows=None):
    default = [
        {"input": "ab", "output": "xy", "gts": "3", "score": 1.0, "step": 4, "acc": True},
        {"input": "ab", "output": "xyz", "gts": "3", "score": 0.0, "step": 4, "acc": False},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in (default if rows is None else rows)))
    return path


def ids(text):
    return tiny_tokenizer()(text)["input_ids"]
