#include "text/jinja_evaluator.h"

#include <algorithm>
#include <cmath>

#include "text/jinja_lexer.h"
#include "text/jinja_text.h"

namespace baton::jinja {
namespace {

constexpr int kMaxDepth = 600;       // of evaluation, macros included
constexpr int kMaxValueDepth = 200;  // of lists inside lists

// Errors name the innermost line once.
Status At(int line, const Status& status) {
  if (status.message().starts_with("chat template")) return status;
  return status.Annotate("chat template line " + std::to_string(line));
}

Status UndefinedError(const Value& v, std::string_view what) {
  const std::string name = v.name().empty() ? "a value" : "\"" + std::string(v.name()) + "\"";
  return InvalidArgumentError(name + " is undefined: " + std::string(what));
}

Status Mismatch(std::string_view what, const Value& a, const Value& b) {
  if (a.undefined()) return UndefinedError(a, what);
  if (b.undefined()) return UndefinedError(b, what);
  return InvalidArgumentError(std::string(what) + ": not for '" + std::string(KindName(a.kind())) + "' and '" +
                              std::string(KindName(b.kind())) + "'");
}

struct LoopNames {
  Value index = Value::Text("index", true), index0 = Value::Text("index0", true), first = Value::Text("first", true),
        last = Value::Text("last", true), length = Value::Text("length", true),
        revindex = Value::Text("revindex", true), revindex0 = Value::Text("revindex0", true),
        previtem = Value::Text("previtem", true), nextitem = Value::Text("nextitem", true);
};

Value LoopValue(size_t index, const List& items) {
  static const LoopNames* const kNames = new LoopNames();
  const auto i = static_cast<int64_t>(index), n = static_cast<int64_t>(items.size());
  Dict loop;
  loop.reserve(9);
  loop.emplace_back(kNames->index, Value::Int(i + 1));
  loop.emplace_back(kNames->index0, Value::Int(i));
  loop.emplace_back(kNames->first, Value::Bool(i == 0));
  loop.emplace_back(kNames->last, Value::Bool(i + 1 == n));
  loop.emplace_back(kNames->length, Value::Int(n));
  loop.emplace_back(kNames->revindex, Value::Int(n - i));
  loop.emplace_back(kNames->revindex0, Value::Int(n - i - 1));
  if (i > 0) loop.emplace_back(kNames->previtem, items[index - 1]);
  if (i + 1 < n) loop.emplace_back(kNames->nextitem, items[index + 1]);
  return Value::MakeDict(std::move(loop));
}

}  // namespace

Status Evaluator::Charge(uint64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.steps) return OkStatus();
  return ResourceExhaustedError("rendering takes more than " + std::to_string(limits_.steps) + " steps");
}

StatusOr<Value> Evaluator::Checked(MarkedText text) {
  if (text.text.size() > limits_.bytes) {
    return ResourceExhaustedError("a text has " + std::to_string(text.text.size()) + " bytes, at most " +
                                  std::to_string(limits_.bytes) + " are allowed");
  }
  BATON_RETURN_IF_ERROR(Charge(text.text.size() / 64 + text.runs.size()));
  return Value::Text(std::move(text));
}

StatusOr<MarkedText> Evaluator::Run(Variables globals) {
  scopes_.push_back({std::move(globals)});
  BATON_ASSIGN_OR_RETURN([[maybe_unused]] const Flow flow, Execute(program_->body));
  return std::move(out_);
}

Status Evaluator::Write(const MarkedText& text) {
  out_.Append(text);
  if (out_.text.size() > limits_.bytes) {
    return ResourceExhaustedError("the text is longer than " + std::to_string(limits_.bytes) + " bytes");
  }
  return Charge(text.text.size() / 64);
}

Value Evaluator::Look(const std::string& name) const {
  const auto in_scope = [&](const Scope& scope) -> const Value* {
    for (const auto& [n, v] : scope.variables) {
      if (n == name) return &v;
    }
    return nullptr;
  };
  for (size_t i = scopes_.size(); i-- > visible_from_;) {
    if (const Value* v = in_scope(scopes_[i])) return *v;
  }
  if (const Value* v = in_scope(scopes_[0])) return *v;
  return Value::Undefined(name);
}

void Evaluator::Define(const std::string& name, Value value) {
  for (auto& [n, v] : scopes_.back().variables) {
    if (n != name) continue;
    v = std::move(value);
    return;
  }
  scopes_.back().variables.emplace_back(name, std::move(value));
}

