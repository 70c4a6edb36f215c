"""The bytes of single tokens; not text, because a token may be part of a character."""

from __future__ import annotations

import re
from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from limbeck.runs.marks import Piece

__all__ = ["token_pieces"]

_BYTE = re.compile("<0x([0-9A-F]{2})>")  # a byte in vocabularies with byte fallback
_BLANK = "\N{LOWER ONE EIGHTH BLOCK}"  # a blank in these vocabularies


def token_pieces(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> dict[int, Piece]:
    """The piece of each id. The text of consecutive tokens is the joined bytes of their pieces."""
    wanted = sorted(set(ids))
    added = tokenizer.added_tokens_decoder
    decoder = _decoder(tokenizer)
    byte_of = {char: byte for byte, char in bytes_to_unicode().items()} if "ByteLevel" in decoder else {}

    def piece(token: int, name: str | None) -> Piece:
        if token in added:
            return Piece(added[token].content.encode(), added[token].special)
        if name is None:  # a padded row of the output layer
            return Piece(f"id {token}".encode(), True)
        if byte_of and all(char in byte_of for char in name):
            return Piece(bytes(byte_of[char] for char in name), False)
        if (found := _BYTE.fullmatch(name)) is not None:
            return Piece(bytes.fromhex(found[1]), False)
        text = name.replace(_BLANK, " ") if _BLANK in decoder else tokenizer.decode([token])
        return Piece(str(text).encode(), False)

    names = tokenizer.convert_ids_to_tokens(wanted)
    return {token: piece(token, name) for token, name in zip(wanted, names, strict=True)}


def _decoder(tokenizer: PreTrainedTokenizerBase) -> str:
    """The settings of the tokenizer's decoder as JSON; empty if they are not known."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return ""
    decoder = tokenizer.backend_tokenizer.decoder
    return "" if decoder is None else decoder.__getstate__().decode()
