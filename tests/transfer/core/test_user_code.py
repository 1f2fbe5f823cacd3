"""Users' files, and the files that they import: in their digest, in an export, and in what has changed."""

import os
import sys
from pathlib import Path

import pytest
import torch

from backbones.attention import ATTENTIONS
from backbones.backbone import create
from backbones.ffn import FFNS
from backbones.spec import BackboneSpec
from backbones.stems import STEMS
from backbones.weights.export import export
from transfer.core import user_code
from transfer.core.errors import UsageError, UserError
from transfer.core.exports import PRETRAIN
from transfer.core.user_code import file_digest, imported_files


def test_names_read_from_the_source_are_those_of_the_tables():
    assert user_code.builtin_names("attention") == tuple(ATTENTIONS)
    assert user_code.builtin_names("ffn") == tuple(FFNS)
    assert user_code.builtin_names("stem") == tuple(STEMS)


def test_looked_for_beside_the_yaml_and_then_in_the_working_directory(tmp_path, monkeypatch):
    folder, cwd = tmp_path / "a", tmp_path / "b"
    for place, content in ((folder, "X = int"), (cwd, "X = float")):
        place.mkdir()
        (place / "mine.py").write_text(content)
    monkeypatch.chdir(cwd)
    assert user_code.load_part(user_code.locate("mine.py:X")) is float
    assert user_code.load_part(user_code.locate("mine.py:X", folder)) is int
    (folder / "mine.py").unlink()
    assert user_code.load_part(user_code.locate("mine.py:X", folder)) is float
    with pytest.raises(UsageError, match=rf"file not found: {folder}/other.py and {cwd}/other.py"):
        user_code.locate("other.py:X", folder)


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("class Stem: pass", UsageError, "'Stam' not found in this file; did you mean 'Stem'"),
        ("Stam = 3", UsageError, "neither a class nor a function"),
        ("x = 1\n\ny = 1 / 0\n", UserError, "failed at line 3: ZeroDivisionError"),
        ("x = 1\ndef f(:\n", UserError, r"failed: SyntaxError: .* \(mine.py, line 2\)"),
    ],
)
def test_errors(content, kind, said, tmp_path):
    (tmp_path / "mine.py").write_text(content)
    with pytest.raises(kind, match=said):
        user_code.load_part(f"{tmp_path}/mine.py:Stam")


def test_a_record_has_no_file_imported_that_the_user_has_not_named(tmp_path: Path) -> None:
    file = tmp_path / "my own.py"
    file.write_text(f"X = int  # {tmp_path}")
    recorded = {"name": "tiny", "arch": "vit_tiny", "stem": f"{file}:X"}
    with pytest.raises(UserError, match=rf"{file}:X: only the record names this .*--trust-code '{file}:X'`"):
        BackboneSpec.from_dict(recorded)
    user_code.load_part(f"{file}:X")
    assert BackboneSpec.from_dict(recorded).stem == f"{file}:X"
    file = file.rename(tmp_path / "moved.py")  # known by its content
    recorded["stem"] = f"{file}:X"
    assert BackboneSpec.from_dict(recorded).stem == f"{file}:X"
    file.write_text("X = float  # changed")
    with pytest.raises(UserError, match="only the record names"):
        BackboneSpec.from_dict(recorded)
    user_code.allow(f"{file}:X")
    assert BackboneSpec.from_dict(recorded).stem == f"{file}:X"


STEM = """
import torch
from helper import act
from torch import nn


class Stem(nn.Module):
    def __init__(self, dim, patch):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x):
        return act(self.proj(x))
"""


def test_those_beside_it_and_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "mine/stem.py": "import os, numpy, backbones.stems\nfrom parts.inner import act\nimport one",
        "mine/parts/__init__.py": "from .other import x",
        "mine/parts/inner.py": "",
        "mine/parts/other.py": "",
        "work/one.py": "import mine_too, stem",
        "work/mine_too.py": "import one",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path / "work")
    found = [str(path.relative_to(tmp_path.resolve())) for path in imported_files(tmp_path / "mine" / "stem.py")]
    inside = ["mine/parts/__init__.py", "mine/parts/inner.py", "mine/parts/other.py"]
    assert found == [*inside, "work/mine_too.py", "work/one.py"]


def test_an_export_has_their_copies_and_prefers_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    (tmp_path / "helper.py").write_text("from torch.nn.functional import relu as act\n")
    (stem := tmp_path / "my_stem.py").write_text(STEM)
    model = create("tiny", stem=f"{stem}:Stem", weights="random").eval()
    (tmp_path / "helper.py").write_text("from torch.nn.functional import gelu as act\n")
    folder = export(model, tmp_path / "weights", {PRETRAIN: {"run": "a"}})  # as they were imported
    assert file_digest(folder / "my_stem.py") == model.spec.files["stem"] != file_digest(stem)
    create("tiny", stem=f"{stem}:Stem", weights="random")  # another module `helper` is imported now
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(create(str(folder)).eval()(images), model(images))
    with pytest.raises(UserError, match="the file of stem has changed since they were trained"):
        create("tiny", stem=f"{stem}:Stem", weights=str(folder))


def test_a_helper_that_was_edited_is_imported_anew_whatever_its_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_helper", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "mine.py").write_text("import my_helper\n\n\ndef f():\n    return my_helper.VALUE\n")
    helper = tmp_path / "my_helper.py"
    helper.write_text("VALUE = 1\n")
    before, state = user_code.load_part(f"{tmp_path}/mine.py:f"), helper.stat()
    assert [*tmp_path.glob("__pycache__/my_helper.*")]
    helper.write_text("VALUE = 2\n")  # as many other bytes, with the same time
    os.utime(helper, ns=(state.st_atime_ns, state.st_mtime_ns))
    after = user_code.load_part(f"{tmp_path}/mine.py:f")
    assert (before(), after()) == (1, 2)
    assert user_code.load_part(f"{tmp_path}/mine.py:f") is after
    assert user_code.loaded_digest(f"{tmp_path}/mine.py:f") == user_code.digest(f"{tmp_path}/mine.py:f")
