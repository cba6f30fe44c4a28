"""Where servers are and the secret they ask for: URLs, or files that ``roost serve`` wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from roost.errors import ConfigError, nearest

_ALLOWED = (
    "should be http://HOST:PORT, or the file that `roost serve MODEL --address-file FILE` writes"
)


@dataclass(frozen=True, slots=True)
class Address:
    """One server."""

    url: str
    token: str | None = None


def write_addresses(file: Path, addresses: Sequence[Address]) -> None:
    """Write a file that only its owner may read; a reader sees all of it or none."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.touch(mode=0o600)
    part.write_text(json.dumps({"servers": [asdict(a) for a in addresses]}), encoding="utf-8")
    part.replace(file)


def read_addresses(entry: str, token: str | None = None) -> list[Address]:
    """The servers that an entry of ``rollout.servers`` names.

    Args:
        entry: A URL, or a file written by ``roost serve --address-file``.
        token: The secret for a URL.

    Raises:
        ConfigError: it is neither.
    """
    if "://" in entry:
        if not _is_url(entry):
            raise ConfigError(f"rollout.servers: {entry!r}: {_ALLOWED}.")
        return [Address(entry.rstrip("/"), token)]
    try:
        servers = json.loads(Path(entry).read_text(encoding="utf-8"))["servers"]
        found = [Address(one["url"], one["token"]) for one in servers]
    except OSError as error:
        raise ConfigError(
            f"rollout.servers: {entry!r} cannot be read ({error.strerror}).{_meant(entry)} The "
            f"entry {_ALLOWED}, once it answers."
        ) from error
    except (ValueError, KeyError, TypeError):
        found = []
    if not found or not all(_is_url(one.url) for one in found):
        raise ConfigError(
            f"rollout.servers: {entry!r} is no file that `roost serve --address-file` wrote. The "
            f"entry {_ALLOWED}."
        )
    return found


def _is_url(text: object) -> bool:
    """Whether it is http://HOST:PORT and nothing more."""
    if not isinstance(text, str):
        return False
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and bool(parts.port)
    except ValueError:  # a port that is none, a bracket too many
        return False
    return named and parts.scheme == "http" and text.rstrip("/") == f"http://{parts.netloc}"


def _meant(entry: str) -> str:
    """A sentence about what a file that is not there may have been meant as."""
    if _is_url(f"http://{Path(entry).name}"):
        return f" Did you mean 'http://{Path(entry).name}'?"
    folder = Path(entry).parent
    beside = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    match = nearest(Path(entry).name, beside)
    return f" Did you mean '{folder / match}'?" if match else ""


def read_token(file: str | None) -> str | None:
    """The secret in a file, one line.

    Raises:
        ConfigError: it cannot be read, or is empty.
    """
    if file is None:
        return None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"token file {file!r} cannot be read: {error.strerror}.") from error
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(f"token file {file!r}: should hold one line of printable ASCII.")
    return token