Status Evaluator::Assign(const Target& target, const Value& value) {
  if (value.depth() > kMaxValueDepth) {
    return InvalidArgumentError("a value is nested deeper than " + std::to_string(kMaxValueDepth));
  }
  if (!target.parts.empty()) {
    BATON_ASSIGN_OR_RETURN(const List items, Items(*this, value));
    if (items.size() != target.parts.size()) {
      return InvalidArgumentError(std::to_string(items.size()) + " values for " + std::to_string(target.parts.size()) +
                                  " names");
    }
    for (size_t i = 0; i < items.size(); ++i) BATON_RETURN_IF_ERROR(Assign(target.parts[i], items[i]));
    return OkStatus();
  }
  if (target.member.empty()) {
    Define(target.name, value);
    return OkStatus();
  }
  const Value space = Look(target.name);
  if (!space.is(Kind::kNamespace)) return InvalidArgumentError("\"" + target.name + "\" is no namespace");
  for (auto& [name, member] : space.members()->members) {
    if (name == target.member) {
      member = value;
      return OkStatus();
    }
  }
  space.members()->members.emplace_back(target.member, value);
  return OkStatus();
}

StatusOr<Evaluator::Flow> Evaluator::Execute(const Body& body) {
  if (++depth_ > kMaxDepth) return InvalidArgumentError("nested deeper than " + std::to_string(kMaxDepth));
  for (const Statement& s : body) {
    const Status charged = Charge(1);
    StatusOr<Flow> flow = charged.ok() ? ExecuteOne(s) : StatusOr<Flow>(charged);
    if (!flow.ok()) return At(s.line, flow.status());
    if (*flow != Flow::kNext) {
      --depth_;
      return *flow;
    }
  }
  --depth_;
  return Flow::kNext;
}

StatusOr<Evaluator::Flow> Evaluator::ExecuteOne(const Statement& s) {
  switch (s.type) {
    case Statement::kData:
      BATON_RETURN_IF_ERROR(Write(s.text));
      break;
    case Statement::kOutput: {
      BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*s.value));
      BATON_RETURN_IF_ERROR(Write(ToText(value)));
      break;
    }
    case Statement::kIf:
      for (const auto& [condition, body] : s.branches) {
        if (condition != nullptr) {
          BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*condition));
          if (!Truthy(value)) continue;
        }
        return Execute(body);
      }
      break;
    case Statement::kFor:
      return ExecuteFor(s);
    case Statement::kSet: {
      BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*s.value));
      BATON_RETURN_IF_ERROR(Assign(s.target, value));
      break;
    }
    case Statement::kSetBlock: {
      BATON_ASSIGN_OR_RETURN(const Value value, Capture(s.body, s.filters));
      BATON_RETURN_IF_ERROR(Assign(s.target, value));
      break;
    }
    case Statement::kFilter: {
      BATON_ASSIGN_OR_RETURN(const Value value, Capture(s.body, s.filters));
      BATON_RETURN_IF_ERROR(Write(ToText(value)));
      break;
    }
    case Statement::kMacro:
      Define(s.macro->name, Value::MakeMacro(s.macro.get()));
      break;
    case Statement::kScope: {
      scopes_.emplace_back();
      StatusOr<Flow> flow = Execute(s.body);
      scopes_.pop_back();
      return flow;
    }
    case Statement::kBreak:
      return Flow::kBreak;
    case Statement::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

StatusOr<Value> Evaluator::Capture(const Body& body, const std::vector<ExpressionPtr>& filters) {
  MarkedText saved;
  std::swap(saved, out_);
  scopes_.emplace_back();
  BATON_ASSIGN_OR_RETURN([[maybe_unused]] const Flow flow, Execute(body));
  scopes_.pop_back();
  std::swap(saved, out_);
  BATON_ASSIGN_OR_RETURN(Value value, Checked(std::move(saved)));
  for (const ExpressionPtr& filter : filters) {
    BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(*filter, 1));
    BATON_ASSIGN_OR_RETURN(value, filter->builtin->call(*this, value, arguments));
  }
  return value;
}

