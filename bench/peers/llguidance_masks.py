"""llguidance on this machine with our vocabulary, as bench/masks.py measures us. Run by an interpreter that has it:

    python bench/peers/llguidance_masks.py MASKBENCH_FOLDER TOKENIZER_JSON END_TOKEN

One JSON object on stdout: microseconds to the first mask and between masks, schemas by what became of them.
"""

import json
import sys
import time
from collections import Counter
from importlib import metadata
from pathlib import Path

import llguidance
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask


def main() -> None:
    folder, file, end = sys.argv[1:]
    tokenizer = llguidance.LLTokenizer(Path(file).read_text(), eos_token=json.loads(end))
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    first, between, schemas = list[float](), list[float](), Counter[str]()
    for path in sorted(Path(folder).glob("*.json")):
        bench = json.loads(path.read_bytes())
        began = time.perf_counter()
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(bench["schema"])
            matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            fill_next_token_bitmask(matcher, mask, 0)
        except ValueError:
            schemas["refused"] += 1
            continue
        first.append(1e6 * (time.perf_counter() - began))
        passing = True
        for test in bench["tests"]:
            accepted, us = walk(matcher.deep_copy(), tokenizer, mask, json.dumps(test["data"], ensure_ascii=False))
            passing = passing and accepted == test["valid"]
            between += us if test["valid"] else []
        schemas["passing" if passing else "not passing"] += 1
    print(
        json.dumps({"version": metadata.version("llguidance"), "schemas": schemas, "first": first, "between": between})
    )


def walk(
    matcher: llguidance.LLMatcher, tokenizer: llguidance.LLTokenizer, mask: object, text: str
) -> tuple[bool, list[float]]:
    """Whether a text is accepted; microseconds from each token to the next mask."""
    us = []
    for token in tokenizer.tokenize_str(text):
        began = time.perf_counter()
        if not matcher.consume_token(token):
            return False, us
        fill_next_token_bitmask(matcher, mask, 0)
        us.append(1e6 * (time.perf_counter() - began))
    return matcher.is_accepting(), us


if __name__ == "__main__":
    main()
