// Reads what a tokenizer needs from a GGUF file's key-values, for tests of modules below `model`. Trusts the file.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace baton::testing_support {

struct GgufTokenizerFile {
  GgufVocabulary vocabulary;  // views into `bytes`
  std::string chat_template;
  std::string bytes;

  bool Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    bytes.resize(16u << 20);  // the key-values come first
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<size_t>(in.gcount()));
    if (bytes.compare(0, 4, "GGUF") != 0) return false;
    at_ = 16;
    const uint64_t count = Take<uint64_t>();
    for (uint64_t i = 0; i < count && at_ < bytes.size(); ++i) KeyValue();
    return at_ <= bytes.size() && !vocabulary.tokens.empty();
  }

 private:
  template <typename T>
  T Take() {
    T value{};
    if (at_ + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string_view Text() {
    const auto size = Take<uint64_t>();
    const std::string_view text = std::string_view(bytes).substr(std::min(at_, bytes.size()), size);
    at_ += size;
    return text;
  }
  static size_t Size(uint32_t type) {
    static constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < 13 ? kSizes[type] : 0;
  }
  void KeyValue() {
    const std::string key(Text());
    const auto type = Take<uint32_t>();
    if (type == 8) {
      const std::string text(Text());
      if (key == "tokenizer.ggml.model") vocabulary.model = text;
      if (key == "tokenizer.ggml.pre") vocabulary.pre = text;
      if (key == "tokenizer.chat_template") chat_template = text;
    } else if (type == 9) {
      const auto item_type = Take<uint32_t>();
      const auto count = Take<uint64_t>();
      for (uint64_t i = 0; i < count; ++i) {
        if (item_type == 8) {
          const std::string_view text = Text();
          if (key == "tokenizer.ggml.tokens") vocabulary.tokens.push_back(text);
          if (key == "tokenizer.ggml.merges") vocabulary.merges.push_back(text);
        } else if (key == "tokenizer.ggml.token_type") {
          vocabulary.token_types.push_back(Take<int32_t>());
        } else {
          at_ += Size(item_type);
        }
      }
    } else if (key == "tokenizer.ggml.bos_token_id") {
      vocabulary.bos = static_cast<TokenId>(Take<uint32_t>());
    } else if (key == "tokenizer.ggml.eos_token_id") {
      vocabulary.eos = static_cast<TokenId>(Take<uint32_t>());
    } else if (key == "tokenizer.ggml.add_bos_token") {
      vocabulary.add_bos = Take<uint8_t>() != 0;
    } else {
      at_ += Size(type);
    }
  }
  size_t at_ = 0;
};

}  // namespace baton::testing_support
