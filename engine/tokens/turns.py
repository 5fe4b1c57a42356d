"""The turns of chat models, one row for each published template. The control tokens of a tokenizer tell its row.

Each row is what the template makes of one user's message and the beginning of an answer, without a thought.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from caesura.engine.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Turns:
    """What stands `before` a user's message and `behind` it, where the answer begins; `end` ends the answer. `tokens`
    are the control tokens among it."""

    tokens: Sequence[str]
    before: str
    behind: str
    end: str

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """`text` that is ours in tokens; it becomes control tokens where it spells them. Nothing of a buffer may be in
        it."""
        parts = re.split(f"({'|'.join(map(re.escape, self.tokens))})", text)
        return [
            i for part in parts for i in ([tokenizer.special(part)] if part in self.tokens else tokenizer.encode(part))
        ]


GEMMA = Turns(  # the empty thought is there because one on the canvas is said to be worse (vLLM's notes)
    ("<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>"),
    "<bos><|turn>user\n",
    "<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
    "<turn|>",
)
LLADA = Turns(  # as Llama 3 has it, behind LLaDA's own first token; `dllm` gives the template
    ("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\n",
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|eot_id|>",
)
LING = Turns(  # LLaDA2, DMax and LLaDA-MoE; the template of Ling 2.0, and `dInfer` writes the same
    ("<role>", "</role>", "<|role_end|>"),
    "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>",
    "<|role_end|><role>ASSISTANT</role>",
    "<|role_end|>",
)
SEED = Turns(  # Seed-Coder as `chatllm.cpp` and `LlamaEdge` write it; Stable-DiffCoder has its files
    ("<[begin▁of▁sentence]>", "<[end▁of▁sentence]>"),
    "<[begin▁of▁sentence]>system\nYou are an AI programming assistant, utilizing the Seed-Coder model, developed by"
    " ByteDance Seed, and you only answer questions related to computer science. For politically sensitive questions,"
    " security and privacy issues, and other non-computer science questions, you will refuse to answer.\n\n"
    "<[end▁of▁sentence]><[begin▁of▁sentence]>user\n",
    "<[end▁of▁sentence]><[begin▁of▁sentence]>assistant\n",
    "<[end▁of▁sentence]>",
)
QWEN3 = Turns(  # SDAR and TraDo; `dLLM-RL` writes the same
    ("<|im_start|>", "<|im_end|>", "<think>"),
    "<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
    "<|im_end|>",
)
# Dream and Dream-Coder write it in their repositories. Fast-dLLM v2 started from Qwen2.5, whose system turn has also
# "You are Qwen, created by Alibaba Cloud."; no file tells the two apart.
QWEN2 = Turns(
    ("<|im_start|>", "<|im_end|>"),
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
    "<|im_end|>",
)
TURNS = (GEMMA, LLADA, LING, SEED, QWEN3, QWEN2)


def turns_of(tokenizer: Tokenizer) -> Turns | None:
    """The first row whose tokens the tokenizer has."""
    return next((row for row in TURNS if all(tokenizer.find(token) is not None for token in row.tokens)), None)
