#include "model/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace baton {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kVersion = 3;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxNameBytes = 1024;
constexpr uint64_t kMinValueBytes = 8 + 4 + 1;       // empty key, type, one byte
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;  // empty name, no dimensions, type, offset

// Bytes of one element in a file; a string is at least its length.
uint64_t MinBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
    case GgufType::kString:
      return 8;
    case GgufType::kArray:
      return 12;
  }
  return 0;  // not a type of the format
}

// ggml's tensor types, as far as their names help a message.
constexpr std::string_view kTensorTypes[] = {
    "F32",   "F16",    "Q4_0", "Q4_1", "Q4_2", "Q4_3",    "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",   "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16"};

std::optional<DType> ToDType(uint32_t ggml) {
  switch (ggml) {
    case 0:
      return DType::kF32;
    case 1:
      return DType::kF16;
    case 2:
      return DType::kQ4_0;
    case 3:
      return DType::kQ4_1;
    case 8:
      return DType::kQ8_0;
    case 30:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

// Reads forward and remembers the first error; after it every read gives zeros.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  void Fail(const std::string& field, const std::string& why) {
    if (!ok()) return;
    status_ = InvalidArgumentError("GGUF offset " + std::to_string(position_) + ", " + field + ": " + why);
  }
  std::span<const std::byte> Take(uint64_t n, const std::string& field) {
    if (!ok()) return {};
    if (n > left()) {
      Fail(field, "needs " + std::to_string(n) + " bytes, the file has " + std::to_string(left()) + " left");
      return {};
    }
    const auto out = bytes_.subspan(position_, n);
    position_ += n;
    return out;
  }
  template <typename T>
  T Read(const std::string& field) {
    T value{};
    const auto bytes = Take(sizeof(T), field);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string_view String(const std::string& field) {
    const auto length = Read<uint64_t>(field);
    const auto bytes = Take(length, field);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // A count of things that take at least `each` bytes of the rest of the file.
  uint64_t Count(const std::string& field, uint64_t each) {
    const auto n = Read<uint64_t>(field);
    if (ok() && n > left() / each) {
      Fail(field, std::to_string(n) + " entries cannot lie in the " + std::to_string(left()) + " bytes left");
    }
    return ok() ? n : 0;
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
  Status status_;
};

template <typename T>
uint64_t SignExtended(Cursor* in, const std::string& field) {
  return static_cast<uint64_t>(static_cast<int64_t>(in->Read<T>(field)));
}

void ReadArray(Cursor* in, const std::string& field, GgufValue* value) {
  value->element = static_cast<GgufType>(in->Read<uint32_t>(field));
  const uint64_t each = MinBytes(value->element);
  if (each == 0 || value->element == GgufType::kArray) {
    in->Fail(field, "arrays of type " + std::to_string(static_cast<uint32_t>(value->element)) + " are not read");
    return;
  }
  value->count = in->Count(field, each);
  if (value->element != GgufType::kString) {
    value->items = in->Take(value->count * each, field);  // Count made the product safe
    return;
  }
  // Walk the strings once now, so that later reads need no checks.
  const uint64_t begin = in->position();
  Cursor start = *in;
  for (uint64_t i = 0; i < value->count && in->ok(); ++i) in->String(field);
  if (in->ok()) value->items = start.Take(in->position() - begin, field);
}

GgufValue ReadValue(Cursor* in, const std::string& field) {
  GgufValue value;
  value.type = static_cast<GgufType>(in->Read<uint32_t>(field));
  switch (value.type) {
    case GgufType::kU8:
      value.bits = in->Read<uint8_t>(field);
      break;
    case GgufType::kI8:
      value.bits = SignExtended<int8_t>(in, field);
      break;
    case GgufType::kU16:
      value.bits = in->Read<uint16_t>(field);
      break;
    case GgufType::kI16:
      value.bits = SignExtended<int16_t>(in, field);
      break;
    case GgufType::kU32:
      value.bits = in->Read<uint32_t>(field);
      break;
    case GgufType::kI32:
      value.bits = SignExtended<int32_t>(in, field);
      break;
    case GgufType::kU64:
      value.bits = in->Read<uint64_t>(field);
      break;
    case GgufType::kI64:
      value.bits = SignExtended<int64_t>(in, field);
      break;
    case GgufType::kF32:
      value.real = in->Read<float>(field);
      break;
    case GgufType::kF64:
      value.real = in->Read<double>(field);
      break;
    case GgufType::kString:
      value.text = in->String(field);
      break;
    case GgufType::kArray:
      ReadArray(in, field, &value);
      break;
    case GgufType::kBool:
      value.bits = in->Read<uint8_t>(field);
      if (value.bits > 1) in->Fail(field, "a bool of value " + std::to_string(value.bits));
      break;
    default:
      in->Fail(field, "unknown value type " + std::to_string(static_cast<uint32_t>(value.type)));
  }
  return value;
}

struct TensorEntry {
  GgufTensor tensor;
  uint64_t offset = 0;  // from the start of the data
};

// Name, dimensions, type and offset; the bytes follow from them. Fails on overflow.
TensorEntry ReadTensorEntry(Cursor* in, uint64_t number) {
  TensorEntry entry;
  std::string field = "tensor " + std::to_string(number);
  const std::string_view name = in->String(field + " name");
  if (name.size() > kMaxNameBytes) in->Fail(field, "a name of " + std::to_string(name.size()) + " bytes");
  if (!in->ok()) return entry;
  entry.tensor.name = name;
  field += " '" + entry.tensor.name + "'";
  const auto dims = in->Read<uint32_t>(field + " dimensions");
  if (in->ok() && (dims == 0 || dims > kMaxDims)) {
    in->Fail(field, std::to_string(dims) + " dimensions; 1 to " + std::to_string(kMaxDims) + " are read");
  }
  if (!in->ok()) return entry;
  uint64_t elements = 1;
  TensorView& view = entry.tensor.view;
  for (uint32_t d = 0; d < dims && in->ok(); ++d) {
    const auto n = in->Read<uint64_t>(field + " shape");
    if (in->ok() && (n == 0 || n > std::numeric_limits<uint64_t>::max() / 64 / elements)) {
      in->Fail(field, "dimension " + std::to_string(d) + " is " + std::to_string(n));
      return entry;
    }
    elements *= n;
    view.shape.insert(view.shape.begin(), n);  // the file has the innermost first
  }
  const auto type = in->Read<uint32_t>(field + " type");
  entry.offset = in->Read<uint64_t>(field + " offset");
  if (!in->ok()) return entry;
  const std::optional<DType> dtype = ToDType(type);
  if (!dtype) {
    in->Fail(field, "type " +
                        (type < std::size(kTensorTypes) ? std::string(kTensorTypes[type]) : std::to_string(type)) +
                        " is not supported; F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are");
    return entry;
  }
  view.dtype = *dtype;
  const DTypeTraits& traits = Traits(*dtype);
  if (view.shape.back() % traits.block_elements != 0) {
    in->Fail(field, "rows of " + std::to_string(view.shape.back()) + " elements do not divide into blocks of " +
                        std::to_string(traits.block_elements));
    return entry;
  }
  view.bytes = elements / traits.block_elements * traits.block_bytes;
  return entry;
}

// Points each view at its bytes, and refuses what overlaps or leaves the file.
Status PlaceTensors(std::span<const std::byte> data, uint64_t alignment, std::vector<TensorEntry>* entries) {
  std::vector<const TensorEntry*> by_offset;
  for (TensorEntry& e : *entries) {
    const std::string where = "GGUF tensor '" + e.tensor.name + "': ";
    if (e.offset % alignment != 0) {
      return InvalidArgumentError(where + "offset " + std::to_string(e.offset) + " is not a multiple of " +
                                  std::to_string(alignment));
    }
    if (e.offset > data.size() || e.tensor.view.bytes > data.size() - e.offset) {
      return InvalidArgumentError(where + "bytes " + std::to_string(e.offset) + " + " +
                                  std::to_string(e.tensor.view.bytes) + " lie outside the " +
                                  std::to_string(data.size()) + " bytes of data; is the file cut off?");
    }
    e.tensor.view.data = data.data() + e.offset;
    by_offset.push_back(&e);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    if (by_offset[i - 1]->offset + by_offset[i - 1]->tensor.view.bytes > by_offset[i]->offset) {
      return InvalidArgumentError("GGUF tensors '" + by_offset[i - 1]->tensor.name + "' and '" +
                                  by_offset[i]->tensor.name + "' overlap");
    }
  }
  return OkStatus();
}

bool IsInteger(GgufType type) {
  switch (type) {
    case GgufType::kF32:
    case GgufType::kF64:
    case GgufType::kString:
    case GgufType::kArray:
    case GgufType::kBool:
      return false;
    default:
      return true;
  }
}
bool IsSigned(GgufType type) {
  return type == GgufType::kI8 || type == GgufType::kI16 || type == GgufType::kI32 || type == GgufType::kI64;
}

Status WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) {
  std::string found(Name(value.type));
  if (value.type == GgufType::kArray) found += " of " + std::string(Name(value.element));
  return InvalidArgumentError("GGUF key '" + std::string(key) + "' is " + found + ", not " + std::string(wanted));
}

}  // namespace

std::string_view Name(GgufType type) {
  static constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                "bool", "string", "array", "u64", "i64", "f64"};
  const auto i = static_cast<uint32_t>(type);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

StatusOr<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes) {
  Cursor in(bytes);
  const auto magic = in.Read<uint32_t>("magic");
  if (in.ok() && magic != kMagic) in.Fail("magic", "this is not a GGUF file");
  const auto version = in.Read<uint32_t>("version");
  if (in.ok() && version != kVersion) {
    in.Fail("version", (version & 0xffff) == 0 ? "a big-endian file; only little-endian is read"
                                               : std::to_string(version) + "; only 3 is read");
  }
  const uint64_t num_tensors = in.Count("tensor count", kMinTensorBytes);
  const uint64_t num_values = in.Count("metadata count", kMinValueBytes);

  GgufFile file;
  for (uint64_t i = 0; i < num_values && in.ok(); ++i) {
    const std::string field = "metadata " + std::to_string(i);
    const std::string_view key = in.String(field + " key");
    if (key.size() > kMaxNameBytes) in.Fail(field, "a key of " + std::to_string(key.size()) + " bytes");
    if (!in.ok()) break;
    GgufValue value = ReadValue(&in, "key '" + std::string(key) + "'");
    if (in.ok() && !file.metadata_.emplace(key, value).second) in.Fail(field, "key '" + std::string(key) + "' twice");
  }
  std::vector<TensorEntry> entries;
  std::set<std::string> names;
  for (uint64_t i = 0; i < num_tensors && in.ok(); ++i) {
    entries.push_back(ReadTensorEntry(&in, i));
    const std::string& name = entries.back().tensor.name;
    if (in.ok() && !names.insert(name).second) in.Fail("tensor " + std::to_string(i), "'" + name + "' twice");
  }
  BATON_RETURN_IF_ERROR(in.status());

  BATON_ASSIGN_OR_RETURN(const uint64_t alignment, file.Unsigned("general.alignment", 32));
  if (alignment == 0 || alignment > 65536 || !std::has_single_bit(alignment)) {
    return InvalidArgumentError("GGUF key 'general.alignment' is " + std::to_string(alignment) +
                                "; a power of two up to 65536 is read");
  }
  const uint64_t data_begin = std::min<uint64_t>((in.position() + alignment - 1) / alignment * alignment, bytes.size());
  BATON_RETURN_IF_ERROR(PlaceTensors(bytes.subspan(data_begin), alignment, &entries));
  for (TensorEntry& e : entries) file.tensors_.push_back(std::move(e.tensor));
  return file;
}

