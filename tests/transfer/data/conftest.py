import pytest


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    """The suite's cache folder, for this test alone, and no folder of data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRANSFER_DATA", raising=False)
    return tmp_path / "cache" / "vit-transfer"


@pytest.fixture
def arrow_cache(tmp_path, monkeypatch):
    """The caches of Hugging Face's `datasets` and hub, for this test alone, and no network."""
    import socket

    import datasets
    from huggingface_hub import constants

    connect = socket.socket.connect

    def local_only(self, address):
        assert self.family == socket.AF_UNIX, f"a connection to {address} was tried"
        connect(self, address)

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "arrow"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", local_only)
    return tmp_path / "arrow"
