"""The standard problems of the embedded policy: short stories about counting things, generated from a seed.

Somebody starts with a number of things and on each day, or in each month, gains or loses some: ``Mia has 12 apples.
On Monday she buys 4. On Tuesday she gives 5 to Tom. How many apples does Mia have now?`` has the answer 11. Every
count stays between 0 and 99, and difficulty is the number of changes.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

_MIN_STEPS, MAX_STEPS = 2, 8
_STANDARD_STEPS = (2, 4)
LARGEST_COUNT, LARGEST_AMOUNT = 99, 9
PRONOUNS = {
    "Mia": "she", "Anna": "she", "Lea": "she", "Nora": "she", "Sara": "she", "Zoe": "she",
    "Tom": "he", "Ben": "he", "Max": "he", "Leo": "he", "Omar": "he", "Jan": "he",
}  # fmt: skip
THINGS = ["apples", "books", "buttons", "cards", "coins", "marbles", "nuts", "pens", "shells", "stamps", "stones"]
GAINS, LOSSES = ["buys", "finds", "wins"], ["sells", "loses", "gives"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
]  # fmt: skip
_QUESTIONS = [
    "How many {things} does {name} have now?",
    "How many {things} does {name} have in the end?",
    "How many {things} are left?",
]
_ANSWER = re.compile(r"answer(?: is|:) (-?\d+)\.", re.IGNORECASE)
_START = re.compile(r"(\w+) has (\d+) (\w+)\.")
_CHANGE = re.compile(r"(?:On|In) (\w+) \w+ (\w+) (\d+)(?: to (\w+))?\.")
_MAX_REDRAWS = 1000

Split = Literal["test", "train"]
Kind = Literal["gain", "loss"]


@dataclass(frozen=True)
class EmbeddedProblem:
    """One word problem with its verifiable answer."""

    prompt_id: str
    prompt: str
    answer: str
    difficulty: int


@dataclass(frozen=True)
class Change:
    """One change of the count."""

    when: str
    verb: str
    amount: int
    friend: str = ""  # who is given something, or empty

    @property
    def kind(self) -> Kind:
        """Whether the count grows or shrinks."""
        return "gain" if self.verb in GAINS else "loss"

    def apply(self, count: int) -> int:
        """Return the count after the change."""
        return count + self.amount if self.kind == "gain" else count - self.amount


@dataclass(frozen=True)
class Story:
    """What a problem says."""

    name: str
    things: str
    start: int
    changes: tuple[Change, ...]

    @property
    def counts(self) -> list[int]:
        """The count at the beginning and after each change."""
        counts = [self.start]
        for change in self.changes:
            counts.append(change.apply(counts[-1]))
        return counts


def generate_problems(
    n: int,
    *,
    rng: int | np.random.Generator | None = 0,
    split: Split = "test",
    steps: int | tuple[int, int] | None = None,
    falling: bool | None = None,
) -> list[EmbeddedProblem]:
    """Generate distinct problems with their answers; the same seed gives the same problems.

    The two splits are disjoint by construction: a digest of the problem's text decides to which one it belongs (one
    problem in eight is held out), and a draw that falls into the other split is drawn again. The embedded policy was
    trained on ``"train"``.

    ``steps`` are the changes of the count: one number, or an inclusive range; ``None`` is the standard mix of 2 to 4,
    few more often than many. With ``falling``, few steps of a range are more likely than many, with linearly falling
    density.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}: ask for one problem or more.")
    if split not in ("test", "train"):
        raise ValueError(f"split must be 'test' or 'train', got {split!r}.")
    low, high = _step_range(steps)
    falling = steps is None if falling is None else falling
    generator = np.random.default_rng(rng)
    problems: dict[str, EmbeddedProblem] = {}
    redraws = 0
    while len(problems) < n:
        problem = _draw_problem(generator, _draw_steps(generator, low, high, falling))
        if problem.prompt in problems or _split_of(problem.prompt) != split:
            redraws += 1
            if redraws > _MAX_REDRAWS:
                raise ValueError(
                    f"Only {len(problems)} distinct {split} problems were found for n={n}, steps={steps}: "
                    "ask for fewer problems or for more steps."
                )
            continue
        redraws = 0
        problems[problem.prompt] = problem
    return list(problems.values())


def extract_answer(text: str) -> str | None:
    """Return the final answer of a completion, or ``None`` if it gives none.

    An answer is written ``answer is 20.`` or ``answer: 20.``; the full stop belongs to it, so that a number cut
    off at the length cap is not taken for an answer. Of several answers the last one counts. Leading zeros are
    dropped.
    """
    answers = _ANSWER.findall(text)
    if not answers:
        return None
    # Not by way of int, which refuses more than 4300 digits.
    sign, digits = ("-", answers[-1][1:]) if answers[-1].startswith("-") else ("", answers[-1])
    digits = digits.lstrip("0") or "0"
    return digits if digits == "0" else sign + digits


