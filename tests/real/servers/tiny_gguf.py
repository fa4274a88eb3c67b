"""Write the tiny model (tiny_model.py's directory) as a GGUF file with random weights: tiny_gguf.py MODEL_DIR OUT_DIR.

Needs the packages gguf and numpy; the weights are the same on every run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np


def write_gguf(model: Path, out: Path) -> None:
    """Write `out`/tiny.gguf."""
    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    template = json.loads((model / "tokenizer_config.json").read_text())["chat_template"]

    writer = gguf.GGUFWriter(str(out / "tiny.gguf"), "llama")
    _add_shape(writer, config)
    _add_tokenizer(writer, config, tokenizer, template)
    _add_weights(writer, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, int]) -> None:
    writer.add_name("tiny")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(
    writer: gguf.GGUFWriter, config: dict[str, int], tokenizer: dict[str, dict[str, dict[str, int]]], template: str
) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def _add_weights(writer: gguf.GGUFWriter, config: dict[str, int]) -> None:
    random = np.random.default_rng(0)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, np.float32))

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", (random.standard_normal((rows, columns)) * 0.05).astype(np.float16))

    matrix("token_embd", config["vocab_size"], hidden)
    norm("output_norm")
    for layer in range(config["num_hidden_layers"]):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.attn_q", queries, hidden)
        matrix(f"{block}.attn_k", keys, hidden)
        matrix(f"{block}.attn_v", keys, hidden)
        matrix(f"{block}.attn_output", hidden, queries)
        matrix(f"{block}.ffn_gate", inner, hidden)
        matrix(f"{block}.ffn_up", inner, hidden)
        matrix(f"{block}.ffn_down", hidden, inner)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