StatusOr<Evaluator::Flow> Evaluator::ExecuteFor(const Statement& s) {
  BATON_ASSIGN_OR_RETURN(const Value walked, Evaluate(*s.value));
  BATON_ASSIGN_OR_RETURN(List items, Items(*this, walked));
  if (s.condition != nullptr) {
    List kept;
    for (Value& item : items) {
      scopes_.emplace_back();
      BATON_RETURN_IF_ERROR(Assign(s.target, item));
      BATON_ASSIGN_OR_RETURN(const Value keep, Evaluate(*s.condition));
      scopes_.pop_back();
      if (Truthy(keep)) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    scopes_.emplace_back();
    StatusOr<Flow> flow = Execute(s.other);
    scopes_.pop_back();
    return flow;
  }
  for (size_t i = 0; i < items.size(); ++i) {
    scopes_.emplace_back();
    Define("loop", LoopValue(i, items));
    BATON_RETURN_IF_ERROR(Assign(s.target, items[i]));
    BATON_ASSIGN_OR_RETURN(const Flow flow, Execute(s.body));
    scopes_.pop_back();
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

StatusOr<Value> Evaluator::Evaluate(const Expression& e) {
  if (++depth_ > kMaxDepth) return At(e.line, InvalidArgumentError("nested deeper than " + std::to_string(kMaxDepth)));
  BATON_RETURN_IF_ERROR(Charge(1));
  StatusOr<Value> value = EvaluateNode(e);
  --depth_;
  if (!value.ok()) return At(e.line, value.status());
  return value;
}

StatusOr<Value> Evaluator::EvaluateNode(const Expression& e) {
  switch (e.op) {
    case Op::kConstant:
      return e.constant;
    case Op::kName:
      return Look(e.name);
    case Op::kCompare:
      return EvaluateCompare(e);
    case Op::kSlice:
      return EvaluateSlice(e);
    case Op::kCall:
    case Op::kMethod:
    case Op::kFilter:
    case Op::kTest:
      return EvaluateCall(e);
    case Op::kTernary: {
      BATON_ASSIGN_OR_RETURN(const Value condition, Evaluate(*e.args[1]));
      if (Truthy(condition)) return Evaluate(*e.args[0]);
      return e.args[2] == nullptr ? StatusOr<Value>(Value()) : Evaluate(*e.args[2]);
    }
    case Op::kAnd:
    case Op::kOr: {
      BATON_ASSIGN_OR_RETURN(Value left, Evaluate(*e.args[0]));
      if (Truthy(left) == (e.op == Op::kOr)) return left;
      return Evaluate(*e.args[1]);
    }
    case Op::kList:
    case Op::kTuple: {
      List list;
      for (const ExpressionPtr& item : e.args) {
        BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*item));
        list.push_back(std::move(value));
      }
      return e.op == Op::kList ? Value::MakeList(std::move(list)) : Value::MakeTuple(std::move(list));
    }
    case Op::kDict: {
      Dict dict;
      for (size_t i = 0; i < e.args.size(); i += 2) {
        BATON_ASSIGN_OR_RETURN(Value key, Evaluate(*e.args[i]));
        BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*e.args[i + 1]));
        if (!key.is(Kind::kText)) return UnimplementedError("a dict key that is not a text is not supported");
        dict.emplace_back(std::move(key), std::move(value));
      }
      return Value::MakeDict(std::move(dict));
    }
    default:
      break;
  }
  BATON_ASSIGN_OR_RETURN(const Value a, Evaluate(*e.args[0]));
  switch (e.op) {
    case Op::kAttribute:
      return GetAttribute(a, e.name);
    case Op::kNot:
      return Value::Bool(!Truthy(a));
    case Op::kNegative:
    case Op::kPositive:
      if (!a.is_number()) return Mismatch("sign", a, a);
      if (e.op == Op::kPositive) return a.is(Kind::kFloat) ? a : Value::Int(a.integer());
      return a.is(Kind::kFloat) ? StatusOr<Value>(Value::Float(-a.number()))
                                : Arithmetic(Op::kSubtract, Value::Int(0), a);
    default:
      break;
  }
  BATON_ASSIGN_OR_RETURN(const Value b, Evaluate(*e.args[1]));
  switch (e.op) {
    case Op::kItem:
      return GetItem(a, b);
    case Op::kAdd:
      return Add(a, b);
    case Op::kMultiply:
      return Multiply(a, b);
    case Op::kConcatenate: {
      MarkedText text = ToText(a);
      text.Append(ToText(b));
      return Checked(std::move(text));
    }
    default:
      return Arithmetic(e.op, a, b);
  }
}

