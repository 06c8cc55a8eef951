// Architecture families: each turns the metadata of its files into a DecoderDescription and names its tensors.
// To add one, write a file like llama.cc and add it to the table in family.cc. Whatever a family's files may ask
// for and the runner cannot do is refused here, by name; nothing is ignored.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "baton/status.h"
#include "model/decoder.h"
#include "model/gguf.h"
#include "model/model_file.h"

namespace baton {

// '#' stands for the layer's number.
struct TensorNames {
  std::string_view embedding, final_norm, head;
  std::string_view attention_norm, query, key, value, output, mlp_norm, gate, up, down;
  std::string_view ignored_suffix;  // tensors that repeat what the metadata says; "" = none
};

struct Family {
  std::string_view name;  // GGUF's general.architecture and config.json's model_type
  StatusOr<DecoderDescription> (*from_gguf)(const GgufFile& file);
  StatusOr<DecoderDescription> (*from_hf)(const nlohmann::json& config);
  TensorNames gguf_names, hf_names;
  RopeRows gguf_rope_rows;
};

std::span<const Family* const> Families();
// UNIMPLEMENTED with the list of the families that are there.
StatusOr<const Family*> FindFamily(std::string_view name);

// Ranges and divisibility that the runner and its kernels rely on.
Status ValidateDecoder(const DecoderDescription& decoder);

extern const Family kLlamaFamily;  // llama.cc

}  // namespace baton
