"""The commands: help is quick and light, failures are one sentence and a non-zero exit."""

import itertools
import os
import re
import subprocess
import sys

import pytest
from command_line import run

import gradstats
from gradstats.analyses import registry
from gradstats.cli import commands
from gradstats.cli.commands import COMMANDS, GROUPS, unexpected
from gradstats.cli.options import REGISTRY, without_markup

#: Options of a command that help shows before the advanced ones, ``--help`` included, at most.
FEW = 14


def options_in_help(monkeypatch, capsys, command):
    """What help says of each option, by the heading of its group: `` options``, below it ``  --out PATH  the file``."""
    groups = {}
    for line in run(monkeypatch, capsys, *command.split(), "--help")[1].splitlines():
        if re.match(r" \w", line):
            groups[line.strip()] = entries = []
        elif groups and re.match(r"  \S", line):
            entries.append(line)
        elif groups and line.startswith("   "):
            entries[-1] += line
    return {heading: [without_markup(text) for text in entries] for heading, entries in groups.items()}


#: Names the first step after which too much is loaded; later ones may load more.
_STEPS = """
import io, sys
from contextlib import redirect_stderr, redirect_stdout

def ended(*words):
    sys.argv = ["gradstats", *words]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try: commands.main()
        except SystemExit as stop: return stop.code, " ".join(said.getvalue().split())
    return 0, ""

def light(step, *heavy):
    # What lazy_loader stands for is in sys.modules, of another type until it is used.
    found = [name for name in heavy if type(sys.modules.get(name)) is type(sys)]
    if found: sys.exit(f"{step} loads {found}")

from gradstats.cli import commands
from gradstats.analyses import registry
heavy = ("pandas", "pyarrow", "scipy.special", "scipy.linalg", "matplotlib", "torch")
unused = ("yaml", "gradstats.config.experiment", "gradstats.rollouts.trainer_dumps")
ended("--help")
light("--help", *heavy, *unused, "numpy", "pydantic", "tyro", "importlib.metadata")
for words in (["variance", "--help"], ["ask", "group_sizes", "--help"], ["run", "--help"]):
    ended(*words)
    light(words, *heavy, *unused)
asked = [["ask", name, "--help"] for name in registry.names()]
for words in [["--help"], ["ask"], *([name, "--help"] for name in commands.COMMANDS), *asked]:
    ended(*words)
    light(words, *heavy)
from gradstats import estimators
estimators.get("recipe:grpo"), estimators.get("rloo")
light("a look at names", *heavy)
for words in (
    ["variance", "absent", "--estimators", "rlo"],
    ["ask", "absent", "group_sizes", "rlo"],
    ["ask", "absent", "shift", "rlo"],
    ["ask", "absent", "curve", "rlo", "alpha=0:1:3"],
    ["run", "embedded", "--dry-run", "--set", "variance.estimators=[rlo]"],
):
    code, said = ended(*words)
    if code != 1 or "no estimator is called 'rlo': did you mean 'rloo'?" not in said: sys.exit(f"{words}: {said}")
    light(words, "torch", "scipy.special", "matplotlib", "huggingface_hub")
import gradstats, gradstats.rollouts, gradstats.measurement, gradstats.stats, gradstats.plots, gradstats.data
import gradstats.runs.pipeline
gradstats.fit_length_scaling, gradstats.compare, gradstats.plot_variance
light("the package", "torch", "transformers")
"""


def test_help_misspelt_names_and_imports_load_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", _STEPS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_help_shows_the_commands_in_groups_and_the_nearest_is_proposed(
    answered, refused, monkeypatch, capsys, tmp_path
):
    for words in ([], ["--help"], ["-h"]):
        out = answered(*words)
        assert max(map(len, out.splitlines())) <= 80
        assert len(out.splitlines()) <= 25
        for group, questions in GROUPS.items():
            assert f"\n  {group:<6}{next(iter(questions))} " in out
            assert all(question in out for _, question in questions.values())
    assert sum(map(len, GROUPS.values())) <= 15
    assert "there is no command 'varaince': did you mean variance?" in refused("varaince", "x")
    assert "did you mean" not in run(monkeypatch, capsys, "zzz")[2]
    functions = tmp_path / "sound_functions.py"
    functions.write_text("x = 3")
    _, _, err = run(monkeypatch, capsys, "certify", f"{functions}:x")
    assert "is of type int, not a function" in " ".join(err.split())
    assert "did you mean" not in err
    assert "it is a question, gradstats ask RUN profile; " in run(monkeypatch, capsys, "profile", "x")[2]