StatusOr<const GgufValue*> GgufFile::Find(std::string_view key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return NotFoundError("GGUF key '" + std::string(key) + "' is missing");
  return &it->second;
}

StatusOr<uint64_t> GgufFile::Unsigned(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (!IsInteger(value->type)) return WrongType(key, *value, "an integer");
  if (IsSigned(value->type) && static_cast<int64_t>(value->bits) < 0) {
    return InvalidArgumentError("GGUF key '" + std::string(key) +
                                "' is negative: " + std::to_string(static_cast<int64_t>(value->bits)));
  }
  return value->bits;
}

StatusOr<uint64_t> GgufFile::Unsigned(std::string_view key, uint64_t fallback) const {
  if (!Has(key)) return fallback;
  return Unsigned(key);
}

StatusOr<double> GgufFile::Real(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kF32 && value->type != GgufType::kF64) return WrongType(key, *value, "a real number");
  return value->real;
}

StatusOr<double> GgufFile::Real(std::string_view key, double fallback) const {
  if (!Has(key)) return fallback;
  return Real(key);
}

StatusOr<bool> GgufFile::Bool(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kBool) return WrongType(key, *value, "a bool");
  return value->bits != 0;
}

StatusOr<std::string> GgufFile::Text(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kString) return WrongType(key, *value, "a string");
  return std::string(value->text);
}

