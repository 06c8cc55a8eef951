// tokenizer.json and its neighbours. Every part is read by name; a part that is not known is refused by name.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/json_nesting.h"
#include "text/pre_tokenizer.h"
#include "text/utf8.h"
#include "text/vocabulary.h"
#include "text/vocabulary_parts.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = 256u << 20;

const Json& Get(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

std::string TextOf(const Json& value) { return value.is_string() ? value.get_ref<const std::string&>() : ""; }
bool Flag(const Json& object, const char* key, bool absent = false) {
  const Json& value = Get(object, key);
  return value.is_boolean() ? value.get<bool>() : absent;
}

Status Unsupported(const std::string& what, const std::string& value) {
  return UnimplementedError(what + " \"" + value + "\" is not supported");
}

StatusOr<Json> ParseJson(const std::string& text, const char* file) {
  static constexpr int kMaxDepth = 64;
  if (!JsonNestedAtMost(text, kMaxDepth)) {
    return InvalidArgumentError(std::string(file) + ": nested deeper than " + std::to_string(kMaxDepth));
  }
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    return InvalidArgumentError(std::string(file) + ": not a JSON object");
  }
  return json;
}

StatusOr<TokenId> ReadId(const Json& value, const std::string& what) {
  if (value.is_number_integer()) {
    const int64_t id = value.get<int64_t>();
    if (id >= 0 && id < kMaxVocabulary) return static_cast<TokenId>(id);
  }
  return InvalidArgumentError(what + ": id " + value.dump() + " is not an integer from 0 to " +
                              std::to_string(kMaxVocabulary - 1));
}

Status ReadNormalizer(const Json& json, BpeVocabulary* v) {
  if (json.is_null()) return OkStatus();
  const std::string type = TextOf(Get(json, "type"));
  if (type == "NFC") {
    v->nfc = true;
  } else if (type == "Sequence") {
    for (const Json& part : Get(json, "normalizers")) BATON_RETURN_IF_ERROR(ReadNormalizer(part, v));
  } else {
    return Unsupported("normalizer", type);
  }
  return OkStatus();
}

