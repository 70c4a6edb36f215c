"""The real pair by the other ways to train; a file of its own, so that another process can take it."""

from __future__ import annotations

import pytest
from real_pair import of_kind, train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["off_policy", "lora"])
def test_the_other_ways_learn_on_both_texts(name, cache, tmp_path):
    evaluations = of_kind(train(name, cache, tmp_path), "evaluation")
    first, last = evaluations[0], evaluations[-1]
    for text in ("teacher_text_loss", "student_text_loss"):
        print(f"{name}, {text}: {first[text]:.3f} to {last[text]:.3f}")
        assert last[text] < first[text]
