// The tests, functions and methods.
#include <algorithm>
#include <ctime>
#include <optional>

#include "text/jinja_builtins.h"
#include "text/jinja_evaluator.h"
#include "text/jinja_text.h"
#include "text/unicode.h"

namespace baton::jinja {
namespace {

using Result = StatusOr<Value>;
using Args = const Arguments&;

// ---- Tests ----

template <Kind kKind>
Result IsKind(Evaluator&, const Value& v, Args) {
  return Value::Bool(v.is(kKind));
}
Result IsDefined(Evaluator&, const Value& v, Args) { return Value::Bool(!v.undefined()); }
Result IsMapping(Evaluator&, const Value& v, Args) { return Value::Bool(v.is(Kind::kDict)); }
Result IsIterable(Evaluator&, const Value& v, Args) {
  return Value::Bool(v.undefined() || v.is(Kind::kText) || v.is_sequence() || v.is(Kind::kDict));
}
Result IsNumber(Evaluator&, const Value& v, Args) { return Value::Bool(v.is_number()); }
template <bool kWanted>
Result IsExactly(Evaluator&, const Value& v, Args) {
  return Value::Bool(v.is(Kind::kBool) && (v.integer() != 0) == kWanted);
}
template <int64_t kRest>
Result HasParity(Evaluator&, const Value& v, Args) {
  if (!v.is_integer()) return InvalidArgumentError("odd and even are for integers");
  return Value::Bool((v.integer() & 1) == kRest);
}
Result IsDivisible(Evaluator&, const Value& v, Args a) {
  BATON_ASSIGN_OR_RETURN(const int64_t by, IntegerArgument(a, 0, "num", 0));
  if (!v.is_integer() || by == 0) return InvalidArgumentError("divisibleby: needs integers, and not zero");
  return Value::Bool(by == -1 || v.integer() % by == 0);
}
Result IsIn(Evaluator&, const Value& v, Args a) {
  if (a.positional.empty()) return InvalidArgumentError("the test in needs an argument");
  BATON_ASSIGN_OR_RETURN(const bool in, Contains(a.positional[0], v));
  return Value::Bool(in);
}
template <int kWhat>  // 0 ==, 1 !=, 2 <, 3 <=, 4 >, 5 >=
Result Compares(Evaluator&, const Value& v, Args a) {
  if (a.positional.empty()) return InvalidArgumentError("a comparing test needs an argument");
  if constexpr (kWhat < 2) return Value::Bool(Equal(v, a.positional[0]) == (kWhat == 0));
  BATON_ASSIGN_OR_RETURN(const int order, Compare(v, a.positional[0]));
  return Value::Bool(kWhat == 2 ? order < 0 : kWhat == 3 ? order <= 0 : kWhat == 4 ? order > 0 : order >= 0);
}

constexpr Builtin kTests[] = {
    {"defined", 0, IsDefined},
    {"undefined", 0, IsKind<Kind::kUndefined>},
    {"none", 0, IsKind<Kind::kNone>},
    {"string", 0, IsKind<Kind::kText>},
    {"mapping", 0, IsMapping},
    {"iterable", 0, IsIterable},
    {"sequence", 0, IsIterable},
    {"number", 0, IsNumber},
    {"integer", 0, IsKind<Kind::kInt>},
    {"float", 0, IsKind<Kind::kFloat>},
    {"boolean", 0, IsKind<Kind::kBool>},
    {"true", 0, IsExactly<true>},
    {"false", 0, IsExactly<false>},
    {"odd", 0, HasParity<1>},
    {"even", 0, HasParity<0>},
    {"divisibleby", 1, IsDivisible},
    {"in", 1, IsIn},
    {"eq", 1, Compares<0>},
    {"equalto", 1, Compares<0>},
    {"ne", 1, Compares<1>},
    {"lt", 1, Compares<2>},
    {"lessthan", 1, Compares<2>},
    {"le", 1, Compares<3>},
    {"gt", 1, Compares<4>},
    {"greaterthan", 1, Compares<4>},
    {"ge", 1, Compares<5>},
};

// ---- Functions ----

Result RaiseException(Evaluator&, const Value&, Args a) {
  const Value* message = a.Find(0, "message");
  return InvalidArgumentError("the template refuses: " +
                              (message == nullptr ? std::string("no reason given") : ToText(*message).text));
}

Result Range(Evaluator& e, const Value&, Args a) {
  static constexpr int64_t kMost = 100'000;  // Jinja2's sandbox has the same
  if (a.positional.empty()) return InvalidArgumentError("range: needs an end");
  const bool only_end = a.positional.size() == 1;
  BATON_ASSIGN_OR_RETURN(const int64_t first, IntegerArgument(a, 0, "start", 0));
  BATON_ASSIGN_OR_RETURN(const int64_t second, IntegerArgument(a, 1, "stop", 0));
  BATON_ASSIGN_OR_RETURN(const int64_t step, IntegerArgument(a, 2, "step", 1));
  const int64_t start = only_end ? 0 : first, stop = only_end ? first : second;
  if (step == 0) return InvalidArgumentError("range: the step is zero");
  const double span = (static_cast<double>(stop) - static_cast<double>(start)) / static_cast<double>(step);
  if (span > static_cast<double>(kMost)) {
    return ResourceExhaustedError("range: at most " + std::to_string(kMost) + " numbers are allowed");
  }
  List list;
  int64_t i = start;
  while (step > 0 ? i < stop : i > stop) {
    list.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  BATON_RETURN_IF_ERROR(e.Charge(list.size()));
  return Value::MakeList(std::move(list));
}

Result MakeNamespace(Evaluator& e, const Value&, Args a) {
  const Value space = e.NewNamespace();
  for (const Value& v : a.positional) {
    if (!v.is(Kind::kDict)) return InvalidArgumentError("namespace: takes names with values, or a dict");
    for (const auto& [key, value] : v.dict()) space.members()->members.emplace_back(key.text().text, value);
  }
  for (const auto& [name, value] : a.named) space.members()->members.emplace_back(name, value);
  return space;
}

Result MakeDict(Evaluator&, const Value&, Args a) {
  Dict dict;
  for (const Value& v : a.positional) {
    if (!v.is(Kind::kDict)) return InvalidArgumentError("dict: takes names with values, or a dict");
    dict = v.dict();
  }
  for (const auto& [name, value] : a.named) {
    std::erase_if(dict, [&n = name](const auto& entry) { return entry.first.text().text == n; });
    dict.emplace_back(Value::Text(name, true), value);
  }
  return Value::MakeDict(std::move(dict));
}

Result StrftimeNow(Evaluator& e, const Value&, Args a) {
  BATON_ASSIGN_OR_RETURN(const MarkedText format, TextArgument(a, 0, "format"));
  if (!e.now()) return FailedPreconditionError("strftime_now: the time was not given to this rendering");
  const std::time_t now = *e.now();
  std::tm fields{};
  if (gmtime_r(&now, &fields) == nullptr) return InvalidArgumentError("strftime_now: no such time");
  char buffer[256];
  const size_t size = std::strftime(buffer, sizeof buffer, format.text.c_str(), &fields);
  if (size == 0 && !format.text.empty()) return InvalidArgumentError("strftime_now: more than 255 bytes");
  MarkedText text;
  text.Append(std::string_view(buffer, size), format.AllTrusted(0, format.text.size()));
  return Value::Text(std::move(text));
}

constexpr Builtin kFunctions[] = {
    {"raise_exception", 1, RaiseException}, {"range", 3, Range},
    {"namespace", 64, MakeNamespace},       {"dict", 64, MakeDict},
    {"strftime_now", 1, StrftimeNow},
};

// ---- Methods ----

Status NoMethod(std::string_view name, const Value& v) {
  return InvalidArgumentError("'" + std::string(KindName(v.kind())) + "' has no method " + std::string(name));
}

template <bool kLeft, bool kRight>
Result StripMethod(Evaluator& e, const Value& v, Args a) {
  if (!v.is(Kind::kText)) return NoMethod("strip", v);
  if (a.positional.empty() || a.positional[0].is(Kind::kNone)) {
    return e.Checked(Strip(v.text(), std::nullopt, kLeft, kRight));
  }
  BATON_ASSIGN_OR_RETURN(const MarkedText set, TextArgument(a, 0, "chars"));
  return e.Checked(Strip(v.text(), set.text, kLeft, kRight));
}

template <bool kFromRight>
Result SplitMethod(Evaluator& e, const Value& v, Args a) {
  if (!v.is(Kind::kText)) return NoMethod("split", v);
  BATON_ASSIGN_OR_RETURN(const int64_t most, IntegerArgument(a, 1, "maxsplit", -1));
  BATON_RETURN_IF_ERROR(e.Charge(v.text().text.size() / 8));
  const Value* separator = a.Find(0, "sep");
  if (separator == nullptr || separator->is(Kind::kNone)) {
    if (kFromRight) return UnimplementedError("rsplit without a separator is not supported");
    return TextList(Split(v.text(), std::nullopt, most));
  }
  BATON_ASSIGN_OR_RETURN(const MarkedText between, TextArgument(a, 0, "sep"));
  if (between.text.empty()) return InvalidArgumentError("split: the separator is empty");
  return TextList(kFromRight ? SplitFromRight(v.text(), between.text, most) : Split(v.text(), between.text, most));
}

Result SplitLinesMethod(Evaluator& e, const Value& v, Args) {
  if (!v.is(Kind::kText)) return NoMethod("splitlines", v);
  BATON_RETURN_IF_ERROR(e.Charge(v.text().text.size() / 8));
  return TextList(SplitLines(v.text()));
}

template <bool kAtEnd>
Result Affix(Evaluator&, const Value& v, Args a) {
  if (!v.is(Kind::kText)) return NoMethod(kAtEnd ? "endswith" : "startswith", v);
  if (a.positional.empty()) return InvalidArgumentError("startswith and endswith need a text");
  const Value& wanted = a.positional[0];
  for (const Value& one : wanted.is(Kind::kTuple) ? wanted.list() : List{wanted}) {
    if (!one.is(Kind::kText)) return InvalidArgumentError("startswith and endswith need a text");
    const std::string& text = v.text().text;
    if (kAtEnd ? text.ends_with(one.text().text) : text.starts_with(one.text().text)) return Value::Bool(true);
  }
  return Value::Bool(false);
}

template <bool kAtEnd>
Result RemoveAffix(Evaluator& e, const Value& v, Args a) {
  if (!v.is(Kind::kText)) return NoMethod(kAtEnd ? "removesuffix" : "removeprefix", v);
  BATON_ASSIGN_OR_RETURN(const MarkedText affix, TextArgument(a, 0, "affix"));
  const MarkedText& text = v.text();
  const size_t n = text.text.size(), cut = affix.text.size();
  if (kAtEnd && text.text.ends_with(affix.text)) return e.Checked(text.Slice(0, n - cut));
  if (!kAtEnd && text.text.starts_with(affix.text)) return e.Checked(text.Slice(cut, n));
  return v;
}

template <Case kHow>
Result CaseMethod(Evaluator& e, const Value& v, Args) {
  if (!v.is(Kind::kText)) return NoMethod("upper or lower", v);
  return e.Checked(ChangeCase(v.text(), kHow));
}

Result ReplaceMethod(Evaluator& e, const Value& v, Args a) {
  if (!v.is(Kind::kText)) return NoMethod("replace", v);
  BATON_ASSIGN_OR_RETURN([[maybe_unused]] const MarkedText from, TextArgument(a, 0, "old"));
  BATON_ASSIGN_OR_RETURN([[maybe_unused]] const MarkedText to, TextArgument(a, 1, "new"));
  return FindFilter("replace")->call(e, v, a);
}

Result Find(Evaluator&, const Value& v, Args a) {
  if (!v.is(Kind::kText)) return NoMethod("find", v);
  BATON_ASSIGN_OR_RETURN(const MarkedText wanted, TextArgument(a, 0, "sub"));
  const size_t at = v.text().text.find(wanted.text);
  if (at == std::string::npos) return Value::Int(-1);
  return Value::Int(static_cast<int64_t>(CountCodePoints(std::string_view(v.text().text).substr(0, at))));
}

Result Count(Evaluator&, const Value& v, Args a) {
  if (!v.is(Kind::kText)) return NoMethod("count", v);
  BATON_ASSIGN_OR_RETURN(const MarkedText wanted, TextArgument(a, 0, "sub"));
  const std::string& text = v.text().text;
  if (wanted.text.empty()) return Value::Int(static_cast<int64_t>(CountCodePoints(text)) + 1);
  int64_t count = 0;
  for (size_t at = text.find(wanted.text); at != std::string::npos;
       at = text.find(wanted.text, at + wanted.text.size())) {
    ++count;
  }
  return Value::Int(count);
}

Result JoinMethod(Evaluator& e, const Value& v, Args a) {
  if (!v.is(Kind::kText)) return NoMethod("join", v);
  if (a.positional.empty()) return InvalidArgumentError("join: needs a list");
  return FindFilter("join")->call(e, a.positional[0], {{v}, {}});
}

Result ItemsMethod(Evaluator& e, const Value& v, Args a) {
  return v.is(Kind::kDict) ? FindFilter("items")->call(e, v, a) : NoMethod("items", v);
}

Result Keys(Evaluator& e, const Value& v, Args) {
  if (!v.is(Kind::kDict)) return NoMethod("keys", v);
  BATON_ASSIGN_OR_RETURN(List keys, Items(e, v));
  return Value::MakeList(std::move(keys));
}

Result Values(Evaluator& e, const Value& v, Args) {
  if (!v.is(Kind::kDict)) return NoMethod("values", v);
  BATON_RETURN_IF_ERROR(e.Charge(v.dict().size()));
  List list;
  for (const auto& entry : v.dict()) list.push_back(entry.second);
  return Value::MakeList(std::move(list));
}

Result GetMethod(Evaluator&, const Value& v, Args a) {
  if (!v.is(Kind::kDict)) return NoMethod("get", v);
  if (a.positional.empty()) return InvalidArgumentError("get: needs a key");
  if (a.positional[0].is(Kind::kText)) {
    if (const Value* found = FindMember(v.dict(), a.positional[0].text().text)) return *found;
  }
  return a.positional.size() > 1 ? a.positional[1] : Value::None();
}

constexpr Builtin kMethods[] = {
    {"strip", 1, StripMethod<true, true>},
    {"lstrip", 1, StripMethod<true, false>},
    {"rstrip", 1, StripMethod<false, true>},
    {"split", 2, SplitMethod<false>},
    {"rsplit", 2, SplitMethod<true>},
    {"splitlines", 0, SplitLinesMethod},
    {"startswith", 1, Affix<false>},
    {"endswith", 1, Affix<true>},
    {"removeprefix", 1, RemoveAffix<false>},
    {"removesuffix", 1, RemoveAffix<true>},
    {"upper", 0, CaseMethod<Case::kUpper>},
    {"lower", 0, CaseMethod<Case::kLower>},
    {"capitalize", 0, CaseMethod<Case::kCapitalize>},
    {"replace", 3, ReplaceMethod},
    {"find", 1, Find},
    {"count", 1, Count},
    {"join", 1, JoinMethod},
    {"items", 0, ItemsMethod},
    {"keys", 0, Keys},
    {"values", 0, Values},
    {"get", 2, GetMethod},
};

}  // namespace

const Builtin* FindTest(std::string_view name) { return Pick(kTests, std::size(kTests), name); }
const Builtin* FindFunction(std::string_view name) { return Pick(kFunctions, std::size(kFunctions), name); }
const Builtin* FindMethod(std::string_view name) { return Pick(kMethods, std::size(kMethods), name); }

}  // namespace baton::jinja
