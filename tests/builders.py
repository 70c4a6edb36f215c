"""Small things that tests build: tokenizers of a few hundred entries, Llamas of a few thousand weights, row files.

    from builders import tiny_llama, tiny_tokenizer

    tokenizer = tiny_tokenizer()                       # byte-level BPE, 300 entries, ChatML, eos "<|im_end|>"
    model = tiny_llama(tokenizer)                      # 2 layers, hidden size 16, vocabulary rows = len(tokenizer)
    wide = tiny_llama(tokenizer, vocab_size=384)       # the same vocabulary, padded output rows
    folder = save_model(tmp_path / "student", model, tokenizer)

Everything is made in memory from fixed seeds, in well under a second, without a network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML: one header per turn, `<|im_end|>` ends a turn, nothing injected."""

CHATML_WITH_DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
    "{% endif %}" + CHATML
)
"""ChatML that writes a system turn of its own when the conversation brings none."""

CHATML_WITHOUT_GENERATION_PROMPT = CHATML.partition("{% if add_generation_prompt %}")[0]
"""ChatML that ignores `add_generation_prompt`."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CORPUS = (
    "How do I reset my password? Open the settings page and choose reset password.",
    "The invoice is missing a line. Please send me the invoice again.",
    "What is the capital of France? The capital of France is Paris.",
    "Can I export the report as a PDF file? Yes, choose export and then PDF.",
    "system user assistant You are a helpful assistant. Answer in one line.",
    "one two three four five six seven eight nine ten",
)

OTHER_CORPUS = tuple(sentence.upper() for sentence in CORPUS)
"""As many merges as `CORPUS` gives, but other ones: the same number of entries, another id map."""


def tiny_tokenizer(
    *,
    num_entries: int = 300,
    corpus: Sequence[str] = CORPUS,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    bos_token: str | None = None,
    eos_token: str | None = "<|im_end|>",
    pad_token: str | None = None,
    chat_template: str | None = CHATML,
    writes_bos: bool = False,
    extra_tokens: Sequence[str] = (),
    special_first: bool = True,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer (any text has tokens and comes back unchanged), trained on `corpus`.

    `num_entries` counts bytes (256), merges and `special_tokens`; `extra_tokens` are added after them, as more special
    tokens. `writes_bos` makes plain tokenisation put `bos_token` in front, as Llama's does. `special_first=False` gives
    the special tokens the last ids instead of the first. `OTHER_CORPUS` gives another id map of the same size.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    num_trained = num_entries if special_first else num_entries - len(special_tokens)
    trainer = trainers.BpeTrainer(
        vocab_size=num_trained,
        special_tokens=list(special_tokens) if special_first else [],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(corpus, trainer)
    if not special_first:
        core.add_special_tokens(list(special_tokens))
    if core.get_vocab_size() != num_entries:
        raise ValueError(f"the corpus gives {core.get_vocab_size()} entries, not {num_entries}: use a longer corpus")
    if extra_tokens:
        core.add_special_tokens(list(extra_tokens))
    if writes_bos:
        if bos_token is None:
            raise ValueError("writes_bos needs a bos_token")
        bos = (bos_token, core.token_to_id(bos_token))
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos_token} $A", pair=f"{bos_token} $A {bos_token} $B", special_tokens=[bos]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=bos_token, eos_token=eos_token, pad_token=pad_token
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_llama(
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    vocab_size: int | None = None,
    hidden_size: int = 16,
    num_layers: int = 2,
    num_heads: int = 2,
    num_kv_heads: int = 1,
    intermediate_size: int = 32,
    max_positions: int = 512,
    tie_embeddings: bool = False,
    scale: float = 1.0,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A Llama model in float32 and evaluation mode with weights drawn from `seed`; the global random state is kept.

    `vocab_size` is the number of embedding and output rows: by default the tokenizer's entries (300 without one); give
    a larger number for padded rows. `scale` multiplies the output head: above 1 makes the distributions less flat. The
    generation config stops at the tokenizer's eos and says nothing else.
    """
    num_rows = vocab_size if vocab_size is not None else len(tokenizer) if tokenizer is not None else 300
    eos_token_id = tokenizer.eos_token_id if tokenizer is not None else None
    config = LlamaConfig(
        vocab_size=num_rows,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=tie_embeddings,
        # wide enough that two seeds differ clearly, narrow enough that nothing saturates
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=None,
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    model.generation_config = GenerationConfig(bos_token_id=None, eos_token_id=eos_token_id, pad_token_id=None)
    return model.float().eval()


def save_model(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Writes weights, configs and tokenizer into `folder`, as transformers would load them; returns the folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Writes `rows` to `path`, one JSON object a line; returns the path."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    return path


def prompt_row(text: str, *, system: str | None = None, **columns: object) -> dict[str, object]:
    """A prompt-only row: one user turn, after an optional system turn, with more columns if any are given."""
    turns = [] if system is None else [{"role": "system", "content": system}]
    return {"prompt": [*turns, {"role": "user", "content": text}], **columns}
