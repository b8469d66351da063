"""Fetches the files of a data set: resumed where it was cut off, checked before it gets its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dist_mp.data.catalogue import CatalogueEntry, RemoteFile
from dist_mp.errors import UserError

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, bytes so far and bytes in all (None: not known)."""

_CHUNK = 1 << 13
"""Bytes; as much is lost where a connection breaks."""
_TIMEOUT_SECONDS = 30
_ATTEMPTS = 3


def fetch(
    entry: CatalogueEntry,
    folder: Path,
    mirror: str = "",
    offline: Path | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """The files of `entry` in `folder`, each checked against its checksum; those that are there and right stay.

    `mirror` is an address under which they lie as NAME/FILE; `offline` a folder that holds them, as FILE or NAME/FILE.
    A file appears under its name only when its checksum is right; of a download that was cut off, FILE.part stays and
    is continued the next time.
    """
    import pooch

    pooch.get_logger().setLevel("ERROR")
    paths = []
    for file in entry.files:
        target = folder / file.name
        if target.exists() and not target.is_file():
            raise UserError(f"{target}: is in the way; a file of {entry.name} belongs there")
        if target.is_file() and not pooch.hashes.hash_matches(target, file.checksum):
            raise UserError(
                f"{target}: is not the file of {entry.name} (its checksum differs from {file.checksum}); remove it"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not target.is_file():
                _fetch_one(pooch, entry, file, folder, mirror, offline, progress)
        except OSError as error:
            raise UserError(f"{target}: cannot be written: {error.strerror or error}") from error
        paths.append(target)
    return paths


def _fetch_one(
    pooch: Any,
    entry: CatalogueEntry,
    file: RemoteFile,
    folder: Path,
    mirror: str,
    offline: Path | None,
    progress: Progress | None,
) -> None:
    url = f"{mirror.rstrip('/')}/{entry.name}/{file.name}" if mirror else file.url
    part = folder / f"{file.name}.part"
    downloader: Callable[[str, Any, Any], None]
    if offline is not None:
        found = [path for path in (offline / entry.name / file.name, offline / file.name) if path.is_file()]
        if not found:
            raise UserError(f"{offline}: holds neither {file.name} nor {entry.name}/{file.name}")
        url = str(found[0])

        def downloader(_: str, output: Any, __: Any) -> None:
            shutil.copyfile(found[0], output)

    else:

        def downloader(address: str, output: Any, _: Any) -> None:
            _download(address, part, file, progress)
            shutil.move(part, output)

    try:
        pooch.retrieve(url, file.checksum, fname=file.name, path=folder, downloader=downloader)
    except ValueError as error:
        part_note = "" if offline is not None else "; it was removed"
        raise UserError(
            f"{url}: is not the file of {entry.name}: its checksum is not {file.checksum}{part_note}"
        ) from error


def _download(url: str, part: Path, file: RemoteFile, progress: Progress | None) -> None:
    """Bring `part` to its full length, from where an earlier try left it."""
    import requests

    for attempt in range(1, _ATTEMPTS + 1):
        held = part.stat().st_size if part.is_file() else 0
        if file.size is not None and held > file.size:
            part.unlink()
            held = 0
        if held and held == file.size:
            return
        try:
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={held}-"} if held else {})
            with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_SECONDS) as answer:
                if answer.status_code == 416:  # What is held is not a beginning of this file.
                    part.unlink()
                    continue
                answer.raise_for_status()
                _store(answer, part, held if answer.status_code == 206 else 0, file, progress)
            return
        except requests.RequestException as error:
            answered = getattr(error, "response", None)
            if answered is not None and 400 <= answered.status_code < 500:
                raise UserError(f"{url}: the server answers {answered.status_code} {answered.reason}") from error
            if attempt == _ATTEMPTS:
                kept = f"; {part.name} stays and is continued the next time" if part.is_file() else ""
                raise UserError(f"{url}: {_short(error)} ({_ATTEMPTS} tries){kept}") from error
    raise UserError(f"{url}: the server does not send the file from its beginning")


def _store(answer: Any, part: Path, held: int, file: RemoteFile, progress: Progress | None) -> None:
    """Append what the server sends; raises `requests.ConnectionError` where it ends too early."""
    import requests

    length = answer.headers.get("Content-Length")
    expected = held + int(length) if length is not None and length.isdigit() else None
    limit = file.size if file.size is not None else expected
    with part.open("ab" if held else "wb") as stream:
        for chunk in answer.iter_content(_CHUNK):
            stream.write(chunk)
            held += len(chunk)
            if file.size is not None and held > file.size:
                return  # The checksum will say that this is another file.
            if progress is not None:
                progress(file.name, held, limit)
    if expected is not None and held < expected:
        raise requests.ConnectionError(f"the connection ended after {held:,} of {expected:,} bytes")


def _short(error: Exception) -> str:
    """The first words of what went wrong; the text of nested exceptions is long."""
    text = " ".join(str(error).split())
    return text if len(text) <= 120 else f"{type(error).__name__}: {text[:100]}..."