@pytest.mark.parametrize(
    ("command", "first", "advanced"),
    [
        ("run", "--set", "--workers"),
        ("measure", "--metric", "--token-probes"),
        ("export", "--venue", "--siunitx"),
        ("ask curve", "--reference", "--n-resamples"),
    ],
)
def test_options_that_few_need_are_in_a_group_at_the_end_of_the_help(monkeypatch, capsys, command, first, advanced):
    groups = options_in_help(monkeypatch, capsys, command)
    assert list(groups)[-1] == "advanced options"
    for group, option in {"options": first, "advanced options": advanced}.items():
        assert [name for name in groups if any(text.startswith(option) for text in groups[name])] == [group]


@pytest.mark.parametrize("command", [*sorted(COMMANDS.keys() - {"ask"}), *(f"ask {one}" for one in registry.names())])
def test_help_begins_with_few_options_and_leaves_none_out(monkeypatch, capsys, command):
    groups = options_in_help(monkeypatch, capsys, command)
    lines = run(monkeypatch, capsys, *command.split(), "--help")[1].splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("`" in line or "{None}" in line for line in lines)
    monkeypatch.setattr(REGISTRY, "_struct_rules", [])
    by_tyro = options_in_help(monkeypatch, capsys, command)
    assert set(by_tyro) <= {"positional arguments", "options"}
    assert len(groups["options"]) <= FEW
    assert sorted(itertools.chain(*groups.values())) == sorted(itertools.chain(*by_tyro.values()))
    assert not any("(required)" in text for text in groups.get("advanced options", []))


_ESTIMATORS = r"gradstats list estimators shows them"


@pytest.mark.parametrize(
    ("command", "choices"),
    [
        ("run", {"reward": "exact, math, reasoning_gym, embedded", "executor": "{local,ray}"}),
        ("export", {"venue": "{icml,neurips,iclr,colm,acl,jmlr,slide}", "formats": "{pdf,svg,png,pgf}"}),
        ("variance", {"estimators": _ESTIMATORS, "reference": _ESTIMATORS, "target": "{auto,on_policy,importance}"}),
        ("ask curve", {"reference": _ESTIMATORS}),
    ],
)
def test_help_lists_the_choices_of_an_option(monkeypatch, capsys, command, choices):
    groups = options_in_help(monkeypatch, capsys, command).values()
    said = [" ".join(one.replace("│", " ").split()) for one in itertools.chain(*groups)]
    for option, text in choices.items():
        assert any(one.startswith(f"--{option} ") and text in one for one in said), (option, said)


#: Words before the cursor → some of what completes the last of them; nothing where files do.
_COMPLETED = {
    "var": ["variance"], "run --exec": ["--executor"], "run --executor r": ["ray"], "report runs/": [],
    "ask runs/e length_b": ["length_bins"], "ask runs/e curve --targ": ["--target"],
    "plan runs/e --ref": ["--reference"],
    "export runs/e --formats s": ["svg"],
}  # fmt: skip
_COMPLETE = """
source "$1"; complete -p gradstats
while IFS= read -r line; do
  read -r -a COMP_WORDS <<< "gradstats $line"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _gradstats; echo "${COMPREPLY[*]}"
done
"""


