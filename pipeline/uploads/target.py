"""A place that checkpoints are copied to: the one module that knows fsspec, whose types are loose.

Role: write, read, list and remove by name under a URL.
Data in and out: bytes. Names are relative to the URL.
Invariants: what is there under a name is whole: an object store writes an object at once, everywhere else it is
written beside and renamed. Nothing is remembered of earlier listings. No message holds credentials.
Failure: every error of a file system, whoever wrote it, is an `UploadError` with its words; `SettingsError` when fsspec
or the file system of the URL is not installed.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Protocol, cast
from urllib.parse import urlsplit

from pipeline.secrets import shown
from schemas.errors import SettingsError, UploadError

_AT_ONCE = frozenset(  # protocols whose objects appear whole
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "obs", "cos", "tos", "hf", "memory"}
)
_LOCAL = frozenset({"file", "local"})
_ASIDE = ".part-"
_MAX_CHARS = 300  # of a library's words
_QUERY = re.compile(r"\?\S+")  # of a URL: a signature, perhaps
_HINT = "the package that fsspec names must be installed on the learner's host, e.g. s3fs for s3://"


class UploadAbsent(UploadError):
    """Nothing is there under that name."""


class _FileSystem(Protocol):
    """What we use of fsspec's `AbstractFileSystem`."""

    def open(self, path: str, mode: str, *, block_size: int) -> IO[bytes]: ...
    def pipe_file(self, path: str, value: bytes) -> None: ...
    def cat_file(self, path: str) -> bytes: ...
    def ls(self, path: str, detail: bool) -> Sequence[Mapping[str, object]]: ...
    def makedirs(self, path: str, exist_ok: bool) -> None: ...
    def mv(self, path1: str, path2: str) -> None: ...
    def rm(self, path: str, recursive: bool) -> None: ...
    def invalidate_cache(self) -> None: ...


class Target:
    """A URL, opened. Made by `open_target`; one for each thread."""

    def __init__(self, fs: _FileSystem, *, root: str, protocol: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        self._protocol = protocol

    def make_folder(self, name: str) -> None:
        """Let files be written into a folder; nothing to do where names alone make it.

        Raises:
            UploadError: it is not there.
        """
        if self._protocol not in _AT_ONCE:
            with _translated(f"{name} was not made"):
                self._fs.makedirs(self._path(name), exist_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Put `content` under a name, in a folder that was made; it is there whole, or not.

        Raises:
            UploadError: it is not there.
        """
        path = self._path(name)
        with _translated(f"{name} was not written"):
            if self._protocol in _AT_ONCE:
                self._fs.pipe_file(path, content)
                return
            parent, _, base = path.rpartition("/")
            aside = f"{parent}/{_ASIDE}{base[:16]}-{secrets.token_hex(4)}"
            with self._fs.open(aside, "wb", block_size=len(content) + 1) as file:  # in one piece
                file.write(content)
                if self._protocol in _LOCAL:
                    file.flush()
                    os.fsync(file.fileno())
            self._fs.mv(aside, path)

    def read(self, name: str) -> bytes:
        """What is under a name.

        Raises:
            UploadAbsent: nothing is.
            UploadError: it cannot be read.
        """
        with _translated(f"{name} cannot be read"):
            try:
                return self._fs.cat_file(self._path(name))
            except FileNotFoundError:
                raise UploadAbsent(f"{name} is not there") from None

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of each file of a folder, by its name there; empty when there is no such folder.

        Raises:
            UploadError: it cannot be listed.
        """
        return {
            name: size
            for name, kind, size in self._entries(folder)
            if kind != "directory" and not name.startswith(_ASIDE)
        }

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in a folder.

        Raises:
            UploadError: it cannot be listed.
        """
        return [name for name, kind, _ in self._entries(folder) if kind == "directory"]

    def remove(self, name: str, *, is_folder: bool = False) -> None:
        """Remove a file, or a folder with all that is in it.

        Raises:
            UploadError: it is still there.
        """
        with _translated(f"{name} was not removed"):
            self._fs.invalidate_cache()
            self._fs.rm(self._path(name), recursive=is_folder)

    def _entries(self, folder: str) -> Iterator[tuple[str, str, int]]:
        path = self._path(folder)
        with _translated(f"{folder} cannot be listed"):
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(path, detail=True)
            except FileNotFoundError:
                return
        own = path.strip("/")
        for entry in entries:
            whole, size = str(entry["name"]).strip("/"), entry.get("size")
            if whole != own:  # some list the folder itself
                yield whole.rpartition("/")[2], str(entry.get("type")), size if isinstance(size, int) else -1

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def open_target(url: str) -> Target:
    """Open the file system of a URL.

    Raises:
        SettingsError: fsspec, or what it needs for this URL, is not installed.
        UploadError: it cannot be opened.
    """
    core = _fsspec("fsspec.core")
    with _translated(f"{safe_url(url)} cannot be opened"):
        try:
            fs, root = core.url_to_fs(url, skip_instance_cache=True)
        except (ImportError, ValueError) as error:  # no package for it; no such protocol
            raise SettingsError(f"learner.checkpoint.upload: {_words(error)}", hint=_HINT) from error
    return Target(cast("_FileSystem", fs), root=str(root), protocol=urlsplit(url).scheme)


def check_target(url: str) -> None:
    """See that the file system of a URL is installed; nothing is connected.

    Raises:
        SettingsError: it is not.
    """
    registry = _fsspec("fsspec")
    try:
        registry.get_filesystem_class(urlsplit(url).scheme)
    except (ImportError, ValueError) as error:
        raise SettingsError(f"learner.checkpoint.upload: {_words(error)}", hint=_HINT) from error


def safe_url(url: str) -> str:
    """A URL as it may be shown: without login and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class _Module(Protocol):
    def url_to_fs(self, url: str, *, skip_instance_cache: bool) -> tuple[object, str]: ...
    def get_filesystem_class(self, protocol: str) -> object: ...


def _fsspec(name: str) -> _Module:
    try:
        return cast("_Module", importlib.import_module(name))
    except ImportError as error:
        raise SettingsError(
            "learner.checkpoint.upload is set, but fsspec is not installed; no checkpoint can be copied",
            hint="pip install 'rlweave[upload]', and what the URL needs, e.g. s3fs for s3://",
        ) from error


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (SettingsError, UploadError):
        raise
    except Exception as error:  # noqa: BLE001 - a file system may be anybody's, and raises what it likes
        raise UploadError(f"{what}: {_words(error)}") from None  # the cause may hold what `_words` hides


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {_QUERY.sub('?***', shown(text)[1:-1])}"[:_MAX_CHARS]
