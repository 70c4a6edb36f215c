# %% [markdown]
# # A loop of your own
# `limbeck.steps` takes one training step for each record, and does nothing else: no run folder, no evaluation, no
# checkpoint. Optimizer, learning rate, logging and the decision to stop are yours.

# %%
import math

import torch
from transformers import AutoModelForCausalLM

import limbeck
from limbeck.embedded import FOLDER
from limbeck.embedded.task import examples

STEPS, PEAK = 12, 1e-3
student, teacher = (AutoModelForCausalLM.from_pretrained(FOLDER / name) for name in ("student", "teacher"))
prompts = [each.message for each in examples(seed=1, num=400)]


def cosine(step):
    """The learning rate of a step, counted from 0: up over two steps, then down along a cosine."""
    return PEAK * min(1.0, (step + 1) / 2) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def adam(parameters):
    return torch.optim.Adam(parameters, betas=(0.9, 0.98))


# %% [markdown]
# A record has the loss and the entropies in nats per token, lengths in tokens, and times in seconds.

# %%
settings = {"steps": STEPS, "prompts_per_step": 16, "max_practice_tokens": 32, "beta": 0.5}
log = []
with limbeck.steps(student, teacher, prompts, optimizer=adam, schedule=cosine, **settings) as steps:
    for record in steps:
        log.append({"step": record.step, "loss": record.loss, "agreement": record.agreement})
        print(
            f"step {record.step}: {record.loss:.3f} nats per token, {record.agreement:.0%} the teacher's first choice"
        )
        if record.agreement > 0.999:
            break

# %% [markdown]
# The trained student is a plain model again. With `in_place=True` it would be `student` itself.

# %%
trained = steps.student
print(sum(parameter.numel() for parameter in trained.parameters()), "parameters trained in", len(log), "steps")
