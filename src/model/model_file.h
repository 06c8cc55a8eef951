// A model on disk, opened but not loaded: its description, its tensors as views into the mapped files, its
// tokenizer's data. Opening reads headers only (milliseconds), proves that every tensor the decoder needs is
// there with the right shape and type, and that none is left over. Immutable afterwards; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "baton/front_link.h"
#include "baton/ids.h"
#include "baton/status.h"
#include "baton/tensor.h"
#include "model/decoder.h"
#include "text/vocabulary.h"

namespace baton {

// What the tokenizer and the front need. A GGUF carries the vocabulary itself; an HF folder's files are read by
// text (ReadHfTokenizerFiles).
struct TokenizerSource {
  bool in_gguf = false;
  GgufVocabulary vocabulary;     // in_gguf: views into the mapping, valid as long as the ModelFile
  std::string hf_folder;         // else
  std::string chat_template;     // "" when the model has none
  std::vector<TokenId> eos_ids;  // every end token that GGUF keys, config.json or generation_config.json name
};

// The order in which a file stores the rows of Q and K inside a head.
enum class RopeRows : uint8_t {
  kHalves,       // as HF: canonical
  kInterleaved,  // as llama.cpp's converter writes llama models: row 2i + s is canonical row s * dim/2 + i
};

// One matrix or vector of the decoder, as it lies in a file.
struct SourceTensor {
  std::string name;  // in the file, for messages
  TensorView view;   // borrows the mapping
};
struct SourceLayer {
  SourceTensor attention_norm, query, key, value, output, mlp_norm, gate, up, down;
};

class FileMapping;

class ModelFile {
 public:
  // `path`: a .gguf file, or a folder with config.json and safetensors.
  static StatusOr<std::unique_ptr<ModelFile>> Open(const std::filesystem::path& path);
  ~ModelFile();
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::string& format() const { return format_; }  // "GGUF v3", "safetensors, 2 shards"
  const DecoderDescription& decoder() const { return decoder_; }
  const TokenizerSource& tokenizer() const { return tokenizer_; }
  // Equal for equal numbers, whatever the container: over the description and sampled values in canonical
  // order. Reads a few hundred pages.
  const ModelIdentity& identity() const { return identity_; }
  RopeRows rope_rows() const { return rope_rows_; }
  uint64_t weight_bytes() const { return weight_bytes_; }  // of all tensors in the files

  const SourceTensor& embedding() const { return embedding_; }
  const SourceTensor& final_norm() const { return final_norm_; }
  const SourceTensor& head() const { return decoder_.tied_head ? embedding_ : head_; }
  const std::vector<SourceLayer>& layers() const { return layers_; }

  // Asks for everything to be read ahead: LoadedModel::Load comes next.
  void Prefetch() const;
  // The pages behind the tensor may go: what is read again comes from the file.
  void Release(const SourceTensor& tensor) const;

 private:
  friend class ModelFileBuilder;
  ModelFile() = default;

  std::filesystem::path path_;
  std::string format_;
  DecoderDescription decoder_;
  TokenizerSource tokenizer_;
  ModelIdentity identity_;
  RopeRows rope_rows_ = RopeRows::kHalves;
  uint64_t weight_bytes_ = 0;
  SourceTensor embedding_, final_norm_, head_;
  std::vector<SourceLayer> layers_;
  std::vector<std::unique_ptr<FileMapping>> mappings_;
};

// The vocabulary of either kind of file, ready for BpeTokenizer::Make, with every end token the model names.
StatusOr<BpeVocabulary> LoadVocabulary(const ModelFile& file);

// Many lines for people: `baton model inspect`.
std::string DescribeModel(const ModelFile& file);

}  // namespace baton
