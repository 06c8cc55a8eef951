#include "text/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "text/jinja_builtins.h"
#include "text/jinja_lexer.h"

namespace baton::jinja {
namespace {

using Expr = StatusOr<ExpressionPtr>;

// Jinja2's grammar, one function per level of binding, from loose to tight.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  StatusOr<Program> Run() {
    CollectMacros();
    Program program;
    BATON_RETURN_IF_ERROR(ParseBody({}, &program.body));
    return program;
  }

 private:
  struct Nested {
    explicit Nested(Parser* p) : parser(p) { ++parser->nesting_; }
    ~Nested() { --parser->nesting_; }
    Nested(const Nested&) = delete;
    Parser* parser;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool Is(Token::Type type, std::string_view text) const { return now().type == type && now().text == text; }
  bool IsOp(std::string_view text) const { return Is(Token::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(Token::kName, text); }
  bool Take(Token::Type type, std::string_view text) {
    if (!Is(type, text)) return false;
    ++at_;
    return true;
  }
  bool TakeOp(std::string_view text) { return Take(Token::kOperator, text); }
  bool TakeName(std::string_view text) { return Take(Token::kName, text); }
  Status Error(std::string_view what) const { return SyntaxError(now().line, what); }
  Status Unexpected(std::string_view wanted) const {
    const std::string got = now().type == Token::kEnd ? "the end"
                            : now().text.empty()      ? "the tag's end"
                                                      : "\"" + now().text + "\"";
    return Error("expected " + std::string(wanted) + ", got " + got);
  }
  Status ExpectOp(std::string_view text) {
    return TakeOp(text) ? OkStatus() : Unexpected("\"" + std::string(text) + "\"");
  }
  Status ExpectBlockEnd() {
    if (now().type != Token::kBlockEnd) return Unexpected("%}");
    ++at_;
    return OkStatus();
  }
  StatusOr<std::string> ExpectName() {
    if (now().type != Token::kName) return Unexpected("a name");
    return tokens_[at_++].text;
  }
  Status CheckNesting() const {
    return nesting_ <= kMaxNesting ? OkStatus() : Error("nested deeper than " + std::to_string(kMaxNesting));
  }

  std::unique_ptr<Expression> New(Op op) const {
    auto e = std::make_unique<Expression>();
    e->op = op;
    e->line = now().line;
    return e;
  }
  std::unique_ptr<Expression> New(Op op, ExpressionPtr a) const {
    auto e = New(op);
    e->args.push_back(std::move(a));
    return e;
  }

  // A call of a name must mean a function, or a macro that some tag defines.
  void CollectMacros() {
    for (size_t i = 0; i + 2 < tokens_.size(); ++i) {
      if (tokens_[i].type == Token::kBlockBegin && tokens_[i + 1].text == "macro") macros_.insert(tokens_[i + 2].text);
    }
  }

  // ---- Statements ----

  // Statements up to a tag that begins with one of `ends`, whose name is consumed; *end tells which.
  Status ParseBody(const std::vector<std::string_view>& ends, Body* body, std::string* end = nullptr) {
    const Nested nested(this);
    BATON_RETURN_IF_ERROR(CheckNesting());
    const int opened = at_ == 0 ? 1 : tokens_[at_ - 1].line;
    for (;;) {
      const Token& token = now();  // tokens_ never grows
      if (token.type == Token::kEnd) {
        if (ends.empty()) return OkStatus();
        return SyntaxError(opened, "a block is not closed by {% " + std::string(ends.back()) + " %}");
      }
      Statement s{};
      s.type = Statement::kData;
      s.line = token.line;
      grown_ = 0;
      ++at_;
      if (token.type == Token::kData) {
        s.text.Append(token.text, true);
      } else if (token.type == Token::kOutputBegin) {
        s.type = Statement::kOutput;
        BATON_ASSIGN_OR_RETURN(s.value, ParseTuple(true));
        if (now().type != Token::kOutputEnd) return Unexpected("}}");
        ++at_;
      } else {
        for (std::string_view e : ends) {
          if (!TakeName(e)) continue;
          *end = e;
          return OkStatus();
        }
        BATON_RETURN_IF_ERROR(ParseTag(&s));
      }
      body->push_back(std::move(s));
    }
  }

  // ParseBody and the "%}" after its end.
  Status ParseBlock(std::string_view end_name, Body* body) {
    BATON_RETURN_IF_ERROR(ExpectBlockEnd());
    std::string end;
    BATON_RETURN_IF_ERROR(ParseBody({end_name}, body, &end));
    return ExpectBlockEnd();
  }

  Status ParseTag(Statement* s) {
    const int line = now().line;
    BATON_ASSIGN_OR_RETURN(const std::string name, ExpectName());
    if (name == "if") return ParseIf(s);
    if (name == "for") return ParseFor(s);
    if (name == "set") return ParseSet(s);
    if (name == "macro") return ParseMacro(s);
    if (name == "filter") {
      s->type = Statement::kFilter;
      BATON_RETURN_IF_ERROR(ParseFilterChain(&s->filters, false));
      return ParseBlock("endfilter", &s->body);
    }
    if (name == "generation") {
      s->type = Statement::kScope;
      return ParseBlock("endgeneration", &s->body);
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return SyntaxError(line, name + " outside a for loop");
      s->type = name == "break" ? Statement::kBreak : Statement::kContinue;
      return ExpectBlockEnd();
    }
    if (name.starts_with("end") || name == "else" || name == "elif") {
      return SyntaxError(line, "{% " + name + " %} closes nothing");
    }
    return Unsupported(line, "tag", name);
  }

  Status ParseIf(Statement* s) {
    s->type = Statement::kIf;
    std::string end = "elif";
    while (end != "endif") {
      auto& branch = s->branches.emplace_back();
      if (end == "elif") {
        BATON_ASSIGN_OR_RETURN(branch.first, ParseTuple(false));
      }
      BATON_RETURN_IF_ERROR(ExpectBlockEnd());
      const bool last = end == "else";
      BATON_RETURN_IF_ERROR(last ? ParseBody({"endif"}, &branch.second, &end)
                                 : ParseBody({"elif", "else", "endif"}, &branch.second, &end));
    }
    return ExpectBlockEnd();
  }

  Status ParseFor(Statement* s) {
    s->type = Statement::kFor;
    BATON_RETURN_IF_ERROR(ParseTarget(&s->target, false));
    if (!TakeName("in")) return Unexpected("\"in\"");
    BATON_ASSIGN_OR_RETURN(s->value, ParseTuple(false));
    if (TakeName("if")) {
      BATON_ASSIGN_OR_RETURN(s->condition, ParseTernary());
    }
    if (IsName("recursive")) return Unsupported(now().line, "for loop", "recursive");
    BATON_RETURN_IF_ERROR(ExpectBlockEnd());
    std::string end;
    ++loops_;
    const Status status = ParseBody({"else", "endfor"}, &s->body, &end);
    --loops_;
    BATON_RETURN_IF_ERROR(status);
    if (end == "else") {
      BATON_RETURN_IF_ERROR(ExpectBlockEnd());
      BATON_RETURN_IF_ERROR(ParseBody({"endfor"}, &s->other, &end));
    }
    return ExpectBlockEnd();
  }

  Status ParseSet(Statement* s) {
    BATON_RETURN_IF_ERROR(ParseTarget(&s->target, true));
    if (TakeOp("=")) {
      s->type = Statement::kSet;
      BATON_ASSIGN_OR_RETURN(s->value, ParseTuple(true));
      return ExpectBlockEnd();
    }
    s->type = Statement::kSetBlock;
    BATON_RETURN_IF_ERROR(ParseFilterChain(&s->filters, true));
    return ParseBlock("endset", &s->body);
  }

  Status ParseMacro(Statement* s) {
    s->type = Statement::kMacro;
    auto macro = std::make_unique<Macro>();
    BATON_ASSIGN_OR_RETURN(macro->name, ExpectName());
    BATON_RETURN_IF_ERROR(ExpectOp("("));
    while (!TakeOp(")")) {
      auto& parameter = macro->parameters.emplace_back();
      BATON_ASSIGN_OR_RETURN(parameter.first, ExpectName());
      if (TakeOp("=")) {
        BATON_ASSIGN_OR_RETURN(parameter.second, ParseTernary());
      } else if (macro->parameters.size() > 1 && macro->parameters[macro->parameters.size() - 2].second != nullptr) {
        return Error("parameter \"" + parameter.first + "\" without a default after one with");
      }
      if (!IsOp(")")) BATON_RETURN_IF_ERROR(ExpectOp(","));
    }
    const int loops = std::exchange(loops_, 0);
    const Status status = ParseBlock("endmacro", &macro->body);
    loops_ = loops;
    s->macro = std::move(macro);
    return status;
  }

  // `a, b`, `(a, b)`, `a`, and for set also `a.member`.
  Status ParseTarget(Target* target, bool with_member) {
    const bool bracket = TakeOp("(");
    for (;;) {
      Target& part = target->parts.emplace_back();
      BATON_ASSIGN_OR_RETURN(part.name, ExpectName());
      if (with_member && TakeOp(".")) {
        BATON_ASSIGN_OR_RETURN(part.member, ExpectName());
      }
      if (!TakeOp(",") || IsName("in") || IsOp(")")) break;
    }
    if (bracket) BATON_RETURN_IF_ERROR(ExpectOp(")"));
    if (target->parts.size() == 1) {
      Target only = std::move(target->parts[0]);
      *target = std::move(only);
    }
    return OkStatus();
  }

  // `name(...) | name(...)`, the filters of a block; with `leading_bar` each follows a bar.
  Status ParseFilterChain(std::vector<ExpressionPtr>* filters, bool leading_bar) {
    bool first = !leading_bar;
    while (first || TakeOp("|")) {
      first = false;
      BATON_ASSIGN_OR_RETURN(ExpressionPtr filter, ParseFilter(nullptr));
      filters->push_back(std::move(filter));
    }
    return OkStatus();
  }

  // ---- Expressions ----

  bool AtTupleEnd() const {
    return now().type == Token::kOutputEnd || now().type == Token::kBlockEnd || IsOp(")") || IsOp("]") || IsOp("=");
  }

  Expr ParseTuple(bool ternary) {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr first, ternary ? ParseTernary() : ParseOr());
    if (!IsOp(",")) return first;
    auto tuple = New(Op::kTuple, std::move(first));
    while (TakeOp(",") && !AtTupleEnd()) {
      BATON_ASSIGN_OR_RETURN(ExpressionPtr item, ternary ? ParseTernary() : ParseOr());
      tuple->args.push_back(std::move(item));
    }
    return ExpressionPtr(std::move(tuple));
  }

