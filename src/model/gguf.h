// Reads the header of a GGUF v3 file: typed metadata and tensor views, all borrowed from the caller's bytes
// (a mapping). The file is not trusted: every length is checked against what is left of it before it is used,
// and nothing is allocated that the file's own size does not explain. Immutable after Parse.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/status.h"
#include "baton/tensor.h"

namespace baton {

enum class GgufType : uint32_t { kU8 = 0, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
std::string_view Name(GgufType type);

// One metadata value. Arrays stay in their file form and are read element by element.
struct GgufValue {
  GgufType type = GgufType::kU8;
  uint64_t bits = 0;                 // integers, sign-extended to 64 bits; bool
  double real = 0;                   // kF32, kF64
  std::string_view text;             // kString
  GgufType element = GgufType::kU8;  // kArray
  uint64_t count = 0;                // kArray
  std::span<const std::byte> items;  // kArray: the elements' bytes
};

struct GgufTensor {
  std::string name;
  TensorView view;
};

class GgufFile {
 public:
  // `bytes` outlives the result. INVALID_ARGUMENT with the byte offset and the field's name.
  static StatusOr<GgufFile> Parse(std::span<const std::byte> bytes);

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  bool Has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }
  // Typed reads. Without a fallback a missing key is an error; a value of another type always is.
  StatusOr<uint64_t> Unsigned(std::string_view key) const;
  StatusOr<uint64_t> Unsigned(std::string_view key, uint64_t fallback) const;
  StatusOr<double> Real(std::string_view key) const;
  StatusOr<double> Real(std::string_view key, double fallback) const;
  StatusOr<bool> Bool(std::string_view key, bool fallback) const;
  StatusOr<std::string> Text(std::string_view key) const;
  StatusOr<std::string> Text(std::string_view key, std::string fallback) const;
  StatusOr<std::vector<std::string_view>> Texts(std::string_view key) const;  // into the file's bytes
  StatusOr<std::vector<int32_t>> Ints(std::string_view key) const;            // any integer type that fits
  StatusOr<std::vector<float>> Floats(std::string_view key) const;

 private:
  StatusOr<const GgufValue*> Find(std::string_view key) const;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace baton
