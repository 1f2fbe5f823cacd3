"""A wheel holds every file that the packages read."""

from fnmatch import fnmatch

from setuptools.config.setupcfg import read_configuration

from transfer import ROOT


def test_every_data_file_is_package_data() -> None:
    patterns = read_configuration(ROOT / "setup.cfg")["options"]["package_data"]
    folders = [ROOT / name for name in ("backbones", "tasks", "transfer", "configs")]
    files = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*") if path.is_file()]
    data = [path for path in files if path.suffix not in (".py", ".pyc")]
    assert len(data) > 100
    missing = [
        str(path)
        for path in data
        if not any(fnmatch(path.name, pattern) for pattern in patterns.get(".".join(path.parent.parts), []))
    ]
    assert not missing
