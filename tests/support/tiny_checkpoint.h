// A small llama model with random weights, written as a GGUF file or as an HF folder, so that tests can break
// one thing at a time. Weights are fp32 numbers that bf16 holds exactly.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "baton/tensor.h"

namespace baton::test {

using Bytes = std::vector<std::byte>;

// Appends GGUF's primitive forms.
class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;  // outermost first
    uint32_t type = 0;            // ggml's number
    Bytes data;
    int64_t offset = -1;  // -1: behind the one before
  };

  void U32(const std::string& key, uint32_t v) { Key(key, 4), Put(&values_, v); }
  void F32(const std::string& key, float v) { Key(key, 6), Put(&values_, v); }
  void Bool(const std::string& key, bool v) { Key(key, 7), Put(&values_, static_cast<uint8_t>(v)); }
  void Text(const std::string& key, const std::string& v) { Key(key, 8), String(&values_, v); }
  void Texts(const std::string& key, const std::vector<std::string>& v) {
    Key(key, 9);
    Put(&values_, uint32_t{8});
    Put(&values_, uint64_t{v.size()});
    for (const std::string& s : v) String(&values_, s);
  }
  void Ints(const std::string& key, const std::vector<int32_t>& v) {
    Key(key, 9);
    Put(&values_, uint32_t{5});
    Put(&values_, uint64_t{v.size()});
    for (const int32_t i : v) Put(&values_, i);
  }
  std::vector<Tensor>& tensors() { return tensors_; }

  Bytes Finish() const {
    constexpr size_t kAlignment = 32;
    Bytes out;
    Put(&out, uint32_t{0x46554747});
    Put(&out, uint32_t{3});
    Put(&out, uint64_t{tensors_.size()});
    Put(&out, num_values_);
    out.insert(out.end(), values_.begin(), values_.end());
    Bytes data;
    for (const Tensor& t : tensors_) {
      data.resize((data.size() + kAlignment - 1) / kAlignment * kAlignment);
      String(&out, t.name);
      Put(&out, static_cast<uint32_t>(t.shape.size()));
      for (size_t d = t.shape.size(); d-- > 0;) Put(&out, t.shape[d]);
      Put(&out, t.type);
      Put(&out, t.offset < 0 ? uint64_t{data.size()} : static_cast<uint64_t>(t.offset));
      data.insert(data.end(), t.data.begin(), t.data.end());
    }
    out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment);
    out.insert(out.end(), data.begin(), data.end());
    return out;
  }

 private:
  template <typename T>
  static void Put(Bytes* out, T v) {
    const size_t at = out->size();
    out->resize(at + sizeof(T));
    std::memcpy(out->data() + at, &v, sizeof(T));
  }
  static void String(Bytes* out, const std::string& s) {
    Put(out, uint64_t{s.size()});
    const auto* begin = reinterpret_cast<const std::byte*>(s.data());
    out->insert(out->end(), begin, begin + s.size());
  }
  void Key(const std::string& key, uint32_t type) {
    String(&values_, key);
    Put(&values_, type);
    ++num_values_;
  }
  Bytes values_;
  uint64_t num_values_ = 0;
  std::vector<Tensor> tensors_;
};

// A folder that goes with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "baton-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void WriteFile(const std::filesystem::path& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}
inline void WriteText(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }
inline Bytes ReadBytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> text((std::istreambuf_iterator<char>(in)), {});
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(begin, begin + text.size());
}

// A safetensors file from (name, dtype, shape, data).
inline Bytes Safetensors(nlohmann::json header, const Bytes& data) {
  const std::string text = header.dump();
  Bytes out(8 + text.size());
  const uint64_t length = text.size();
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, text.data(), text.size());
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

struct TinyCheckpoint {
  struct Matrix {
    std::string gguf_name, hf_name;
    std::vector<uint64_t> shape;
    std::vector<float> values;  // rows in the order of HF
    bool heads = false;         // Q or K: GGUF interleaves the rows of a head
  };
  uint32_t layers = 2, hidden = 64, heads = 3, kv_heads = 1, head_dim = 32, mlp = 96, vocab = 128, context = 512;
  bool tied = true;
  std::vector<Matrix> matrices;

