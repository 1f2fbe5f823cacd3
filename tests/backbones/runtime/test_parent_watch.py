import subprocess
import sys
import time

from backbones.runtime.parent_watch import _started, exit_with
from tests.processes import SERVER


def wait_with(process: str) -> None:
    exit_with(process)
    time.sleep(60)


def test_a_process_ends_with_another_that_is_not_its_parent() -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child = SERVER.Process(target=wait_with, args=(f"{other.pid}:{_started(other.pid)}",))
    child.start()
    child.join(2)
    assert child.exitcode is None
    other.kill()
    other.wait()
    child.join(30)
    assert child.exitcode == 1
