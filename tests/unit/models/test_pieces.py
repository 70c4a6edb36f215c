"""What a token stands for: for any text, the bytes of its tokens' pieces are the text's."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from builders import tiny_tokenizer
from limbeck.models.pieces import token_pieces
from limbeck.runs.marks import Piece

TOKENIZER = tiny_tokenizer()


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=30))
def test_the_pieces_of_any_text_are_its_bytes(text):
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    pieces = token_pieces(TOKENIZER, ids)
    assert b"".join(pieces[token].data for token in ids) == text.encode()


def test_control_tokens_and_padded_rows_are_distinguished_from_text():
    end = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    pieces = token_pieces(TOKENIZER, [end, 9999])
    assert pieces[end] == Piece(b"<|im_end|>", True)
    assert pieces[9999] == Piece(b"id 9999", True)


def test_vocabularies_with_byte_fallback_are_read_as_bytes():
    vocabulary = {"<unk>": 0, "<0xE2>": 1, "▁the": 2, "ä": 3, "<0x0A>": 4}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = token_pieces(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"), range(5))
    assert [piece.data for piece in pieces.values()] == [b"<unk>", b"\xe2", b" the", "ä".encode(), b"\n"]
    assert [piece.special for piece in pieces.values()] == [True, False, False, False, False]
