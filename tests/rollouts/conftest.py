"""What the readers of trainers' dumps share."""

import pytest
from conftest import tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()
