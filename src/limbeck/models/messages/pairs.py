"""Messages about the vocabularies of a pair of models, and about adapters."""

from __future__ import annotations

from limbeck.errors import ModelError, Text, VocabularyMismatch, error, note

__all__: list[str] = []


@error(VocabularyMismatch, "vocabulary.mismatch")
def vocabularies_differ(*, student: str, num_student: int, teacher: str, num_teacher: int, ids: str) -> Text:
    return Text(
        given="{student} ({num_student:,} tokens) and {teacher} ({num_teacher:,} tokens) use different vocabularies: "
        "these ids stand for different tokens: {ids}.",
        needed="On-policy distillation compares both distributions id by id, so every id must stand for the same token "
        "in both models. Equal vocabulary sizes are not enough.",
        fix="Choose a teacher from the student's model family, or set route: off-policy.",
    )


@error(VocabularyMismatch, "vocabulary.mismatch.disjoint")
def vocabularies_disjoint(*, student: str, num_student: int, teacher: str, num_teacher: int) -> Text:
    return Text(
        given="{student} ({num_student:,} tokens) and {teacher} ({num_teacher:,} tokens) use different vocabularies: "
        "they have no ids in common.",
        needed="On-policy distillation compares both distributions id by id, so every id must stand for the same token "
        "in both models.",
        fix="Choose a teacher from the student's model family, or set route: off-policy.",
    )


@note("vocabulary.rows")
def output_rows_differ(*, student: str, student_rows: int, teacher: str, teacher_rows: int, num_shared: int) -> str:
    return (
        "The output layers have {student_rows:row|rows} ({student}) and {teacher_rows:row|rows} ({teacher}). Both are "
        "cut to the {num_shared:id|ids} that both models define."
    )


@note("vocabulary.ids-of-one-model")
def ids_of_one_model(*, model: str, num: int, ids: str) -> str:
    return (
        "Only {model} defines {num:id|ids} ({ids}). Ids after the last shared one are not part of the training "
        "objective."
    )


@note("vocabulary.role-differs")
def role_differs(*, role: str, student: str, student_token: str, teacher: str, teacher_token: str) -> str:
    return (
        "{role} is {student_token} in {student} and {teacher_token} in {teacher}. Both models get prompts as the "
        "chosen template writes them."
    )


@note("vocabulary.role-missing")
def role_missing(*, role: str, model: str, other: str, token: str) -> str:
    return (
        "{role} is not set in {model} and is {token} in {other}. Both models get prompts as the chosen template writes "
        "them."
    )


@note("vocabulary.tokenised-differently")
def tokenised_differently(*, student: str, teacher: str, num: int, num_texts: int, example: str) -> str:
    return (
        "{student} and {teacher} have the same tokens but tokenise {num} of {num_texts} sample texts differently, such "
        "as {example}. The teacher gets the student's token ids."
    )


@note("adapter.facts")
def adapter_facts(*, rank: int, num_trained: int, num_frozen: int, share: float, modules: list[str]) -> str:
    return (
        "LoRA of rank {rank} trains {num_trained:,} weights in addition to {num_frozen:,} frozen ones ({share:.1%}), "
        "in {modules}. The embedding and the output head are not trained."
    )


@error(ModelError, "adapter.merge")
def merge_differs(*, model: str, gap: float) -> Text:
    return Text(
        given="Merging the adapter of {model} changes its hidden states by {gap:.1e} of the largest.",
        needed="The merged model must give the same answers as the student that was trained.",
        fix="Use the adapter with its base model, and report this architecture.",
    )