  Expr ParseTernary() {
    const Nested nested(this);
    BATON_RETURN_IF_ERROR(CheckNesting());
    BATON_ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
    while (IsName("if")) {
      auto e = New(Op::kTernary, std::move(value));
      ++at_;
      BATON_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
      e->args.push_back(std::move(condition));
      e->args.emplace_back();
      if (TakeName("else")) {
        BATON_ASSIGN_OR_RETURN(e->args.back(), ParseTernary());
      }
      value = std::move(e);
      BATON_RETURN_IF_ERROR(Grow());
    }
    return value;
  }

  // A chain like a + b + c makes a tree as deep as it is long, which evaluation walks down.
  static constexpr int kMaxGrowth = 1000;
  Status Grow() {
    return ++grown_ <= kMaxGrowth ? OkStatus()
                                  : Error("an expression has more than " + std::to_string(kMaxGrowth) + " parts");
  }

  Expr ParseOr() {
    const Nested nested(this);
    BATON_RETURN_IF_ERROR(CheckNesting());
    BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
    while (IsName("or")) {
      auto e = New(Op::kOr, std::move(left));
      ++at_;
      BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
      e->args.push_back(std::move(right));
      left = std::move(e);
      BATON_RETURN_IF_ERROR(Grow());
    }
    return left;
  }

