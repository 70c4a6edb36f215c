"""The on-policy route without this package: torch and transformers only, one prompt at a time, naive on purpose.

The full step is src/limbeck/routes/on_policy.py. What it adds to this loop: many answers at once, random numbers that
do not depend on the batch, a loss that never holds all logits, one weight per token of the whole step, held-out
measures, and a run folder. What it does not change: the loss below.

    python examples/minimal_loop.py STUDENT_FOLDER TEACHER_FOLDER "prompt" "another prompt" ...
"""

import sys

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS, LEARNING_RATE, LONGEST_ANSWER = 20, 1e-4, 64


def reverse_kl(student_logits_TV: Tensor, teacher_logits_TV: Tensor) -> Tensor:
    """KL(student || teacher) at each of T positions, in nats."""
    student_TV, teacher_TV = student_logits_TV.float().log_softmax(-1), teacher_logits_TV.float().log_softmax(-1)
    return (student_TV.exp() * (student_TV - teacher_TV)).sum(-1)


def main(student_folder: str, teacher_folder: str, *prompts: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(student_folder)
    student = AutoModelForCausalLM.from_pretrained(student_folder, dtype=torch.float32).eval()
    teacher = AutoModelForCausalLM.from_pretrained(teacher_folder, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(student.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    vocabulary = len(tokenizer)  # rows beyond it are padding and belong to no token
    for step in range(STEPS):
        # ------------------------------------------------------------------------ one training step
        texts = []
        for prompt in prompts:
            turns = [{"role": "user", "content": prompt}]
            ids_1P = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt").input_ids
            with torch.no_grad():  # the answer is data: nothing is differentiated through the sampling
                ids_1T = student.generate(
                    ids_1P,
                    attention_mask=torch.ones_like(ids_1P),
                    max_new_tokens=LONGEST_ANSWER,
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                )
            texts.append((ids_1T, ids_1P.shape[1]))
        num_tokens = sum(ids_1T.shape[1] - length for ids_1T, length in texts)
        total = 0.0
        for ids_1T, length in texts:
            predict = slice(length - 1, ids_1T.shape[1] - 1)  # the prompt's last token predicts the answer's first
            with torch.no_grad():
                teacher_logits_TV = teacher(ids_1T).logits[0, predict, :vocabulary]
            student_logits_TV = student(ids_1T).logits[0, predict, :vocabulary]
            loss = reverse_kl(student_logits_TV, teacher_logits_TV).sum() / num_tokens
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        # ------------------------------------------------------------------------ end of the step
        print(f"step {step + 1}: {total:.4f} nats per token over {num_tokens} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
