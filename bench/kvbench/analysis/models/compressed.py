"""DeepSeek-V4 and V4.1: global KV with one row for several tokens, and a window of rows in every layer.

A layer of ratio r keeps a row, and where it selects rows an index key, for every r tokens. In V4 every layer owns its
rows; in V4.1 only the layers in kv_source_layer_ids do, and the others read theirs.
"""

from __future__ import annotations

from fractions import Fraction

from kvbench.analysis.models import dtypes
from kvbench.analysis.models.fields import Config
from kvbench.analysis.models.numbers import text
from kvbench.analysis.models.parts import Draft, Part

V4_RATIOS = {0: "window only", 4: "CSA: compressed, selected by an index", 128: "HCA: heavily compressed, read whole"}
V41_RATIOS = (0, 1, 2)
WINDOW_ROWS = {"nvfp4": "fp8"}
"""V4.1 keeps its window in FP8 where the global rows are FP4."""
INDEX_KEYS = {"nvfp4": "fp4", "fp8": "fp8", "fp8_ds_mla": "fp8", "bf16": "bf16"}


def v4(config: Config, draft: Draft, asked: str) -> str:
    """DeepSeek-V4: a layer's compress_ratios entry says how many tokens share a row. Returns the cache dtype."""
    dtype = dtypes.choose(config, asked, ("fp8_ds_mla", "bf16"), native="fp8_ds_mla")
    layers = config.layers()
    ratios = _ratios(config, layers, tuple(V4_RATIOS))
    csa, hca = ratios.count(4), ratios.count(128)
    row = _row(config, dtype)
    draft.say(f"a row: {row.text} = {text(row.size)} B")
    if csa:
        key = dtypes.index_row(config, "bf16" if dtype == "bf16" else "fp4", config.count("index_head_dim"))
        draft.say(f"an index key: {key.text} = {key.size} B")
        draft.add(
            Part(label="CSA", kind="token", layers=csa, size=csa * (row.size + key.size) / 4),
            f"{csa} layers of ratio 4 x ({row.size} + {key.size}) B / 4",
        )
    draft.add(
        Part(label="HCA", kind="token", layers=hca, size=hca * row.size / 128),
        f"{hca} layers of ratio 128 x {text(row.size)} B / 128",
    )
    _window(config, draft, layers, row)
    draft.say("not counted: the compressors' own running state, which an engine keeps in fp32 for running sessions")
    return dtype


def v41(config: Config, draft: Draft, asked: str) -> str:
    """DeepSeek-V4.1: only kv_source_layer_ids own global rows and index keys. Returns the cache dtype."""
    dtype = dtypes.choose(config, asked, ("nvfp4", "fp8", "fp8_ds_mla", "bf16"), native="nvfp4")
    layers = config.layers()
    ratios = _ratios(config, layers, V41_RATIOS)
    owners = _owners(config, ratios)
    row, key = _row(config, dtype), dtypes.index_row(config, INDEX_KEYS[dtype], config.count("index_head_dim"))
    draft.say(f"a row: {row.text} = {text(row.size)} B")
    draft.say(f"an index key: {key.text} = {key.size} B")
    rows_per_token = sum(Fraction(1, ratios[layer]) for layer in owners)
    shown = " + ".join(f"1/{ratios[layer]}" for layer in owners)
    draft.say(
        f"kv_source_layer_ids {owners} alone own rows and index keys, of compress_ratios "
        f"{[ratios[layer] for layer in owners]}: {shown} = {text(rows_per_token)} rows a token"
    )
    draft.add(
        Part(label="global KV", kind="token", layers=len(owners), size=rows_per_token * (row.size + key.size)),
        f"{text(rows_per_token)} rows x ({row.size} + {key.size}) B",
    )
    window = _row(config, WINDOW_ROWS.get(dtype, dtype))
    if window != row:
        draft.say(f"a row of the window: {window.text} = {text(window.size)} B")
    _window(config, draft, layers, window)
    dim = config.count("head_dim")
    tails = [ratios[layer] for layer in owners if ratios[layer] > 1]
    draft.add(
        Part(label="compressor tails", kind="state", layers=len(tails), size=Fraction(sum(tails) * 2 * dim * 4)),
        f"{len(tails)} sources of ratio above 1: {' + '.join(map(str, tails))} tokens x (value + gate) "
        f"x head_dim {dim} x 4 B (fp32)",
    )
    return dtype


def _row(config: Config, dtype: str) -> dtypes.Row:
    return dtypes.v4_row(config, dtype, config.count("head_dim"), config.count("qk_rope_head_dim"))


def _window(config: Config, draft: Draft, layers: int, row: dtypes.Row) -> None:
    window = config.count("sliding_window")
    draft.add(
        Part(label="sliding window", kind="window", layers=layers, size=row.size * layers, window=window),
        f"{layers} layers x sliding_window {window} x {text(row.size)} B",
    )


def _ratios(config: Config, layers: int, allowed: tuple[int, ...]) -> list[int]:
    """One ratio a layer. Entries beyond num_hidden_layers are those of the draft layers (num_nextn_predict_layers)."""
    ratios = config.counts("compress_ratios")
    extra = len(ratios) - layers
    drafts = config.count("num_nextn_predict_layers", least=0, default=0, why="not in the config: no draft layers")
    if not 0 <= extra <= drafts:
        raise config.refuse(
            "compress_ratios",
            f"{len(ratios)} entries for num_hidden_layers {layers} and num_nextn_predict_layers {drafts}",
            hint=f"allowed: {layers} entries" + (f", and up to {drafts} more for the draft layers" if drafts else ""),
        )
    for i, ratio in enumerate(ratios[:layers]):
        if ratio not in allowed:
            known = ", ".join(map(str, allowed))
            raise config.refuse(f"compress_ratios[{i}]", f"{ratio} is not known; known: {known}")
    return ratios[:layers]


def _owners(config: Config, ratios: list[int]) -> list[int]:
    """kv_source_layer_ids, checked against the ratios and against index_source_layer_ids."""
    owners = _layer_ids(config, "kv_source_layer_ids", ratios)
    indexers = _layer_ids(config, "index_source_layer_ids", ratios)
    for layer in owners:
        if layer not in indexers:
            raise config.refuse("index_source_layer_ids", f"leaves out layer {layer}, which is in kv_source_layer_ids")
    source: int | None = None
    for layer, ratio in enumerate(ratios):
        if layer in owners:
            source = layer
        if ratio and source is None:
            raise config.refuse("kv_source_layer_ids", f"no source at or before layer {layer}, whose ratio is {ratio}")
        if ratio and source is not None and ratios[source] != ratio:
            raise config.refuse(
                f"compress_ratios[{layer}]", f"{ratio}, but its source, layer {source}, has {ratios[source]}"
            )
    return owners


def _layer_ids(config: Config, field: str, ratios: list[int]) -> list[int]:
    ids = config.counts(field)
    if not ids:
        raise config.refuse(field, "empty: no layer would own global KV")
    if ids != sorted(set(ids)):
        raise config.refuse(field, f"{ids} is not in rising order")
    for layer in ids:
        if layer >= len(ratios):
            raise config.refuse(field, f"layer {layer} of num_hidden_layers {len(ratios)} does not exist")
        if not ratios[layer]:
            raise config.refuse(field, f"layer {layer} has compress_ratios 0: it has no global KV to own")
    return ids
