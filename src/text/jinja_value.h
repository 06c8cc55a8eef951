// Values of the template language, and text that remembers who wrote it. Private to src/text.
//
// Always true: a value never changes once made (lists and dicts are shared), but for a namespace. Every byte of a
// MarkedText is trusted (the template's own) or not, and no operation turns an untrusted byte into a trusted one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "baton/status.h"
#include "text/added_tokens.h"

namespace baton::jinja {

using MarkedText = MarkedRuns;

class Value;
struct Macro;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;  // in order of insertion; keys are strings
struct Namespace {
  std::vector<std::pair<std::string, Value>> members;
};

enum class Kind : uint8_t { kUndefined, kNone, kBool, kInt, kFloat, kText, kList, kTuple, kDict, kNamespace, kMacro };

class Value {
 public:
  Value() = default;  // undefined
  static Value Undefined(std::string name) {
    Value v;
    v.data_ = std::make_shared<const std::string>(std::move(name));
    return v;
  }
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool b) { return Value(Kind::kBool, int64_t{b}); }
  static Value Int(int64_t i) { return Value(Kind::kInt, i); }
  static Value Float(double d) { return Value(Kind::kFloat, d); }
  static Value Text(MarkedText t) { return Value(Kind::kText, std::make_shared<const MarkedText>(std::move(t))); }
  static Value Text(std::string_view text, bool trusted) {
    MarkedText t;
    t.Append(text, trusted);
    return Text(std::move(t));
  }
  static Value MakeList(List l) { return Sequence(Kind::kList, std::move(l)); }
  static Value MakeTuple(List l) { return Sequence(Kind::kTuple, std::move(l)); }
  static Value MakeDict(Dict d);
  static Value MakeNamespace(Namespace* n) { return Value(Kind::kNamespace, n); }  // owned by the rendering
  static Value MakeMacro(const Macro* macro) { return Value(Kind::kMacro, macro); }

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool undefined() const { return kind_ == Kind::kUndefined; }
  bool is_number() const { return kind_ == Kind::kBool || kind_ == Kind::kInt || kind_ == Kind::kFloat; }
  bool is_integer() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  int64_t integer() const { return std::get<int64_t>(data_); }  // also of a bool
  double number() const { return kind_ == Kind::kFloat ? std::get<double>(data_) : static_cast<double>(integer()); }
  const MarkedText& text() const { return *std::get<std::shared_ptr<const MarkedText>>(data_); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace* members() const { return std::get<Namespace*>(data_); }
  int depth() const { return depth_; }  // of lists and dicts inside one another; a text has 0
  const Macro* macro() const { return std::get<const Macro*>(data_); }
  // What an undefined value was called; "" if it has no name.
  std::string_view name() const {
    const auto* n = std::get_if<std::shared_ptr<const std::string>>(&data_);
    return n == nullptr ? std::string_view() : std::string_view(**n);
  }

 private:
  using Data =
      std::variant<std::monostate, int64_t, double, std::shared_ptr<const MarkedText>, std::shared_ptr<const List>,
                   std::shared_ptr<const Dict>, Namespace*, const Macro*, std::shared_ptr<const std::string>>;
  explicit Value(Kind kind, Data data = {}) : kind_(kind), data_(std::move(data)) {}
  static Value Sequence(Kind kind, List l);
  Kind kind_ = Kind::kUndefined;
  int32_t depth_ = 0;
  Data data_;
};

std::string_view KindName(Kind kind);  // Python's: "str", "NoneType", ...

bool Truthy(const Value& v);
bool Equal(const Value& a, const Value& b);  // as Python's ==, whoever wrote the text
// -1, 0, 1 as Python's < and >; INVALID_ARGUMENT for kinds that have no order.
StatusOr<int> Compare(const Value& a, const Value& b);

const Value* FindMember(const Dict& dict, std::string_view key);

// What {{ v }} writes: Python's str(). Text keeps its marks; what is not text is trusted only if all of it is.
MarkedText ToText(const Value& v);
std::string Repr(const Value& v);
bool FullyTrusted(const Value& v);
std::string FloatText(double d);  // Python's repr

struct JsonStyle {
  int indent = -1;  // -1: one line
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ", key_separator = ": ";
};
// INVALID_ARGUMENT for a value that JSON has no word for.
Status WriteJson(const Value& v, const JsonStyle& style, int depth, std::string* out);

// A client's JSON, every text of it untrusted. INVALID_ARGUMENT (named `what`): broken, or nested deeper than 64.
StatusOr<Value> FromJson(std::string_view json, std::string_view what);

}  // namespace baton::jinja