StatusOr<Value> Evaluator::Add(const Value& a, const Value& b) {
  if (a.is(Kind::kText) && b.is(Kind::kText)) {
    MarkedText text = a.text();
    text.Append(b.text());
    return Checked(std::move(text));
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    BATON_RETURN_IF_ERROR(Charge(a.list().size() + b.list().size()));
    List list = a.list();
    list.insert(list.end(), b.list().begin(), b.list().end());
    return a.is(Kind::kList) ? Value::MakeList(std::move(list)) : Value::MakeTuple(std::move(list));
  }
  return Arithmetic(Op::kAdd, a, b);
}

StatusOr<Value> Evaluator::Multiply(const Value& a, const Value& b) {
  if (b.is(Kind::kText) && a.is_integer()) return Multiply(b, a);
  if (!a.is(Kind::kText) || !b.is_integer()) return Arithmetic(Op::kMultiply, a, b);
  const int64_t times = std::max<int64_t>(b.integer(), 0);
  const uint64_t size = a.text().text.size();
  if (size != 0 && static_cast<uint64_t>(times) > limits_.bytes / size) {
    return ResourceExhaustedError("a text has more than " + std::to_string(limits_.bytes) + " bytes");
  }
  BATON_RETURN_IF_ERROR(Charge(size == 0 ? 0 : static_cast<uint64_t>(times)));
  MarkedText text;
  for (int64_t i = 0; size != 0 && i < times; ++i) text.Append(a.text());
  return Checked(std::move(text));
}

StatusOr<Value> Evaluator::Arithmetic(Op op, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) return Mismatch("arithmetic", a, b);
  const bool zero = b.number() == 0;
  if (zero && (op == Op::kDivide || op == Op::kFloorDivide || op == Op::kModulo)) {
    return InvalidArgumentError("division by zero");
  }
  if (op == Op::kDivide) return Value::Float(a.number() / b.number());
  if (!a.is_integer() || !b.is_integer()) {
    const double x = a.number(), y = b.number();
    switch (op) {
      case Op::kAdd:
        return Value::Float(x + y);
      case Op::kSubtract:
        return Value::Float(x - y);
      case Op::kMultiply:
        return Value::Float(x * y);
      case Op::kFloorDivide:
        return Value::Float(std::floor(x / y));
      case Op::kModulo:
        return Value::Float(x - y * std::floor(x / y));
      default:
        return Value::Float(std::pow(x, y));
    }
  }
  const int64_t x = a.integer(), y = b.integer();
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(x, y, &result);
      break;
    case Op::kSubtract:
      overflow = __builtin_sub_overflow(x, y, &result);
      break;
    case Op::kMultiply:
      overflow = __builtin_mul_overflow(x, y, &result);
      break;
    case Op::kFloorDivide:
    case Op::kModulo: {
      overflow = x == INT64_MIN && y == -1;
      if (overflow) break;
      const int64_t down = (x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0;
      result = op == Op::kFloorDivide ? x / y - down : x % y + down * y;
      break;
    }
    default: {
      if (y < 0) return Value::Float(std::pow(a.number(), b.number()));
      result = 1;
      if (x == 0 || x == 1) {
        result = y == 0 ? 1 : x;
      } else if (x == -1) {
        result = y % 2 == 0 ? 1 : -1;
      } else {
        for (int64_t i = 0; i < y && !overflow; ++i) overflow = __builtin_mul_overflow(result, x, &result);
      }
    }
  }
  if (overflow) return InvalidArgumentError("an integer is beyond 64 bits");
  return Value::Int(result);
}

StatusOr<bool> Evaluator::CompareOne(Op op, const Value& a, const Value& b) {
  if (op == Op::kEqual || op == Op::kUnequal) {
    BATON_RETURN_IF_ERROR(Charge(a.is_sequence() ? a.list().size() : 0));
    return Equal(a, b) == (op == Op::kEqual);
  }
  if (op == Op::kIn || op == Op::kNotIn) {
    BATON_ASSIGN_OR_RETURN(const bool contains, Contains(b, a));
    return contains == (op == Op::kIn);
  }
  if (a.undefined() || b.undefined()) return Mismatch("comparison", a, b);
  BATON_ASSIGN_OR_RETURN(const int order, Compare(a, b));
  switch (op) {
    case Op::kLess:
      return order < 0;
    case Op::kLessEqual:
      return order <= 0;
    case Op::kGreater:
      return order > 0;
    default:
      return order >= 0;
  }
}

