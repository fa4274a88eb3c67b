"""Write a tiny Llama-style model directory: config and tokenizer, no weights (servers fill them at random).

    tiny_model.py OUT_DIR [SHAPE]        needs the package `tokenizers`; nothing is downloaded

`tiny`: 2 layers, 2 KV heads of 32, bfloat16: the KV cache spends 2 * 2 * 2 * 32 * 2 = 512 bytes a token.
`tiny-window`: a Gemma 2 with one layer that keeps all tokens and one that keeps a window of 512. The tokenizer is a
byte-level BPE of 16,384 entries trained on the Python standard library's own sources: some 3 to 4 characters a token,
as real ones have. The chat template renders all that an agent's turn can carry (tool schemas, tool calls with ids and
arguments, tool answers, null content, lists of parts), so that a part which a client drops or reorders changes the
prompt's length.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 2, 2, 2, 32, 128
CONTEXT = 131_072
WINDOW = 512
VOCABULARY = 16_384
END = "<|endoftext|>"
SPECIAL = [END, "<|im_start|>", "<|im_end|>", "<think>", "</think>"]

SHAPES: dict[str, dict[str, object]] = {
    "tiny": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "tiny-window": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": HEAD_DIM,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
}

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['role'] == 'tool' %}<tool_response id={{ message['tool_call_id'] }}>
{% endif %}
{%- if message['content'] is string %}{{ message['content'] }}
{%- elif message['content'] %}
{%- for part in message['content'] %}{{ part['text'] }}{% endfor %}
{%- endif %}
{%- for call in message['tool_calls'] or [] %}
<tool_call id={{ call['id'] }}>
{"name": {{ call['function']['name'] | tojson }}, "arguments": {{ call['function']['arguments'] | tojson }}}
</tool_call>
{%- endfor %}
{%- if message['role'] == 'tool' %}
</tool_response>
{%- endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def write_model(out: Path, shape: str = "tiny") -> None:
    """Write config.json, generation_config.json, tokenizer.json and tokenizer_config.json into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = _train()
    tokenizer.save(str(out / "tokenizer.json"))
    end = tokenizer.token_to_id(END)

    def dump(name: str, content: dict[str, object]) -> None:
        (out / name).write_text(json.dumps(content, indent=2) + "\n")

    dump(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": END,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    dump(
        "config.json",
        {
            **SHAPES[shape],
            "num_hidden_layers": LAYERS,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": CONTEXT,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "bos_token_id": end,
            "eos_token_id": end,
            "pad_token_id": end,
        },
    )
    dump("generation_config.json", {"bos_token_id": end, "eos_token_id": end})


def _train() -> Tokenizer:
    sources = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))[:120]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train(sources, trainer)
    return tokenizer


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), *sys.argv[2:])
