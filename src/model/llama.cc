// The Llama family: RMS norms, grouped-query attention with rotary positions over the whole head, a gated SiLU
// MLP, no biases. SmolLM2, Llama 2 and what is stored in their form.
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/family.h"

namespace baton {
namespace {

using nlohmann::json;

StatusOr<uint32_t> Narrow(std::string_view what, uint64_t value) {
  if (value <= std::numeric_limits<uint32_t>::max()) return static_cast<uint32_t>(value);
  return InvalidArgumentError(std::string(what) + " is " + std::to_string(value) + ", too large");
}

Status Unsupported(const std::string& what) {
  return UnimplementedError("this llama model asks for " + what + ", which is not supported");
}

// ---- GGUF -------------------------------------------------------------------------------------

// Every llama.* key that is read below, or that repeats what other keys say.
constexpr std::array<std::string_view, 16> kGgufKeys = {"block_count",
                                                        "context_length",
                                                        "embedding_length",
                                                        "feed_forward_length",
                                                        "attention.head_count",
                                                        "attention.head_count_kv",
                                                        "attention.key_length",
                                                        "attention.value_length",
                                                        "attention.layer_norm_rms_epsilon",
                                                        "rope.freq_base",
                                                        "rope.dimension_count",
                                                        "rope.scaling.type",
                                                        "vocab_size",
                                                        "expert_count",
                                                        "expert_used_count",
                                                        "attention.sliding_window"};

Status RefuseUnknownKeys(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    if (key.rfind("llama.", 0) != 0) continue;
    const std::string_view rest = std::string_view(key).substr(6);
    bool known = false;
    for (const std::string_view k : kGgufKeys) known |= k == rest;
    if (!known) return Unsupported("the feature behind GGUF key '" + key + "'");
  }
  return OkStatus();
}

Status RefuseGgufFeatures(const GgufFile& file, const DecoderDescription& d) {
  BATON_RETURN_IF_ERROR(RefuseUnknownKeys(file));
  BATON_ASSIGN_OR_RETURN(const std::string scaling, file.Text("llama.rope.scaling.type", "none"));
  if (scaling != "none") return Unsupported("rope scaling '" + scaling + "'");
  BATON_ASSIGN_OR_RETURN(const uint64_t experts, file.Unsigned("llama.expert_count", 0));
  if (experts != 0) return Unsupported("a mixture of " + std::to_string(experts) + " experts");
  BATON_ASSIGN_OR_RETURN(const uint64_t window, file.Unsigned("llama.attention.sliding_window", 0));
  if (window != 0) return Unsupported("a sliding window of " + std::to_string(window) + " tokens");
  BATON_ASSIGN_OR_RETURN(const uint64_t rotary, file.Unsigned("llama.rope.dimension_count", d.head_dim));
  if (rotary != d.head_dim) {
    return Unsupported("rope over " + std::to_string(rotary) + " of " + std::to_string(d.head_dim) + " dimensions");
  }
  BATON_ASSIGN_OR_RETURN(const uint64_t value_dim, file.Unsigned("llama.attention.value_length", d.head_dim));
  if (value_dim != d.head_dim) return Unsupported("values of another size than keys");
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == "rope_freqs.weight") return Unsupported("rope frequency factors (tensor rope_freqs.weight)");
  }
  return OkStatus();
}

