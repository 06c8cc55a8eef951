// Look-ups, and the filters.
#include "text/jinja_builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "text/jinja_evaluator.h"
#include "text/jinja_text.h"
#include "text/unicode.h"

namespace baton::jinja {

const Value* Arguments::Find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [n, v] : named) {
    if (n == name) return &v;
  }
  return nullptr;
}

const Builtin* Pick(const Builtin* table, size_t count, std::string_view name) {
  for (size_t i = 0; i < count; ++i) {
    if (table[i].name == name) return &table[i];
  }
  return nullptr;
}

StatusOr<int64_t> IntegerArgument(const Arguments& a, size_t index, std::string_view name, int64_t fallback) {
  const Value* v = a.Find(index, name);
  if (v == nullptr || v->is(Kind::kNone)) return fallback;
  if (v->is_integer()) return v->integer();
  return InvalidArgumentError("argument " + std::string(name) + " is '" + std::string(KindName(v->kind())) +
                              "', not an integer");
}

StatusOr<MarkedText> TextArgument(const Arguments& a, size_t index, std::string_view name) {
  const Value* v = a.Find(index, name);
  if (v != nullptr && v->is(Kind::kText)) return v->text();
  return InvalidArgumentError("argument " + std::string(name) + " must be a text");
}

bool BoolArgument(const Arguments& a, size_t index, std::string_view name, bool fallback) {
  const Value* v = a.Find(index, name);
  return v == nullptr ? fallback : Truthy(*v);
}

Value TextList(std::vector<MarkedText> texts) {
  List list;
  for (MarkedText& t : texts) list.push_back(Value::Text(std::move(t)));
  return Value::MakeList(std::move(list));
}

Value Pairs(const Dict& dict) {
  List list;
  list.reserve(dict.size());
  for (const auto& [key, value] : dict) list.push_back(Value::MakeTuple({key, value}));
  return Value::MakeList(std::move(list));
}

namespace {

Status NotFor(std::string_view what, const Value& v) {
  return InvalidArgumentError(std::string(what) + ": not for '" + std::string(KindName(v.kind())) + "'" +
                              (v.name().empty() ? "" : " (\"" + std::string(v.name()) + "\")"));
}

}  // namespace

StatusOr<Value> GetAttribute(const Value& subject, std::string_view name) {
  if (subject.undefined()) {
    return InvalidArgumentError((subject.name().empty() ? "a value" : "\"" + std::string(subject.name()) + "\"") +
                                " is undefined and has no \"" + std::string(name) + "\"");
  }
  if (subject.is(Kind::kDict)) {
    if (const Value* v = FindMember(subject.dict(), name)) return *v;
  } else if (subject.is(Kind::kNamespace)) {
    for (const auto& [n, v] : subject.members()->members) {
      if (n == name) return v;
    }
  }
  return Value::Undefined(std::string(name));
}

StatusOr<Value> GetItem(const Value& subject, const Value& key) {
  if (key.is(Kind::kText)) return GetAttribute(subject, key.text().text);
  if (subject.undefined()) return GetAttribute(subject, Repr(key));
  if (!key.is_integer()) return Value::Undefined(Repr(key));
  int64_t index = key.integer();
  if (subject.is(Kind::kText)) {
    std::optional<MarkedText> character = CharacterAt(subject.text(), index);
    if (character) return Value::Text(*std::move(character));
  } else if (subject.is_sequence()) {
    const auto n = static_cast<int64_t>(subject.list().size());
    if (index < 0) index += n;
    if (index >= 0 && index < n) return subject.list()[static_cast<size_t>(index)];
  }
  return Value::Undefined(Repr(key));
}

StatusOr<List> Items(Evaluator& e, const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return List{};
    case Kind::kList:
    case Kind::kTuple:
      BATON_RETURN_IF_ERROR(e.Charge(v.list().size()));
      return v.list();
    case Kind::kDict: {
      BATON_RETURN_IF_ERROR(e.Charge(v.dict().size()));
      List keys;
      for (const auto& entry : v.dict()) keys.push_back(entry.first);
      return keys;
    }
    case Kind::kText: {
      BATON_RETURN_IF_ERROR(e.Charge(v.text().text.size()));
      List characters;
      for (MarkedText& c : Characters(v.text())) characters.push_back(Value::Text(std::move(c)));
      return characters;
    }
    default:
      return NotFor("iteration", v);
  }
}

