#include "model/model_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>

#include "base/hash.h"
#include "baton/kernel_table.h"
#include "device/cpu/cpu_features.h"
#include "model/family.h"
#include "model/file_mapping.h"
#include "model/gguf.h"
#include "model/hf_folder.h"
#include "model/tensor_set.h"

namespace baton {
namespace {

std::string LayerName(std::string_view pattern, uint32_t layer) {
  const size_t at = pattern.find('#');
  return std::string(pattern.substr(0, at)) + std::to_string(layer) + std::string(pattern.substr(at + 1));
}

Status At(const std::filesystem::path& path, const Status& status) {
  return Status(status.code(), path.string() + ": " + status.message());
}

// Optional token id keys of a GGUF.
StatusOr<std::optional<TokenId>> GgufTokenId(const GgufFile& file, std::string_view key) {
  if (!file.Has(key)) return std::optional<TokenId>();
  BATON_ASSIGN_OR_RETURN(const uint64_t id, file.Unsigned(key));
  if (id > kMaxVocabulary) {
    return InvalidArgumentError("GGUF key '" + std::string(key) + "' is " + std::to_string(id) + ", not a token id");
  }
  return std::optional<TokenId>(static_cast<TokenId>(id));
}

StatusOr<TokenizerSource> GgufTokenizer(const GgufFile& file) {
  TokenizerSource source;
  source.in_gguf = true;
  GgufVocabulary& v = source.vocabulary;
  BATON_ASSIGN_OR_RETURN(v.model, file.Text("tokenizer.ggml.model"));
  BATON_ASSIGN_OR_RETURN(v.pre, file.Text("tokenizer.ggml.pre", std::string()));
  BATON_ASSIGN_OR_RETURN(v.tokens, file.Texts("tokenizer.ggml.tokens"));
  if (file.Has("tokenizer.ggml.token_type")) {
    BATON_ASSIGN_OR_RETURN(v.token_types, file.Ints("tokenizer.ggml.token_type"));
  }
  if (file.Has("tokenizer.ggml.merges")) {
    BATON_ASSIGN_OR_RETURN(v.merges, file.Texts("tokenizer.ggml.merges"));
  }
  BATON_ASSIGN_OR_RETURN(v.bos, GgufTokenId(file, "tokenizer.ggml.bos_token_id"));
  BATON_ASSIGN_OR_RETURN(v.eos, GgufTokenId(file, "tokenizer.ggml.eos_token_id"));
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    BATON_ASSIGN_OR_RETURN(const auto id, GgufTokenId(file, key));
    if (id) v.more_eos.push_back(*id);
  }
  for (const auto& [key, out] :
       {std::pair{"tokenizer.ggml.add_bos_token", &v.add_bos}, std::pair{"tokenizer.ggml.add_eos_token", &v.add_eos}}) {
    if (!file.Has(key)) continue;
    BATON_ASSIGN_OR_RETURN(*out, file.Bool(key, false));
  }
  if (v.eos) source.eos_ids.push_back(*v.eos);
  source.eos_ids.insert(source.eos_ids.end(), v.more_eos.begin(), v.more_eos.end());
  BATON_ASSIGN_OR_RETURN(source.chat_template, file.Text("tokenizer.chat_template", std::string()));
  return source;
}

StatusOr<TokenizerSource> HfTokenizer(const std::filesystem::path& folder, const nlohmann::json& config) {
  TokenizerSource source;
  source.hf_folder = folder.string();
  BATON_ASSIGN_OR_RETURN(source.eos_ids, EosIds(config, "config.json"));
  if (const auto path = folder / "generation_config.json"; std::filesystem::exists(path)) {
    BATON_ASSIGN_OR_RETURN(const auto generation, ReadJsonObject(path));
    BATON_ASSIGN_OR_RETURN(const auto more, EosIds(generation, "generation_config.json"));
    source.eos_ids.insert(source.eos_ids.end(), more.begin(), more.end());
  }
  BATON_ASSIGN_OR_RETURN(const HfTokenizerFiles files, ReadHfTokenizerFiles(folder.string()));
  auto chat_template = ChatTemplateFromHf(files);
  if (chat_template.ok()) {
    source.chat_template = *chat_template;
  } else if (chat_template.status().code() != Code::kNotFound) {
    return chat_template.status();
  }
  return source;
}

// Row of the file that holds canonical row `row` of a matrix of heads.
uint64_t FileRow(RopeRows rows, uint32_t head_dim, uint64_t row) {
  if (rows == RopeRows::kHalves) return row;
  const uint64_t head = row / head_dim, r = row % head_dim, half = head_dim / 2;
  return head * head_dim + (r < half ? 2 * r : 2 * (r - half) + 1);
}

// Feeds a few of a tensor's numbers, as fp32, to the hash.
class Sampler {
 public:
  void Add(std::string_view role, uint32_t layer, const SourceTensor& tensor, RopeRows order, uint32_t head_dim) {
    const TensorView& view = tensor.view;
    const uint64_t cols = view.shape.back();
    const uint64_t rows = view.shape.size() == 2 ? view.shape[0] : 1;
    Text(role);
    for (const uint64_t n : {uint64_t{layer}, rows, cols}) Bytes(&n, sizeof(n));
    const size_t row_bytes = BytesOf(view.dtype, cols);
    const uint64_t samples = std::min<uint64_t>(rows, kRows);
    for (uint64_t s = 0; s < samples; ++s) {
      const uint64_t row = samples == 1 ? 0 : s * (rows - 1) / (samples - 1);
      const uint64_t chunks = std::max<uint64_t>(1, cols / kColumns);
      const uint64_t column = s * 7919 % chunks * kColumns;
      const auto n = static_cast<uint32_t>(std::min(cols - column, kColumns));
      std::array<float, kColumns> values{};
      const TokenId zero = 0;
      const std::byte* data = view.data + FileRow(order, head_dim, row) * row_bytes + BytesOf(view.dtype, column);
      to_float_({view.dtype, data, row_bytes, n, &zero, values.data(), kColumns}, 0, 1);
      Bytes(values.data(), n * sizeof(float));
    }
  }
  void Text(std::string_view text) { Bytes(text.data(), text.size()); }
  void Number(double value) { Bytes(&value, sizeof(value)); }
  Hash128 Digest() const { return HashBytes128(bytes_); }