StatusOr<DecoderDescription> FromGguf(const GgufFile& file) {
  DecoderDescription d;
  d.family = "llama";
  BATON_ASSIGN_OR_RETURN(d.name, file.Text("general.name", std::string("unnamed")));
  const auto read = [&](std::string_view key, uint32_t* out) -> Status {
    BATON_ASSIGN_OR_RETURN(const uint64_t value, file.Unsigned(key));
    BATON_ASSIGN_OR_RETURN(*out, Narrow(key, value));
    return OkStatus();
  };
  BATON_RETURN_IF_ERROR(read("llama.block_count", &d.num_layers));
  BATON_RETURN_IF_ERROR(read("llama.context_length", &d.context_tokens));
  BATON_RETURN_IF_ERROR(read("llama.embedding_length", &d.hidden));
  BATON_RETURN_IF_ERROR(read("llama.feed_forward_length", &d.mlp_hidden));
  BATON_RETURN_IF_ERROR(read("llama.attention.head_count", &d.num_heads));
  d.num_kv_heads = d.num_heads;
  if (file.Has("llama.attention.head_count_kv")) {
    BATON_RETURN_IF_ERROR(read("llama.attention.head_count_kv", &d.num_kv_heads));
  }
  if (d.num_heads == 0) return InvalidArgumentError("GGUF key 'llama.attention.head_count' is 0");
  d.head_dim = d.hidden / d.num_heads;
  if (file.Has("llama.attention.key_length")) BATON_RETURN_IF_ERROR(read("llama.attention.key_length", &d.head_dim));
  BATON_ASSIGN_OR_RETURN(const double eps, file.Real("llama.attention.layer_norm_rms_epsilon"));
  BATON_ASSIGN_OR_RETURN(const double theta, file.Real("llama.rope.freq_base", 10000.0));
  d.norm_eps = static_cast<float>(eps);
  d.rope_theta = static_cast<float>(theta);
  if (file.Has("llama.vocab_size")) {
    BATON_RETURN_IF_ERROR(read("llama.vocab_size", &d.vocab_size));
  } else {
    BATON_ASSIGN_OR_RETURN(const auto tokens, file.Texts("tokenizer.ggml.tokens"));
    d.vocab_size = static_cast<uint32_t>(tokens.size());
  }
  d.tied_head = true;
  for (const GgufTensor& tensor : file.tensors()) d.tied_head &= tensor.name != "output.weight";
  BATON_RETURN_IF_ERROR(RefuseGgufFeatures(file, d));
  return d;
}

// ---- config.json ------------------------------------------------------------------------------

// A member that is absent or null gives the fallback.
StatusOr<uint32_t> Size(const json& config, const char* key, const uint32_t* fallback = nullptr) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) {
    if (fallback != nullptr) return *fallback;
    return NotFoundError("config.json: '" + std::string(key) + "' is missing");
  }
  if (!it->is_number_unsigned()) {
    return InvalidArgumentError("config.json: '" + std::string(key) + "' is " + it->dump() + ", not a size");
  }
  return Narrow("config.json: '" + std::string(key) + "'", it->get<uint64_t>());
}

StatusOr<float> Real(const json& config, const char* key, float fallback) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return fallback;
  if (!it->is_number()) {
    return InvalidArgumentError("config.json: '" + std::string(key) + "' is " + it->dump() + ", not a number");
  }
  return it->get<float>();
}

bool IsAbsentOr(const json& config, const char* key, const json& expected) {
  const auto it = config.find(key);
  return it == config.end() || it->is_null() || *it == expected;
}

// `rope_scaling` (older files) or `rope_parameters` (newer ones, with the base inside).
StatusOr<float> RopeTheta(const json& config) {
  BATON_ASSIGN_OR_RETURN(float theta, Real(config, "rope_theta", 10000.0f));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    if (!it->is_object()) return InvalidArgumentError("config.json: '" + std::string(key) + "' is not an object");
    for (const char* type : {"rope_type", "type"}) {
      if (!IsAbsentOr(*it, type, "default")) return Unsupported("rope scaling " + (*it)[type].dump());
    }
    if (!IsAbsentOr(*it, "partial_rotary_factor", 1.0)) return Unsupported("rope over a part of the head");
    BATON_ASSIGN_OR_RETURN(theta, Real(*it, "rope_theta", theta));
  }
  return theta;
}

Status RefuseHfFeatures(const json& config) {
  if (!IsAbsentOr(config, "hidden_act", "silu")) return Unsupported("activation " + config["hidden_act"].dump());
  for (const char* flag : {"attention_bias", "mlp_bias"}) {
    if (!IsAbsentOr(config, flag, false)) return Unsupported("biases (" + std::string(flag) + ")");
  }
  for (const char* key : {"sliding_window", "quantization_config", "num_local_experts", "layer_types"}) {
    if (!IsAbsentOr(config, key, nullptr)) return Unsupported(std::string("'") + key + "'");
  }
  if (!IsAbsentOr(config, "partial_rotary_factor", 1.0)) return Unsupported("rope over a part of the head");
  const auto it = config.find("architectures");
  if (it != config.end() && *it != json::array({"LlamaForCausalLM"})) {
    return Unsupported("architecture " + it->dump());
  }
  return OkStatus();
}