StatusOr<bool> Contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kText:
      if (!item.is(Kind::kText)) return NotFor("in a text", item);
      return container.text().text.find(item.text().text) != std::string::npos;
    case Kind::kList:
    case Kind::kTuple:
      return std::any_of(container.list().begin(), container.list().end(),
                         [&](const Value& v) { return Equal(v, item); });
    case Kind::kDict:
      return item.is(Kind::kText) && FindMember(container.dict(), item.text().text) != nullptr;
    default:
      return NotFor("in", container);
  }
}

namespace {

using Result = StatusOr<Value>;
using Args = const Arguments&;

// The member `path` ("a.b", "0", or an integer) of a value.
Result Member(const Value& v, const Value& path) {
  if (!path.is(Kind::kText)) return GetItem(v, path);
  Value at = v;
  for (const MarkedText& part : Split(path.text(), ".", -1)) {
    int64_t index = 0;
    const char* end = part.text.data() + part.text.size();
    const bool number = !part.text.empty() && std::from_chars(part.text.data(), end, index).ptr == end;
    BATON_ASSIGN_OR_RETURN(at, GetItem(at, number ? Value::Int(index) : Value::Text(part)));
  }
  return at;
}

Value FoldCase(const Value& v) { return v.is(Kind::kText) ? Value::Text(ChangeCase(v.text(), Case::kLower)) : v; }

Result Trim(Evaluator& e, const Value& v, Args a) {
  const Value* set = a.Find(0, "chars");
  if (set != nullptr && !set->is(Kind::kText) && !set->is(Kind::kNone)) return NotFor("trim of", *set);
  const bool given = set != nullptr && set->is(Kind::kText);
  return e.Checked(
      Strip(ToText(v), given ? std::optional<std::string_view>(set->text().text) : std::nullopt, true, true));
}

Result Length(Evaluator& e, const Value& v, Args) {
  if (v.undefined()) return Value::Int(0);
  if (v.is(Kind::kText)) {
    BATON_RETURN_IF_ERROR(e.Charge(v.text().text.size() / 64));
    return Value::Int(static_cast<int64_t>(CountCodePoints(v.text().text)));
  }
  if (v.is_sequence()) return Value::Int(static_cast<int64_t>(v.list().size()));
  if (v.is(Kind::kDict)) return Value::Int(static_cast<int64_t>(v.dict().size()));
  return NotFor("length", v);
}

Result Default(Evaluator&, const Value& v, Args a) {
  const Value* fallback = a.Find(0, "default_value");
  if (v.undefined() || (BoolArgument(a, 1, "boolean", false) && !Truthy(v))) {
    return fallback == nullptr ? Value::Text("", true) : *fallback;
  }
  return v;
}

Result ToJson(Evaluator& e, const Value& v, Args a) {
  JsonStyle style;
  style.ensure_ascii = BoolArgument(a, 0, "ensure_ascii", false);
  BATON_ASSIGN_OR_RETURN(const int64_t indent, IntegerArgument(a, 1, "indent", -1));
  style.indent = static_cast<int>(std::clamp<int64_t>(indent, -1, 64));
  if (style.indent >= 0) style.item_separator = ",";
  if (const Value* separators = a.Find(2, "separators"); separators != nullptr && !separators->is(Kind::kNone)) {
    if (!separators->is_sequence() || separators->list().size() != 2 || !separators->list()[0].is(Kind::kText) ||
        !separators->list()[1].is(Kind::kText)) {
      return InvalidArgumentError("tojson: separators must be two texts");
    }
    style.item_separator = separators->list()[0].text().text;
    style.key_separator = separators->list()[1].text().text;
  }
  style.sort_keys = BoolArgument(a, 3, "sort_keys", false);
  std::string json;
  BATON_RETURN_IF_ERROR(WriteJson(v, style, 0, &json));
  MarkedText text;
  text.Append(json, FullyTrusted(v));
  return e.Checked(std::move(text));
}

template <Case kHow>
Result CaseFilter(Evaluator& e, const Value& v, Args) {
  return e.Checked(ChangeCase(ToText(v), kHow));
}

Result String(Evaluator& e, const Value& v, Args) { return e.Checked(ToText(v)); }

Result Join(Evaluator& e, const Value& v, Args a) {
  BATON_ASSIGN_OR_RETURN(const List items, Items(e, v));
  const Value* separator = a.Find(0, "d");
  const Value* attribute = a.Find(1, "attribute");
  const MarkedText between = separator == nullptr ? MarkedText() : ToText(*separator);
  MarkedText text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text.Append(between);
    Value item = items[i];
    if (attribute != nullptr && !attribute->is(Kind::kNone)) {
      BATON_ASSIGN_OR_RETURN(item, Member(item, *attribute));
    }
    text.Append(ToText(item));
  }
  return e.Checked(std::move(text));
}

