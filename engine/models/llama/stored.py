"""Models in our own stored form: a base in the layers of Llama, an adapter that gives it a canvas, and perhaps a light
drafter. `coder` and `small` are such folders.
"""

from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any, cast

from caesura.engine import memory, samplers
from caesura.engine.cache import Kept
from caesura.engine.device import Host
from caesura.engine.model import LoadChoice, Model, ModelSpec
from caesura.engine.models.llama.config import CHUNK, SPECIALS, Config
from caesura.engine.models.llama.config import kept as of_context
from caesura.engine.models.llama.native import NativeLlama, computes, torch_use
from caesura.engine.noise import Absorbing
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights import ahead
from caesura.engine.weights import stored as weights
from caesura.engine.weights.packing import base_of, expect
from caesura.engine.weights.tiles import Packing, Tiles, kept
from caesura.kernels import cpu
from caesura.model_store import TILES, extras
from caesura.model_store.reading import quoted

CONTEXT = 768  # tokens of context, in training too
LIGHT = "light.safetensors"
VERIFYING = ("verify", "left_to_right")  # methods of every such model
DRAWING = (Absorbing.method, "freedave")  # further ones of a model with a canvas


def spec(config: Mapping[str, Any], shape: Config, tokenizer: Tokenizer, *, drawn: bool) -> ModelSpec:
    """From config.json, whose sizes are `shape`. A model that is not `drawn` has no adapter and so no canvas. Raises
    WeightsError or TokenizerError."""
    ends = config.get("ends", [])
    if not isinstance(ends, list):
        raise weights.WeightsError(f"config.json is damaged: ends is {quoted(ends)}, not a list of tokens.")
    noise = Absorbing(shape.vocab_size) if drawn else None
    method, sampler = noise.method if noise is not None else "verify", ModelSpec.sampler
    named = str(config.get("sampler", config.get("method", method)))  # older files name a method as their sampler
    if drawn and named in samplers.names():
        sampler = named
    elif named in VERIFYING or (drawn and named in DRAWING):
        method = named
    else:
        raise weights.WeightsError(
            f"config.json names {quoted(named)}, which is neither a sampler nor a method of this model."
        )
    return ModelSpec(
        noise,
        method,
        max_context=CONTEXT,
        chunk=CHUNK,
        tail=shape.tail,
        head=shape.head,
        shift=1,
        lengths="null",
        null_id=shape.vocab_size + SPECIALS.index("null") if drawn else None,
        separator=(tokenizer.special(str(config.get("separator"))),),
        ends=frozenset(tokenizer.special(str(token)) for token in ends),
        sampler=sampler,
    )


def load(folder: Path, config: dict[str, Any], choice: LoadChoice) -> Model:
    """Load a model folder in our own stored form. Raises UnusableModel."""
    del choice  # the files suit only the int8 kernels of a CPU, and the model was trained for one length of context
    weights.verify(folder, tensors=False)
    shape, name = Config.read(config), str(config.get("name", folder.name))
    if (folder / LIGHT).is_file() or not computes(shape):
        return in_torch(folder, config, name, shape)

    def build(tiles: Mapping[str, Tiles]) -> Model:
        if "base" not in tiles:
            raise weights.WeightsError(f"The manifest of {folder} names no base; install the model again.")
        base, adapter = tiles["base"], tiles.get("adapter")
        whole(folder, shape, base)
        tokenizer = tokenizer_of(folder, shape)
        described = spec(config, shape, tokenizer, drawn=adapter is not None)
        contexts = contexts_of(folder, of_context(shape, "cpu"))
        return cast(Model, NativeLlama(name, shape, tokenizer, described, base, adapter, contexts))

    return kept.loaded(folder, lambda: sources(folder), build)


def sources(folder: Path) -> dict[str, Packing]:
    """The verified base of both paths, and the adapter of the canvas if there is one. Raises UnusableModel."""
    weights.verify(folder)
    return kept.sources(folder)


def in_torch(folder: Path, config: dict[str, Any], name: str, shape: Config) -> Model:
    """A model with a light drafter, or on a machine without our C library."""
    if any(folder.glob(f"*{TILES}")):
        raise weights.WeightsError(f"The weights of {name} are for Caesura's C library, {unable()}.")
    with extras.pytorch_for(torch_use(name)):
        from caesura.engine.models.llama import light
        from caesura.engine.models.llama.layer import attended
        from caesura.engine.models.llama.trunk import BlockLlama
    weights.verify(folder)
    base, path = base_of(folder), folder / "adapter.safetensors"
    adapter = weights.Stored(path) if path.is_file() else None
    whole(folder, shape, base)
    tokenizer, drafts = tokenizer_of(folder, shape), (folder / LIGHT).is_file()
    if adapter is not None:
        expect(adapter, "special", (len(SPECIALS), shape.hidden_size))
    described = spec(config, shape, tokenizer, drawn=adapter is not None)
    layers = light.kept(shape) if drafts else of_context(shape, "cpu")
    contexts, given = (
        contexts_of(folder, layers, attended().itemsize),
        (name, shape, tokenizer, described, base, adapter),
    )
    if drafts:
        return cast(Model, light.LightLlama(*given, weights.Stored(folder / LIGHT), contexts=contexts))
    return cast(Model, BlockLlama(*given, contexts=contexts))


def unable() -> str:
    """Why the C library does not compute a model, and what to do, as the end of a sentence."""
    if not cpu.variants():
        return "which this installation lacks; install gcc 11 or clang, then Caesura again"
    if cpu.chosen() == "torch":
        return "which CAESURA_CPU=torch leaves out; unset it"
    return "which does not compute this model; install a form of it without tiles"


def tokenizer_of(folder: Path, shape: Config) -> Tokenizer:
    """Raises WeightsError or TokenizerError."""
    tokenizer = ahead.done(Tokenizer, folder / "tokenizer.json")
    if tokenizer.size != shape.vocab_size:
        raise weights.WeightsError(
            f"tokenizer.json has {tokenizer.size} tokens, but config.json says {shape.vocab_size}."
        )
    return tokenizer


def whole(folder: Path, shape: Config, base: Sized) -> None:
    """Raises WeightsError for more layers than tensors, before any of them takes memory."""
    if shape.num_layers > len(base):
        raise weights.WeightsError(
            f"config.json says {shape.num_layers} layers, but {folder.name} has too few tensors for them."
        )


def contexts_of(folder: Path, layers: list[Kept], itemsize: int = 2) -> int:
    """How many contexts are kept next to the weights of a folder."""
    free, size = memory.free(Host()), sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    one = memory.of_context(layers, CONTEXT, itemsize)
    return memory.contexts(None if free is None else free - size, one, "cpu")