 private:
  static constexpr uint64_t kRows = 8, kColumns = 32;
  void Bytes(const void* data, size_t n) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + n);
  }
  void (*to_float_)(const EmbedParams&, size_t, size_t) = AvailableCpuKernels().front()->embed;
  std::vector<std::byte> bytes_;
};

}  // namespace

// Builds a ModelFile from either kind of file.
class ModelFileBuilder {
 public:
  static StatusOr<std::unique_ptr<ModelFile>> FromGguf(const std::filesystem::path& path) {
    std::unique_ptr<ModelFile> file(new ModelFile);
    BATON_ASSIGN_OR_RETURN(auto mapping, FileMapping::Open(path));
    BATON_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(mapping->bytes()));
    file->mappings_.push_back(std::move(mapping));
    BATON_ASSIGN_OR_RETURN(const std::string arch, gguf.Text("general.architecture"));
    BATON_ASSIGN_OR_RETURN(const Family* family, FindFamily(arch));
    BATON_ASSIGN_OR_RETURN(file->decoder_, family->from_gguf(gguf));
    BATON_ASSIGN_OR_RETURN(file->tokenizer_, GgufTokenizer(gguf));
    file->format_ = "GGUF v3";
    file->rope_rows_ = family->gguf_rope_rows;
    TensorSet tensors;
    for (const GgufTensor& t : gguf.tensors()) BATON_RETURN_IF_ERROR(tensors.Add(t.name, t.view));
    BATON_RETURN_IF_ERROR(Place(family->gguf_names, &tensors, file.get()));
    return file;
  }

  static StatusOr<std::unique_ptr<ModelFile>> FromHf(const std::filesystem::path& folder) {
    std::unique_ptr<ModelFile> file(new ModelFile);
    BATON_ASSIGN_OR_RETURN(const auto config, ReadJsonObject(folder / "config.json"));
    const auto type = config.find("model_type");
    if (type == config.end() || !type->is_string()) return InvalidArgumentError("config.json: 'model_type' is missing");
    BATON_ASSIGN_OR_RETURN(const Family* family, FindFamily(type->get<std::string>()));
    BATON_ASSIGN_OR_RETURN(file->decoder_, family->from_hf(config));
    BATON_ASSIGN_OR_RETURN(file->tokenizer_, HfTokenizer(folder, config));
    TensorSet tensors;
    BATON_RETURN_IF_ERROR(ReadShards(folder, &tensors, &file->mappings_));
    const size_t shards = file->mappings_.size();
    file->format_ = "safetensors, " + std::to_string(shards) + (shards == 1 ? " file" : " shards");
    if (file->decoder_.name.empty()) file->decoder_.name = std::filesystem::canonical(folder).filename().string();
    BATON_RETURN_IF_ERROR(DropTiedHead(family->hf_names, file->decoder_, &tensors));
    BATON_RETURN_IF_ERROR(Place(family->hf_names, &tensors, file.get()));
    return file;
  }

 private:
  // Some writers store the head although it is tied: accepted when it repeats the embedding.
  static Status DropTiedHead(const TensorNames& names, const DecoderDescription& d, TensorSet* tensors) {
    if (!d.tied_head || !tensors->Has(names.head)) return OkStatus();
    const TensorView* head = tensors->Find(names.head);
    const TensorView* table = tensors->Find(names.embedding);
    if (table == nullptr || head->dtype != table->dtype || head->bytes != table->bytes ||
        std::memcmp(head->data, table->data, head->bytes) != 0) {
      return InvalidArgumentError("the head is tied to the embedding, yet " + std::string(names.head) +
                                  " differs from " + std::string(names.embedding));
    }
    tensors->Drop(names.head);
    return OkStatus();
  }

  static Status Place(const TensorNames& names, TensorSet* tensors, ModelFile* file) {
    const DecoderDescription& d = file->decoder_;
    BATON_RETURN_IF_ERROR(ValidateDecoder(d));
    tensors->Ignore(names.ignored_suffix);
    file->weight_bytes_ = tensors->total_bytes();
    const uint64_t hidden = d.hidden, mlp = d.mlp_hidden, query = d.query_dim(), kv = d.kv_dim();
    file->embedding_ = tensors->Take(std::string(names.embedding), {d.vocab_size, hidden});
    file->final_norm_ = tensors->Take(std::string(names.final_norm), {hidden});
    if (!d.tied_head) file->head_ = tensors->Take(std::string(names.head), {d.vocab_size, hidden});
    for (uint32_t i = 0; i < d.num_layers; ++i) {
      const auto take = [&](std::string_view pattern, std::vector<uint64_t> shape) {
        return tensors->Take(LayerName(pattern, i), shape);
      };
      SourceLayer layer;
      layer.attention_norm = take(names.attention_norm, {hidden});
      layer.query = take(names.query, {query, hidden});
      layer.key = take(names.key, {kv, hidden});
      layer.value = take(names.value, {kv, hidden});
      layer.output = take(names.output, {hidden, query});
      layer.mlp_norm = take(names.mlp_norm, {hidden});
      layer.gate = take(names.gate, {mlp, hidden});
      layer.up = take(names.up, {mlp, hidden});
      layer.down = take(names.down, {hidden, mlp});
      file->layers_.push_back(std::move(layer));
    }
    BATON_RETURN_IF_ERROR(tensors->Finish());
    BATON_RETURN_IF_ERROR(CheckTokenIds(d, &file->tokenizer_));
    file->identity_ = Identify(*file);
    return OkStatus();
  }

  static Status CheckTokenIds(const DecoderDescription& d, TokenizerSource* tokenizer) {
    std::vector<TokenId>& ids = tokenizer->eos_ids;
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    if (!ids.empty() && static_cast<uint32_t>(ids.back()) >= d.vocab_size) {
      return InvalidArgumentError("end token " + std::to_string(ids.back()) + " is not in the vocabulary of " +
                                  std::to_string(d.vocab_size));
    }
    if (tokenizer->in_gguf && tokenizer->vocabulary.tokens.size() > d.vocab_size) {
      return InvalidArgumentError("the tokenizer has " + std::to_string(tokenizer->vocabulary.tokens.size()) +
                                  " tokens, the embedding " + std::to_string(d.vocab_size) + " rows");
    }
    return OkStatus();
  }

  static ModelIdentity Identify(const ModelFile& file) {
    const DecoderDescription& d = file.decoder_;
    Sampler sampler;
    sampler.Text(d.family);
    for (const double n :
         {double(d.num_layers), double(d.hidden), double(d.num_heads), double(d.num_kv_heads), double(d.head_dim),
          double(d.mlp_hidden), double(d.vocab_size), double(d.norm_eps), double(d.rope_theta), double(d.tied_head)}) {
      sampler.Number(n);
    }
    const RopeRows plain = RopeRows::kHalves;
    sampler.Add("embedding", 0, file.embedding_, plain, 1);
    sampler.Add("final_norm", 0, file.final_norm_, plain, 1);
    if (!d.tied_head) sampler.Add("head", 0, file.head_, plain, 1);
    for (uint32_t i = 0; i < d.num_layers; ++i) {
      const SourceLayer& layer = file.layers_[i];
      sampler.Add("attention_norm", i, layer.attention_norm, plain, 1);
      sampler.Add("query", i, layer.query, file.rope_rows_, d.head_dim);
      sampler.Add("key", i, layer.key, file.rope_rows_, d.head_dim);
      sampler.Add("value", i, layer.value, plain, 1);
      sampler.Add("output", i, layer.output, plain, 1);
      sampler.Add("mlp_norm", i, layer.mlp_norm, plain, 1);
      sampler.Add("gate", i, layer.gate, plain, 1);
      sampler.Add("up", i, layer.up, plain, 1);
      sampler.Add("down", i, layer.down, plain, 1);
    }
    return {d.name, sampler.Digest()};
  }
};

