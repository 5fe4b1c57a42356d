"""A model's body at Q4_0, for which llama.cpp has fast kernels: at Q4_1 SmolLM2 would be an unfairly slow peer.

    python bench/peers/requantise.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2-135m-q4_0.gguf

Needs the package gguf. Embedding, head, norms and biases stay as they are. What was quantised before loses a little
more: such a file is for timing, and for quality only next to ours of the same weights.
"""

import argparse
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

TO = GGMLQuantizationType.Q4_0
WHOLE = (GGMLQuantizationType.F32, TO)  # stay
OWN = ("GGUF.", "general.architecture")  # fields that the writer makes itself


def requantised(source: Path, target: Path) -> None:
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith(OWN):
            of = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], of)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if tensor.name.startswith("blk.") and kind not in WHOLE:
            data, kind = quants.quantize(quants.dequantize(data, kind), TO), TO
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="A GGUF's layers at Q4_0.")
    parser.add_argument("source", type=Path, metavar="FROM.gguf")
    parser.add_argument("target", type=Path, metavar="TO.gguf")
    options = parser.parse_args()
    requantised(options.source, options.target)


if __name__ == "__main__":
    main()
