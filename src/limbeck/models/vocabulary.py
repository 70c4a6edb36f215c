"""Do two models split text alike? Answered by content, id by id, never by size.

On-policy distillation compares two distributions over ids, so an id must name the same token in both models. Output
layers are often padded to a round width, and the rows past the last token carry numbers that no training touched:
the shared real vocabulary is the ids that both tokenizers define and both output layers have. Both models' logits are
cut to it before the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from limbeck.errors import VocabularyMismatch

__all__ = ["VocabularyComparison", "compare_vocabularies"]

NUM_SHOWN = 5
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")

# One text for each thing that tokenizers do differently with the same tokens: case, digits, blanks and line ends,
# composed and decomposed accents, scripts without blanks, joined emoji, repetition.
PROBES = (
    "The quick brown FOX can't jump.",
    "1234567890 12,345.67 2024-02-29",
    "  two  blanks\tTab\n\nnew line\r\n end  ",
    "caf\u00e9 cafe\u0301 \ufb01ne \uff26\uff35\uff2c\uff2c x\u00b2",
    "\u4f60\u597d\uff0c\u4e16\u754c \u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
    "aaaaaaaaaaaaaaaaaaaaaaaa ........ ________",
)


@dataclass(frozen=True)
class VocabularyComparison:
    """Two vocabularies that agree wherever both define an id; logits are cut to the first `num_shared` ids.

    `rows` are those of the output layers, `defined` counts the ids that a tokenizer has; `notes` are for the user.
    """

    num_shared: int
    student_rows: int
    teacher_rows: int
    student_defined: int
    teacher_defined: int
    notes: tuple[str, ...]


def compare_vocabularies(
    student_tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase,
    *,
    student_rows: int,
    teacher_rows: int,
    student_name: str,
    teacher_name: str,
) -> VocabularyComparison:
    """Compares two tokenizers id by id, base vocabulary and added tokens alike.

    Output layers of different width, tokens that only one has, and other roles, merges or normalisers become notes:
    on-policy training passes ids, never text, between the models. Raises VocabularyMismatch when some id names
    different tokens, or none is shared.
    """
    student, teacher = _tokens_by_id(student_tokenizer), _tokens_by_id(teacher_tokenizer)
    both = student.keys() & teacher.keys()
    different = [
        f"{token_id} is {student[token_id]!r} and {teacher[token_id]!r}"
        for token_id in sorted(both)
        if student[token_id] != teacher[token_id]
    ]
    if different or not both:
        raise VocabularyMismatch(
            "vocabulary.mismatch",
            given=f"{student_name} ({len(student)} tokens) and {teacher_name} ({len(teacher)} tokens) do not split "
            "text alike: "
            + (f"these ids name different tokens: {_first(different)}." if different else "no id is defined by both."),
            needed="On-policy distillation compares the two distributions id by id, so each id must name the same "
            "token in both models; equal sizes are not enough.",
            fix="Choose a teacher of the student's family.",
        )
    num_shared = min(max(both) + 1, student_rows, teacher_rows)
    notes: list[str] = []
    if (student_rows, teacher_rows) != (num_shared, num_shared):
        notes.append(
            f"The output layers have {student_rows} rows ({student_name}) and {teacher_rows} rows ({teacher_name}); "
            f"both are cut to the {num_shared} ids that both models know."
        )
    for name, own, other in ((student_name, student, teacher), (teacher_name, teacher, student)):
        if alone := [f"{token_id} {own[token_id]!r}" for token_id in sorted(own.keys() - other.keys())]:
            notes.append(
                f"{name} alone defines {len(alone)} of its ids ({_first(alone)}); those past the shared ones "
                "never train."
            )
    notes.extend(_splitting_notes((student_name, teacher_name), (student_tokenizer, teacher_tokenizer)))
    return VocabularyComparison(num_shared, student_rows, teacher_rows, len(student), len(teacher), tuple(notes))


def _tokens_by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Every id that the tokenizer defines. Names that a GGUF file gives to padded rows ("[PAD151700]") define none."""
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    tokens.update((token_id, token.content) for token_id, token in tokenizer.added_tokens_decoder.items())
    return {token_id: token for token_id, token in tokens.items() if token != f"[PAD{token_id}]"}


def _first(listed: Sequence[str]) -> str:
    more = len(listed) - NUM_SHOWN
    return ", ".join(listed[:NUM_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _splitting_notes(
    names: tuple[str, str], tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
) -> Iterator[str]:
    """Equal tokens, but other roles, or other merges, blanks or normalisation: the same text then has other ids."""
    for role in ROLES:
        ours, theirs = (tokenizer.special_tokens_map.get(role) or "no token" for tokenizer in tokenizers)
        if ours != theirs:
            yield (
                f"{role} is {ours} in {names[0]} and {theirs} in {names[1]}; both read prompts as the chosen template "
                "writes them."
            )
    cut = [tokenizer(list(PROBES), add_special_tokens=False)["input_ids"] for tokenizer in tokenizers]
    cut_otherwise = [text for text, ours, theirs in zip(PROBES, *cut, strict=True) if ours != theirs]
    if cut_otherwise:
        yield (
            f"{names[0]} and {names[1]} have the same tokens but cut {len(cut_otherwise)} of {len(PROBES)} sample "
            f"texts differently, such as {cut_otherwise[0]!r}; the teacher reads the student's cut."
        )
