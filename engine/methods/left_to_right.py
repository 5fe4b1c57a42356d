"""The base model alone, for comparison: the best token of each pass, without drafts or lookahead."""

from functools import partial

from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import Begin, verify
from caesura.engine.methods.verify import refusal as refusal
from caesura.engine.model import Model


def prepare(model: Model, vocabulary: Vocabulary) -> Begin:
    return partial(verify.begin, model, vocabulary, width=1)
