"""Files of Hugging Face repositories that were fetched before. Nothing is downloaded here, and no torch imported."""

from pathlib import Path

from backbones.errors import MissingInput


def cached_file(repository: str, files: tuple[str, ...]) -> Path:
    """Return the first of some files that is in the local cache.

    Args:
        repository: `owner/name` or `owner/name@revision`.
        files: names within it, the preferred one first.

    Raises:
        UserError: none of them is there; with the command that fetches them.
    """
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = repository.partition("@")
    for file in files:
        path = try_to_load_from_cache(name, file, revision=revision or None)
        if isinstance(path, str):
            return Path(path)
    at = f" --revision {revision}" if revision else ""
    raise MissingInput(
        f"{files[0]} of {name} is not in the local Hugging Face cache, and nothing is downloaded here; "
        f"fetch it once: hf download {name}{at}"
    )