def test_bash_completes_commands_questions_options_and_choices(monkeypatch, capsys, tmp_path):
    code, script, _ = run(monkeypatch, capsys, "--print-completion", "bash")
    (tmp_path / "script").write_text(script)
    assert (code, subprocess.run(["bash", "-n", tmp_path / "script"], check=False).returncode) == (0, 0)
    done = subprocess.run(
        ["bash", "-c", _COMPLETE, "bash", tmp_path / "script"],
        input="\n".join(_COMPLETED) + "\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    first, *completed = done.stdout.splitlines()
    assert (first, done.stderr) == ("complete -o default -F _gradstats gradstats", "")
    assert dict(zip(_COMPLETED, map(str.split, completed), strict=True)) == _COMPLETED


def test_other_shells_have_a_script_and_of_unknown_ones_the_known_are_named(answered, refused):
    for shell in ("zsh", "fish"):
        script = answered("--print-completion", shell)
        assert all(command in script for command in COMMANDS)
    for words in ((), ("ksh",), ("bash", "zsh")):
        said = f"--print-completion is {' '.join(words)!r}: choose one of bash, zsh, fish"
        assert said in refused("--print-completion", *words)


def test_every_public_name_can_be_had():
    for name in gradstats.__all__:
        assert getattr(gradstats, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        gradstats.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["alpha", "absent.csv"], "absent.csv does not exist"),
        (["run", "absent.yaml"], "there is no experiment file absent.yaml"),
        (["variance", "absent"], "absent does not exist: name a run directory or a measurement folder"),
        (["variance", __file__], "is a file: name a run directory or a measurement folder"),
        (["alpha", "."], "the folder . holds no measurement: run `gradstats measure` or `run` first"),
        (["alpha", __file__], "and sq_norm, a run directory or a measurement folder"),
        (["run", "embeded"], "did you mean embedded? `gradstats list` and `gradstats list sweeps` show those that do"),
        (["run", "embedded", "--set", "prompts.n=null"], "prompts: n is missing: 'embedded' generates its problems"),
        (["check", "absent.gguf"], "the GGUF file absent.gguf does not exist"),
        (["measure", "embedded", "--rollouts", "absent", "--out", "m"], "rollouts file absent does not exist"),
        (["sample", "embedded", "--prompts", "absent", "--out", "x.parquet"], "source 'absent' is not known: give"),
        (["export", "absent"], "is not a run directory"),
        (
            ["sample", "./absent", "--prompts", "embedded", "--n", "2", "--out", "x.parquet"],
            "the model folder ./absent",
        ),
    ],
)
def test_missing_things_end_in_one_sentence(monkeypatch, capsys, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradstats.load_policy", lambda *_, **__: pytest.fail("the policy was loaded first"))
    monkeypatch.setattr("gradstats.policy.load_policy", gradstats.load_policy)
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 1
    assert message in err
    assert len(err) < 300
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


def test_of_a_folder_that_is_missing_the_nearest_is_proposed(monkeypatch, capsys, tmp_path):
    (tmp_path / "runs" / "embedded" / "measurement").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for words in (["ask", "runs/embeded", "variance"], ["alpha", "runs/embeded"], ["report", "runs/embeded/"]):
        code, _, err = run(monkeypatch, capsys, *words)
        assert (code, err.partition("; did you mean ")[2]) == (1, "runs/embedded?\n")
    assert "did you mean" not in run(monkeypatch, capsys, "variance", "runs/other")[2]
    (tmp_path / "runs" / "embedded" / "experiment.yaml").touch()
    assert "a folder of runs: name one of them, as in runs/embedded" in run(monkeypatch, capsys, "alpha", "runs")[2]
    (tmp_path / "embedded").mkdir()
    assert run(monkeypatch, capsys, "run", "embeded")[2].count("did you mean") == 1


def test_a_question_before_its_run_is_put_in_order(refused, monkeypatch, capsys, tmp_path):
    (tmp_path / "pilot").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "the run comes first: gradstats ask pilot allocation" in refused("ask", "allocation", "pilot")
    assert "there is no question 'other'" in run(monkeypatch, capsys, "ask", "allocation", "other")[2]


@pytest.mark.parametrize("word", ["bun", "undl", "embedded"])
def test_no_folder_is_proposed_for_what_a_message_does_not_name(monkeypatch, capsys, tmp_path, word):
    """The command, and letters inside a word, are no paths that somebody gave."""
    said = ValueError("a run in another folder than runs/bundle")
    for name in ("runs", "bundle"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "dispatch", lambda _words: (_ for _ in ()).throw(said))
    assert run(monkeypatch, capsys, "run", word) == (1, "", f"gradstats: {said}\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt(), 130, "finished work is kept"), (BrokenPipeError(32, "Broken pipe"), 1, "Broken pipe")],
)
def test_an_interrupt_says_that_nothing_is_lost_and_a_broken_pipe_within_is_an_error(
    monkeypatch, capsys, error, code, said
):
    def raising(*_args, **_options):
        raise error

    monkeypatch.setattr("gradstats.config.experiment.load_experiment", raising)
    ended, _, err = run(monkeypatch, capsys, "run", "embedded")
    assert (ended, said in err) == (code, True)


def test_tracebacks_on_request(monkeypatch, capsys):
    monkeypatch.setenv("GRADSTATS_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        run(monkeypatch, capsys, "alpha", "absent.csv")


@pytest.mark.parametrize("what", ["estimators", pytest.param("schema", marks=pytest.mark.slow)])
def test_a_reader_that_has_seen_enough_is_not_an_error(what):
    reading, writing = os.pipe()
    os.close(reading)
    code = f"import sys; sys.argv = ['gradstats', 'list', '{what}']; from gradstats.cli.commands import main; main()"
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, check=False, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_kind_of_error_and_the_way_to_its_traceback_are_stated():
    assert unexpected(ZeroDivisionError("division by zero")).startswith("ZeroDivisionError: division by zero: ")
    assert "GRADSTATS_TRACEBACK=1" in unexpected(AttributeError("x"))
    assert unexpected(MemoryError()).startswith("memory ran out: use fewer or shorter sequences")
