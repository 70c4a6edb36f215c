"""Whether two models have the same vocabulary: compared id by id, never by size.

On-policy distillation compares two distributions over ids, so an id must stand for the same token in both models.
Output layers are often padded to a round width with untrained rows. The shared real vocabulary consists of the ids that
both tokenizers define and both output layers have. The logits of both models are cut to it before the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from limbeck.errors import VocabularyMismatch
from limbeck.models.messages import pairs as messages

__all__ = ["VocabularyComparison", "compare_vocabularies"]

MAX_IDS_SHOWN = 5
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")

# One text for each way in which tokenizers with the same tokens can differ: case, digits, blanks and line ends,
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
    """Two vocabularies that agree on every id that both define; logits are cut to the first `num_shared` ids.

    `*_rows` are the rows of the output layers, `*_defined` the number of ids of the tokenizers; `notes` are for the
    user.
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
    """Compare two tokenizers id by id, including added tokens.

    Output layers of different width, tokens of only one model, and different roles, merges or normalisers become notes:
    on-policy training passes ids, never text, between the models. Raises VocabularyMismatch if an id stands for
    different tokens, or no id is shared.
    """
    student, teacher = _tokens_by_id(student_tokenizer), _tokens_by_id(teacher_tokenizer)
    both = student.keys() & teacher.keys()
    different = [
        f"{token_id} is {student[token_id]!r} and {teacher[token_id]!r}"
        for token_id in sorted(both)
        if student[token_id] != teacher[token_id]
    ]
    if different or not both:
        raise _mismatch((student_name, teacher_name), (len(student), len(teacher)), different)
    num_shared = min(max(both) + 1, student_rows, teacher_rows)
    notes: list[str] = []
    if (student_rows, teacher_rows) != (num_shared, num_shared):
        notes.append(
            messages.output_rows_differ(
                student=student_name,
                student_rows=student_rows,
                teacher=teacher_name,
                teacher_rows=teacher_rows,
                num_shared=num_shared,
            )
        )
    for name, own, other in ((student_name, student, teacher), (teacher_name, teacher, student)):
        if alone := [f"{token_id} {own[token_id]!r}" for token_id in sorted(own.keys() - other.keys())]:
            notes.append(messages.ids_of_one_model(model=name, num=len(alone), ids=_first(alone)))
    notes.extend(_tokenisation_notes((student_name, teacher_name), (student_tokenizer, teacher_tokenizer)))
    return VocabularyComparison(num_shared, student_rows, teacher_rows, len(student), len(teacher), tuple(notes))


def _mismatch(names: tuple[str, str], sizes: tuple[int, int], different: Sequence[str]) -> VocabularyMismatch:
    student, teacher = names
    num_student, num_teacher = sizes
    if not different:
        return messages.vocabularies_disjoint(
            student=student, num_student=num_student, teacher=teacher, num_teacher=num_teacher
        )
    return messages.vocabularies_differ(
        student=student,
        num_student=num_student,
        teacher=teacher,
        num_teacher=num_teacher,
        ids=_first(different),
    )


def _tokens_by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The tokens that the tokenizer defines, without the names of padded rows in a GGUF file ("[PAD151700]")."""
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    tokens.update((token_id, token.content) for token_id, token in tokenizer.added_tokens_decoder.items())
    return {token_id: token for token_id, token in tokens.items() if token != f"[PAD{token_id}]"}


def _first(listed: Sequence[str]) -> str:
    more = len(listed) - MAX_IDS_SHOWN
    return ", ".join(listed[:MAX_IDS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _tokenisation_notes(
    names: tuple[str, str], tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
) -> Iterator[str]:
    """Notes on different roles, merges, blanks or normalisation, with which the same text has different ids."""
    for role in ROLES:
        ours, theirs = (tokenizer.special_tokens_map.get(role) for tokenizer in tokenizers)
        if ours == theirs:
            continue
        if ours is None:
            yield messages.role_missing(role=role, model=names[0], other=names[1], token=str(theirs))
        elif theirs is None:
            yield messages.role_missing(role=role, model=names[1], other=names[0], token=str(ours))
        else:
            yield messages.role_differs(
                role=role, student=names[0], student_token=str(ours), teacher=names[1], teacher_token=str(theirs)
            )
    ids = [tokenizer(list(PROBES), add_special_tokens=False)["input_ids"] for tokenizer in tokenizers]
    different = [text for text, ours, theirs in zip(PROBES, *ids, strict=True) if ours != theirs]
    if different:
        yield messages.tokenised_differently(
            student=names[0],
            teacher=names[1],
            num=len(different),
            num_texts=len(PROBES),
            example=repr(different[0]),
        )
