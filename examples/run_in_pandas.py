# %% [markdown]
# # A run and its evaluation in pandas
# What a function of Limbeck returns shows itself in a notebook, and becomes a frame with `to_pandas()`. Needs
# `pip install pandas`.

# %%
from transformers import AutoModelForCausalLM

import limbeck
from limbeck.embedded import FOLDER
from limbeck.embedded.task import examples

student, teacher = (AutoModelForCausalLM.from_pretrained(FOLDER / name) for name in ("student", "teacher"))
rows = [{"prompt": each.message, "answer": each.answer} for each in examples(seed=1, num=2000)]
settings = {"held_out": 60, "steps": 30, "prompts_per_step": 64, "max_practice_tokens": 32, "learning_rate": 1e-3}
run = limbeck.distil(student, teacher, rows, warmup_steps=5, **settings)

# %% [markdown]
# One row for each step.

# %%
steps = run.to_pandas()
print(steps[["step", "loss", "agreement", "mean_length"]].to_string(index=False))

# %% [markdown]
# One row for each answer of each model: which messages does the distilled student get right that it did not before?

# %%
answers = limbeck.evaluate(run).to_pandas()
grades = answers.pivot(index="key", columns="model", values="grade")
print(grades.mean().round(3).to_string())
gained = grades[(grades["distilled"] > grades["student"])].index
print(f"{len(gained)} of {len(grades)} answers became better")

# %% [markdown]
# All runs of the workspace, newest first.

# %%
print(limbeck.list_runs().to_pandas()[["run", "state", "step"]].to_string(index=False))
