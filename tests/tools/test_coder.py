"""Making `coder`: GPTQ does less harm than rounding, and a tiny random GGUF file becomes a folder that holds the same
model with a smaller vocabulary."""

import argparse
import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from caesura.engine.weights import stored, tensors

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "training"))

import calibration  # noqa: E402
import coder  # noqa: E402
import gptq  # noqa: E402

gguf = pytest.importorskip("gguf", reason="training brings it")

HIDDEN, INNER, HEADS, GROUPS, WIDTH = 64, 96, 4, 2, 16
TEXTS = {  # of a language each, long enough for a context; what is between brackets are tokens of their own
    "python": "def first(values):\n    return values[0]\n\n\n" * 60,
    "javascript": "function first(values) {\n  return values[0];\n}\n" * 60,
    "typescript": "const first = (values: number[]): number => values[0];\n" * 60,
    "json": '{"name": "first", "values": [1, 2, 3]},\n' * 60,
    "markdown": "# First\n\n- a list of values\n- and one more\n\n" * 60,
}


def inputs(rows: int, columns: int, chance: torch.Generator) -> torch.Tensor:
    """Correlated, as activations are, and of very different sizes."""
    mixed = torch.randn(rows, columns // 4, generator=chance) @ torch.randn(columns // 4, columns, generator=chance)
    return (mixed + torch.randn(rows, columns, generator=chance)) * torch.logspace(-1, 0, columns)


def output_error(parts: tuple[torch.Tensor, ...], weight: torch.Tensor, x: torch.Tensor) -> float:
    return float((x @ (tensors.dense("k4", parts) - weight).T).norm() / (x @ weight.T).norm())


def test_gptq_changes_what_a_matrix_computes_less_than_rounding_does() -> None:
    chance = torch.Generator().manual_seed(0)
    weight, x = torch.randn(48, 128, generator=chance), inputs(3000, 128, chance)
    seen, unseen = x[:2000], x[2000:]
    calibrated, nearest = gptq.gptq(weight, seen.T @ seen), tensors.quantised("k4", weight)
    assert output_error(calibrated, weight, unseen) < 0.7 * output_error(nearest, weight, unseen)


def test_gptq_of_a_diagonal_hessian_rounds_each_weight_to_nearest() -> None:
    """Nothing correlates, so nothing can be made up for."""
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    restored = tensors.dense("k4", gptq.gptq(weight, torch.eye(64)))
    codes, *rest = (part.numpy() for part in gptq.gptq(weight, torch.eye(64)))
    step = tensors.of(stored.fractions(*rest)[0]).repeat_interleave(32, 1)
    codes = tensors.of(stored.unpack_nibbles(codes)).float()
    inside = codes.sub(7.5).abs() < 7  # a code at either end may be a clipped weight
    assert ((restored - weight).abs() <= step / 2 + 1e-5)[inside].all()


def test_gptq_takes_inputs_that_are_always_zero() -> None:
    x = inputs(500, 64, torch.Generator().manual_seed(0))
    x[:, 5] = 0
    parts = gptq.gptq(torch.ones(4, 64), x.T @ x)
    assert output_error(parts, torch.ones(4, 64), x) < 0.01


# ---- the whole road


def alphabet() -> list[str]:
    """One token a byte, as byte-level BPE spells it."""
    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


I_UMLAUT = "Ã¯"  # its two bytes, as byte-level BPE spells them
MERGES = ["Ġ v", "a l", "u e", "Ġv al", "Ġval ue", "Ġvalue s", "z z", "Ã ¯"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of a random qwen2 of two layers."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokens = [*alphabet(), *(merge.replace(" ", "") for merge in MERGES), *coder.SPECIALS, "[PAD]"]
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(2)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_merges(MERGES)
    writer.add_token_types([1] * (len(tokens) - len(coder.SPECIALS) - 1) + [3] * len(coder.SPECIALS) + [5])
    for name, array in arrays(len(tokens)).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def arrays(vocab: int) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(0)
    sizes = {
        "attn_q": (HEADS * WIDTH, HIDDEN), "attn_k": (GROUPS * WIDTH, HIDDEN), "attn_v": (GROUPS * WIDTH, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    out = {"token_embd.weight": chance.normal(size=(vocab, HIDDEN)), "output_norm.weight": np.ones(HIDDEN)}
    for i in range(2):
        out |= {f"blk.{i}.{name}.weight": chance.normal(0, 0.1, size) for name, size in sizes.items()}
        out |= {
            f"blk.{i}.{name}.bias": chance.normal(0, 0.1, sizes[name][0]) for name in ("attn_q", "attn_k", "attn_v")
        }
        out |= {f"blk.{i}.{name}.weight": chance.normal(1, 0.1, HIDDEN) for name in ("attn_norm", "ffn_norm")}
    return {name: array.astype(np.float32) for name, array in out.items()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("shard-000", "heldout-000"):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as out:
            for language, text in [*TEXTS.items()] * 20:
                out.write(json.dumps({"lang": language, "text": text}) + "\n")
    return folder


def made(source: Path, corpus: Path, out: Path, contexts: int) -> Path:
    vocab = 256 + len(coder.SPECIALS) + 6  # the last two merges have nothing to do
    coder.make(argparse.Namespace(gguf=source, corpus=corpus, out=out, contexts=contexts, vocab=vocab))
    return out


@pytest.mark.parametrize("contexts", [0, 12])
def test_a_folder_holds_the_file_again(source: Path, corpus: Path, tmp_path: Path, contexts: int) -> None:
    folder = made(source, corpus, tmp_path / "coder", contexts)
    stored.verify(folder)
    read, file = tensors.ByName(stored.Stored(*stored.bases(folder))), coder.Source(source)
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["num_layers"], config["num_kv_heads"], config["rms_norm_eps"]) == (
        271, 2, GROUPS, 1e-6,
    )  # fmt: skip
    assert read["embed"].shape == (271, HIDDEN)
    for i in range(2):
        for name, tensor in file.layer(i).items():
            found = read[f"layers.{i}.{name}"]
            assert found.shape == tensor.shape
            assert (found - tensor).norm() / tensor.norm() < (0.15 if name in coder.MATRICES else 1e-3)
    assert len(read) == 2 * 7 + 2


def test_tokens_that_are_kept_have_their_own_embedding(source: Path, corpus: Path, tmp_path: Path) -> None:
    folder = made(source, corpus, tmp_path / "coder", 0)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode(" values<|file_sep|>").tokens == ["Ġvalues", "<|file_sep|>"]
    assert tokenizer.token_to_id("zz") is None
    embed, file = tensors.ByName(stored.Stored(*stored.bases(folder)))["embed"], coder.Source(source)
    old = file.tokenizer()["model"]["vocab"]
    for token, new in tokenizer.get_vocab().items():
        torch.testing.assert_close(embed[new], file.embedding()[old[token]], atol=0.02, rtol=0)


def widened(source: Path, folder: Path, place: Path) -> Path:
    messages = place / "fr" / "LC_MESSAGES"
    messages.mkdir(parents=True)
    (messages / "a.po").write_text('msgid "naive"\nmsgstr "na"\n"\\"ïve\\""\n\n', "utf-8")
    coder.widen(argparse.Namespace(gguf=source, translations=place, model=folder, tokens=5))
    return folder


def test_tokens_that_are_not_ascii_are_added_and_the_others_keep_their_numbers(
    source: Path, corpus: Path, tmp_path: Path
) -> None:
    folder = made(source, corpus, tmp_path / "coder", 0)
    before = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    stored.verify(widened(source, folder, tmp_path / "po"))
    after = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert after.encode("ï").tokens == [I_UMLAUT]
    assert after.token_to_id(I_UMLAUT) == before.get_vocab_size() == after.get_vocab_size() - 1
    assert before.get_vocab().items() <= after.get_vocab().items()
    embed, file = tensors.ByName(stored.Stored(*stored.bases(folder)))["embed"], coder.Source(source)
    assert embed.shape == (272, HIDDEN)
    expected = file.embedding()[file.tokenizer()["model"]["vocab"][I_UMLAUT]]
    torch.testing.assert_close(embed[-1], expected, atol=0.02, rtol=0)


def test_any_text_comes_back(source: Path, corpus: Path, tmp_path: Path) -> None:
    folder = made(source, corpus, tmp_path / "coder", 0)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "naïve 中文 \U0001f600\t\r\n  zz's 12\n"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_the_forward_pass_is_that_of_transformers(source: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file, shape = coder.Source(source), coder.Source(source).shape()
    config = transformers.Qwen2Config(
        vocab_size=len(file.embedding()), hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config).eval()
    model.load_state_dict(theirs(file), strict=False)
    ids = torch.randint(0, 200, (40,), generator=torch.Generator().manual_seed(0))
    xs = calibration.embedded(file.embedding(), [ids.tolist()])
    with torch.no_grad():
        for i in range(2):
            layer = file.layer(i)
            xs = calibration.through(xs, layer, shape, lambda name, _, layer=layer: layer[name])
        expected = model.model(ids[None], output_hidden_states=True).last_hidden_state[0]
    torch.testing.assert_close(torch.nn.functional.rms_norm(xs[0], (HIDDEN,), eps=1e-6), expected, atol=1e-4, rtol=1e-4)


def theirs(file: coder.Source) -> dict[str, torch.Tensor]:
    names = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    out = {"model.embed_tokens.weight": file.embedding(), "lm_head.weight": file.embedding()}
    for i in range(2):
        for ours, name in names.items():
            out[f"model.layers.{i}.{name}.weight"] = file.tensor(f"blk.{i}.{ours}.weight")
        for ours in ("attn_q", "attn_k", "attn_v"):
            out[f"model.layers.{i}.{names[ours]}.bias"] = file.tensor(f"blk.{i}.{ours}.bias")
    return out


def test_nats_tell_a_good_model_from_a_bad_one(
    source: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is close to the file that it was made from."""
    folder = widened(source, made(source, corpus, tmp_path / "coder", 0), tmp_path / "po")
    capsys.readouterr()
    coder.nats(argparse.Namespace(gguf=source, corpus=corpus, model=[folder], contexts=12))
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("tiny.gguf: ")
    more = float(said[1].split("more than the file by ")[1].split(" ±")[0])
    assert abs(more) < 0.2