def _split_of(prompt: str) -> Split:
    """Return the split a problem belongs to, decided by a digest of its text."""
    return "test" if hashlib.sha256(prompt.encode()).digest()[-1] % 8 == 0 else "train"


def parse_problem(prompt: str) -> Story:
    """Return what a problem says."""
    sentences = re.findall(r"[^.?]+[.?]", prompt)
    start = _START.fullmatch(sentences[0]) if len(sentences) > _MIN_STEPS else None
    found = [_CHANGE.fullmatch(sentence.strip()) for sentence in sentences[1:-1]]
    if start is None or not all(found) or start[1] not in PRONOUNS:
        raise ValueError(f"prompt must look like 'Mia has 12 apples. On Monday she buys 4. ...', got {prompt!r}.")
    name, number, things = start.groups()
    stated = [match.groups(default="") for match in found if match]
    changes = tuple(Change(when, verb, int(amount), friend) for when, verb, amount, friend in stated)
    story = Story(name, things, int(number), changes)
    if prompt not in {_text(story, question) for question in range(len(_QUESTIONS))}:
        raise ValueError(f"prompt must be worded like those of generate_problems, got {prompt!r}.")
    return story


def _step_range(steps: int | tuple[int, int] | None) -> tuple[int, int]:
    ends = _STANDARD_STEPS if steps is None else (steps, steps) if isinstance(steps, int) else tuple(steps)
    if len(ends) != 2 or not all(isinstance(end, int) for end in ends):
        raise ValueError(f"steps is {steps!r}: give one number, or two, the low end first")
    low, high = ends
    if not _MIN_STEPS <= low <= high <= MAX_STEPS:
        raise ValueError(f"steps must lie between {_MIN_STEPS} and {MAX_STEPS}, low end first, got {steps}.")
    return low, high


def _draw_steps(generator: np.random.Generator, low: int, high: int, falling: bool) -> int:
    if falling:  # one minus a uniform draw's root
        return low + int((high - low + 1) * (1 - np.sqrt(generator.random())))
    return int(generator.integers(low, high + 1))


def _draw_problem(generator: np.random.Generator, steps: int) -> EmbeddedProblem:
    name, friend = _draw_names(generator)
    calendar = DAYS if steps <= len(DAYS) and generator.random() < 0.5 else MONTHS
    first = int(generator.integers(len(calendar)))
    start = count = int(generator.integers(5, 51))
    changes = []
    for step in range(steps):
        change, count = _draw_change(generator, calendar[(first + step) % len(calendar)], friend, count)
        changes.append(change)
    story = Story(name, _drawn(generator, THINGS), start, tuple(changes))
    prompt = _text(story, int(generator.integers(len(_QUESTIONS))))
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    return EmbeddedProblem(f"embedded-{digest[:16]}", prompt, str(count), steps)


# `generator.choice` takes the same draws as the two functions below, and several times as long.
def _drawn(generator: np.random.Generator, among: list[str]) -> str:
    return among[generator.integers(len(among))]


def _draw_names(generator: np.random.Generator) -> tuple[str, str]:
    """Draw two names by Floyd's method: the second draw stands for the last name where it repeats the first."""
    names = list(PRONOUNS)
    last = len(names) - 1
    first, second = generator.integers(last), generator.integers(last + 1)
    name, friend = names[first], names[last if second == first else second]
    return (name, friend) if generator.integers(2) else (friend, name)


def _draw_change(generator: np.random.Generator, when: str, friend: str, count: int) -> tuple[Change, int]:
    """Draw changes until one keeps the count within bounds; return it and the count after it."""
    while True:
        verb = _drawn(generator, GAINS + LOSSES)
        amount = int(generator.integers(2, LARGEST_AMOUNT + 1))
        after = count + amount if verb in GAINS else count - amount
        if 1 <= after <= LARGEST_COUNT:
            return Change(when, verb, amount, friend if verb == "gives" else ""), after


def _text(story: Story, question: int) -> str:
    pronoun = PRONOUNS[story.name]
    sentences = [f"{story.name} has {story.start} {story.things}."]
    for change in story.changes:
        when = f"{'On' if change.when in DAYS else 'In'} {change.when} {pronoun}"
        friend = f" to {change.friend}" if change.friend else ""
        sentences.append(f"{when} {change.verb} {change.amount}{friend}.")
    return " ".join([*sentences, _QUESTIONS[question].format(things=story.things, name=story.name)])
