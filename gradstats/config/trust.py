"""Which settings of a file would run code, and the permission that they need.

Code runs without further permission if the user named it: on the command line, as an argument in Python, or in the
experiment file that the user points to. A run directory contains a copy of its experiment, and run directories are
passed from person to person; code named in such a copy runs only with ``--trust``. The same holds for model code and
pickled weights that any file allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SHOWN = 80  # characters of a value in a message
#: What a run, or a sweep, writes beside its experiment.
_WRITTEN = ("rollouts", "measurement", "manifest.json", "regraded", "sweep.json")


class UntrustedCodeError(ValueError):
    """A file names code that runs only with the user's permission."""


@dataclass(frozen=True)
class NamedCode:
    """Code that a setting would run."""

    setting: str  # where it is named, such as "sampling.reward"
    value: str
    anywhere: bool = False

    def __str__(self) -> str:
        shown = self.value if len(self.value) <= _SHOWN else f"{self.value[:_SHOWN]}…"
        return f"{self.setting}={shown!r}"


def names_code(label: str) -> bool:
    """Return whether a label of a reward, estimator or source of problems names a function, not a built-in one.

    The test is wider than what can be imported: any colon counts, also inside the parameters of a recipe.

    >>> names_code("mine:score(scale=2)"), names_code("recipe:grpo"), names_code("recipe:grpo(advantage='mine:f')")
    (True, False, True)
    """
    return ":" in label.removeprefix("recipe:")


def is_received(path: Path) -> bool:
    """Return whether an experiment file lies in a run directory: such folders are passed from person to person."""
    folders = (path.parent, path.resolve().parent)
    return any((folder / name).exists() for folder in folders for name in _WRITTEN)


def refuse_untrusted(
    path: Path, settings: Mapping[str, object], given: Mapping[str, object], *, ignored: Sequence[str] = ()
) -> None:
    """Refuse an experiment file that names code for which permission is needed and missing."""
    received = is_received(path)
    allowed = set(code_named_in(given))
    needing = [
        code
        for code in dict.fromkeys(code_named_in(settings))
        if code not in allowed and code.setting not in ignored and (received or code.anywhere)
    ]
    if not needing:
        return
    why = "a run directory may come from someone else" if received else "the file may come from someone else"
    raise UntrustedCodeError(
        f"{path} names code that would run ({', '.join(map(str, needing))}), and {why}: read that code, then "
        "add --trust (in Python trust=True) to run it"
    )


def code_named_in(settings: Mapping[str, object]) -> Iterator[NamedCode]:
    """Return the code that settings of an experiment name, whatever shape they have."""
    for setting, value in (
        ("sampling.reward", _at(settings, "sampling", "reward")),
        ("prompts.source", _at(settings, "prompts", "source")),
        ("variance", _at(settings, "variance")),
        ("analyses", _at(settings, "analyses")),
    ):
        yield from (NamedCode(setting, label) for label in _words(value) if names_code(label))
    if _at(settings, "sampling", "sampler") == "vllm":  # several of its options name classes
        options = _at(settings, "sampling", "sampler_options")
        yield from (NamedCode("sampling.sampler_options", word) for word in _words(options))
    for section, entries in settings.items():
        for name in ("trust_remote_code", "allow_pickle"):
            values = [value for value in _values(entries, name) if value not in (False, None)]
            yield from (NamedCode(f"{section}.{name}", str(value), anywhere=True) for value in values)


def _at(settings: object, *path: str) -> object:
    for name in path:
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings


def _words(value: object) -> Iterator[str]:
    """Yield every text in a value: alone, in a list, or as a key of a mapping."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _words(key)
            yield from _words(entry)
    elif isinstance(value, Sequence):
        for entry in value:
            yield from _words(entry)


def _values(value: object, name: str) -> Iterator[object]:
    """Return the values of every key of a name, at any depth."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if key == name:
                yield entry
            yield from _values(entry, name)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value:
            yield from _values(entry, name)
