"""`transfer.doctor data`, and fetching archives, which the addresses of http://here/ mean in the test's folder."""

import hashlib
import io
import re
import shutil
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from transfer.data.toy import bundled_folder
from transfer.doctor.__main__ import main


def tar_of(folder: Path, inside: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as file:
        for path in sorted(folder.rglob("*")):
            file.add(path, f"{inside}/{path.relative_to(folder)}", recursive=False)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = urllib.request.urlopen
    folder = f"file://{tmp_path}"
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, **given: opened(url.replace("http://here", folder)))


def dtd_yaml(tmp_path: Path, content: bytes, *extra: str, name: str = "dtd.tar.gz") -> Path:
    """A dataset like DTD with this archive."""
    archive, file = tmp_path / name, tmp_path / "textures.yaml"
    archive.write_bytes(content)
    lines = ["format: dtd", "root: [dtd]", "counts:", "  train: {images: 120, classes: 10}", "archives:"]
    lines += [f'  - url: "http://here/{name}"', f"    sha256: {hashlib.sha256(content).hexdigest()}"]
    file.write_text("\n".join([*lines, f"    bytes: {len(content)}", *extra]) + "\n")
    return file


@pytest.fixture
def textures() -> bytes:
    return tar_of(bundled_folder("toy_dtd"), "dtd")


def fetched(tmp_path: Path, *files: Path) -> int:
    return main(["data", "--fetch", *map(str, files), "--data", str(tmp_path / "data")])


def test_a_set_is_fetched_once_and_is_complete(tmp_path, textures, capsys) -> None:
    file = dtd_yaml(tmp_path, textures)
    assert fetched(tmp_path, file) == 0
    assert "ok         textures: complete\n               train 120 images" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["dtd"]
    (tmp_path / "dtd.tar.gz").unlink()
    assert fetched(tmp_path, file) == 0
    assert main(["data", str(file), "--data", str(tmp_path / "data")]) == 0


def test_an_archive_within_another_stays_in_its_folder_and_overwrites_nothing(tmp_path, textures, capsys):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name, content in {"outer/inner.tar.gz": textures, "__MACOSX/x": b"", "../../out.txt": b"x"}.items():
            packed.writestr(name, content)
    extra = ("    inside: outer/inner.tar.gz", "    into: below")
    file = dtd_yaml(tmp_path, stream.getvalue(), *extra, name="a.zip")
    file.write_text(file.read_text().replace("root: [dtd]", "root: [below/dtd]"))
    mine = tmp_path / "data/below/dtd/mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert fetched(tmp_path, file) == 1
    assert f"{mine.parent} is in the way" in capsys.readouterr().out
    mine.unlink()
    mine.parent.rmdir()
    assert fetched(tmp_path, file) == 0
    assert (mine.parent / "labels/train1.txt").is_file()
    assert not (tmp_path / "out.txt").exists()


def test_another_file_than_the_published_one_is_refused(tmp_path, textures, capsys) -> None:
    file = dtd_yaml(tmp_path, textures)
    for damaged in (textures[:-1] + b"x", textures[:5000]):
        (tmp_path / "dtd.tar.gz").write_bytes(damaged)
        assert fetched(tmp_path, file) == 1
        assert "the download was damaged, or the file was replaced" in capsys.readouterr().out
    assert not (tmp_path / "data/dtd").exists()
    (tmp_path / "dtd.tar.gz").write_bytes(textures)
    assert fetched(tmp_path, file) == 0


def test_what_cannot_be_fetched_says_why(tmp_path, textures, capsys) -> None:
    file = dtd_yaml(tmp_path, textures)
    (tmp_path / "dtd.tar.gz").unlink()
    assert fetched(tmp_path, file) == 1
    assert "cannot be downloaded ([Errno 2] No such file" in capsys.readouterr().out
    assert main(["data", "--fetch", "cub200", "--data", str(tmp_path / "data")]) == 1
    printed = capsys.readouterr().out
    assert "must be downloaded manually (license: none stated" in printed
    assert "CUB_200_2011.tgz" in printed


def test_wrong_words(capsys, monkeypatch) -> None:
    monkeypatch.delenv("TRANSFER_DATA", raising=False)
    mistakes = {"data --fetch dtd": "--data FOLDER", "data dtdd": "did you mean 'dtd'", "dat": "did you mean 'data'"}
    for words, said in mistakes.items():
        assert main(words.split()) == 2
        assert said in capsys.readouterr().err


def test_findings_of_each_kind(tmp_path, capsys) -> None:
    data = tmp_path / "data"
    shutil.copytree(bundled_folder("toy_dtd"), data / "dtd")
    assert main(["data", "dtd", "toy_dtd", "cub200", "market1501", "--data", str(data)]) == 1
    printed = capsys.readouterr().out
    assert "INCOMPLETE dtd" in printed
    assert "train images: expected 1880, found 120" in printed
    assert "ok         toy_dtd: bundled" in printed
    assert "absent     cub200" in printed
    assert re.search(f"looked at .*{data / 'CUB_200_2011'}.*: no such folder", printed)
    assert "absent     market1501" in printed
    own = tmp_path / "own.yaml"
    own.write_text("format: dtd\nroot: [dtd]\n")
    assert main(["data", str(own), "--data", str(data)]) == 0
    assert "own: complete\n               train 120 images" in capsys.readouterr().out
