#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "text/json_nesting.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace baton::jinja {

std::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kMacro:
      return "macro";
  }
  return "?";
}

bool Truthy(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return v.integer() != 0;
    case Kind::kFloat:
      return v.number() != 0;
    case Kind::kText:
      return !v.text().text.empty();
    case Kind::kList:
    case Kind::kTuple:
      return !v.list().empty();
    case Kind::kDict:
      return !v.dict().empty();
    case Kind::kNamespace:
    case Kind::kMacro:
      return true;
  }
  return false;
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      return a.text().text == b.text().text;
    case Kind::kList:
    case Kind::kTuple:
      return std::equal(a.list().begin(), a.list().end(), b.list().begin(), b.list().end(), Equal);
    case Kind::kDict: {
      if (a.dict().size() != b.dict().size()) return false;
      return std::all_of(a.dict().begin(), a.dict().end(), [&](const auto& entry) {
        const Value* other = FindMember(b.dict(), entry.first.text().text);
        return other != nullptr && Equal(entry.second, *other);
      });
    }
    case Kind::kNamespace:
      return a.members() == b.members();
    case Kind::kMacro:
      return a.macro() == b.macro();
    default:
      return false;
  }
}

StatusOr<int> Compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return (a.integer() > b.integer()) - (a.integer() < b.integer());
    return (a.number() > b.number()) - (a.number() < b.number());
  }
  if (a.is(Kind::kText) && b.is(Kind::kText)) {
    const int order = a.text().text.compare(b.text().text);
    return (order > 0) - (order < 0);
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    for (size_t i = 0; i < a.list().size() && i < b.list().size(); ++i) {
      if (Equal(a.list()[i], b.list()[i])) continue;
      return Compare(a.list()[i], b.list()[i]);
    }
    return (a.list().size() > b.list().size()) - (a.list().size() < b.list().size());
  }
  return InvalidArgumentError("'" + std::string(KindName(a.kind())) + "' and '" + std::string(KindName(b.kind())) +
                              "' have no order");
}

const Value* FindMember(const Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict) {
    if (name.text().text == key) return &value;
  }
  return nullptr;
}

bool FullyTrusted(const Value& v) {
  switch (v.kind()) {
    case Kind::kText:
      return v.text().AllTrusted(0, v.text().text.size());
    case Kind::kList:
    case Kind::kTuple:
      return std::all_of(v.list().begin(), v.list().end(), FullyTrusted);
    case Kind::kDict:
      return std::all_of(v.dict().begin(), v.dict().end(),
                         [](const auto& e) { return FullyTrusted(e.first) && FullyTrusted(e.second); });
    default:
      return true;
  }
}

std::string FloatText(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::fabs(d);
  const auto format =
      size != 0 && (size < 1e-4 || size >= 1e16) ? std::chars_format::scientific : std::chars_format::fixed;
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, format).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

namespace {

void ReprText(std::string_view text, std::string* out) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  static constexpr char kHex[] = "0123456789abcdef";
  *out += quote;
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == quote || c == '\\') {
      *out += {'\\', c};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      *out += {'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : 't'};
    } else if (byte < 0x20 || byte == 0x7F) {
      *out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      *out += c;
    }
  }
  *out += quote;
}

void ReprInto(const Value& v, std::string* out) {
  switch (v.kind()) {
    case Kind::kUndefined:
      *out += "Undefined";
      break;
    case Kind::kNone:
      *out += "None";
      break;
    case Kind::kBool:
      *out += v.integer() ? "True" : "False";
      break;
    case Kind::kInt:
      *out += std::to_string(v.integer());
      break;
    case Kind::kFloat:
      *out += FloatText(v.number());
      break;
    case Kind::kText:
      ReprText(v.text().text, out);
      break;
    case Kind::kList:
    case Kind::kTuple: {
      const bool tuple = v.is(Kind::kTuple);
      *out += tuple ? '(' : '[';
      for (size_t i = 0; i < v.list().size(); ++i) {
        if (i > 0) *out += ", ";
        ReprInto(v.list()[i], out);
      }
      if (tuple && v.list().size() == 1) *out += ',';
      *out += tuple ? ')' : ']';
      break;
    }
    case Kind::kDict: {
      *out += '{';
      bool first = true;
      for (const auto& [key, value] : v.dict()) {
        if (!first) *out += ", ";
        first = false;
        ReprInto(key, out);
        *out += ": ";
        ReprInto(value, out);
      }
      *out += '}';
      break;
    }
    case Kind::kNamespace:
      *out += "<Namespace>";
      break;
    case Kind::kMacro:
      *out += "<Macro>";
      break;
  }
}

void JsonText(std::string_view text, bool ensure_ascii, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  const auto escape = [&](uint32_t unit) {
    *out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) *out += kHex[unit >> shift & 15];
  };
  *out += '"';
  for (size_t at = 0; at < text.size();) {
    size_t bytes = 0;
    const uint32_t c = CodePointAt(text, at, &bytes);
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
          escape(c);
        } else if (ensure_ascii && c >= 0x10000) {
          escape(0xD800 + ((c - 0x10000) >> 10));
          escape(0xDC00 + ((c - 0x10000) & 0x3FF));
        } else {
          *out += text.substr(at, bytes);
        }
    }
    at += bytes;
  }
  *out += '"';
}

void NewLine(const JsonStyle& style, int depth, std::string* out) {
  if (style.indent < 0) return;
  *out += '\n';
  out->append(static_cast<size_t>(style.indent) * static_cast<size_t>(depth), ' ');
}

}  // namespace

std::string Repr(const Value& v) {
  std::string out;
  ReprInto(v, &out);
  return out;
}

