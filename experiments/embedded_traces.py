"""The chains of thought that the embedded policy learns to imitate.

A trace goes through the terms in order, one step each: label, term, the running total so far and the new one
(``c-5@25=20;``). It is calm or muddled. ``hmm `` marks a stumble, after which the trace is muddled: that step is
often wrong, later slips and re-checks (``wait ``) are more frequent, and a re-check may repeat what it finds
instead of working it out. ``check `` undoes a step and finds it ``ok;`` or ``no;``. ``wait wait `` marks a trace
that has lost its way and goes round until the cap. So, at equal difficulty, longer traces are less often right,
by construction.
"""

from dataclasses import dataclass

import numpy as np

from gradstats.prompts.embedded import LABELS

SIGNED_DIGITS = [f"{sign}{digit}" for sign in "+-" for digit in range(1, 10)]
WORDS = ["wait ", "hmm ", "check ", "answer ", "ok;", "no;", *SIGNED_DIGITS]  # one token each
TRACE_CAP = 400  # tokens; a longer trace is cut and has no end token


@dataclass(frozen=True)
class Habits:
    """Probabilities per step that shape a trace; pairs are (calm, muddled)."""

    first_stumble: float = 0.32
    stumble: float = 0.035
    slip_stumbling: float = 0.6
    slip: tuple[float, float] = (0.006, 0.06)
    recheck: tuple[float, float] = (0.05, 0.14)
    inverse_check: tuple[float, float] = (0.05, 0.08)
    repeat: float = 0.5  # a muddled re-check writes the old result again without working it out
    step_back: float = 0.5  # a re-check starts one more step back
    get_lost: float = 0.008  # of a muddled trace, once per step


def write_trace(values: list[int], rng: np.random.Generator, habits: Habits | None = None) -> tuple[str, bool]:
    """Write one chain of thought for the signed terms `values`; also tell whether it reaches an answer."""
    habits = habits or Habits()
    last = len(values) - 1
    totals: list[int] = [values[0], *[-1] * last]
    text: list[str] = []
    tokens = 0
    muddled = lost = may_repeat = False
    step = 1
    while tokens < TRACE_CAP:
        stumbling = not muddled and rng.random() < (habits.stumble if text else habits.first_stumble)
        if stumbling:
            muddled = True
            text.append("hmm ")
        if not (may_repeat and muddled and rng.random() < habits.repeat):
            slip = habits.slip_stumbling if stumbling else habits.slip[muddled]
            right = totals[step - 1] + values[step]
            totals[step] = _slipped(right, rng) if rng.random() < slip else right
        text.append(f"{LABELS[step]}{values[step]:+d}@{totals[step - 1]}={totals[step]};")
        may_repeat = False
        tokens += len(text[-1]) - 1 + stumbling
        lost = lost or (muddled and rng.random() < habits.get_lost)
        draw = rng.random()
        if lost:
            text.append("wait wait ")
            step = int(rng.integers(max(1, step - 3), step + 1)) if step < last or draw < 0.7 else 1
            may_repeat = True
            tokens += 2
            continue
        if draw < habits.inverse_check[muddled]:
            undone = totals[step] - values[step]
            text.append(f"check {totals[step]}{-values[step]:+d}={undone};")
            tokens += len(text[-1]) - len("check") - 1
            text.append("ok;" if undone == totals[step - 1] else "no;")
            if text[-1] == "no;":
                continue
        elif draw < habits.inverse_check[muddled] + habits.recheck[muddled]:
            while step > 1 and rng.random() < habits.step_back:
                step -= 1
            text.append("wait ")
            may_repeat = True
            tokens += 1
            continue
        if step == last:
            return "".join([*text, f"{LABELS[last + 1]}?answer {totals[last]}."]), True
        step += 1
    return "".join(text), False


def _slipped(right: int, rng: np.random.Generator) -> int:
    error = int(rng.choice([1, 1, 2, 10])) * (1 if rng.random() < 0.5 else -1)
    return right + error if 0 <= right + error <= 99 else right - error
