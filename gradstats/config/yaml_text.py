"""YAML as people write it; repeated keys, of which readers keep the last, and exploding documents are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import yaml

# An experiment has some hundred values; a few lines of nested aliases can stand for billions.
_MOST_VALUES = 100_000


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<")
        for name, count in names.items():
            if count > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} is given {count} times: give it once", node.start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """Read a YAML document of plain values.

    Raises:
        yaml.YAMLError: when it is not YAML, repeats a key, or expands to more than 100,000 values.

    >>> read_yaml("{a: 1, b: [x, 2.5]}")
    {'a': 1, 'b': ['x', 2.5]}
    """
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            if _n_values(root, {}) > _MOST_VALUES:
                raise yaml.YAMLError(f"its aliases expand to more than {_MOST_VALUES:,} values: write them out")
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply, or refers to itself") from error
    except ValueError as error:  # a date that does not exist, an integer of a million digits
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error


def _n_values(node: yaml.Node, counted: dict[int, int]) -> int:
    """Count the values of a node with its aliases written out; one that contains itself has infinitely many."""
    if id(node) not in counted:
        counted[id(node)] = _MOST_VALUES + 1  # what an alias to a node that is still open stands for
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = list(node.value)
        counted[id(node)] = 1 + sum(_n_values(child, counted) for child in children)
    return counted[id(node)]