  Expr ParseAnd() {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
    while (IsName("and")) {
      auto e = New(Op::kAnd, std::move(left));
      ++at_;
      BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
      e->args.push_back(std::move(right));
      left = std::move(e);
      BATON_RETURN_IF_ERROR(Grow());
    }
    return left;
  }

  Expr ParseNot() {
    if (!IsName("not")) return ParseCompare();
    const Nested nested(this);
    BATON_RETURN_IF_ERROR(CheckNesting());
    ++at_;
    BATON_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
    return ExpressionPtr(New(Op::kNot, std::move(operand)));
  }

  bool TakeComparison(Op* op) {
    static constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEqual},  {"!=", Op::kUnequal},
                                                               {"<", Op::kLess},    {"<=", Op::kLessEqual},
                                                               {">", Op::kGreater}, {">=", Op::kGreaterEqual}};
    for (const auto& [text, value] : kOps) {
      if (TakeOp(text)) return *op = value, true;
    }
    if (TakeName("in")) return *op = Op::kIn, true;
    if (IsName("not") && next().type == Token::kName && next().text == "in") {
      at_ += 2;
      return *op = Op::kNotIn, true;
    }
    return false;
  }

  Expr ParseCompare() {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParseSum());
    Op op;
    if (!TakeComparison(&op)) return left;
    auto chain = New(Op::kCompare, std::move(left));
    do {
      auto step = New(op);
      BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParseSum());
      step->args.push_back(std::move(right));
      chain->args.push_back(std::move(step));
    } while (TakeComparison(&op));
    return ExpressionPtr(std::move(chain));
  }

  // One level of left-associative operators.
  template <size_t N>
  Expr ParseLevel(const std::pair<std::string_view, Op> (&ops)[N], Expr (Parser::*tighter)()) {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*tighter)());
    for (;;) {
      const std::pair<std::string_view, Op>* found = nullptr;
      for (const auto& op : ops) {
        if (IsOp(op.first)) found = &op;
      }
      if (found == nullptr) return left;
      auto e = New(found->second, std::move(left));
      ++at_;
      BATON_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*tighter)());
      e->args.push_back(std::move(right));
      left = std::move(e);
      BATON_RETURN_IF_ERROR(Grow());
    }
  }

  Expr ParseSum() {
    static constexpr std::pair<std::string_view, Op> kOps[] = {{"+", Op::kAdd}, {"-", Op::kSubtract}};
    return ParseLevel(kOps, &Parser::ParseConcatenation);
  }
  Expr ParseConcatenation() {
    static constexpr std::pair<std::string_view, Op> kOps[] = {{"~", Op::kConcatenate}};
    return ParseLevel(kOps, &Parser::ParseProduct);
  }
  Expr ParseProduct() {
    static constexpr std::pair<std::string_view, Op> kOps[] = {
        {"*", Op::kMultiply}, {"/", Op::kDivide}, {"//", Op::kFloorDivide}, {"%", Op::kModulo}};
    return ParseLevel(kOps, &Parser::ParsePower);
  }
  Expr ParsePower() {
    static constexpr std::pair<std::string_view, Op> kOps[] = {{"**", Op::kPower}};
    return ParseLevel(kOps, &Parser::ParseUnary);
  }
  Expr ParseUnary() { return ParseSigned(true); }

  Expr ParseSigned(bool with_filters) {
    const Nested nested(this);
    BATON_RETURN_IF_ERROR(CheckNesting());
    ExpressionPtr value;
    if (IsOp("-") || IsOp("+")) {
      auto e = New(IsOp("-") ? Op::kNegative : Op::kPositive);
      ++at_;
      BATON_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseSigned(false));
      e->args.push_back(std::move(operand));
      value = std::move(e);
    } else {
      BATON_ASSIGN_OR_RETURN(value, ParsePrimary());
    }
    BATON_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
    return with_filters ? ParseFiltersAndTests(std::move(value)) : Expr(std::move(value));
  }

  Expr Constant(Value v) {
    auto e = New(Op::kConstant);
    e->constant = std::move(v);
    return ExpressionPtr(std::move(e));
  }

  Expr ParsePrimary() {
    const Token& token = now();
    switch (token.type) {
      case Token::kName: {
        ++at_;
        if (token.text == "true" || token.text == "True") return Constant(Value::Bool(true));
        if (token.text == "false" || token.text == "False") return Constant(Value::Bool(false));
        if (token.text == "none" || token.text == "None") return Constant(Value::None());
        auto e = New(Op::kName);
        e->name = token.text;
        return ExpressionPtr(std::move(e));
      }
      case Token::kText: {
        std::string text;
        while (now().type == Token::kText) text += tokens_[at_++].text;
        return Constant(Value::Text(text, true));
      }
      case Token::kInt: {
        int64_t value = 0;
        const char* end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, value).ec != std::errc()) return Error("an integer is too large");
        ++at_;
        return Constant(Value::Int(value));
      }
      case Token::kFloat: {
        double value = 0;
        const char* end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, value).ec != std::errc()) return Error("a number is out of range");
        ++at_;
        return Constant(Value::Float(value));
      }
      default:
        break;
    }
    if (TakeOp("(")) {
      if (TakeOp(")")) return ExpressionPtr(New(Op::kTuple));
      BATON_ASSIGN_OR_RETURN(ExpressionPtr inner, ParseTuple(true));
      BATON_RETURN_IF_ERROR(ExpectOp(")"));
      return inner;
    }
    if (TakeOp("[")) return ParseListOrDict(Op::kList, "]");
    if (TakeOp("{")) return ParseListOrDict(Op::kDict, "}");
    return Unexpected("a value");
  }

  Expr ParseListOrDict(Op op, std::string_view close) {
    auto e = New(op);
    while (!TakeOp(close)) {
      if (!e->args.empty()) {
        BATON_RETURN_IF_ERROR(ExpectOp(","));
        if (TakeOp(close)) break;
      }
      BATON_ASSIGN_OR_RETURN(ExpressionPtr item, ParseTernary());
      e->args.push_back(std::move(item));
      if (op != Op::kDict) continue;
      BATON_RETURN_IF_ERROR(ExpectOp(":"));
      BATON_ASSIGN_OR_RETURN(ExpressionPtr value, ParseTernary());
      e->args.push_back(std::move(value));
    }
    return ExpressionPtr(std::move(e));
  }

  Expr ParsePostfix(ExpressionPtr value) {
    for (;;) {
      if (TakeOp(".")) {
        auto e = New(Op::kAttribute, std::move(value));
        if (now().type == Token::kInt) {
          BATON_ASSIGN_OR_RETURN(ExpressionPtr index, ParsePrimary());
          e->op = Op::kItem;
          e->args.push_back(std::move(index));
        } else {
          BATON_ASSIGN_OR_RETURN(e->name, ExpectName());
        }
        value = std::move(e);
      } else if (TakeOp("[")) {
        BATON_ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value)));
      } else if (IsOp("(")) {
        BATON_ASSIGN_OR_RETURN(value, ParseCall(std::move(value)));
      } else {
        return value;
      }
      BATON_RETURN_IF_ERROR(Grow());
    }
  }

  Expr ParseSubscript(ExpressionPtr value) {
    auto e = New(Op::kItem, std::move(value));
    bool slice = false;
    ExpressionPtr parts[3];
    for (int part = 0; part < 3; ++part) {
      if (!IsOp(":") && !IsOp("]")) {
        BATON_ASSIGN_OR_RETURN(parts[part], ParseTernary());
      }
      if (!TakeOp(":")) break;
      slice = true;
    }
    if (IsOp(",")) return Unsupported(now().line, "subscript", "a, b");
    BATON_RETURN_IF_ERROR(ExpectOp("]"));
    if (!slice && parts[0] == nullptr) return Error("an empty subscript");
    e->op = slice ? Op::kSlice : Op::kItem;
    for (int part = 0; part < (slice ? 3 : 1); ++part) e->args.push_back(std::move(parts[part]));
    return ExpressionPtr(std::move(e));
  }

  Status ParseArguments(Expression* e) {
    BATON_RETURN_IF_ERROR(ExpectOp("("));
    while (!TakeOp(")")) {
      if (IsOp("*") || IsOp("**")) return Unsupported(now().line, "argument", now().text);
      if (now().type == Token::kName && next().type == Token::kOperator && next().text == "=") {
        const std::string name = now().text;
        at_ += 2;
        BATON_ASSIGN_OR_RETURN(ExpressionPtr value, ParseTernary());
        e->named.emplace_back(name, std::move(value));
      } else {
        if (!e->named.empty()) return Error("a positional argument after a named one");
        BATON_ASSIGN_OR_RETURN(ExpressionPtr value, ParseTernary());
        e->args.push_back(std::move(value));
      }
      if (!IsOp(")")) BATON_RETURN_IF_ERROR(ExpectOp(","));
    }
    return OkStatus();
  }

  Status CheckCount(const Expression& e, size_t subjects) const {
    const size_t count = e.args.size() - subjects + e.named.size();
    if (e.builtin == nullptr || count <= e.builtin->most_arguments) return OkStatus();
    return SyntaxError(e.line, std::string(e.builtin->name) + " takes at most " +
                                   std::to_string(e.builtin->most_arguments) + " arguments, got " +
                                   std::to_string(count));
  }

  Expr ParseCall(ExpressionPtr callee) {
    auto e = New(Op::kCall);
    if (callee->op == Op::kAttribute) {
      e->op = Op::kMethod;
      e->name = callee->name;
      e->builtin = FindMethod(e->name);
      if (e->builtin == nullptr) return Unsupported(callee->line, "method", e->name);
      e->args.push_back(std::move(callee->args[0]));
    } else if (callee->op == Op::kName) {
      e->name = callee->name;
      if (macros_.count(e->name) > 0) {
        e->args.push_back(std::move(callee));
      } else if ((e->builtin = FindFunction(e->name)) == nullptr) {
        return Unsupported(callee->line, "function", e->name);
      }
    } else {
      return Unsupported(callee->line, "call of", "an expression");
    }
    const size_t subjects = e->args.size();
    BATON_RETURN_IF_ERROR(ParseArguments(e.get()));
    BATON_RETURN_IF_ERROR(CheckCount(*e, subjects));
    return ExpressionPtr(std::move(e));
  }

  // After "|": the filter's name and arguments.
  Expr ParseFilter(ExpressionPtr value) {
    auto e = New(Op::kFilter, std::move(value));
    BATON_ASSIGN_OR_RETURN(e->name, ExpectName());
    e->builtin = FindFilter(e->name);
    if (e->builtin == nullptr) return Unsupported(e->line, "filter", e->name);
    if (IsOp("(")) BATON_RETURN_IF_ERROR(ParseArguments(e.get()));
    BATON_RETURN_IF_ERROR(CheckCount(*e, 1));
    BATON_RETURN_IF_ERROR(CheckNamedTest(*e));
    return ExpressionPtr(std::move(e));
  }

  // select("defined"), map("upper"): the name in the first or second argument must be known too.
  Status CheckNamedTest(const Expression& e) const {
    const bool by_attribute = e.name == "selectattr" || e.name == "rejectattr";
    const size_t at = by_attribute ? 2 : 1;
    const bool test = by_attribute || e.name == "select" || e.name == "reject";
    if ((!test && e.name != "map") || e.args.size() <= at) return OkStatus();
    const Expression& name = *e.args[at];
    if (name.op != Op::kConstant || !name.constant.is(Kind::kText)) {
      return Unsupported(e.line, test ? "test" : "filter", "chosen by an expression");
    }
    const std::string& text = name.constant.text().text;
    if (test && FindTest(text) == nullptr) return Unsupported(e.line, "test", text);
    if (!test && FindFilter(text) == nullptr) return Unsupported(e.line, "filter", text);
    return OkStatus();
  }

  Expr ParseFiltersAndTests(ExpressionPtr value) {
    for (;;) {
      if (TakeOp("|")) {
        BATON_ASSIGN_OR_RETURN(value, ParseFilter(std::move(value)));
      } else if (TakeName("is")) {
        BATON_ASSIGN_OR_RETURN(value, ParseTest(std::move(value)));
      } else {
        return value;
      }
      BATON_RETURN_IF_ERROR(Grow());
    }
  }

  Expr ParseTest(ExpressionPtr value) {
    const bool negated = TakeName("not");
    auto e = New(Op::kTest, std::move(value));
    BATON_ASSIGN_OR_RETURN(e->name, ExpectName());
    e->builtin = FindTest(e->name);
    if (e->builtin == nullptr) return Unsupported(e->line, "test", e->name);
    const Token& token = now();
    const bool operand =
        token.type == Token::kText || token.type == Token::kInt || token.type == Token::kFloat || IsOp("[") ||
        IsOp("{") || (token.type == Token::kName && token.text != "else" && token.text != "or" && token.text != "and");
    if (IsOp("(")) {
      BATON_RETURN_IF_ERROR(ParseArguments(e.get()));
    } else if (operand && e->builtin->most_arguments > 0) {
      BATON_ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
      BATON_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
      e->args.push_back(std::move(argument));
    }
    BATON_RETURN_IF_ERROR(CheckCount(*e, 1));
    if (!negated) return ExpressionPtr(std::move(e));
    return ExpressionPtr(New(Op::kNot, std::move(e)));
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  int grown_ = 0;
  std::set<std::string> macros_;
};

}  // namespace

StatusOr<Program> ParseProgram(std::string_view source) {
  BATON_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace baton::jinja