Result First(Evaluator& e, const Value& v, Args) {
  if (v.is(Kind::kText)) return GetItem(v, Value::Int(0));
  BATON_ASSIGN_OR_RETURN(List items, Items(e, v));
  return items.empty() ? Value::Undefined("first") : items.front();
}

Result Last(Evaluator& e, const Value& v, Args) {
  if (v.is(Kind::kText)) return GetItem(v, Value::Int(-1));
  BATON_ASSIGN_OR_RETURN(List items, Items(e, v));
  return items.empty() ? Value::Undefined("last") : items.back();
}

Result ListOf(Evaluator& e, const Value& v, Args) {
  BATON_ASSIGN_OR_RETURN(List items, Items(e, v));
  return Value::MakeList(std::move(items));
}

Result ItemPairs(Evaluator& e, const Value& v, Args) {
  if (v.undefined()) return Value::MakeList({});
  if (!v.is(Kind::kDict)) return NotFor("items", v);
  BATON_RETURN_IF_ERROR(e.Charge(v.dict().size()));
  return Pairs(v.dict());
}

Result Same(Evaluator&, const Value& v, Args) { return v; }

Result ReplaceIn(Evaluator& e, const Value& v, Args a) {
  const Value* from = a.Find(0, "old");
  const Value* to = a.Find(1, "new");
  if (from == nullptr || to == nullptr) return InvalidArgumentError("replace: needs old and new");
  BATON_ASSIGN_OR_RETURN(const int64_t most, IntegerArgument(a, 2, "count", -1));
  const MarkedText text = ToText(v), old = ToText(*from), fresh = ToText(*to);
  BATON_RETURN_IF_ERROR(e.Charge(text.text.size() / 64 + (old.text.empty() ? text.text.size() : 0)));
  // As long as the result could at most become.
  const uint64_t places = text.text.size() / std::max<size_t>(old.text.size(), 1) + 1;
  BATON_RETURN_IF_ERROR(e.Charge(places * fresh.text.size() / 64));
  return e.Checked(Replace(text, old, fresh, most));
}

// Does `item` pass the test named by argument `at`, with the arguments after it? No name: is it true?
StatusOr<bool> Passes(Evaluator& e, const Value& item, Args a, size_t at) {
  if (at >= a.positional.size()) return Truthy(item);
  const Builtin* test = FindTest(a.positional[at].text().text);  // known: the parser looked
  Arguments rest;
  rest.positional.assign(a.positional.begin() + static_cast<long>(at) + 1, a.positional.end());
  BATON_ASSIGN_OR_RETURN(const Value value, test->call(e, item, rest));
  return Truthy(value);
}

template <bool kByAttribute, bool kKeep>
Result Select(Evaluator& e, const Value& v, Args a) {
  if (kByAttribute && a.positional.empty()) return InvalidArgumentError("selectattr: needs an attribute");
  BATON_ASSIGN_OR_RETURN(const List items, Items(e, v));
  List kept;
  for (const Value& item : items) {
    BATON_RETURN_IF_ERROR(e.Charge(1));
    Value looked_at = item;
    if constexpr (kByAttribute) {
      BATON_ASSIGN_OR_RETURN(looked_at, Member(item, a.positional[0]));
    }
    BATON_ASSIGN_OR_RETURN(const bool passes, Passes(e, looked_at, a, kByAttribute ? 1 : 0));
    if (passes == kKeep) kept.push_back(item);
  }
  return Value::MakeList(std::move(kept));
}

Result Map(Evaluator& e, const Value& v, Args a) {
  BATON_ASSIGN_OR_RETURN(List items, Items(e, v));
  const Value* attribute = a.positional.empty() ? a.Find(0, "attribute") : nullptr;
  if (attribute == nullptr && a.positional.empty()) return InvalidArgumentError("map: needs a filter or an attribute");
  const Value* fallback = a.Find(99, "default");
  const Builtin* filter = attribute == nullptr ? FindFilter(a.positional[0].text().text) : nullptr;
  Arguments rest;
  if (filter != nullptr) {
    rest.positional.assign(a.positional.begin() + 1, a.positional.end());
    rest.named = a.named;
  }
  for (Value& item : items) {
    BATON_RETURN_IF_ERROR(e.Charge(1));
    if (filter != nullptr) {
      BATON_ASSIGN_OR_RETURN(item, filter->call(e, item, rest));
    } else {
      BATON_ASSIGN_OR_RETURN(item, Member(item, *attribute));
      if (item.undefined() && fallback != nullptr) item = *fallback;
    }
  }
  return Value::MakeList(std::move(items));
}

