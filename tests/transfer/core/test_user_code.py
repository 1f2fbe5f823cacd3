"""Users' files."""

from pathlib import Path

import pytest

from backbones.attention import ATTENTIONS
from backbones.ffn import FFNS
from backbones.spec import BackboneSpec
from backbones.stems import STEMS
from transfer.core import user_code
from transfer.core.errors import UsageError, UserError


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
    assert user_code.load(user_code.locate("mine.py:X")) is float
    assert user_code.load(user_code.locate("mine.py:X", folder)) is int
    (folder / "mine.py").unlink()
    assert user_code.load(user_code.locate("mine.py:X", folder)) is float
    with pytest.raises(UsageError, match=rf"file not found: {folder}/other.py and {cwd}/other.py"):
        user_code.locate("other.py:X", folder)


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("class Stem: pass", UsageError, "'Stam' not found in this file; did you mean 'Stem'"),
        ("Stam = 3", UsageError, "neither a class nor a function"),
        ("x = 1\n\ny = 1 / 0\n", UserError, "failed at line 3: ZeroDivisionError"),
        ("x = 1\ndef f(:\n", UserError, "failed at line 2: SyntaxError"),
    ],
)
def test_errors(content, kind, said, tmp_path):
    (tmp_path / "mine.py").write_text(content)
    with pytest.raises(kind, match=said):
        user_code.load(f"{tmp_path}/mine.py:Stam")


def test_a_record_has_no_file_imported_that_the_user_has_not_named(tmp_path: Path) -> None:
    file = tmp_path / "my own.py"
    file.write_text(f"X = int  # {tmp_path}")
    recorded = {"name": "tiny", "arch": "vit_tiny", "stem": f"{file}:X"}
    with pytest.raises(UserError, match=rf"{file}:X: only the record names this .*--trust-code '{file}:X'`"):
        BackboneSpec.from_dict(recorded)
    user_code.load(f"{file}:X")
    assert BackboneSpec.from_dict(recorded).stem == f"{file}:X"
    file = file.rename(tmp_path / "moved.py")  # known by its content
    recorded["stem"] = f"{file}:X"
    assert BackboneSpec.from_dict(recorded).stem == f"{file}:X"
    file.write_text("X = float  # changed")
    with pytest.raises(UserError, match="only the record names"):
        BackboneSpec.from_dict(recorded)
    user_code.allow(f"{file}:X")
    assert BackboneSpec.from_dict(recorded).stem == f"{file}:X"
