#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace baton {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDims = 8;

std::optional<DType> ToDType(const json& name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  return std::nullopt;
}

Status Bad(const std::string& name, const std::string& why) {
  return InvalidArgumentError("safetensors tensor '" + name + "': " + why);
}

// The shape, and the elements it gives; refuses an overflow.
StatusOr<uint64_t> ReadShape(const std::string& name, const json& shape, TensorView* view) {
  if (!shape.is_array() || shape.size() > kMaxDims) return Bad(name, "shape is not a list of at most 8 sizes");
  uint64_t elements = 1;
  for (const json& item : shape) {
    if (!item.is_number_unsigned()) return Bad(name, "shape has " + item.dump() + ", not a size");
    const auto n = item.get<uint64_t>();
    if (n != 0 && elements > std::numeric_limits<uint64_t>::max() / 64 / n) return Bad(name, "shape overflows");
    elements *= n;
    view->shape.push_back(n);
  }
  return elements;
}

struct Entry {
  SafeTensor tensor;
  uint64_t begin = 0;
  uint64_t end = 0;
};

StatusOr<Entry> ReadEntry(const std::string& name, const json& item, std::span<const std::byte> data) {
  Entry entry;
  entry.tensor.name = name;
  TensorView& view = entry.tensor.view;
  if (!item.is_object() || !item.contains("dtype") || !item.contains("shape") || !item.contains("data_offsets")) {
    return Bad(name, "dtype, shape and data_offsets are needed");
  }
  const std::optional<DType> dtype = ToDType(item["dtype"]);
  if (!dtype) return Bad(name, "type " + item["dtype"].dump() + " is not supported; F32, F16 and BF16 are");
  view.dtype = *dtype;
  BATON_ASSIGN_OR_RETURN(const uint64_t elements, ReadShape(name, item["shape"], &view));
  const json& offsets = item["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return Bad(name, "data_offsets is not [begin, end]");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.begin > entry.end || entry.end > data.size()) {
    return Bad(name, "bytes [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ") lie outside the " +
                         std::to_string(data.size()) + " bytes of data; is the file cut off?");
  }
  view.bytes = entry.end - entry.begin;
  if (view.bytes != elements * Traits(*dtype).block_bytes) {
    return Bad(name, std::to_string(view.bytes) + " bytes, the shape gives " +
                         std::to_string(elements * Traits(*dtype).block_bytes));
  }
  view.data = data.data() + entry.begin;
  return entry;
}

Status RefuseOverlaps(std::vector<Entry>* entries) {
  std::sort(entries->begin(), entries->end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  for (size_t i = 1; i < entries->size(); ++i) {
    const Entry &a = (*entries)[i - 1], &b = (*entries)[i];
    if (a.end > b.begin) return Bad(b.tensor.name, "overlaps with '" + a.tensor.name + "'");
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::vector<SafeTensor>> ParseSafetensors(std::span<const std::byte> bytes) {
  uint64_t header_bytes = 0;
  if (bytes.size() < 8) return InvalidArgumentError("safetensors: shorter than its header length");
  std::memcpy(&header_bytes, bytes.data(), 8);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - 8) {
    return InvalidArgumentError("safetensors: a header of " + std::to_string(header_bytes) + " bytes in a file of " +
                                std::to_string(bytes.size()) + "; at most 100 MB are read");
  }
  std::set<std::string> names;
  std::string twice;
  const auto watch_keys = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  const char* text = reinterpret_cast<const char*>(bytes.data() + 8);
  const json header = json::parse(text, text + header_bytes, watch_keys, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) {
    return InvalidArgumentError("safetensors: the header is not a JSON object");
  }
  if (!twice.empty()) return Bad(twice, "is there twice");

  const std::span<const std::byte> data = bytes.subspan(8 + header_bytes);
  std::vector<Entry> entries;
  for (const auto& [name, item] : header.items()) {
    if (name == "__metadata__") continue;
    BATON_ASSIGN_OR_RETURN(Entry entry, ReadEntry(name, item, data));
    entries.push_back(std::move(entry));
  }
  BATON_RETURN_IF_ERROR(RefuseOverlaps(&entries));
  std::vector<SafeTensor> out;
  for (Entry& e : entries) out.push_back(std::move(e.tensor));
  return out;
}

}  // namespace baton
