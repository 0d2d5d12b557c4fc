"""The user's own functions by name: where they are found, and what is never used."""

import cProfile
import json
import sys

import pytest

from gradstats.system import user_code
from gradstats.system.user_code import UserCodeError, UserLabelError, code_beside, import_function


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working directory without modules; modules of the test are forgotten afterwards."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("uc_"):
            del sys.modules[name]


def module(folder, name, text="def f():\n    return __file__\n"):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize("written", ["uc_both:f", "uc_path.py:f"])
def test_what_is_beside_the_experiment_comes_before_the_working_directory(tmp_path, written):
    name = written.removesuffix(":f").removesuffix(".py")
    module(tmp_path / "empty", name)
    beside = module(tmp_path / "beside", name)
    with code_beside(beside):
        assert import_function(written, "the reward")() == str(beside / f"{name}.py")
    assert sys.path.count(str(beside)) == 0


def test_a_module_of_the_working_directory_is_found(tmp_path):
    module(tmp_path / "empty", "uc_here")
    assert import_function("uc_here:f", "the reward")() == str(tmp_path / "empty" / "uc_here.py")


def test_a_package_without_init_gives_way_to_an_installed_one(tmp_path):
    (tmp_path / "empty" / "numpy").mkdir()
    assert import_function("numpy:median", "the reward")([1, 2, 3]) == 2
    module(tmp_path / "empty" / "uc_bare", "inner")
    assert import_function("uc_bare.inner:f", "the reward")().endswith("inner.py")


def test_the_folder_of_another_experiment_is_forgotten(tmp_path):
    with code_beside(module(tmp_path / "beside", "uc_gone")):
        pass
    with pytest.raises(UserCodeError, match="there is no module 'uc_gone' in .*empty, and none is installed"):
        import_function("uc_gone:f", "the reward")


@pytest.mark.parametrize("written", ["sub/uc_file.py:f", "./sub/uc_file.py:f", "ABSOLUTE/uc_file.py:f"])
def test_a_file_is_found_by_its_path(tmp_path, written):
    folder = module(tmp_path / "empty" / "sub", "uc_file")
    found = import_function(written.replace("ABSOLUTE", str(folder)), "the reward")
    assert found() == str(folder / "uc_file.py")
    assert import_function(written.replace("ABSOLUTE", str(folder)), "the reward") is found


IN_PYTHON = "belongs to Python's standard library|cannot be imported"
#: Names of functions → why they are not used. In the working directory are the modules of the test below.
REFUSED = {
    **dict.fromkeys(["cProfile:run", "os:system", "builtins:eval", "operator:eq", "os.path:join"], IN_PYTHON),
    "test.support:run_doctest": IN_PYTHON,
    "json:f": "belongs to Python's standard library",  # although there is a json.py
    f"{cProfile.__file__}:run": "standard library",
    f"{json.decoder.__file__}:scanstring": "standard library",
    "cProfile.py:run": "rename the file",
    f"{user_code.__file__}:look_in": "belongs to this package",
    "gradstats.system.files:remove_path": "belongs to this package",
    "sub/uc_none.py:f": r"there is no file sub/uc_none.py in .*empty",
    "/nowhere/uc_none.py:f": r"there is no file /nowhere/uc_none.py$",
    "uc_exits:f": "cannot be imported: SystemExit: 3",
    "uc_number:f": "'uc_number:f' is of type int, not a function",
    "uc_number:g": "has no attribute 'g'",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_function_of_the_users_is_refused(name, tmp_path):
    for module_name, text in (("json", "def f(): ...\n"), ("cProfile", "def run(): ...\n"), ("uc_number", "f = 3\n")):
        module(tmp_path / "empty", module_name, text)
    module(tmp_path / "empty", "uc_exits", "raise SystemExit(3)\n")
    with pytest.raises(UserCodeError, match=REFUSED[name]):
        import_function(name, "the reward")


@pytest.mark.parametrize(
    "name", ["1mine:f", "mïne:f", "mine:f.g", "mine:", ":f", "mine:f:g", "../mine:f", "mine :f", ""]
)
def test_other_forms_of_a_name_are_refused(name):
    with pytest.raises(UserLabelError, match="not of the form module:function"):
        import_function(name, "the estimator")


def test_two_files_or_modules_of_one_name_are_refused(tmp_path):
    for name in ("one", "two"):
        module(tmp_path / "empty" / name, "uc_same")
        module(tmp_path / name, "uc_twice")
    import_function("one/uc_same.py:f", "the reward")
    with pytest.raises(UserCodeError, match="another module 'uc_same' is in use already"):
        import_function("two/uc_same.py:f", "the reward")
    with code_beside(tmp_path / "one"):
        import_function("uc_twice:f", "the reward")
    with (
        code_beside(tmp_path / "two"),
        pytest.raises(UserCodeError, match="another module 'uc_twice' is in use already"),
    ):
        import_function("uc_twice:f", "the reward")
