// The filters, tests, functions and methods that templates may use. Private to src/text.
//
// Always true: what is not in these tables is refused when a template is parsed.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/status.h"
#include "text/jinja_value.h"

namespace baton::jinja {

class Evaluator;

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `index` or called `name`; null if it was not given.
  const Value* Find(size_t index, std::string_view name) const;
};

// The n-th argument, converted; INVALID_ARGUMENT if it is of another kind. `fallback` if it was not given (or is none).
StatusOr<int64_t> IntegerArgument(const Arguments& a, size_t index, std::string_view name, int64_t fallback);
StatusOr<MarkedText> TextArgument(const Arguments& a, size_t index, std::string_view name);  // must be given
bool BoolArgument(const Arguments& a, size_t index, std::string_view name, bool fallback);
Value TextList(std::vector<MarkedText> texts);
Value Pairs(const Dict& dict);  // a list of (key, value)

struct Builtin {
  using Function = StatusOr<Value> (*)(Evaluator& e, const Value& subject, const Arguments& arguments);
  std::string_view name;
  size_t most_arguments;  // beyond the subject
  Function call;
};

const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindFunction(std::string_view name);  // no subject
// The tables of FindMethod, FindFunction and FindTest; FindFilter and the rest are in jinja_builtins.cc.
const Builtin* Pick(const Builtin* table, size_t count, std::string_view name);
// Of texts and dicts; a method that only one of them has fails on the other.
const Builtin* FindMethod(std::string_view name);

// subject.name and subject[key] as Jinja2 looks them up; undefined if there is none.
StatusOr<Value> GetAttribute(const Value& subject, std::string_view name);
StatusOr<Value> GetItem(const Value& subject, const Value& key);
// What a for loop or `in` walks over: items, keys, characters, nothing for undefined.
StatusOr<List> Items(Evaluator& e, const Value& v);
StatusOr<bool> Contains(const Value& container, const Value& item);

}  // namespace baton::jinja