StatusOr<DecoderDescription> FromHf(const json& config) {
  DecoderDescription d;
  d.family = "llama";
  const auto name = config.find("_name_or_path");
  d.name = name != config.end() && name->is_string() ? name->get<std::string>() : "";
  BATON_RETURN_IF_ERROR(RefuseHfFeatures(config));
  BATON_ASSIGN_OR_RETURN(d.num_layers, Size(config, "num_hidden_layers"));
  BATON_ASSIGN_OR_RETURN(d.hidden, Size(config, "hidden_size"));
  BATON_ASSIGN_OR_RETURN(d.mlp_hidden, Size(config, "intermediate_size"));
  BATON_ASSIGN_OR_RETURN(d.num_heads, Size(config, "num_attention_heads"));
  BATON_ASSIGN_OR_RETURN(d.num_kv_heads, Size(config, "num_key_value_heads", &d.num_heads));
  if (d.num_heads == 0) return InvalidArgumentError("config.json: 'num_attention_heads' is 0");
  const uint32_t usual = d.hidden / d.num_heads;
  BATON_ASSIGN_OR_RETURN(d.head_dim, Size(config, "head_dim", &usual));
  BATON_ASSIGN_OR_RETURN(d.vocab_size, Size(config, "vocab_size"));
  const uint32_t context = 2048;
  BATON_ASSIGN_OR_RETURN(d.context_tokens, Size(config, "max_position_embeddings", &context));
  BATON_ASSIGN_OR_RETURN(d.norm_eps, Real(config, "rms_norm_eps", 1e-6f));
  BATON_ASSIGN_OR_RETURN(d.rope_theta, RopeTheta(config));
  const auto tied = config.find("tie_word_embeddings");
  if (tied != config.end() && !tied->is_boolean()) {
    return InvalidArgumentError("config.json: 'tie_word_embeddings' is " + tied->dump());
  }
  d.tied_head = tied != config.end() && tied->get<bool>();
  return d;
}

}  // namespace

const Family kLlamaFamily = {
    .name = "llama",
    .from_gguf = FromGguf,
    .from_hf = FromHf,
    .gguf_names = {.embedding = "token_embd.weight",
                   .final_norm = "output_norm.weight",
                   .head = "output.weight",
                   .attention_norm = "blk.#.attn_norm.weight",
                   .query = "blk.#.attn_q.weight",
                   .key = "blk.#.attn_k.weight",
                   .value = "blk.#.attn_v.weight",
                   .output = "blk.#.attn_output.weight",
                   .mlp_norm = "blk.#.ffn_norm.weight",
                   .gate = "blk.#.ffn_gate.weight",
                   .up = "blk.#.ffn_up.weight",
                   .down = "blk.#.ffn_down.weight",
                   .ignored_suffix = ""},
    .hf_names = {.embedding = "model.embed_tokens.weight",
                 .final_norm = "model.norm.weight",
                 .head = "lm_head.weight",
                 .attention_norm = "model.layers.#.input_layernorm.weight",
                 .query = "model.layers.#.self_attn.q_proj.weight",
                 .key = "model.layers.#.self_attn.k_proj.weight",
                 .value = "model.layers.#.self_attn.v_proj.weight",
                 .output = "model.layers.#.self_attn.o_proj.weight",
                 .mlp_norm = "model.layers.#.post_attention_layernorm.weight",
                 .gate = "model.layers.#.mlp.gate_proj.weight",
                 .up = "model.layers.#.mlp.up_proj.weight",
                 .down = "model.layers.#.mlp.down_proj.weight",
                 .ignored_suffix = ".rotary_emb.inv_freq"},
    .gguf_rope_rows = RopeRows::kInterleaved,
};

}  // namespace baton
