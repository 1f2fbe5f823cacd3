"""Disks that fail: one line that names the file, and says how it goes on."""

import errno
import os
from pathlib import Path

import pytest

from backbones.errors import UserError
from backbones.runtime.files import file_sha256
from backbones.runtime.machine_errors import in_one_line
from backbones.runtime.path_errors import path_error
from backbones.user_code import locate


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTCONN])
def test_a_failing_disk_is_said_with_its_file(number: int) -> None:
    reported = path_error(OSError(number, os.strerror(number), "/data/a.jpg"))
    assert isinstance(reported, UserError)
    assert str(reported).startswith(f"/data/a.jpg: the disk fails, or the connection to it ({os.strerror(number)})")
    assert "give the same command again" in str(reported)


def test_a_file_of_another_user_is_said_with_what_helps() -> None:
    reported = path_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/data/w.pth"))
    assert str(reported).startswith("/data/w.pth: this user has no permission for it; change its owner or mode")


def test_links_that_go_round_in_a_circle_are_named(tmp_path: Path) -> None:
    loop = tmp_path / "stem.py"
    loop.symlink_to(loop)
    with pytest.raises(UserError, match="symbolic links go round in a circle") as caught, in_one_line():
        locate(f"{loop}:Stem")
    assert str(caught.value).startswith(str(tmp_path)[:30])


def test_other_errors_stay_as_they_are() -> None:
    for error in (OSError(errno.ENOENT, "x"), ValueError("other"), RuntimeError("other"), KeyError("embedded null")):
        assert path_error(error) is None
    with pytest.raises(ValueError, match="other"), in_one_line():
        raise ValueError("other")


def test_the_file_that_cannot_be_read_is_named() -> None:
    broken = Path("/proc/self/mem")  # of which the first byte cannot be read
    with pytest.raises(OSError, match="/proc/self/mem") as caught:
        file_sha256(broken)
    assert caught.value.errno == errno.EIO
