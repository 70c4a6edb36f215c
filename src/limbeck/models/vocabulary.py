"""Do two models split text alike? Answered by content, id by id, never by size.

On-policy distillation compares two distributions over ids, so an id must name the same token in both models. Output
layers are often padded to a round width, and the rows past the last token carry numbers that no training touched:
the shared real vocabulary is the ids that both tokenizers define and both output layers have. Both models' logits are
cut to it before the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from limbeck.errors import VocabularyMismatch

__all__ = ["VocabularyComparison", "compare_vocabularies"]

_NUM_DIFFERENCES = 5
_NUM_NAMED = 4
_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")

# One text for each thing that tokenizers do differently with the same tokens: case, digits, blanks, line ends,
# contractions, composed and decomposed accents, compatibility forms, scripts without blanks, joined emoji, code.
_PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "THE QUICK Brown fOX",
    "don't can't we'll I'M it’s",
    "1234567890 12,345.67 3.14e-10 2024-02-29",
    "  two  blanks   three\tTab\n\nnew line\r\n end  ",
    " leading blank",
    "caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m",
    "\ufb01ne \uff26\uff35\uff2c\uff2c \u2460 \u00bd x\u00b2",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \uc548\ub155\ud558\uc138\uc694",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627",
    "\u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
    "def f(x):\n    return x ** 2  # squared\n",
    '{"key": [1, null, true], "url": "https://example.org/a?b=c&d=%20"}',
    "$\\frac{a}{b}$ <b>bold</b> a_b-c/d\\e @me #tag",
    "\u201cquoted\u201d \u2014 dash\u2026 soft\u00adhyphen zero\u200bwidth nb\u00a0space",
    "aaaaaaaaaaaaaaaaaaaaaaaa ........ ======== ________",
)


@dataclass(frozen=True)
class VocabularyComparison:
    """Two vocabularies that agree wherever both define an id.

    Attributes:
        num_shared: the shared real vocabulary: logits are cut to the first `num_shared` ids.
        student_rows, teacher_rows: rows of the output layers.
        student_defined, teacher_defined: ids that the tokenizers define.
        first_differences: (id, student token, teacher token) of ids that only one of them defines; at most five.
        share_equal: ids with the same token in both, as a share of the ids that either defines.
        special_differences: (role, student token, teacher token) where the roles differ, such as eos_token.
        notes: sentences for the user, with what to set.
    """

    num_shared: int
    student_rows: int
    teacher_rows: int
    student_defined: int
    teacher_defined: int
    first_differences: tuple[tuple[int, str | None, str | None], ...]
    share_equal: float
    special_differences: tuple[tuple[str, str | None, str | None], ...]
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

    Accepted: output layers of different width, and tokens that only one tokenizer has (they are left out of training
    where they lie past the shared part, and named). Different roles of special tokens, chat templates, merges or
    normalisers become notes: on-policy training passes ids, never text, between the models.

    Raises:
        VocabularyMismatch: some id names different tokens, or no id is shared.
    """
    student = _tokens_by_id(student_tokenizer)
    teacher = _tokens_by_id(teacher_tokenizer)
    both = student.keys() & teacher.keys()
    num_either = len(student.keys() | teacher.keys())
    different = sorted(token_id for token_id in both if student[token_id] != teacher[token_id])
    share_equal = (len(both) - len(different)) / num_either if num_either else 0.0
    if different or not both:
        first = [(token_id, student[token_id], teacher[token_id]) for token_id in different[:_NUM_DIFFERENCES]]
        sizes = (len(student), len(teacher))
        raise _mismatch(student_name, teacher_name, sizes, first, len(different), share_equal)
    num_shared = min(max(both) + 1, student_rows, teacher_rows)
    one_sided = sorted(student.keys() ^ teacher.keys())
    roles = _role_differences(student_tokenizer, teacher_tokenizer)
    stops = (_stop(student_name, student_tokenizer), _stop(teacher_name, teacher_tokenizer))
    notes = [
        *_size_notes(num_shared, student_rows, teacher_rows, student_name, teacher_name),
        *_missing_row_notes(student, student_rows, student_name),
        *_missing_row_notes(teacher, teacher_rows, teacher_name),
        *_one_sided_notes(student, teacher, num_shared, student_name, teacher_name),
        *_role_notes(roles, stops, num_shared, student_name, teacher_name),
        *_template_notes(student_tokenizer, teacher_tokenizer, student_name, teacher_name),
        *_splitting_notes(student_tokenizer, teacher_tokenizer, student_name, teacher_name),
    ]
    return VocabularyComparison(
        num_shared=num_shared,
        student_rows=student_rows,
        teacher_rows=teacher_rows,
        student_defined=len(student),
        teacher_defined=len(teacher),
        first_differences=tuple(
            (token_id, student.get(token_id), teacher.get(token_id)) for token_id in one_sided[:_NUM_DIFFERENCES]
        ),
        share_equal=share_equal,
        special_differences=roles,
        notes=tuple(notes),
    )


