// Walks a Program and writes its text. One per rendering; not shared. Private to src/text.
//
// Always true: it ends: steps, depth, and the size of every text and of the output are limited.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baton/status.h"
#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"
#include "text/jinja_value.h"

namespace baton::jinja {

struct Limits {
  uint64_t steps;
  uint64_t bytes;  // of the output, and of any one text
  std::optional<int64_t> now;
};

class Evaluator {
 public:
  using Variables = std::vector<std::pair<std::string, Value>>;

  Evaluator(const Program* program, const Limits& limits) : program_(program), limits_(limits) {}

  StatusOr<MarkedText> Run(Variables globals);

  // For builtins. `Charge` pays for work: 1 per item or 64 bytes. `Checked` refuses a text that is too long.
  Status Charge(uint64_t steps);
  StatusOr<Value> Checked(MarkedText text);
  std::optional<int64_t> now() const { return limits_.now; }
  Value NewNamespace() { return Value::MakeNamespace(&namespaces_.emplace_back()); }

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  struct Scope {
    Variables variables;
  };

  StatusOr<Flow> Execute(const Body& body);
  StatusOr<Flow> ExecuteOne(const Statement& s);
  StatusOr<Flow> ExecuteFor(const Statement& s);
  Status Write(const MarkedText& text);
  // The text that `body` writes, then through `filters`.
  StatusOr<Value> Capture(const Body& body, const std::vector<ExpressionPtr>& filters);

  StatusOr<Value> Evaluate(const Expression& e);
  StatusOr<Value> EvaluateNode(const Expression& e);
  StatusOr<Value> Arithmetic(Op op, const Value& a, const Value& b);
  StatusOr<Value> Add(const Value& a, const Value& b);
  StatusOr<Value> Multiply(const Value& a, const Value& b);
  StatusOr<bool> CompareOne(Op op, const Value& a, const Value& b);
  StatusOr<Value> EvaluateCompare(const Expression& e);
  StatusOr<Value> EvaluateSlice(const Expression& e);
  StatusOr<Value> EvaluateCall(const Expression& e);
  StatusOr<Value> CallMacro(const Macro& macro, const Arguments& arguments);
  StatusOr<Arguments> EvaluateArguments(const Expression& e, size_t skip);

  Value Look(const std::string& name) const;
  Status Assign(const Target& target, const Value& value);
  void Define(const std::string& name, Value value);

  const Program* program_;
  Limits limits_;
  uint64_t steps_ = 0;
  int depth_ = 0;
  std::vector<Scope> scopes_;  // [0]: globals and what the template sets at its top
  size_t visible_from_ = 0;    // a macro sees its own scopes and [0]
  std::deque<Namespace> namespaces_;
  MarkedText out_;
};

}  // namespace baton::jinja