StatusOr<std::unique_ptr<ModelFile>> ModelFile::Open(const std::filesystem::path& path) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  auto file = folder ? ModelFileBuilder::FromHf(path) : ModelFileBuilder::FromGguf(path);
  if (!file.ok()) return At(path, file.status());
  (*file)->path_ = path;
  return file;
}

ModelFile::~ModelFile() = default;

void ModelFile::Prefetch() const {
  for (const auto& mapping : mappings_) mapping->Prefetch(mapping->bytes());
}

void ModelFile::Release(const SourceTensor& tensor) const {
  for (const auto& mapping : mappings_) {
    if (mapping->Release({tensor.view.data, tensor.view.bytes})) return;
  }
}

StatusOr<BpeVocabulary> LoadVocabulary(const ModelFile& file) {
  const TokenizerSource& source = file.tokenizer();
  StatusOr<BpeVocabulary> vocabulary = InternalError("");
  if (source.in_gguf) {
    vocabulary = VocabularyFromGguf(source.vocabulary);
  } else {
    BATON_ASSIGN_OR_RETURN(const HfTokenizerFiles files, ReadHfTokenizerFiles(source.hf_folder));
    vocabulary = VocabularyFromHf(files);
  }
  if (!vocabulary.ok()) return At(file.path(), vocabulary.status());
  if (vocabulary->tokens.size() > file.decoder().vocab_size) {
    return At(file.path(),
              InvalidArgumentError("the tokenizer has " + std::to_string(vocabulary->tokens.size()) +
                                   " tokens, the embedding " + std::to_string(file.decoder().vocab_size) + " rows"));
  }
  for (const TokenId id : source.eos_ids) {
    if (std::find(vocabulary->eos.begin(), vocabulary->eos.end(), id) == vocabulary->eos.end()) {
      vocabulary->eos.push_back(id);
    }
  }
  return vocabulary;
}

}  // namespace baton
