// Little-endian bytes for what the transports of two processes say to each other. A reader of foreign bytes never
// reads past the end: after the first short field every read yields zero and ok() stays false.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "baton/ids.h"

namespace baton {

class WireWriter {
 public:
  template <typename T>
  requires std::is_integral_v<T>
  void Put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(static_cast<std::make_unsigned_t<T>>(value) >> (8 * i)));
    }
  }
  void PutBytes(std::span<const std::byte> bytes) {  // length first
    Put(static_cast<uint32_t>(bytes.size()));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void PutText(std::string_view text) { PutBytes(std::as_bytes(std::span(text))); }
  void PutProcess(const ProcessId& p) {
    PutText(p.name);
    Put(p.incarnation.counter);
    Put(p.incarnation.random);
  }
  void PutTicket(const Ticket& t) {
    Put(t.reader.counter);
    Put(t.reader.random);
    Put(t.slot);
    Put(t.generation);
  }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  requires std::is_integral_v<T> T Get() {
    if (!Has(sizeof(T))) return 0;
    std::make_unsigned_t<T> value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<std::make_unsigned_t<T>>(static_cast<std::make_unsigned_t<T>>(rest_[i]) << (8 * i));
    }
    rest_ = rest_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  std::span<const std::byte> GetBytes(size_t limit) {
    const size_t size = Get<uint32_t>();
    if (size > limit || !Has(size)) {
      Fail();
      return {};
    }
    const auto out = rest_.first(size);
    rest_ = rest_.subspan(size);
    return out;
  }
  std::string GetText(size_t limit) {
    const auto bytes = GetBytes(limit);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  ProcessId GetProcess(size_t name_limit) {
    ProcessId p;
    p.name = GetText(name_limit);
    p.incarnation.counter = Get<uint64_t>();
    p.incarnation.random = Get<uint64_t>();
    return p;
  }
  Ticket GetTicket() {
    Ticket t;
    t.reader.counter = Get<uint64_t>();
    t.reader.random = Get<uint64_t>();
    t.slot = Get<uint32_t>();
    t.generation = Get<uint32_t>();
    return t;
  }
  bool ok() const { return ok_; }
  size_t remaining() const { return rest_.size(); }
  bool Finished() const { return ok_ && rest_.empty(); }

 private:
  bool Has(size_t n) {
    if (rest_.size() < n) Fail();
    return ok_;
  }
  void Fail() {
    ok_ = false;
    rest_ = {};
  }
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

inline constexpr size_t kMaxProcessName = 256;

}  // namespace baton