StatusOr<std::string> GgufFile::Text(std::string_view key, std::string fallback) const {
  if (!Has(key)) return fallback;
  return Text(key);
}

StatusOr<std::vector<std::string_view>> GgufFile::Texts(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    return WrongType(key, *value, "an array of strings");
  }
  std::vector<std::string_view> out;
  out.reserve(value->count);
  Cursor in(value->items);
  for (uint64_t i = 0; i < value->count; ++i) out.push_back(in.String("string"));
  return out;
}

StatusOr<std::vector<int32_t>> GgufFile::Ints(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kArray || !IsInteger(value->element) || MinBytes(value->element) > 4) {
    return WrongType(key, *value, "an array of integers of at most 32 bits");
  }
  std::vector<int32_t> out;
  out.reserve(value->count);
  Cursor in(value->items);
  for (uint64_t i = 0; i < value->count; ++i) {
    switch (value->element) {
      case GgufType::kU8:
        out.push_back(in.Read<uint8_t>("item"));
        break;
      case GgufType::kI8:
        out.push_back(in.Read<int8_t>("item"));
        break;
      case GgufType::kU16:
        out.push_back(in.Read<uint16_t>("item"));
        break;
      case GgufType::kI16:
        out.push_back(in.Read<int16_t>("item"));
        break;
      case GgufType::kI32:
        out.push_back(in.Read<int32_t>("item"));
        break;
      default: {
        const auto n = in.Read<uint32_t>("item");
        if (n > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
          return InvalidArgumentError("GGUF key '" + std::string(key) + "', item " + std::to_string(i) + ": " +
                                      std::to_string(n) + " is too large");
        }
        out.push_back(static_cast<int32_t>(n));
      }
    }
  }
  return out;
}

StatusOr<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kArray || value->element != GgufType::kF32) {
    return WrongType(key, *value, "an array of f32");
  }
  std::vector<float> out(value->count);
  if (!out.empty()) std::memcpy(out.data(), value->items.data(), value->items.size());
  return out;
}

}  // namespace baton