MarkedText ToText(const Value& v) {
  if (v.is(Kind::kText)) return v.text();
  MarkedText t;
  if (!v.undefined()) t.Append(Repr(v), FullyTrusted(v));
  return t;
}

Status WriteJson(const Value& v, const JsonStyle& style, int depth, std::string* out) {
  switch (v.kind()) {
    case Kind::kNone:
      *out += "null";
      return OkStatus();
    case Kind::kBool:
      *out += v.integer() ? "true" : "false";
      return OkStatus();
    case Kind::kInt:
      *out += std::to_string(v.integer());
      return OkStatus();
    case Kind::kFloat:
      *out += std::isnan(v.number())   ? "NaN"
              : std::isinf(v.number()) ? (v.number() > 0 ? "Infinity" : "-Infinity")
                                       : FloatText(v.number());
      return OkStatus();
    case Kind::kText:
      JsonText(v.text().text, style.ensure_ascii, out);
      return OkStatus();
    case Kind::kList:
    case Kind::kTuple: {
      if (v.list().empty()) return *out += "[]", OkStatus();
      *out += '[';
      for (size_t i = 0; i < v.list().size(); ++i) {
        if (i > 0) *out += style.item_separator;
        NewLine(style, depth + 1, out);
        BATON_RETURN_IF_ERROR(WriteJson(v.list()[i], style, depth + 1, out));
      }
      NewLine(style, depth, out);
      *out += ']';
      return OkStatus();
    }
    case Kind::kDict: {
      if (v.dict().empty()) return *out += "{}", OkStatus();
      std::vector<const std::pair<Value, Value>*> entries;
      for (const auto& entry : v.dict()) entries.push_back(&entry);
      if (style.sort_keys) {
        std::stable_sort(entries.begin(), entries.end(),
                         [](auto* a, auto* b) { return a->first.text().text < b->first.text().text; });
      }
      *out += '{';
      for (size_t i = 0; i < entries.size(); ++i) {
        if (i > 0) *out += style.item_separator;
        NewLine(style, depth + 1, out);
        JsonText(entries[i]->first.text().text, style.ensure_ascii, out);
        *out += style.key_separator;
        BATON_RETURN_IF_ERROR(WriteJson(entries[i]->second, style, depth + 1, out));
      }
      NewLine(style, depth, out);
      *out += '}';
      return OkStatus();
    }
    default:
      return InvalidArgumentError("tojson: '" + std::string(KindName(v.kind())) + "' is not a JSON value");
  }
}

namespace {

// Builds values while the parser reads, so that a large object costs no look-up per member.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add(Value::None()); }
  bool boolean(bool b) override { return Add(Value::Bool(b)); }
  bool number_integer(int64_t i) override { return Add(Value::Int(i)); }
  bool number_unsigned(uint64_t u) override {
    if (u <= static_cast<uint64_t>(INT64_MAX)) return Add(Value::Int(static_cast<int64_t>(u)));
    fault_ = "the number " + std::to_string(u) + " is above 9223372036854775807";
    return false;
  }
  bool number_float(double d, const std::string&) override { return Add(Value::Float(d)); }
  bool string(std::string& s) override { return Add(Value::Text(s, false)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open_.emplace_back(), true; }
  bool start_array(size_t) override { return open_.emplace_back(), true; }
  bool key(std::string& s) override { return open_.back().keys.push_back(s), true; }
  bool end_array() override {
    List items = std::move(open_.back().items);
    open_.pop_back();
    return Add(Value::MakeList(std::move(items)));
  }
  // Of members with one name the last value wins, at the first one's place, as in Python.
  bool end_object() override {
    Open top = std::move(open_.back());
    open_.pop_back();
    Dict dict;
    std::map<std::string_view, size_t> places;
    for (size_t i = 0; i < top.keys.size(); ++i) {
      const auto [it, fresh] = places.emplace(top.keys[i], dict.size());
      if (fresh) {
        dict.emplace_back(Value::Text(top.keys[i], false), std::move(top.items[i]));
      } else {
        dict[it->second].second = std::move(top.items[i]);
      }
    }
    return Add(Value::MakeDict(std::move(dict)));
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    fault_ = "not JSON near offset " + std::to_string(at);
    return false;
  }
  const std::string& fault() const { return fault_; }
  Value& result() { return result_; }

 private:
  struct Open {
    std::vector<std::string> keys;
    List items;
  };
  bool Add(Value v) {
    (open_.empty() ? result_ : open_.back().items.emplace_back()) = std::move(v);
    return true;
  }
  std::vector<Open> open_;
  Value result_;
  std::string fault_;
};

}  // namespace

Value Value::Sequence(Kind kind, List l) {
  int32_t depth = 0;
  for (const Value& item : l) depth = std::max(depth, item.depth_);
  Value v(kind, std::make_shared<const List>(std::move(l)));
  v.depth_ = depth + 1;
  return v;
}

Value Value::MakeDict(Dict d) {
  int32_t depth = 0;
  for (const auto& [key, item] : d) depth = std::max(depth, item.depth_);
  Value v(Kind::kDict, std::make_shared<const Dict>(std::move(d)));
  v.depth_ = depth + 1;
  return v;
}

StatusOr<Value> FromJson(std::string_view json, std::string_view what) {
  static constexpr int kMaxDepth = 64;
  if (!JsonNestedAtMost(json, kMaxDepth)) {
    return InvalidArgumentError(std::string(what) + ": nested deeper than " + std::to_string(kMaxDepth));
  }
  Builder builder;
  if (nlohmann::json::sax_parse(json, &builder)) return std::move(builder.result());
  return InvalidArgumentError(std::string(what) + ": " + (builder.fault().empty() ? "not JSON" : builder.fault()));
}

}  // namespace baton::jinja
