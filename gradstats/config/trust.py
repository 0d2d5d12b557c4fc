"""Which settings of a file would run code or send something of the user's, and the permission that they need.

Code runs without further permission if the user named it: on the command line, as an argument in Python, or in the
experiment file that the user points to. A run directory contains a copy of its experiment, and run directories are
passed from person to person; code named in such a copy runs only with ``--trust``. The same holds for model code and
pickled weights that any file allows, and for whatever a run directory's copy would send prompts or credentials to: a
server, a tracker, a cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

#: The environment variables of a server's key, and of its address where none is given.
API_KEY_ENV, BASE_URL_ENV = "OPENAI_API_KEY", "OPENAI_BASE_URL"
_SECRET = re.compile(r"(^|[_-])(key|token|password|secret)$", re.IGNORECASE)
_SHOWN = 80  # characters of a value in a message
#: What a run, or a sweep, writes beside its experiment.
_WRITTEN = ("rollouts", "measurement", "manifest.json", "regraded", "sweep.json")


class UntrustedCodeError(ValueError):
    """A file names code, or somewhere to send prompts or credentials, for which the user's permission is missing."""


@dataclass(frozen=True)
class NamedCode:
    """Code that a setting would run."""

    setting: str  # where it is named, such as "sampling.reward"
    value: str
    anywhere: bool = False

    def __str__(self) -> str:
        shown = self.value if len(self.value) <= _SHOWN else f"{self.value[:_SHOWN]}…"
        return f"{self.setting}={shown!r}"


@dataclass(frozen=True)
class _Destination:
    """What a setting would send somewhere, with the user's credentials."""

    setting: str
    value: str
    what: str  # as in "send prompts to example.org"


_OF_THE_PACKAGE = re.compile(r"^(recipe|trl|verl):")  # prefixes of labels that import nothing
_VALUES_OF_A_CURVE = re.compile(r"\w+=[-+.\de]+:[-+.\de]+:\d+")  # "alpha=0:2:41", which is not imported


def names_code(label: str) -> bool:
    """Return whether a label of a reward, estimator or source of problems names a function, not a built-in one.

    The test is wider than what can be imported: any colon counts, also inside the parameters of a recipe, but those of
    a curve's values.

    >>> names_code("mine:score(scale=2)"), names_code("recipe:grpo"), names_code("recipe:grpo(advantage='mine:f')")
    (True, False, True)
    >>> names_code("alpha=0:2:41"), names_code("mine:1"), names_code("trl:dapo")
    (False, True, False)
    """
    return ":" in _OF_THE_PACKAGE.sub("", label, count=1) and not _VALUES_OF_A_CURVE.fullmatch(label)


def is_received(path: Path) -> bool:
    """Return whether an experiment file lies in a run directory: such folders are passed from person to person."""
    folders = (path.parent, path.resolve().parent)
    return any((folder / name).exists() for folder in folders for name in _WRITTEN)


def refuse_untrusted(
    path: Path, settings: Mapping[str, object], given: Mapping[str, object], *, ignored: Sequence[str] = ()
) -> None:
    """Refuse an experiment file that names code or destinations for which permission is needed and missing."""
    received = is_received(path)
    allowed = set(code_named_in(given))
    needing = [
        code
        for code in dict.fromkeys(code_named_in(settings))
        if code not in allowed and code.setting not in ignored and (received or code.anywhere)
    ]
    chosen = set(_destinations_in(given))
    sent = [
        place
        for place in dict.fromkeys(_destinations_in(settings))
        if received and place not in chosen and place.setting not in ignored
    ]
    why = "a run directory may come from someone else" if received else "the file may come from someone else"
    if needing:
        also = "".join(f"; it would also {place.what}" for place in sent)  # --trust allows both
        raise UntrustedCodeError(
            f"{path} names code that would run ({', '.join(map(str, needing))}), and {why}: read that code, then "
            f"add --trust (in Python trust=True) to run it{also}"
        )
    if sent:
        named = " ".join(f"{place.setting}={_shown(place.value)}" for place in sent)
        would = ", and ".join(place.what for place in sent)
        raise UntrustedCodeError(
            f"{path} would {would}, and {why}: if you want that, name it yourself (--set {named}), or add --trust (in "
            "Python trust=True)"
        )


def _destinations_in(settings: Mapping[str, object]) -> Iterator[_Destination]:
    """Return where settings of an experiment would send prompts, results or credentials."""
    options = _at(settings, "sampling", "sampler_options")
    own = os.environ.get(BASE_URL_ENV, "").rstrip("/")
    for address in (_at(settings, "sampling", "base_url"), _at(options, "base_url")):
        if address is not None and str(address).rstrip("/") != own:
            what = f"send prompts, and the key in {API_KEY_ENV}, to {_shown(_host(str(address)))}"
            yield _Destination("sampling.base_url", str(address), what)
    variable = _at(options, "api_key_env")
    if variable not in (None, API_KEY_ENV):
        what = f"send the secret in {_shown(str(variable))} to a server"
        yield _Destination("sampling.sampler_options.api_key_env", str(variable), what)
    for setting, here, what in (
        ("tracking", "none", "log settings and results with your account at"),
        ("execution.address", "auto", "hand its work to the cluster at"),
    ):
        value = _at(settings, *setting.split("."))
        if value not in (None, here):
            yield _Destination(setting, str(value), f"{what} {_shown(str(value))}")


def written_secret(sampling: Mapping[str, object]) -> str | None:
    """Return a sentence on a credential among the settings of sampling, which a run writes to files; None without one.

    >>> written_secret({"sampler_options": {"api_key_env": "LAB_KEY"}, "base_url": "http://localhost:8000/v1"})
    >>> written_secret({"sampler_options": {"api_key": "sk-1"}})[:23]
    'sampler_options has api'
    """
    options = sampling.get("sampler_options")
    for name in options if isinstance(options, Mapping) else ():
        if _SECRET.search(str(name)):
            return (
                f"sampler_options has {name}, and settings are written to files: export it as an environment variable, "
                f"{API_KEY_ENV} or one that you name with api_key_env"
            )
    for given in (sampling.get("base_url"), _at(options, "base_url")):
        address = urlsplit(str(given or ""))
        if address.username or address.password or any(_SECRET.search(name) for name, _ in parse_qsl(address.query)):
            return (
                "base_url holds a password or key, and settings are written to files: leave it out, and export the key "
                f"as {API_KEY_ENV}"
            )
    return None


def _host(address: str) -> str:
    try:
        return urlsplit(address).netloc.rpartition("@")[2] or address
    except ValueError:
        return address


def _shown(value: str) -> str:
    """Return a value for a message: cut where it is long, control characters as codes."""
    shown = repr(value)[1:-1]
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


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