StatusOr<Value> Evaluator::EvaluateCompare(const Expression& e) {
  BATON_ASSIGN_OR_RETURN(Value left, Evaluate(*e.args[0]));
  for (size_t i = 1; i < e.args.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value right, Evaluate(*e.args[i]->args[0]));
    BATON_ASSIGN_OR_RETURN(const bool holds, CompareOne(e.args[i]->op, left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

StatusOr<Value> Evaluator::EvaluateSlice(const Expression& e) {
  BATON_ASSIGN_OR_RETURN(const Value whole, Evaluate(*e.args[0]));
  std::optional<int64_t> parts[3];
  for (int i = 0; i < 3; ++i) {
    if (e.args[static_cast<size_t>(i) + 1] == nullptr) continue;
    BATON_ASSIGN_OR_RETURN(const Value part, Evaluate(*e.args[static_cast<size_t>(i) + 1]));
    if (part.is(Kind::kNone)) continue;
    if (!part.is_integer()) return Mismatch("slice", part, part);
    parts[i] = part.integer();
  }
  const int64_t step = parts[2].value_or(1);
  if (step == 0) return InvalidArgumentError("slice: the step is zero");
  if (whole.is(Kind::kText)) return Checked(SliceText(whole.text(), parts[0], parts[1], step));
  if (whole.undefined()) return UndefinedError(whole, "slice");
  if (!whole.is_sequence()) return Mismatch("slice", whole, whole);
  BATON_RETURN_IF_ERROR(Charge(whole.list().size()));
  List list;
  for (int64_t i : SliceIndices(static_cast<int64_t>(whole.list().size()), parts[0], parts[1], step)) {
    list.push_back(whole.list()[static_cast<size_t>(i)]);
  }
  return whole.is(Kind::kList) ? Value::MakeList(std::move(list)) : Value::MakeTuple(std::move(list));
}

StatusOr<Arguments> Evaluator::EvaluateArguments(const Expression& e, size_t skip) {
  Arguments arguments;
  for (size_t i = skip; i < e.args.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*e.args[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : e.named) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

StatusOr<Value> Evaluator::EvaluateCall(const Expression& e) {
  if (e.op == Op::kCall && e.builtin == nullptr) {
    BATON_ASSIGN_OR_RETURN(const Value callee, Evaluate(*e.args[0]));
    if (!callee.is(Kind::kMacro)) return InvalidArgumentError("\"" + e.name + "\" is no macro here");
    BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(e, 1));
    return CallMacro(*callee.macro(), arguments);
  }
  Value subject;
  const size_t skip = e.op == Op::kCall ? 0 : 1;
  if (skip == 1) {
    BATON_ASSIGN_OR_RETURN(subject, Evaluate(*e.args[0]));
  }
  if (e.op == Op::kMethod && subject.undefined()) return UndefinedError(subject, "." + e.name + "()");
  BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(e, skip));
  return e.builtin->call(*this, subject, arguments);
}

StatusOr<Value> Evaluator::CallMacro(const Macro& macro, const Arguments& arguments) {
  if (arguments.positional.size() > macro.parameters.size()) {
    return InvalidArgumentError("macro " + macro.name + " takes " + std::to_string(macro.parameters.size()) +
                                " arguments, got " + std::to_string(arguments.positional.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    bool known = false;
    for (const auto& parameter : macro.parameters) known |= parameter.first == name;
    if (!known) return InvalidArgumentError("macro " + macro.name + " has no argument \"" + name + "\"");
  }
  const size_t saved_from = visible_from_;
  visible_from_ = scopes_.size();
  scopes_.emplace_back();
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, fallback] = macro.parameters[i];
    Value value = Value::Undefined(name);
    if (const Value* given = arguments.Find(i, name)) {
      value = *given;
    } else if (fallback != nullptr) {
      BATON_ASSIGN_OR_RETURN(value, Evaluate(*fallback));
    }
    Define(name, std::move(value));
  }
  BATON_ASSIGN_OR_RETURN(Value text, Capture(macro.body, {}));
  scopes_.pop_back();
  visible_from_ = saved_from;
  return text;
}

}  // namespace baton::jinja
