"""The teacher of the real test pair: a GGUF file made into a plain folder of safetensors, tokenizer and template.

The weights of the file are 4 and 8 bits wide with a scale for each block. Their exact values need more bits than
bfloat16 or float16 has, so they are kept in float32: 538 MB, and every later conversion is the reader's own choice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"

# Left by the reader of the file: how it was read, and a machine's or an author's name for it. A plain model has none.
NOT_PLAIN = ("quantization_config", "_name_or_path", "transformers_version", "architectures")


def write_teacher(gguf: Path, folder: Path) -> dict[str, object]:
    """Dequantise `gguf` and save model, tokenizer, template and generation config into `folder`."""
    source, name = str(gguf.parent), gguf.name
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype="float32")
    settings = {key: value for key, value in read.config.to_dict().items() if key not in NOT_PLAIN}
    # A model read from GGUF counts as quantised and refuses to be saved: its weights go into a plain one.
    model = LlamaForCausalLM(LlamaConfig(**settings)).float().eval()
    model.load_state_dict(read.state_dict())

    tokenizer: Any = AutoTokenizer.from_pretrained(source, gguf_file=name)
    from_file = {"eos": read.generation_config.eos_token_id, "pad": read.generation_config.pad_token_id}
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    # Said outright and not left to the file: an answer ends with the end of turn, which also serves as padding, and
    # the file's sampling settings, if it ever has any, are not taken over.
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.convert_tokens_to_ids(START_OF_TURN), eos_token_id=end, pad_token_id=end
    )
    model.config.eos_token_id = model.config.pad_token_id = end
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _check(folder)
    return {
        "parameters": model.num_parameters(),
        "end_of_turn_id": end,
        "ids_in_gguf": from_file,
        "template_writes_end_of_turn": END_OF_TURN in tokenizer.chat_template,
    }


def _check(folder: Path) -> None:
    """The folder loads as it is, and a greedy answer to a question that the model knows ends with the end of turn."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**inputs, max_new_tokens=32, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    text = tokenizer.decode(answer)
    if not ("Paris" in text and text.endswith(END_OF_TURN)):
        raise RuntimeError(f"the dequantised teacher answers {text!r}; it should name Paris and end with {END_OF_TURN}")