def _tokens_by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Every id that the tokenizer defines. Names that a GGUF file gives to padded rows ("[PAD151700]") define none."""
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    tokens.update((token_id, token.content) for token_id, token in tokenizer.added_tokens_decoder.items())
    padding = [
        token_id for token_id, token in tokens.items() if token.startswith("[PAD") and token == f"[PAD{token_id}]"
    ]
    for token_id in padding:
        del tokens[token_id]
    return tokens


def _mismatch(
    student_name: str,
    teacher_name: str,
    sizes: tuple[int, int],
    first: Sequence[tuple[int, str, str]],
    num_different: int,
    share_equal: float,
) -> VocabularyMismatch:
    if first:
        listed = ", ".join(f"{token_id} is {ours!r} and {theirs!r}" for token_id, ours, theirs in first)
        more = f" and {num_different - len(first)} more" if num_different > len(first) else ""
        reason = f"{_ids(num_different)} name{'s' * (num_different == 1)} different tokens: {listed}{more}"
    else:
        reason = "no id is defined by both"
    same_size = " (equal sizes do not make equal vocabularies)" if sizes[0] == sizes[1] else ""
    return VocabularyMismatch(
        "vocabulary.mismatch",
        given=f"{student_name} ({sizes[0]} tokens) and {teacher_name} ({sizes[1]} tokens) do not split text "
        f"alike{same_size}: {reason}. {share_equal:.1%} of the ids are equal.",
        needed="On-policy distillation compares the two distributions id by id, so each id must name the same token "
        "in both models.",
        fix="Choose a teacher of the student's family, or set route: off-policy, where the teacher writes text and any "
        "two models fit.",
    )


def _size_notes(
    num_shared: int, student_rows: int, teacher_rows: int, student_name: str, teacher_name: str
) -> list[str]:
    if student_rows == teacher_rows == num_shared:
        return []
    return [
        f"The output layers have {student_rows} rows ({student_name}) and {teacher_rows} rows ({teacher_name}); both "
        f"are cut to the {num_shared} ids that both models know."
    ]


def _missing_row_notes(tokens: dict[int, str], num_rows: int, name: str) -> list[str]:
    missing = sorted(token_id for token_id in tokens if token_id >= num_rows)
    if not missing:
        return []
    return [
        f"The tokenizer of {name} defines {len(missing)} tokens for which the model has no row ({num_rows} rows): "
        f"{_named(tokens, missing)}. A prompt that holds one cannot be read."
    ]


def _one_sided_notes(
    student: dict[int, str], teacher: dict[int, str], num_shared: int, student_name: str, teacher_name: str
) -> list[str]:
    notes: list[str] = []
    for name, own, other in ((student_name, student, teacher), (teacher_name, teacher, student)):
        alone = sorted(own.keys() - other.keys())
        past = [token_id for token_id in alone if token_id >= num_shared]
        inside = [token_id for token_id in alone if token_id < num_shared]
        if past:
            notes.append(
                f"Only {name} defines {_ids(len(past))} from {past[0]} on ({_named(own, past)}); they are never "
                "trained on, and never written as practice."
            )
        if inside:
            notes.append(
                f"Only {name} defines {_ids(len(inside))} between shared ones ({_named(own, inside)}); they stay in "
                "the softmax, since the ids around them are shared."
            )
    return notes


def _role_differences(
    student_tokenizer: PreTrainedTokenizerBase, teacher_tokenizer: PreTrainedTokenizerBase
) -> tuple[tuple[str, str | None, str | None], ...]:
    pairs = (
        (role, student_tokenizer.special_tokens_map.get(role), teacher_tokenizer.special_tokens_map.get(role))
        for role in _ROLES
    )
    return tuple(pair for pair in pairs if pair[1] != pair[2])


def _stop(name: str, tokenizer: PreTrainedTokenizerBase) -> tuple[str, str | None, int | None]:
    token_id = tokenizer.eos_token_id
    return name, tokenizer.special_tokens_map.get("eos_token"), token_id if isinstance(token_id, int) else None


def _role_notes(
    roles: Sequence[tuple[str, str | None, str | None]],
    stops: Sequence[tuple[str, str | None, int | None]],
    num_shared: int,
    student_name: str,
    teacher_name: str,
) -> list[str]:
    """`stops` is (model, stop token, its id) of the student and of the teacher."""
    notes: list[str] = []
    for role, ours, theirs in roles:
        pair = f"with {ours or 'no token'}, {teacher_name} with {theirs or 'no token'}"
        if role == "eos_token":
            notes.append(
                f"{student_name} ends a text {pair}: set template to the one whose turns the student shall learn to "
                "end (template: teacher for a base student)."
            )
        elif role == "bos_token":
            notes.append(f"{student_name} begins a text {pair}; both read prompts as the chosen template begins them.")
    for (name, token, token_id), other in zip(stops, ("teacher", "student"), strict=True):
        if token_id is not None and token_id >= num_shared:
            notes.append(
                f"The stop token of {name}, {token} (id {token_id}), is not in the shared part, so no answer can end "
                f"with it. Set template: {other}, whose turns end with a token that both have."
            )
    return notes


def _template_notes(
    student_tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase,
    student_name: str,
    teacher_name: str,
) -> list[str]:
    ours, theirs = student_tokenizer.chat_template, teacher_tokenizer.chat_template
    if ours == theirs:
        return []
    if not ours:
        return [f"{student_name} has no chat template: set template: teacher to use that of {teacher_name}."]
    if not theirs:
        return [f"{teacher_name} has no chat template: it reads prompts in that of {student_name}."]
    return [
        f"The chat templates of {student_name} and {teacher_name} differ; both models read the prompts of one of them: "
        "the student's, or with template: teacher the teacher's."
    ]


def _splitting_notes(
    student_tokenizer: PreTrainedTokenizerBase,
    teacher_tokenizer: PreTrainedTokenizerBase,
    student_name: str,
    teacher_name: str,
) -> list[str]:
    """Equal tokens, but other merges, blanks or normalisation: the same text then has other ids."""
    texts = list(_PROBES)
    ours = student_tokenizer(texts, add_special_tokens=False)["input_ids"]
    theirs = teacher_tokenizer(texts, add_special_tokens=False)["input_ids"]
    different = [index for index in range(len(texts)) if ours[index] != theirs[index]]
    if not different:
        return []
    index = different[0]
    mine = student_tokenizer.convert_ids_to_tokens(ours[index])
    other = teacher_tokenizer.convert_ids_to_tokens(theirs[index])
    at = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other)))
    example = f"{texts[index]!r} from token {at + 1} on is {mine[at : at + 3]} and {other[at : at + 3]}"
    return [
        f"{student_name} and {teacher_name} have the same tokens but cut {len(different)} of {len(texts)} sample texts "
        f"differently: {example}. The teacher reads the student's cut, which on-policy training passes as ids; it may "
        "judge unusual cuts strangely."
    ]


def _named(tokens: dict[int, str], ids: Sequence[int]) -> str:
    listed = ", ".join(f"{token_id} {tokens[token_id]!r}" for token_id in ids[:_NUM_NAMED])
    return listed + (f" and {len(ids) - _NUM_NAMED} more" if len(ids) > _NUM_NAMED else "")


def _ids(num: int) -> str:
    return "1 id" if num == 1 else f"{num} ids"
