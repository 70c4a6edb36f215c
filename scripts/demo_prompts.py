"""Write the prompts of recipes/demo: messages to a billing desk, and what its own team answered to some of them.

prompts.jsonl        2,000 messages; the answers beside them are for grading
own.jsonl            800 other messages with the team's own answers, which begin in a way of their own
refunds.jsonl        a few messages of one topic with their answers, which cost a student what it knew of the others
held-out*.jsonl      200 messages that train nothing, with and without the team's style
"""

from __future__ import annotations

from pathlib import Path

from limbeck.embedded import task
from limbeck.embedded.task import STYLE, write_prompts

FOLDER = Path(__file__).parent.parent / "recipes" / "demo"
PAIR = Path(task.__file__).parent  # holds the pair that ships with Limbeck: student, teacher


def write_all(folder: Path = FOLDER) -> None:
    write_prompts(folder / "prompts.jsonl", 2000, seed=1)
    write_prompts(folder / "own.jsonl", 800, seed=3, style=STYLE)
    write_prompts(folder / "refunds.jsonl", 150, seed=4, topic="refund")
    write_prompts(folder / "held-out.jsonl", 200, seed=2, split="held-out")
    write_prompts(folder / "held-out-own.jsonl", 200, seed=2, split="held-out", style=STYLE)


def write_demo_folder(folder: Path) -> None:
    """The prompts that `limbeck demo` writes into its folder `demo`, where the tutorial begins."""
    folder.mkdir(parents=True)
    write_prompts(folder / "prompts.jsonl", 4000, seed=1)
    write_prompts(folder / "held-out.jsonl", 300, seed=2, split="held-out")


if __name__ == "__main__":
    write_all()
    print(FOLDER)
