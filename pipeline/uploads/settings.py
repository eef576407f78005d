"""Settings of checkpoint uploads: part of `[learner.checkpoint]`.

Role: read by the learner, which restores, and by the peer process of its host, which sends.
Invariants: the URL holds no password; credentials are found by the library itself (environment, files, the machine's
role), never in a run file.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from pipeline.secrets import is_secret_option, shown
from pipeline.settings import PositiveInt, Section
from pipeline.uploads.layout import MAX_PART_BYTES


class UploadSettings(Section):
    """What of `[learner.checkpoint]` is about uploads."""

    upload: str | None = Field(
        default=None,
        description="URL that checkpoints are copied to in the background, by any file system of fsspec "
        "(file:///mnt/checkpoints, s3://bucket/path, ...); absent: they stay on the learner's disk.",
    )
    upload_keep: PositiveInt = Field(default=3, description="Newest uploaded checkpoints that are kept.")
    upload_part_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=4096,
        le=MAX_PART_BYTES,
        description="Size of a part; a publish that begins waits for the parts under way.",
    )
    upload_parallel: int = Field(default=4, ge=1, le=64, description="Parts under way at a time.")

    @field_validator("upload")
    @classmethod
    def _is_a_url_without_secrets(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if not parts.scheme or "://" not in value:
            raise ValueError(f"{shown(value)} is no URL; a directory is file:///absolute/path")
        options = [word.partition("=")[0] for word in parts.query.split("&")]
        if parts.password is not None or any(map(is_secret_option, options)):
            raise ValueError(
                "the URL holds a password; the library finds credentials by itself, in the environment or its own files"
            )
        return value
