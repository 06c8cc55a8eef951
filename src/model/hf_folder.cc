#include "model/hf_folder.h"

#include <limits>
#include <map>

#include "model/safetensors.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr size_t kMaxJsonBytes = 64'000'000;
constexpr size_t kMaxShards = 4096;

Status ReadShard(const std::filesystem::path& path, TensorSet* tensors,
                 std::vector<std::unique_ptr<FileMapping>>* mappings) {
  BATON_ASSIGN_OR_RETURN(auto mapping, FileMapping::Open(path));
  auto parsed = ParseSafetensors(mapping->bytes());
  if (!parsed.ok()) return Status(parsed.status().code(), path.filename().string() + ": " + parsed.status().message());
  for (SafeTensor& t : *parsed) BATON_RETURN_IF_ERROR(tensors->Add(std::move(t.name), std::move(t.view)));
  mappings->push_back(std::move(mapping));
  return OkStatus();
}

// Names of files in this folder only: an index may not reach elsewhere.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

StatusOr<json> ReadJsonObject(const std::filesystem::path& path) {
  BATON_ASSIGN_OR_RETURN(const auto mapping, FileMapping::Open(path));
  const auto bytes = mapping->bytes();
  if (bytes.size() > kMaxJsonBytes) {
    return InvalidArgumentError(path.string() + " has " + std::to_string(bytes.size()) + " bytes; at most " +
                                std::to_string(kMaxJsonBytes) + " are read");
  }
  const char* text = reinterpret_cast<const char*>(bytes.data());
  json value = json::parse(text, text + bytes.size(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return InvalidArgumentError(path.string() + " is not a JSON object");
  return value;
}

Status ReadShards(const std::filesystem::path& folder, TensorSet* tensors,
                  std::vector<std::unique_ptr<FileMapping>>* mappings) {
  const auto index_path = folder / "model.safetensors.index.json";
  if (!std::filesystem::exists(index_path)) return ReadShard(folder / "model.safetensors", tensors, mappings);
  BATON_ASSIGN_OR_RETURN(const json index, ReadJsonObject(index_path));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return InvalidArgumentError(index_path.string() + ": weight_map is missing");
  }
  std::map<std::string, std::vector<std::string>> names_of_shard;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !IsPlainName(file.get<std::string>())) {
      return InvalidArgumentError(index_path.string() + ": '" + name + "' lies in " + file.dump() +
                                  ", which is not the name of a file in this folder");
    }
    names_of_shard[file.get<std::string>()].push_back(name);
  }
  if (names_of_shard.size() > kMaxShards) {
    return InvalidArgumentError(index_path.string() + ": " + std::to_string(names_of_shard.size()) + " shards");
  }
  for (const auto& [file, names] : names_of_shard) {
    BATON_RETURN_IF_ERROR(ReadShard(folder / file, tensors, mappings));
    const auto bytes = mappings->back()->bytes();
    for (const std::string& name : names) {
      const TensorView* view = tensors->Find(name);
      if (view == nullptr || view->data < bytes.data() || view->data > bytes.data() + bytes.size()) {
        return InvalidArgumentError(index_path.string() + ": '" + name + "' is not in " + file);
      }
    }
  }
  return OkStatus();
}

StatusOr<std::vector<TokenId>> EosIds(const json& config, const std::string& file_name) {
  std::vector<TokenId> ids;
  const auto it = config.find("eos_token_id");
  if (it == config.end() || it->is_null()) return ids;
  for (const json& item : it->is_array() ? *it : json::array({*it})) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > std::numeric_limits<TokenId>::max()) {
      return InvalidArgumentError(file_name + ": eos_token_id has " + item.dump() + ", not a token id");
    }
    ids.push_back(item.get<TokenId>());
  }
  return ids;
}

}  // namespace baton
