"""The chains of thought that the embedded policy learns to imitate.

A trace follows the story from change to change and keeps a running count. Every sentence can be said in several
equally good ways, drawn independently with one favourite, so that there is something to choose all along the trace. A
trace is in one of three moods. A *brisk* one writes little more than what happens and the arithmetic, a *plain* one is
wordier, a *muddled* one hesitates, begins with the wrong day and loses the thread. A mood usually lasts.

A step is worked out exactly or roughly (``roughly 24 - 5 = 18``). Rough results are often wrong, and rough steps are
most frequent in the muddled mood, so that at equal difficulty longer traces are less often right, by construction. Now
and then a step, a doubt or a check is misread, as another change's or with a wrong count, and nobody notices. A rough
step may be doubted and worked out again, any step may be checked by its inverse, a muddled trace may start over:
errors that are noticed are corrected in the text.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from gradstats.prompts.embedded import DAYS, LARGEST_COUNT, PRONOUNS, Change, Story

TRACE_CAP = 400  # tokens; a longer trace is cut and has no end token
LATEST_RESTART = 240  # tokens from which on no trace starts over, so that few are cut
_SENTENCE = re.compile(r"[.?] [a-z]")
# A word, a digit or a sign with the space before it; two-digit numbers are two tokens.
PIECE = re.compile(r" ?[A-Za-z']+| ?\d| ?[^\w\s]|\s")

Mood = Literal["brisk", "plain", "muddled"]
MOODS: tuple[Mood, ...] = ("brisk", "plain", "muddled")

STARTS = {
    "brisk": ["Start: {count}.", "First {count}.", "At first {count} {things}."],
    "plain": [
        "{who} starts with {count} {things}.",
        "To begin with, {who} has {count}.",
        "We start with {count} {things}.",
        "At the beginning there are {count} {things}.",
    ],
    "muddled": [
        "Okay, let me think. {who} has {count} {things}.",
        "Hmm, so there are {count} {things} at first.",
        "Well, let me see, {who} has {count} {things} first of all.",
        "Right, what do we know? {who} starts with {count}.",
    ],
}
LEADS = {
    "brisk": ["{when}", "Then {when}", "{at} {when}", "Next {when}"],
    "plain": ["{at} {when}", "Then {at} {when}", "Next, {at} {when}", "After that, {at} {when}"],
    "muddled": [
        "Hmm, {at} {when}",
        "Okay, so {at} {when}",
        "Well, let me see, {at} {when}",
        "Now what, I think {at} {when}",
    ],
}
MORE = {"gain": ["", " more"], "loss": ["", " of them"]}
CONNECTORS = {
    "brisk": [":", ",", ", so"],
    "plain": [", so", ", and", ". That gives"],
    "muddled": [", so I get", ". So that is", ", and then"],
}
ROUGH = ["roughly", "quickly", "in my head"]
EXPRESSIONS = {
    "gain": ["{count} + {amount} = {result}", "{amount} + {count} = {result}", "{count} plus {amount} is {result}"],
    "loss": [
        "{count} - {amount} = {result}",
        "{count} minus {amount} is {result}",
        "{count} less {amount} is {result}",
    ],
}
INVERSES = {"gain": "{result} - {amount} = {undone}", "loss": "{result} + {amount} = {undone}"}
ENDS = [".", " {things}.", " now."]
DOUBTS = ["Wait, again:", "Hold on, is that right?", "No, more slowly:", "Let me redo that:"]
CONFIRMED = ["Yes, {result}.", "Good.", "So that was right.", "Fine, {result} it is."]
CORRECTED = [
    "So not {wrong} but {result}.",
    "Oh, {result}.",
    "So I was wrong, it is {result}.",
    "I was off, {result} it is.",
]
CHECKS = ["Check:", "To be sure,", "Backwards,", "Test:"]
CHECKED = [", good.", ", right.", ", fine.", " as before."]
REFUTED = [", which is wrong. Again:", ", not {count}. So", ", that cannot be:"]
RESTATEMENTS = [
    "So {who} has {result} {things} now.",
    "Now there are {result}.",
    "{result} {things} so far.",
    "We are at {result}.",
]
ASIDES = [
    "Let me not lose count.",
    "That is a lot of {things}.",
    "Slowly now.",
    "Where was I?",
    "One thing after the other.",
    "I like {things}, but back to the problem.",
]
FALSE_STARTS = [
    "{at} {later}, no, {when} comes first.",
    "Next is {later}, or no, {when}.",
    "{later}: wait, not yet.",
]
RESTARTS = ["Let me start over.", "I am lost, from the top.", "Again from the beginning."]
CONCLUSIONS = ["", "", "So {who} has {result} {things}.", "In the end {result} {things} are left.", "Done."]
ANSWERS = ["The answer is {result}.", "Answer: {result}.", "So the answer is {result}.", "My answer is {result}."]


@dataclass(frozen=True)
class Habits:
    """Probabilities that shape a trace, each for one occasion; triples are (brisk, plain, muddled)."""

    moods: tuple[float, float, float] = (0.42, 0.33, 0.25)
    mood_lasts: float = 0.9
    rough: tuple[float, float, float] = (0.1, 0.3, 0.9)
    slip: float = 0.45  # of a rough step
    doubt: tuple[float, float, float] = (0.4, 0.3, 0.2)  # of a rough step
    check: tuple[float, float, float] = (0.1, 0.1, 0.05)
    restate: float = 0.15
    aside: tuple[float, float, float] = (0.0, 0.08, 0.25)
    false_start: tuple[float, float, float] = (0.0, 0.0, 0.2)
    restart: tuple[float, float, float] = (0.0, 0.0, 0.2)
    misread: tuple[float, float, float] = (0.06, 0.09, 0.13)  # of whatever is read, in a step, a doubt or a check
    misjudged: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of a check: passed though wrong, or refuted though right
    miscount: float = 0.3  # of what is misread; else it is another change's verb or amount
    name: float = 0.0  # of naming the person, instead of she or he
    favourite: float = 0.5  # of saying a thing in the first of its ways; else all are equally likely


class TraceWriter:
    """Writes one chain of thought for a story."""

    def __init__(self, story: Story, rng: np.random.Generator, habits: Habits | None = None) -> None:
        self.story, self.rng, self.habits = story, rng, habits or Habits()
        self.text: list[str] = []
        self.mood: Mood = "plain"

    def write(self) -> tuple[str, bool]:
        """The trace, and whether it reaches an answer before the cap."""
        self.mood = self._draw_mood()
        self._say(STARTS[self.mood], count=self.story.start)
        counts = [self.story.start]
        while len(counts) <= len(self.story.changes):
            if self._length() > TRACE_CAP:
                return self._joined(), False
            step = len(counts) - 1
            counts.append(self._step(step, counts[-1]))
            if self._happens("restart") and self._length() < LATEST_RESTART:
                self._say(RESTARTS)
                self._say(STARTS[self.mood], count=self.story.start)
                counts = [self.story.start]
            elif not self.rng.random() < self.habits.mood_lasts:
                self.mood = self._draw_mood()
        result = counts[-1]
        self._say(CONCLUSIONS, result=result)
        self._say(ANSWERS, result=result)
        return self._joined(), True

    def _step(self, step: int, count: int) -> int:
        """Write one change of the count and what comes after it; the new count, right or wrong."""
        change, count = self._read(self.story.changes[step], count, step)
        place: dict[str, Any] = {"when": change.when, "at": "on" if change.when in DAYS else "in"}
        if step + 1 < len(self.story.changes) and self._happens("false_start"):
            self._say(FALSE_STARTS, later=self.story.changes[step + 1].when, **place)
        self._say(LEADS[self.mood], **place)
        self._say([f"{PRONOUNS[self.story.name]} {change.verb} {change.amount}"])
        if self.mood != "brisk":
            self._extend(MORE[change.kind])
        self._extend(CONNECTORS[self.mood])
        rough = self._happens("rough")
        right = result = change.apply(count)
        if rough:
            self._say(ROUGH)
            if self.rng.random() < self.habits.slip:
                result = self._slipped(right, step + 1)
        self._say(EXPRESSIONS[change.kind], change, count=count, result=result)
        self._extend(ENDS)
        return self._look_back(change, count, result, step, rough)

    def _read(self, change: Change, count: int, step: int) -> tuple[Change, int]:
        """A change and the count before it, as read: now and then another's verb or amount, or a wrong count."""
        if not self._happens("misread"):
            return change, count
        if self.rng.random() < self.habits.miscount:
            return change, self._slipped(count, step)
        other = self.story.changes[int(self.rng.integers(len(self.story.changes)))]
        taken = {"verb": other.verb, "friend": other.friend} if self.rng.random() < 0.5 else {"amount": other.amount}
        misread = replace(change, **taken)
        return (misread, count) if self._within(misread.apply(count), step + 1) else (change, count)

    def _look_back(self, change: Change, count: int, result: int, step: int, rough: bool) -> int:
        """Doubt, check, restate or digress; the count after that."""
        right = change.apply(count)
        if rough and self._happens("doubt"):
            change, count = self._read(change, count, step)
            right = change.apply(count)
            self._say(DOUBTS)
            self._say(EXPRESSIONS[change.kind], change, count=count, result=right)
            self._extend(["."])
            self._say(CONFIRMED if result == right else CORRECTED, result=right, wrong=result)
            result = right
        elif self._happens("check"):
            undone = count + result - right
            self._say(CHECKS)
            self._say([INVERSES[change.kind]], change, result=result, undone=undone)
            if (result == right) != self._happens("misjudged"):
                self._extend(CHECKED)
            else:
                self._extend(REFUTED, count=count)
                self._say(EXPRESSIONS[change.kind], change, count=count, result=right)
                self._extend(["."])
                result = right
        if self.rng.random() < self.habits.restate:
            self._say(RESTATEMENTS, result=result)
        if self._happens("aside"):
            self._say(ASIDES)
        return result

    def _slipped(self, right: int, step: int) -> int:
        """A count before a step that is one or ten off, such that all later counts stay within bounds."""
        wrong = [right + error for error in (-10, -1, 1, 10) if self._within(right + error, step)]
        return int(self.rng.choice(wrong)) if wrong else right

    def _within(self, count: int, step: int) -> bool:
        for change in (None, *self.story.changes[step:]):
            count = count if change is None else change.apply(count)
            if not 0 <= count <= LARGEST_COUNT:
                return False
        return True

    def _draw_mood(self) -> Mood:
        return MOODS[int(self.rng.choice(3, p=self.habits.moods))]

    def _happens(self, habit: str) -> bool:
        return bool(self.rng.random() < getattr(self.habits, habit)[MOODS.index(self.mood)])

    def _say(self, ways: list[str], change: Change | None = None, **values: object) -> None:
        """Write one of several ways to say a thing as the next words; a sentence begins with a capital letter."""
        said = self._filled(ways, change, values)
        if said:
            begins = not self.text or self.text[-1].endswith((".", "?"))
            said = _SENTENCE.sub(lambda found: found[0].upper(), f". {said}")[2:] if begins else said
            self.text.append(f" {said}" if self.text else said)

    def _extend(self, ways: list[str], change: Change | None = None, **values: object) -> None:
        """Write one of several ways to go on without a space."""
        self.text.append(self._filled(ways, change, values))

    def _filled(self, ways: list[str], change: Change | None, values: dict[str, object]) -> str:
        if self.habits.favourite and self.rng.random() < self.habits.favourite:
            way = ways[0]
        else:
            way = ways[int(self.rng.integers(len(ways)))]
        if "{who}" in way:
            values["who"] = self.story.name if self.rng.random() < self.habits.name else PRONOUNS[self.story.name]
        if change:
            values["amount"] = change.amount
        return way.format(things=self.story.things, **values)

    def _joined(self) -> str:
        return "".join(self.text)

    def _length(self) -> int:
        return len(PIECE.findall(self._joined()))


def write_trace(story: Story, rng: np.random.Generator, habits: Habits | None = None) -> tuple[str, bool]:
    """Write one chain of thought for a story; also say whether it reaches an answer."""
    return TraceWriter(story, rng, habits).write()