std::string QuotePattern(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

Status ReadSplit(const Json& json, BpeVocabulary* v) {
  const Json& pattern = Get(json, "pattern");
  SplitStep step;
  if (Get(pattern, "Regex").is_string()) {
    step.regex = TextOf(pattern["Regex"]);
  } else if (Get(pattern, "String").is_string()) {
    step.regex = QuotePattern(TextOf(pattern["String"]));
  } else {
    return Unsupported("pre_tokenizer Split with pattern", pattern.dump());
  }
  const std::string behavior = TextOf(Get(json, "behavior"));
  if (behavior == "Removed" && Flag(json, "invert")) {
    step.drop_gaps = true;
  } else if (behavior != "Isolated") {
    return Unsupported("pre_tokenizer Split with behavior", behavior);
  }
  v->splits.push_back(std::move(step));
  return OkStatus();
}

// `*done`: the step that turns text into the byte alphabet was read; nothing may follow it.
Status ReadPreTokenizer(const Json& json, BpeVocabulary* v, bool* done) {
  const std::string type = TextOf(Get(json, "type"));
  if (*done) return Unsupported("pre_tokenizer after ByteLevel", type);
  if (type == "Sequence") {
    for (const Json& part : Get(json, "pretokenizers")) BATON_RETURN_IF_ERROR(ReadPreTokenizer(part, v, done));
    return OkStatus();
  }
  if (type == "Split") return ReadSplit(json, v);
  if (type == "Digits") {
    v->splits.push_back({Flag(json, "individual_digits") ? kSingleNumberPattern : R"(\p{N}+)"});
    return OkStatus();
  }
  if (type == "ByteLevel") {
    if (Flag(json, "add_prefix_space", true)) return Unsupported("pre_tokenizer ByteLevel with", "add_prefix_space");
    if (Flag(json, "use_regex", true)) v->splits.push_back({kGpt2Pattern});
    *done = true;
    return OkStatus();
  }
  return Unsupported("pre_tokenizer", json.is_null() ? "null" : type);
}

Status ReadTemplate(const Json& json, BpeVocabulary* v) {
  bool after_text = false;
  for (const Json& item : Get(json, "single")) {
    if (const Json& special = Get(item, "SpecialToken"); special.is_object()) {
      const std::string name = TextOf(Get(special, "id"));
      const Json& ids = Get(Get(Get(json, "special_tokens"), name.c_str()), "ids");
      if (!ids.is_array()) return InvalidArgumentError("post_processor: no ids for \"" + name + "\"");
      for (const Json& value : ids) {
        BATON_ASSIGN_OR_RETURN(const TokenId id, ReadId(value, "post_processor"));
        (after_text ? v->suffix : v->prefix).push_back(id);
      }
    } else if (TextOf(Get(Get(item, "Sequence"), "id")) == "A" && !after_text) {
      after_text = true;
    } else {
      return Unsupported("post_processor TemplateProcessing with", item.dump());
    }
  }
  return after_text ? OkStatus() : InvalidArgumentError("post_processor: the template has no sequence A");
}

Status ReadPostProcessor(const Json& json, BpeVocabulary* v) {
  if (json.is_null()) return OkStatus();
  const std::string type = TextOf(Get(json, "type"));
  if (type == "ByteLevel") return OkStatus();  // moves offsets only
  if (type == "TemplateProcessing") return ReadTemplate(json, v);
  if (type != "Sequence") return Unsupported("post_processor", type);
  for (const Json& part : Get(json, "processors")) BATON_RETURN_IF_ERROR(ReadPostProcessor(part, v));
  return OkStatus();
}

Status CheckModel(const Json& model) {
  const Json& type = Get(model, "type");
  if (!type.is_null() && TextOf(type) != "BPE") return Unsupported("model", TextOf(type));
  if (!Get(model, "vocab").is_object()) return InvalidArgumentError("model.vocab: not an object");
  if (!Get(model, "merges").is_array()) return InvalidArgumentError("model.merges: not an array");
  if (Flag(model, "byte_fallback")) return Unsupported("model BPE with", "byte_fallback");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!TextOf(Get(model, key)).empty()) return Unsupported("model BPE with", key);
  }
  const Json& dropout = Get(model, "dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0)) {
    return Unsupported("model BPE with", "dropout");
  }
  return OkStatus();
}

Status Place(TokenId id, std::string text, BpeVocabulary* v) {
  if (static_cast<size_t>(id) >= v->tokens.size()) v->tokens.resize(static_cast<size_t>(id) + 1);
  std::string& place = v->tokens[static_cast<size_t>(id)];
  if (!place.empty() && place != text) {
    return InvalidArgumentError("id " + std::to_string(id) + " is both \"" + ToAlphabet(place) + "\" and \"" +
                                ToAlphabet(text) + "\"");
  }
  place = std::move(text);
  return OkStatus();
}

