"""Tiny random models of the decoder-only families of transformers, and what wager does with each."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FAST, OWN, STATE, STEP = "fast", "own", "state", "plain only"

# Sizes by the names that configurations give them; a family takes those it has.
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "initializer_range": 0.3,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    # as GPT-2, Bloom and MPT call them
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "d_model": 32, "n_heads": 4, "n_layers": 2,
    "expansion_ratio": 2, "ffn_dim": 48, "word_embed_proj_dim": 32,
    # experts
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4, "moe_num_experts": 4,
    "moe_intermediate_size": 16, "moe_k": 2, "n_shared_experts": 1, "shared_expert_intermediate_size": 16,
    "intermediate_size_mlp": 48, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    # multi-head latent attention
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    # state-space models and linear attention
    "state_size": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_d_ssm": 64, "lru_width": 32,
    "mamba_headdim": 16, "n_mamba_heads": 4, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "mamba_dt_rank": 4, "time_step_rank": 4, "attention_window_size": 12,
}  # fmt: skip
HALF = ["sliding_attention", "full_attention"]
LINEAR = ["linear_attention", "full_attention"]


@dataclass(frozen=True)
class Family:
    """One family: how its tiny model is made, and what is expected of it."""

    name: str  # transformers' model_type
    forward: str = OWN
    trees: bool = True
    more: tuple[tuple[str, Any], ...] = ()  # settings beside SIZES
    note: str = ""
    untied: bool = False  # whether the output head gets weights of its own

    def __str__(self) -> str:
        return self.name + (f", {self.note}" if self.note else "")


def family(
    name: str, forward: str = OWN, trees: bool = True, note: str = "", untied: bool = False, **more: Any
) -> Family:
    return Family(name, forward, trees and forward in (FAST, OWN), tuple(more.items()), note, untied)


MLA = {"head_dim": 8, "num_key_value_heads": 4}
ALL = [
    family("llama", FAST),
    family("qwen2", FAST),
    family("qwen3", FAST),
    family("mistral", FAST, sliding_window=None),
    family("ministral", FAST, note="sliding window", sliding_window=12),
    family("mistral", FAST, note="sliding window", sliding_window=12),
    family("gemma", FAST, untied=True),
    family("gemma2", note="sliding window, capped scores", untied=True, sliding_window=12),
    family("gemma3_text", FAST, note="sliding window", untied=True, sliding_window=12, layer_types=HALF),
    family("phi"),
    family("phi3", FAST),
    family("glm", FAST),
    family("glm4", FAST),
    family("cohere"),
    family("cohere2", note="sliding window", sliding_window=12, layer_types=HALF),
    family("olmo"),
    family("olmo2"),
    family("olmo3", note="sliding window", sliding_window=12, layer_types=HALF),
    family("granite"),
    family("starcoder2"),
    family("smollm3", FAST),
    family("ernie4_5", FAST),
    family("hunyuan_v1_dense"),
    family("stablelm"),
    family("exaone4", note="sliding window", sliding_window=12, layer_types=HALF),
    family("moshi", STEP, note="sliding window that its mask leaves out", sliding_window=12),
    family("gpt2"),
    family("gpt_neox"),
    family("opt", untied=True),
    family("nemotron"),
    family("bloom", note="ALiBi", trees=False, untied=True),
    family("mpt", note="ALiBi", trees=False, untied=True),
    family("falcon", trees=False, untied=True, note="ALiBi", alibi=True, head_dim=...),
    family("falcon", untied=True, note="rotary", alibi=False, head_dim=...),
    family("mixtral", FAST, note="experts"),
    family("qwen2_moe", FAST, note="experts"),
    family("qwen3_moe", FAST, note="experts"),
    family("gpt_oss", note="experts, sliding window", sliding_window=12, layer_types=HALF),
    family("olmoe", note="experts"),
    family("granitemoe", note="experts"),
    family("ernie4_5_moe", FAST, note="experts"),
    family("hunyuan_v1_moe", note="experts"),
    family("glm4_moe", note="experts"),
    family("llama4_text", trees=False, note="experts, chunked attention", attention_chunk_size=16),
    family("deepseek_v2", note="latent attention, experts", **MLA),
    family("deepseek_v3", note="latent attention, experts", **MLA),
    family(
        "deepseek_v32",
        STEP,
        note="sparse latent attention, experts",
        index_head_dim=16,
        index_n_heads=2,
        index_topk=8,
        **MLA,
    ),
    family("mamba", STEP, note="state space", untied=True),
    family("mamba2", STATE, note="state space", num_heads=4, head_dim=16, n_groups=1, chunk_size=8),
    family("falcon_mamba", STEP, note="state space", untied=True),
    family("jamba", STEP, note="hybrid, experts", attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2),
    family("falcon_h1", STATE, note="hybrid"),
    family("lfm2", STATE, note="hybrid, convolutions", layer_types=["conv", "full_attention"]),
    family("qwen3_next", STATE, note="hybrid, experts", layer_types=LINEAR),
    family("qwen3_5_text", STATE, note="hybrid", layer_types=LINEAR),
    family("recurrent_gemma", STEP, note="hybrid", untied=True, num_hidden_layers=3),
    family("zamba", STEP, note="hybrid", num_hidden_layers=4, layer_types=["linear_attention", "hybrid"] * 2),
    family("zamba2", STEP, note="hybrid", num_hidden_layers=4, layers_block_type=["linear_attention", "hybrid"] * 2),
    family("bamba", STATE, note="hybrid", attn_layer_indices=[1]),
    family("granitemoehybrid", STATE, note="hybrid, experts", layer_types=["mamba", "attention"]),
    family("minimax", STEP, note="hybrid, experts", layer_types=LINEAR),
    family("nemotron_h", STATE, note="hybrid, experts", n_groups=1, num_hidden_layers=4),
    family("olmo_hybrid", STATE, note="hybrid", layer_types=LINEAR),
    family("rwkv", STEP, note="recurrent"),
    family("openai-gpt", STEP, note="no cache", untied=True),
]


CUDA = ("llama", "qwen2", "qwen3", "mistral")
FORWARD = {FAST: "fast", OWN: "own", STATE: "own, state copied", STEP: "own, one token at a time"}


def row(family: Family) -> str:
    """The family's row in docs/models.md."""
    cuda = (
        "fast"
        if family.name in CUDA and not family.note
        else FORWARD[OWN if family.forward == FAST else family.forward]
    )
    chains, trees = ("yes" if can else "no" for can in (family.forward != STEP, family.trees))
    return f"| `{family.name}` | {FORWARD[family.forward]} | {cuda} | {chains} | {trees} | {family.note} |"


def tiny_family(family: Family, seed: int = 0, **more: Any) -> Any:
    """Its model: random, in float32, ready to generate."""
    default = AutoConfig.for_model(family.name)
    shape = {name: value for name, value in SIZES.items() if hasattr(default, name)} | dict(family.more) | more
    config = type(default)(**{name: value for name, value in shape.items() if value is not ...})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    if family.untied:  # with the embeddings as its head such a model says its last token again and again
        weight = model.get_output_embeddings().weight
        model.get_output_embeddings().weight = torch.nn.Parameter(0.3 * torch.randn_like(weight))
    return model
