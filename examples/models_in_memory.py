# %% [markdown]
# # Two models in memory
# A student and a teacher are loaded with transformers, distilled, and compared on held-out prompts. The
# pair is the tiny one that ships with Limbeck: it answers a customer's message with one line of JSON. Put your own
# models and rows in its place; each row needs a prompt, and an answer only where answers shall be graded. It takes a
# minute or two on a CPU.

# %%
from transformers import AutoModelForCausalLM

import limbeck
from limbeck.embedded import FOLDER
from limbeck.embedded.task import examples

student, teacher = (AutoModelForCausalLM.from_pretrained(FOLDER / name) for name in ("student", "teacher"))
rows = [{"prompt": each.message, "answer": each.answer} for each in examples(seed=1, num=4000)]
settings = {"held_out": 200, "steps": 60, "prompts_per_step": 64, "max_practice_tokens": 32, "learning_rate": 1e-3}
run = limbeck.distil(student, teacher, rows, warmup_steps=10, **settings)
print(limbeck.evaluate(run).verdict)

# %% [markdown]
# `student` and `teacher` are as they were. The distilled student is a folder that transformers loads; `in_place=True`
# would have trained `student` itself.

# %%
distilled = AutoModelForCausalLM.from_pretrained(run.model_path)
print(limbeck.chat(run, rows[0]["prompt"]).replies[0])
