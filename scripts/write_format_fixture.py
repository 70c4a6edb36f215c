"""Write tests/fixtures/format-1: what this version stores on disk, kept so that later versions are held to read it.

    python scripts/write_format_fixture.py FOLDER

FOLDER is new. It is a workspace whose recipes name their models relative to it, so a copy of it works anywhere after
`cd`; the prompts are found where it was written, so who resumes a run in a copy gives them anew (`--set prompts=...`).

pair/                      student, teacher and prompts with answers
recipes/                   stopped.yaml, finished.yaml and hosted.yaml
runs/stopped               on-policy, asked to stop after step 3 of 6
runs/finished              on-policy, done, with marks; evaluations/finished is an evaluation of it
runs/hosted                off-policy on what a chat API answered; its ledger is teachers/tiny-api
undisturbed.safetensors    the weights that runs/stopped has at its end when nobody stops it
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch

from builders import CORPUS, save_model, tiny_llama, tiny_tokenizer, write_rows
from limbeck import api
from limbeck.errors import Stopped
from limbeck.recipe.evaluation import EvaluationOptions
from misbehaving_server import MisbehavingServer, Seen, completion, http

SMALL = {"hidden_size": 8, "intermediate_size": 16, "scale": 4.0}
LIKELY_END = 3.0  # of the row of the stop token, or no answer would ever end
LETTERS = "eotan"
TURN = "Yes, choose export."

COMMON = """\
student: pair/student
prompts: ../pair/rows.jsonl
held_out: 6
prompts_per_step: 4
learning_rate: 0.01
warmup_steps: 0
"""
ON_POLICY = COMMON + "teacher: pair/teacher\nmax_practice_tokens: 8\n"
RECIPES = {
    "stopped": ON_POLICY + "name: stopped\nsteps: 6\nevaluate_every: 3\n",
    "finished": ON_POLICY + "name: finished\nsteps: 2\nevaluate_every: 2\nbeta: 0.5\n",
    "hosted": COMMON + "route: off-policy\nteacher: openai:tiny\nmax_teacher_tokens: 20\nanswers_per_prompt: 2\n"
    "name: hosted\nsteps: 2\nevaluate_every: 2\nhosted:\n  alias: tiny-api\n  base_url: ",
}


def write_fixture(folder: Path) -> None:
    """The whole workspace, in `folder`, which must be the current one."""
    socket.gethostname = lambda: "workstation"  # the name of the machine is nobody's business
    os.environ["XDG_CONFIG_HOME"] = str(folder / ".config")
    write_pair(folder / "pair")
    with MisbehavingServer(told) as server:
        write_recipes(folder / "recipes", server.url)
        undisturbed = api.train("recipes/stopped.yaml", overrides=["name=undisturbed"])
        shutil.copy(undisturbed.model_path / "model.safetensors", folder / "undisturbed.safetensors")
        shutil.rmtree(undisturbed.path)
        try:
            api.train("recipes/stopped.yaml", listen=stop_after_3)
        except Stopped:
            api.train("recipes/finished.yaml")
            api.evaluate("finished", options=EvaluationOptions(name="finished", grader="contains", by=("topic",)))
            api.train("recipes/hosted.yaml")
    for name in ("finished", "hosted"):
        shutil.rmtree(folder / "runs" / name / "checkpoints")  # to keep the fixture small: who is done needs none
    shutil.rmtree(folder / ".config", ignore_errors=True)


def write_pair(folder: Path) -> None:
    """Two models that differ in their seeds, and conversations of two turns with short answers."""
    tokenizer = tiny_tokenizer()
    for seed, name in enumerate(("student", "teacher")):
        model = tiny_llama(tokenizer, seed=seed, **SMALL)
        with torch.no_grad():
            model.get_output_embeddings().weight[tokenizer.eos_token_id] *= LIKELY_END
        save_model(folder / name, model, tokenizer)
    write_rows(folder / "rows.jsonl", [conversation(CORPUS[row % 6][: 12 + row], row) for row in range(22)])


def conversation(text: str, row: int) -> dict[str, object]:
    """Two user turns and their answers, and a topic to slice by."""
    words = [("user", CORPUS[-row % 6][:9]), ("assistant", TURN[: 4 + row]), ("user", text)]
    turns = [{"role": role, "content": content} for role, content in (*words, ("assistant", LETTERS[row % 5]))]
    return {"messages": turns, "topic": "refunds" if row % 2 else "dates"}


def write_recipes(folder: Path, url: str) -> None:
    """One file for each run; the hosted teacher is at `url` while this script runs."""
    folder.mkdir()
    for name, text in RECIPES.items():
        ending = f"{url}\n" if name == "hosted" else ""
        (folder / f"{name}.yaml").write_text(text + ending, encoding="utf-8")


def told(seen: Seen) -> bytes:
    """An answer that differs from sample to sample."""
    return http(completion(f"Answer {seen.body['seed']} to {seen.prompt}"))


def stop_after_3(event: Mapping[str, object]) -> None:
    """Ask the run to stop, as Ctrl-C does."""
    if event["kind"] == "step" and event["step"] == 3:
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1]).absolute()
    # the recorded paths are those of a folder that is nobody's
    written = Path("/tmp/limbeck-format-1")
    written.mkdir()
    with chdir(written):
        write_fixture(written)
    shutil.move(written, target)
    print(target)
