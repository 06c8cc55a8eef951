// A parsed template: plain trees that never change. Private to src/text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace baton::jinja {

struct Builtin;  // jinja_builtins.h
struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class Op : uint8_t {
  kConstant,
  kName,
  kAttribute,  // args[0].name
  kItem,       // args[0][args[1]]
  kSlice,      // args[0][args[1]:args[2]:args[3]], null where left out
  kCall,       // builtin or, without one, the macro args[0]; the rest of args and named are the arguments
  kMethod,     // args[0].name(...)
  kFilter,     // args[0] | builtin(...)
  kTest,       // args[0] is builtin(...)
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcatenate,
  kEqual,
  kUnequal,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
  kCompare,  // args[0], then chained: each further one compares its args[0] with the one before
  kTernary,  // args[0] if args[1] else args[2]; args[2] may be null
  kList,
  kTuple,
  kDict,  // args: key, value, key, value ...
};

struct Expression {
  Op op;
  int line = 0;
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> args;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  const Builtin* builtin = nullptr;
};

struct Statement;
using Body = std::vector<Statement>;

// Where a value goes: a variable, a member of a namespace, or several of them.
struct Target {
  std::string name;
  std::string member;         // "" for a variable
  std::vector<Target> parts;  // a tuple, if any
};

struct Statement {
  enum Type : uint8_t {
    kData,      // text
    kOutput,    // value
    kIf,        // branches; one without a value is the else
    kFor,       // target in value if condition: body, else other
    kSet,       // target = value
    kSetBlock,  // target = body, through filters
    kMacro,     // macro
    kFilter,    // body, through filters
    kScope,     // body as it is ({% generation %})
    kBreak,
    kContinue,
  };
  Type type;
  int line = 0;
  MarkedText text;
  Target target;
  ExpressionPtr value;
  ExpressionPtr condition;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body body;
  Body other;
  std::vector<ExpressionPtr> filters;  // kFilter expressions whose args[0] is null: it is the body's text
  std::unique_ptr<const Macro> macro;
};

struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with their defaults, or null
  Body body;
};

struct Program {
  Body body;
};

}  // namespace baton::jinja