  explicit TinyCheckpoint(uint64_t seed = 1, bool tied_head = true) : tied(tied_head) {
    Rng rng(seed);
    const auto add = [&](std::string gguf, std::string hf, std::vector<uint64_t> shape, bool is_heads = false) {
      Matrix m{std::move(gguf), std::move(hf), std::move(shape), {}, is_heads};
      uint64_t n = 1;
      for (const uint64_t d : m.shape) n *= d;
      const bool norm = m.shape.size() == 1;
      for (uint64_t i = 0; i < n; ++i) {
        const auto x = static_cast<float>(rng.Unit() - 0.5);
        m.values.push_back(RoundToBf16(norm ? 1.0f + 0.2f * x : 0.5f * x));
      }
      matrices.push_back(std::move(m));
    };
    const uint64_t q = heads * head_dim, kv = kv_heads * head_dim;
    add("token_embd.weight", "model.embed_tokens.weight", {vocab, hidden});
    add("output_norm.weight", "model.norm.weight", {hidden});
    if (!tied) add("output.weight", "lm_head.weight", {vocab, hidden});
    for (uint32_t i = 0; i < layers; ++i) {
      const std::string g = "blk." + std::to_string(i) + ".", h = "model.layers." + std::to_string(i) + ".";
      add(g + "attn_norm.weight", h + "input_layernorm.weight", {hidden});
      add(g + "attn_q.weight", h + "self_attn.q_proj.weight", {q, hidden}, true);
      add(g + "attn_k.weight", h + "self_attn.k_proj.weight", {kv, hidden}, true);
      add(g + "attn_v.weight", h + "self_attn.v_proj.weight", {kv, hidden});
      add(g + "attn_output.weight", h + "self_attn.o_proj.weight", {hidden, q});
      add(g + "ffn_norm.weight", h + "post_attention_layernorm.weight", {hidden});
      add(g + "ffn_gate.weight", h + "mlp.gate_proj.weight", {mlp, hidden});
      add(g + "ffn_up.weight", h + "mlp.up_proj.weight", {mlp, hidden});
      add(g + "ffn_down.weight", h + "mlp.down_proj.weight", {hidden, mlp});
    }
  }

  static float RoundToBf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits &= 0xffff0000u;
    std::memcpy(&x, &bits, 4);
    return x;
  }

  // fp32, or the upper halves.
  static Bytes Encode(const std::vector<float>& values, bool bf16) {
    Bytes out(values.size() * (bf16 ? 2 : 4));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&values[i]);
      if (bf16)
        std::memcpy(out.data() + i * 2, bytes + 2, 2);
      else
        std::memcpy(out.data() + i * 4, bytes, 4);
    }
    return out;
  }

  GgufWriter Gguf(bool bf16 = false) const {
    GgufWriter w;
    w.Text("general.architecture", "llama");
    w.Text("general.name", "tiny");
    w.U32("llama.block_count", layers);
    w.U32("llama.context_length", context);
    w.U32("llama.embedding_length", hidden);
    w.U32("llama.feed_forward_length", mlp);
    w.U32("llama.attention.head_count", heads);
    w.U32("llama.attention.head_count_kv", kv_heads);
    w.U32("llama.attention.key_length", head_dim);
    w.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    w.F32("llama.rope.freq_base", 10000.0f);
    w.U32("llama.vocab_size", vocab);
    w.Text("tokenizer.ggml.model", "gpt2");
    w.Text("tokenizer.ggml.pre", "smollm");
    std::vector<std::string> tokens;
    for (uint32_t i = 0; i < vocab; ++i) tokens.push_back("t" + std::to_string(i));
    w.Texts("tokenizer.ggml.tokens", tokens);
    w.U32("tokenizer.ggml.eos_token_id", 2);
    for (const Matrix& m : matrices) {
      const bool vector = m.shape.size() == 1;
      w.tensors().push_back(
          {m.gguf_name, m.shape, bf16 && !vector ? 30u : 0u, Encode(GgufRows(m), bf16 && !vector), -1});
    }
    return w;
  }

  nlohmann::json HfConfig() const {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_size", hidden},
            {"num_hidden_layers", layers},
            {"num_attention_heads", heads},
            {"num_key_value_heads", kv_heads},
            {"head_dim", head_dim},
            {"intermediate_size", mlp},
            {"vocab_size", vocab},
            {"max_position_embeddings", context},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"tie_word_embeddings", tied},
            {"hidden_act", "silu"},
            {"eos_token_id", {2, 7}}};
  }

  // Everything in one file, bf16, plus a tokenizer.json that nothing here reads.
  void WriteHf(const std::filesystem::path& folder, const nlohmann::json& config) const {
    nlohmann::json header;
    Bytes data;
    for (const Matrix& m : matrices) {
      const Bytes bytes = Encode(m.values, true);
      header[m.hf_name] = {
          {"dtype", "BF16"}, {"shape", m.shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
      data.insert(data.end(), bytes.begin(), bytes.end());
    }
    WriteFile(folder / "model.safetensors", Safetensors(header, data));
    WriteText(folder / "config.json", config.dump());
    WriteText(folder / "tokenizer.json", "{}");
  }

 private:
  std::vector<float> GgufRows(const Matrix& m) const {
    if (!m.heads) return m.values;
    std::vector<float> out(m.values.size());
    const size_t columns = m.shape[1], half = head_dim / 2;
    for (size_t row = 0; row < m.shape[0]; ++row) {
      const size_t r = row % head_dim;  // canonical
      const size_t to = row - r + (r < half ? 2 * r : 2 * (r - half) + 1);
      std::copy_n(m.values.begin() + static_cast<ptrdiff_t>(row * columns), columns,
                  out.begin() + static_cast<ptrdiff_t>(to * columns));
    }
    return out;
  }
};

}  // namespace baton::test
