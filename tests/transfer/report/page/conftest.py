"""The browser that the tests of the page share."""

from collections.abc import Iterator

import pytest

from tests.transfer.report.page.browser import Browser, find_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no chromium on PATH (apt-get install chromium)")
    driven = Browser(program, tmp_path_factory.mktemp("profile"))
    yield driven
    driven.close()
