"""A wheel holds every file that the packages read, and works without the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from transfer.core.files import ROOT

PACKAGES = ("backbones", "tasks", "transfer", "configs")


def package_files() -> list[Path]:
    """Return the files of the packages as they lie in the checkout, but for compiled ones."""
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    return [path for path in files if path.suffix != ".pyc"]


def run(*command: object, folder: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_a_wheel_runs_where_there_is_no_checkout(tmp_path: Path) -> None:
    """The environment is fresh but for the dependencies, which are those of the tests: torch has gigabytes."""
    source, work = tmp_path / "source", tmp_path / "work"
    work.mkdir()
    for name in (*PACKAGES, "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source, folder=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.rmtree(source)
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(*pip, "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, folder=tmp_path)
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    # A path file adds the dependencies; the path file of this checkout's own installation among them is not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    with ZipFile(wheel) as archive:
        assert {file.relative_to(ROOT).as_posix() for file in package_files()} <= {*archive.namelist()}
    for name in ("backbones", "tasks", "configs", "tests"):  # a user's own, beside which commands are run
        (work / name).mkdir()
        (work / name / "__init__.py").write_text("raise ImportError('this belongs to the user')")
    code = "import transfer, backbones, tasks; print(transfer.__file__, backbones.__file__, tasks.__file__)"
    place = run(python, "-c", code, folder=work)
    assert all(path.startswith(str(packages)) for path in place.split())
    smoke = ("reid", "--backbone", "tiny", "--epochs", "1", "--smoke", "--threads", "1", "--workers", "0")
    table = run(python.with_name("transfer-run"), *smoke, folder=work, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "toy_market (smoke" in table
    run(python, "-m", "transfer.report", "runs", "--smoke", "--output", "report.html", folder=work)
    assert "<style>" in (work / "report.html").read_text()
