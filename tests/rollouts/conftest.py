"""What the readers of trainers' dumps share."""

from __future__ import annotations

import pytest
from conftest import tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()