Status ReadModel(const Json& model, BpeVocabulary* v) {
  BATON_RETURN_IF_ERROR(CheckModel(model));
  const Json& vocab = model["vocab"];
  const Json& merges = model["merges"];
  TokenTable by_text;
  by_text.Reserve(vocab.size());
  v->tokens.reserve(vocab.size());
  for (const auto& [text, value] : vocab.items()) {
    BATON_ASSIGN_OR_RETURN(const TokenId id, ReadId(value, "model.vocab"));
    BATON_RETURN_IF_ERROR(Place(id, FromAlphabet(text), v));
  }
  for (auto it = vocab.begin(); it != vocab.end(); ++it) by_text.Insert(it.key(), it.value().get<TokenId>());
  v->merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Json& merge = merges[rank];
    std::pair<std::string_view, std::string_view> cut;
    if (merge.is_string()) {
      BATON_ASSIGN_OR_RETURN(cut, CutMerge(merge.get_ref<const std::string&>(), rank));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      cut = {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
    } else {
      return InvalidArgumentError("model.merges: entry " + std::to_string(rank) + " is not a pair of texts");
    }
    BATON_ASSIGN_OR_RETURN(const auto pair, FindMerge(by_text, cut.first, cut.second, rank));
    v->merges.push_back(pair);
  }
  v->whole_words_first = Flag(model, "ignore_merges");
  if (const std::string unknown = TextOf(Get(model, "unk_token")); !unknown.empty()) {
    const TokenId id = by_text.Find(unknown);
    if (id < 0) return InvalidArgumentError("model.unk_token: \"" + unknown + "\" is no token");
    v->unknown = id;
    bool all_bytes = true;
    for (int b = 0; b < 256; ++b) {
      all_bytes &= by_text.Find(ToAlphabet(std::string(1, static_cast<char>(b)))) >= 0;
    }
    if (!all_bytes && Flag(model, "fuse_unk")) return Unsupported("model BPE with", "fuse_unk");
  }
  return OkStatus();
}

Status ReadAddedTokens(const Json& added, const Json& vocab, BpeVocabulary* v) {
  for (const Json& item : added) {
    AddedToken t;
    BATON_ASSIGN_OR_RETURN(t.id, ReadId(Get(item, "id"), "added_tokens"));
    t.text = TextOf(Get(item, "content"));
    if (t.text.empty()) return InvalidArgumentError("added_tokens: token " + std::to_string(t.id) + " has no content");
    t.special = Flag(item, "special");
    t.control = t.special || LooksLikeMarkup(t.text);
    t.lstrip = Flag(item, "lstrip");
    t.rstrip = Flag(item, "rstrip");
    t.single_word = Flag(item, "single_word");
    t.normalized = Flag(item, "normalized", !t.special);
    const Json& twin = Get(vocab, ToAlphabet(t.text).c_str());
    t.in_model = twin.is_number_integer() && twin.get<int64_t>() == t.id;
    // The model's vocabulary may hold the token too, written in the alphabet.
    if (static_cast<size_t>(t.id) < v->tokens.size() && v->tokens[t.id] == FromAlphabet(t.text)) v->tokens[t.id] = "";
    BATON_RETURN_IF_ERROR(Place(t.id, t.text, v));
    v->added.push_back(std::move(t));
  }
  return OkStatus();
}

// A token named in tokenizer_config.json, as text or as an object with `content`. Nothing if null or unknown to
// the vocabulary (some files name tokens that the model never had).
std::optional<TokenId> NamedToken(const Json& config, const char* key, const BpeVocabulary& v) {
  const Json& value = Get(config, key);
  const std::string text = TextOf(value.is_object() ? Get(value, "content") : value);
  if (text.empty()) return std::nullopt;
  for (const AddedToken& t : v.added) {
    if (t.text == text) return t.id;
  }
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    if (v.tokens[id] == text) return static_cast<TokenId>(id);
  }
  return std::nullopt;
}

Status ReadEnds(const HfTokenizerFiles& files, BpeVocabulary* v) {
  if (!files.tokenizer_config_json.empty()) {
    BATON_ASSIGN_OR_RETURN(const Json config, ParseJson(files.tokenizer_config_json, "tokenizer_config.json"));
    v->bos = NamedToken(config, "bos_token", *v);
    if (const auto eos = NamedToken(config, "eos_token", *v)) v->eos.push_back(*eos);
  }
  if (files.generation_config_json.empty()) return OkStatus();
  BATON_ASSIGN_OR_RETURN(const Json config, ParseJson(files.generation_config_json, "generation_config.json"));
  const Json& eos = Get(config, "eos_token_id");
  if (eos.is_null()) return OkStatus();
  for (const Json& value : eos.is_array() ? eos : Json::array({eos})) {
    BATON_ASSIGN_OR_RETURN(const TokenId id, ReadId(value, "generation_config.json eos_token_id"));
    AddOnce(id, &v->eos);
  }
  return OkStatus();
}