// Sorts `items` by `keys`; as Python's sorted.
StatusOr<List> SortBy(Evaluator& e, const List& items, const List& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  BATON_RETURN_IF_ERROR(e.Charge(items.size() * 16));
  Status fault;
  std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) {
    const StatusOr<int> c = reverse ? Compare(keys[y], keys[x]) : Compare(keys[x], keys[y]);
    if (!c.ok()) fault = c.status();
    return c.ok() && *c < 0;
  });
  BATON_RETURN_IF_ERROR(fault);
  List sorted;
  for (size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

StatusOr<List> KeysOf(const List& items, const Value* attribute, bool case_sensitive) {
  List keys;
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr && !attribute->is(Kind::kNone)) {
      BATON_ASSIGN_OR_RETURN(key, Member(item, *attribute));
    }
    keys.push_back(case_sensitive ? key : FoldCase(key));
  }
  return keys;
}

Result Sort(Evaluator& e, const Value& v, Args a) {
  BATON_ASSIGN_OR_RETURN(const List items, Items(e, v));
  BATON_ASSIGN_OR_RETURN(const List keys,
                         KeysOf(items, a.Find(2, "attribute"), BoolArgument(a, 1, "case_sensitive", false)));
  BATON_ASSIGN_OR_RETURN(List sorted, SortBy(e, items, keys, BoolArgument(a, 0, "reverse", false)));
  return Value::MakeList(std::move(sorted));
}

Result DictSort(Evaluator& e, const Value& v, Args a) {
  if (!v.is(Kind::kDict)) return NotFor("dictsort", v);
  const Value* by = a.Find(1, "by");
  const bool by_value = by != nullptr && by->is(Kind::kText) && by->text().text == "value";
  const List pairs = Pairs(v.dict()).list();
  const Value index = Value::Int(by_value ? 1 : 0);
  BATON_ASSIGN_OR_RETURN(const List keys, KeysOf(pairs, &index, BoolArgument(a, 0, "case_sensitive", false)));
  BATON_ASSIGN_OR_RETURN(List sorted, SortBy(e, pairs, keys, BoolArgument(a, 2, "reverse", false)));
  return Value::MakeList(std::move(sorted));
}

Result Unique(Evaluator& e, const Value& v, Args a) {
  BATON_ASSIGN_OR_RETURN(const List items, Items(e, v));
  BATON_ASSIGN_OR_RETURN(const List keys,
                         KeysOf(items, a.Find(1, "attribute"), BoolArgument(a, 0, "case_sensitive", false)));
  List seen, kept;
  for (size_t i = 0; i < items.size(); ++i) {
    BATON_RETURN_IF_ERROR(e.Charge(seen.size() + 1));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return Equal(s, keys[i]); })) continue;
    seen.push_back(keys[i]);
    kept.push_back(items[i]);
  }
  return Value::MakeList(std::move(kept));
}

template <bool kMax>
Result Extreme(Evaluator& e, const Value& v, Args a) {
  BATON_ASSIGN_OR_RETURN(const List items, Items(e, v));
  BATON_ASSIGN_OR_RETURN(const List keys,
                         KeysOf(items, a.Find(1, "attribute"), BoolArgument(a, 0, "case_sensitive", false)));
  if (items.empty()) return Value::Undefined(kMax ? "max" : "min");
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const int order, Compare(keys[i], keys[best]));
    if (kMax ? order > 0 : order < 0) best = i;
  }
  return items[best];
}

Result Reverse(Evaluator& e, const Value& v, Args) {
  if (v.is(Kind::kText)) return e.Checked(SliceText(v.text(), std::nullopt, std::nullopt, -1));
  BATON_ASSIGN_OR_RETURN(List items, Items(e, v));
  std::reverse(items.begin(), items.end());
  return Value::MakeList(std::move(items));
}

