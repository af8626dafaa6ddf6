#!/usr/bin/env python3
"""Puts the chat templates of llama.cpp's collection into models/templates/, verified, or says loudly why not.

They lie in the source distribution of a Python package, which is downloaded and never installed; its SHA-256 stands here.
Beside them comes a virtual environment with jinja2, the reference for what they render to.
Only tests use either. Where one cannot be had, those tests say that they are skipped, and this is no error.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import model

PACKAGE = "xllamacpp==2026.10.11549"
SHA256 = "c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b"
INSIDE = "/llama.cpp/models/templates/"
FOLDER = model.FOLDER / "templates"
# Written last: what lies beside it is whole.
STAMP = FOLDER / ".verified"

# What `transformers` renders templates with.
REFERENCE = ["jinja2==3.1.6", "markupsafe==3.0.3"]
VENV = FOLDER / ".venv"
VENV_STAMP = VENV / "installed"


def main():
    provide_templates()
    provide_reference()


def provide_templates():
    if STAMP.exists() and STAMP.read_text() == SHA256:
        print("templates: they are here")
        return
    print("templates: fetching llama.cpp's chat templates (38 MB of sources around them)", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=model.FOLDER) as folder:
        archive = download(Path(folder))
        if archive is None:
            print("templates: COULD NOT BE HAD: the tests over real chat templates will be skipped", file=sys.stderr)
            return
        found = model.sha256_of(archive)
        if found != SHA256:
            sys.exit(f"templates: {archive.name} has SHA-256 {found}, expected {SHA256}: nothing was kept; try again")
        with tarfile.open(archive) as sources:
            for member in sources:
                if member.isfile() and INSIDE in member.name and member.name.endswith(".jinja"):
                    # The name alone: nothing is written outside the folder.
                    (FOLDER / Path(member.name).name).write_bytes(sources.extractfile(member).read())
    STAMP.write_text(SHA256)
    print(f"templates: {len(list(FOLDER.glob('*.jinja')))} are here, SHA-256 verified")


def provide_reference():
    python = str(VENV / "bin" / "python")
    if VENV_STAMP.exists() and VENV_STAMP.read_text().split() == REFERENCE:
        # Not so where the Python that made it is gone.
        if Path(python).exists():
            return
    print("templates: making a virtual environment with jinja2", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(VENV)], [*install, "--only-binary=:all:", *REFERENCE]):
        if subprocess.run(command).returncode != 0:
            print("templates: NO JINJA2: the test that compares with it will be skipped", file=sys.stderr)
            return
    VENV_STAMP.write_text("\n".join(REFERENCE))


def download(folder):
    """The source distribution; pip asks it for its name in an environment of its own, and builds nothing."""
    command = [*model.find_pip(folder), "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", f"--no-binary={PACKAGE.split('==')[0]}", "--dest", str(folder), PACKAGE]
    if subprocess.run(command).returncode != 0:
        return None
    return next(folder.glob("*.tar.gz"), None)


if __name__ == "__main__":
    main()
