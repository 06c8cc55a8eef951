// Reads a Hugging Face folder: config.json, model.safetensors or its shards, and the end tokens.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "baton/ids.h"
#include "baton/status.h"
#include "model/file_mapping.h"
#include "model/tensor_set.h"

namespace baton {

// A JSON object in a file of at most 64 MB. NOT_FOUND, or INVALID_ARGUMENT with the file's name.
StatusOr<nlohmann::json> ReadJsonObject(const std::filesystem::path& path);

// Maps the folder's safetensors and adds their tensors. Shards come from model.safetensors.index.json, whose
// every entry must be true.
Status ReadShards(const std::filesystem::path& folder, TensorSet* tensors,
                  std::vector<std::unique_ptr<FileMapping>>* mappings);

// `eos_token_id` of a config: absent, a number or a list.
StatusOr<std::vector<TokenId>> EosIds(const nlohmann::json& config, const std::string& file_name);

}  // namespace baton
