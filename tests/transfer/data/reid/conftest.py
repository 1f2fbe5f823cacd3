import pytest

from transfer.data.toy.people import GENERATORS


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder and a data folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRANSFER_DATA", raising=False)
    return tmp_path / "cache" / "vit-transfer"


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """The drawn datasets, drawn once: {"toy_market": folder, "toy_msmt17": folder}."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("drawn")))
        return {name: draw() for name, draw in GENERATORS.items()}
