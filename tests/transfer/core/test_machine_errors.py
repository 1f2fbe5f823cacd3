"""All that is wrong is one error, and any error is one line: with advice where it is the machine's, else its place."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
import torch

from transfer.core import machine_errors, user_code
from transfer.core.errors import MachineError, MissingInput, UsageError, UserError, errors_together, kept, reject
from transfer.core.files import ROOT
from transfer.core.machine_errors import in_one_line, machine_error
from transfer.core.process import ALONE
from transfer.engine.device import choose_device


def raise_together(*errors: UserError) -> None:
    with errors_together(), errors_together(join=True):
        for error in errors:
            with kept():
                raise error


def test_the_error_has_all_texts_and_the_strongest_kind() -> None:
    for kinds, kind in (
        ((UsageError, UsageError, UsageError), UsageError),
        ((MissingInput, MissingInput, MissingInput), MissingInput),
        ((UserError, MissingInput, UserError), UserError),
        ((UsageError, MissingInput, UserError), UsageError),
    ):
        with pytest.raises(UserError, match=r"^a\nb$") as error:
            raise_together(*(raised(text) for raised, text in zip(kinds, "aba")))
        assert type(error.value) is kind


def check(size: int) -> None:
    with errors_together():
        if size < 1:
            reject(f"--size {size}")
        _ = 1 // min(size, 0)


def test_an_error_that_a_rejected_value_causes_is_not_shown() -> None:
    with pytest.raises(UsageError, match=r"^--size 0$"):
        check(0)
    with pytest.raises(ZeroDivisionError):
        check(1)


GPU_FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB")
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory on this machine: "),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory on this machine: "),
        (ImportError("libtorch_cuda.so: failed to map segment from shared object"), "out of memory on this machine: "),
        (GPU_FULL, "out of memory on the GPU: set more --grad-accum-steps"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), "out of memory on the GPU: "),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), "a loader process was killed"),
        (RuntimeError("unable to write to file </torch_7_8_0>: No space left on device (28)"), "/dev/shm is full"),
        (ImportError("libGL.so.1: cannot open shared object file: No such file"), "a system library is missing"),
        (RuntimeError(TOO_OLD), "the NVIDIA driver is too old for this build of torch: update it"),
        (RuntimeError("CUDA error: no kernel image is available for execution"), "this build of torch has no code"),
    ],
)  # fmt: skip
def test_each_fault_of_the_machine_is_one_line_with_advice(error: Exception, start: str) -> None:
    wrapped = ValueError("the backend failed")
    wrapped.__cause__ = error
    for each in (error, wrapped):
        reported = machine_error(each, saved=True)
        assert type(reported) is MachineError
        assert str(reported).startswith(start)
        assert str(reported).endswith("; the last checkpoint is kept; rerun the command to resume")
        assert "\n" not in str(reported)
        assert reported.exit_status == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module named 'cv2'"), "cv2 is not installed: pip install -e '.[fast]'"),
        # a folder of the user's has the package's name
        (ImportError("cannot import name 'Dataset' from 'datasets' (unknown location)"),
         "datasets is not installed: pip install -e '.[parquet]'"),
        (ModuleNotFoundError("No module named 'torchvision.ops'; 'torchvision' is not a package"),
         "torchvision is not installed: pip install torchvision, from the index that torch came from"),
    ],
)  # fmt: skip
def test_a_missing_package_has_its_extra(error: ImportError, text: str) -> None:
    assert str(in_one_line(error)) == text


def test_pandas_that_finds_no_pyarrow_has_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError) as raised:
        pandas.DataFrame({"a": [1]}).to_parquet()
    assert str(in_one_line(raised.value)) == "pyarrow is not installed: pip install -e '.[parquet]'"


def failed(name: str) -> Exception:
    """The error of code that looks up a name."""
    try:
        {}[name]
    except KeyError as error:
        return error
    raise AssertionError


def test_an_unexpected_error_has_its_reason_and_place() -> None:
    assert machine_error(failed("a")) is None
    reported = in_one_line(failed("a\nb"), more="see error.txt")
    assert str(reported).startswith("KeyError: 'a\\nb' (tests/transfer/core/test_machine_errors.py:")
    assert str(reported).endswith("; see error.txt)")
    assert str(in_one_line(OSError(28, "No space left on device", "/x"))).startswith("/x: cannot be written (No space")
    with pytest.raises(UnicodeEncodeError) as raised:
        "reading\nset/caf\udce9.png\0stamp".encode()
    assert str(in_one_line(raised.value)).startswith("set/caf\udce9.png: a name that is not UTF-8; rename it")
    usage = UsageError("wrong")
    assert in_one_line(usage) is usage
    noted = failed("c")
    noted.add_note("in image a.jpg")
    assert "KeyError: 'c' in image a.jpg (" in str(in_one_line(noted))


def test_an_error_of_a_users_code_has_its_line(tmp_path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n\n\ndef f():\n    return torch.zeros(2) @ torch.zeros(3)\n")
    part = user_code.load_part(f"{tmp_path}/mine.py:f")
    with pytest.raises(RuntimeError) as caught:
        part()
    assert str(in_one_line(caught.value)).startswith(f"{tmp_path}/mine.py at line 5: RuntimeError: ")
    sent = f"Caught KeyError in DataLoader worker process 0.\n  File \"{tmp_path}/mine.py\", line 2\nKeyError: 'a'"
    assert str(in_one_line(KeyError(sent))).startswith(f"{tmp_path}/mine.py at line 2: KeyError: ")


def test_a_driver_too_old_is_no_reason_to_train_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError(TOO_OLD)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(MachineError, match=r"found version 11040.*") as raised:
        choose_device("auto", ALONE)
    assert "--device cpu" in str(raised.value)
    assert choose_device("cpu", ALONE).type == "cpu"


def test_beside_a_wheel_its_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_errors, "ROOT", tmp_path)
    assert machine_errors.install_command("sweep") == "pip install 'vit-transfer[sweep]'"


WITHOUT_TORCHVISION = """import sys
class Blocked:
    def find_spec(name, path, target=None):
        if name.partition(".")[0] == "torchvision":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocked)
import transfer
try:
    transfer.evaluate("knn", backbone="tiny", smoke=True)
except transfer.UserError as error:
    print(error)"""


def test_a_missing_package_is_named_in_python_too(here: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_TORCHVISION]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.startswith("torchvision is not installed: pip install torchvision")