Result Indent(Evaluator& e, const Value& v, Args a) {
  if (!v.is(Kind::kText)) return NotFor("indent", v);
  MarkedText indention;
  if (const Value* width = a.Find(0, "width"); width != nullptr && width->is(Kind::kText)) {
    indention = width->text();
  } else {
    BATON_ASSIGN_OR_RETURN(const int64_t spaces, IntegerArgument(a, 0, "width", 4));
    indention.Append(std::string(static_cast<size_t>(std::clamp<int64_t>(spaces, 0, 1024)), ' '), true);
  }
  const bool first = BoolArgument(a, 1, "first", false), blank = BoolArgument(a, 2, "blank", false);
  MarkedText whole = v.text();
  whole.Append("\n", true);
  const std::vector<MarkedText> lines = SplitLines(whole);
  BATON_RETURN_IF_ERROR(e.Charge(lines.size() * (1 + indention.text.size() / 64)));
  MarkedText text;
  if (first) text.Append(indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text.Append("\n", FullyTrusted(v));
    if (i > 0 && (blank || !lines[i].text.empty())) text.Append(indention);
    text.Append(lines[i]);
  }
  return e.Checked(std::move(text));
}

// The number that a text spells, all of it but white space around.
std::optional<double> ParseNumber(const MarkedText& text) {
  const std::string bare = Strip(text, std::nullopt, true, true).text;
  double value = 0;
  const char* begin = bare.data() + (bare.starts_with('+') ? 1 : 0);
  const char* end = bare.data() + bare.size();
  const auto parsed = std::from_chars(begin, end, value);
  return parsed.ec == std::errc() && parsed.ptr == end && begin != end ? std::optional(value) : std::nullopt;
}

Result Int(Evaluator&, const Value& v, Args a) {
  const Value* given = a.Find(0, "default");
  const Value fallback = given == nullptr ? Value::Int(0) : *given;
  if (v.is_integer()) return Value::Int(v.integer());
  if (v.undefined()) return NotFor("int", v);
  std::optional<double> number;
  if (v.is(Kind::kFloat)) number = v.number();
  if (v.is(Kind::kText)) {
    const std::string bare = Strip(v.text(), std::nullopt, true, true).text;
    int64_t exact = 0;
    const char* begin = bare.data() + (bare.starts_with('+') ? 1 : 0);
    const char* end = bare.data() + bare.size();
    const auto parsed = std::from_chars(begin, end, exact);
    if (parsed.ec == std::errc() && parsed.ptr == end && begin != end) return Value::Int(exact);
    number = ParseNumber(v.text());
  }
  if (!number || !(std::fabs(*number) < 9.2e18)) return fallback;
  return Value::Int(static_cast<int64_t>(*number));
}

Result Float(Evaluator&, const Value& v, Args a) {
  const Value* given = a.Find(0, "default");
  if (v.is_number()) return Value::Float(v.number());
  if (v.undefined()) return NotFor("float", v);
  if (v.is(Kind::kText)) {
    if (const auto number = ParseNumber(v.text())) return Value::Float(*number);
  }
  return given == nullptr ? Value::Float(0) : *given;
}

Result Abs(Evaluator&, const Value& v, Args) {
  if (v.is(Kind::kFloat)) return Value::Float(std::fabs(v.number()));
  if (v.is_integer() && v.integer() != INT64_MIN) return Value::Int(std::abs(v.integer()));
  return NotFor("abs", v);
}

constexpr Builtin kFilters[] = {
    {"trim", 1, Trim},
    {"length", 0, Length},
    {"count", 0, Length},
    {"default", 2, Default},
    {"d", 2, Default},
    {"tojson", 4, ToJson},
    {"upper", 0, CaseFilter<Case::kUpper>},
    {"lower", 0, CaseFilter<Case::kLower>},
    {"capitalize", 0, CaseFilter<Case::kCapitalize>},
    {"title", 0, CaseFilter<Case::kTitle>},
    {"string", 0, String},
    {"join", 2, Join},
    {"first", 0, First},
    {"last", 0, Last},
    {"list", 0, ListOf},
    {"items", 0, ItemPairs},
    {"safe", 0, Same},
    {"replace", 3, ReplaceIn},
    {"selectattr", 3, Select<true, true>},
    {"rejectattr", 3, Select<true, false>},
    {"select", 2, Select<false, true>},
    {"reject", 2, Select<false, false>},
    {"map", 4, Map},
    {"sort", 3, Sort},
    {"dictsort", 3, DictSort},
    {"unique", 2, Unique},
    {"min", 2, Extreme<false>},
    {"max", 2, Extreme<true>},
    {"reverse", 0, Reverse},
    {"indent", 3, Indent},
    {"int", 1, Int},
    {"float", 1, Float},
    {"abs", 0, Abs},
};

}  // namespace

const Builtin* FindFilter(std::string_view name) { return Pick(kFilters, std::size(kFilters), name); }

}  // namespace baton::jinja