StatusOr<std::string> ReadFile(const std::string& path, bool required) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) {
    if (!required) return std::string();
    return NotFoundError(path + ": cannot be read");
  }
  const auto size = static_cast<std::streamoff>(in.tellg());
  if (size < 0 || static_cast<size_t>(size) > kMaxFileBytes) {
    return InvalidArgumentError(path + ": " + std::to_string(size) + " bytes, at most " +
                                std::to_string(kMaxFileBytes) + " are read");
  }
  std::string text(static_cast<size_t>(size), '\0');
  in.seekg(0);
  if (!in.read(text.data(), size)) return DataLossError(path + ": reading stopped before its end");
  return text;
}

}  // namespace

StatusOr<HfTokenizerFiles> ReadHfTokenizerFiles(const std::string& folder) {
  HfTokenizerFiles files;
  BATON_ASSIGN_OR_RETURN(files.tokenizer_json, ReadFile(folder + "/tokenizer.json", true));
  BATON_ASSIGN_OR_RETURN(files.tokenizer_config_json, ReadFile(folder + "/tokenizer_config.json", false));
  BATON_ASSIGN_OR_RETURN(files.generation_config_json, ReadFile(folder + "/generation_config.json", false));
  BATON_ASSIGN_OR_RETURN(files.chat_template_jinja, ReadFile(folder + "/chat_template.jinja", false));
  return files;
}

StatusOr<BpeVocabulary> VocabularyFromHf(const HfTokenizerFiles& files) {
  const auto read = [&]() -> StatusOr<BpeVocabulary> {
    BpeVocabulary v;
    BATON_ASSIGN_OR_RETURN(const Json json, ParseJson(files.tokenizer_json, "content"));
    BATON_RETURN_IF_ERROR(ReadModel(Get(json, "model"), &v));
    BATON_RETURN_IF_ERROR(ReadNormalizer(Get(json, "normalizer"), &v));
    bool byte_level = false;
    BATON_RETURN_IF_ERROR(ReadPreTokenizer(Get(json, "pre_tokenizer"), &v, &byte_level));
    if (!byte_level) return Unsupported("pre_tokenizer without", "ByteLevel");
    const std::string decoder = TextOf(Get(Get(json, "decoder"), "type"));
    if (decoder != "ByteLevel") return Unsupported("decoder", decoder);
    BATON_RETURN_IF_ERROR(ReadPostProcessor(Get(json, "post_processor"), &v));
    BATON_RETURN_IF_ERROR(ReadAddedTokens(Get(json, "added_tokens"), Get(Get(json, "model"), "vocab"), &v));
    return v;
  };
  StatusOr<BpeVocabulary> v = read();
  if (!v.ok()) return v.status().Annotate("tokenizer.json");
  BATON_RETURN_IF_ERROR(ReadEnds(files, &*v));
  return v;
}

StatusOr<std::string> ChatTemplateFromHf(const HfTokenizerFiles& files) {
  if (!files.chat_template_jinja.empty()) return files.chat_template_jinja;
  if (!files.tokenizer_config_json.empty()) {
    BATON_ASSIGN_OR_RETURN(const Json config, ParseJson(files.tokenizer_config_json, "tokenizer_config.json"));
    const Json& source = Get(config, "chat_template");
    if (source.is_string()) return TextOf(source);
    for (const Json& entry : source.is_array() ? source : Json::array()) {
      if (TextOf(Get(entry, "name")) == "default") return TextOf(Get(entry, "template"));
    }
  }
  return NotFoundError("the model's files hold no chat template");
}

}  // namespace baton
