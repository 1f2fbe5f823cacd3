"""A wheel holds every file that the packages read, works without the checkout, and says what the project says."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

import transfer
from tests.documents import files_in
from transfer.core.files import ROOT

PACKAGES = ("backbones", "tasks", "transfer", "configs")


def package_files() -> list[Path]:
    """Return the files of the packages as they lie in the checkout, but for compiled ones."""
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    return [path for path in files if path.suffix != ".pyc"]


def workflow(name: str) -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text.replace("\non:", "\n'on':"))  # YAML 1.1 reads `on` as true
    return content


def test_metadata_agree() -> None:
    setup = ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    metadata = setup["metadata"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert metadata["version"] == "attr: transfer.core.__version__"
    assert changes
    assert citation["version"] == changes[1] == transfer.__version__
    assert metadata["keywords"].split(", ") == citation["keywords"]
    assert [{"name": metadata["author"]}] == citation["authors"]
    assert metadata["license"] == citation["license"]


def test_workflows_test_the_versions_of_python_that_are_declared() -> None:
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text(encoding="utf-8"))
    jobs = workflow("tests")["jobs"]
    assert jobs["newest"]["strategy"]["matrix"]["python"] == declared
    steps = [step for name in ("docs", "smoke", "tests", "wheel") for job in workflow(name)["jobs"].values()
             for step in job.get("steps", ())]  # fmt: skip
    scripts = {word for step in steps for word in step.get("run", "").split() if word.startswith(".ci/")}
    assert scripts == {".ci/oldest", ".ci/run"}
    assert all((ROOT / script).is_file() for script in scripts)
    assert jobs["smoke"]["with"].keys() <= workflow("smoke")["on"]["workflow_call"]["inputs"].keys()


def run(*command: object, folder: Path, fails: bool = False, **variables: str) -> str:
    """Run a command and return its output, or its errors if it `fails`."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False)
    assert bool(done.returncode) == fails, done.stderr
    return done.stderr if fails else done.stdout


def test_an_old_python_is_told_before_anything_else_is_read() -> None:
    ast.parse((ROOT / "transfer" / "__init__.py").read_text(encoding="utf-8"), feature_version=(3, 7))
    code = """import sys
sys.version_info = (3, 9, 0)
try:
    import transfer
except ImportError as error:
    print(error, [name for name in sys.modules if name.startswith("transfer.")])"""
    assert run(sys.executable, "-c", code, folder=ROOT).endswith("is too old: use 3.11 or newer []\n")


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def built(source: Path) -> Path:
    """Return the wheel of a source folder, which is removed."""
    run(*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", source.parent, source, folder=source.parent)
    shutil.rmtree(source)
    (wheel,) = source.parent.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("wheel") / "source"
    source.mkdir()
    for name in (*PACKAGES, "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    return built(source)


def foreign_wheel(folder: Path, code: str) -> Path:
    """Return the wheel of another project, which has a `configs`, and a `tasks` with some code."""
    source = folder / "source"
    for name, text in (("tasks", code), ("configs", "raise ImportError('another')")):
        (source / name).mkdir(parents=True)
        (source / name / "__init__.py").write_text(text)
    (source / "setup.py").write_text(
        "import setuptools; setuptools.setup(name='theirs', version='1', packages=['tasks', 'configs'])"
    )
    return built(source)


def environment(folder: Path, *wheels: Path) -> tuple[Path, Path]:
    """Return the Python and the packages' folder of an environment with wheels, installed in this order.

    It is fresh but for the dependencies, which are those of the tests: torch has gigabytes.
    """
    venv.create(folder)
    python = folder / "bin" / "python"
    for one in wheels:
        run(*PIP, "--python", python, "install", "-q", "--no-deps", "--no-index", one, folder=folder)
    (packages,) = folder.glob("lib/*/site-packages")
    # A path file adds the dependencies; the path file of this checkout's own installation among them is not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python, packages


@pytest.mark.nightly
def test_a_wheel_runs_where_there_is_no_checkout(wheel: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    # another distribution's empty `tasks` is installed later
    python, packages = environment(tmp_path / "venv", wheel, foreign_wheel(tmp_path, ""))
    with ZipFile(wheel) as archive:
        assert {file.relative_to(ROOT).as_posix() for file in package_files()} <= {*archive.namelist()}
    for name in ("backbones", "tasks", "configs", "tests"):  # a user's own, beside which commands are run
        (work / name).mkdir()
        (work / name / "__init__.py").write_text("raise ImportError('this belongs to the user')")
    code = "import transfer, backbones, tasks; print(transfer.__file__, backbones.__file__, tasks.__file__)"
    place = run(python, "-c", code, folder=work)
    assert all(path.startswith(str(packages)) for path in place.split())
    (work / "my_stem.py").write_text(files_in("docs/adding-a-part.md")["my_stem.py"])
    variables = {"PATH": f"{python.parent}:{os.environ['PATH']}", "BACKBONE": "tiny --stem my_stem.py:MyStem"}
    variables |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    (job,) = workflow("smoke")["jobs"].values()
    steps = [step["run"] for step in job["steps"] if not step.get("run", "pip").startswith("pip")]
    tables = [run("bash", "-ec", step, folder=work, **variables) for step in steps]
    assert "toy_market (smoke" in tables[1]
    assert "<style>" in (work / "report.html").read_text()


@pytest.mark.nightly
def test_another_package_of_our_names_leaves_the_commands_or_is_named_in_one_line(wheel: Path, tmp_path: Path) -> None:
    theirs = foreign_wheel(tmp_path, "import celery_of_theirs")
    python, packages = environment(tmp_path / "ours_last", theirs, wheel)
    version = f"vit-transfer {transfer.__version__}"
    for command in ("transfer-run", "transfer"):
        assert run(python.with_name(command), "--version", folder=tmp_path).startswith(version)
    assert run(python.with_name("transfer"), "run", "--list", "tasks", folder=tmp_path).split()[0] == "classify"

    run(*PIP, "--python", python, "uninstall", "-q", "-y", "theirs", folder=tmp_path)  # takes tasks/__init__.py along
    assert "argument" in run(python, "-m", "transfer.predict", folder=tmp_path, fails=True)
    python, packages = environment(tmp_path / "theirs_last", wheel, theirs)
    for command in ((python.with_name("transfer-run"),), (python, "-m", "transfer.run")):
        (line,) = run(*command, "reid", folder=tmp_path, fails=True).splitlines()
        assert f"{packages}/tasks/__init__.py is of another package, theirs (ModuleNotFoundError: " in line
