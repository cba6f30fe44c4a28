"""Where servers are and the secret they ask for: URLs, or files that ``roost serve`` wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from roost.errors import ConfigError


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
    if entry.startswith("http://"):
        return [Address(entry.rstrip("/"), token)]
    if "://" in entry:
        raise ConfigError(
            f"rollout.servers: {entry!r}: should be http://HOST:PORT, or the file that "
            "`roost serve --address-file FILE` writes."
        )
    try:
        servers = json.loads(Path(entry).read_text(encoding="utf-8"))["servers"]
        return [Address(one["url"], one["token"]) for one in servers]
    except OSError as error:
        raise ConfigError(
            f"rollout.servers: {entry!r} cannot be read ({error.strerror}): should be "
            "http://HOST:PORT, or the file that `roost serve --address-file FILE` writes."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"rollout.servers: {entry!r} is no file that `roost serve --address-file` wrote."
        ) from error


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
