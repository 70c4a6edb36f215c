# %% [markdown]
# # Prompts from a datasets.Dataset
# A dataset is rows like any other: a column `prompt` (or `messages`), and if there is one, a reference answer in a
# column `answer`. Other columns stay with their rows. Here the dataset is made on the spot; `datasets.load_dataset`
# gives the same kind of object. Needs `pip install datasets`.

# %%
import datasets
from transformers import AutoModelForCausalLM

import limbeck
from limbeck.embedded import FOLDER
from limbeck.embedded.task import examples

rows = datasets.Dataset.from_list([{"question": each.message, "answer": each.answer} for each in examples(1, 1000)])
split = rows.rename_column("question", "prompt").train_test_split(test_size=60, seed=0)

# %% [markdown]
# The student trains on one split; the other is held out. Both are stored in the run, so that another process can
# resume it: `limbeck.resume(run)`.

# %%
student, teacher = (AutoModelForCausalLM.from_pretrained(FOLDER / name) for name in ("student", "teacher"))
run = limbeck.distil(
    student,
    teacher,
    split["train"],
    held_out=split["test"],
    steps=20,
    prompts_per_step=32,
    max_practice_tokens=32,
    learning_rate=1e-3,
    warmup_steps=5,
    evaluate_every=10,
)
for measured in run.evaluations():
    print(f"after step {measured['step']}: {measured['student_text_loss']:.3f} nats per token from the teacher")
