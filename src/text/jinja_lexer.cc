#include "text/jinja_lexer.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"

namespace baton::jinja {

Status SyntaxError(int line, std::string_view what) {
  return InvalidArgumentError("chat template line " + std::to_string(line) + ": " + std::string(what));
}
Status Unsupported(int line, std::string_view kind, std::string_view name) {
  return UnimplementedError("chat template line " + std::to_string(line) + ": " + std::string(kind) + " \"" +
                            std::string(name) + "\" is not supported");
}

namespace {

std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

size_t PythonSpaceAt(std::string_view text, size_t at) {  // bytes of the run that begins there
  size_t end = at, bytes = 0;
  while (end < text.size() && IsPythonWhiteSpace(CodePointAt(text, end, &bytes))) end += bytes;
  return end - at;
}

std::string_view RightStrip(std::string_view text) {
  size_t bytes = 0;
  while (!text.empty() && IsPythonWhiteSpace(CodePointBefore(text, text.size(), &bytes))) text.remove_suffix(bytes);
  return text;
}

bool IsNameStart(uint32_t c) { return c == '_' || (IsWordCharacter(c) && !(c >= '0' && c <= '9')); }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) BATON_RETURN_IF_ERROR(Root());
    Add(Token::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool Sees(std::string_view what) const { return rest().substr(0, what.size()) == what; }
  void Add(Token::Type type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }
  void Advance(size_t bytes) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<long>(at_), source_.begin() + static_cast<long>(at_ + bytes), '\n'));
    at_ += bytes;
  }

  // The text before a tag that carries `sign` ('-', '+' or 0); `is_output`: the tag is {{.
  std::string_view BeforeTag(std::string_view text, char sign, bool is_output) const {
    if (sign == '-') return RightStrip(text);
    if (sign == '+' || is_output) return text;
    const size_t line_start = text.rfind('\n') + 1;  // npos + 1 = 0
    if (line_start == 0 && !line_starting_) return text;
    return PythonSpaceAt(text, line_start) == text.size() - line_start ? text.substr(0, line_start) : text;
  }

  char Sign() const { return Sees("-") || Sees("+") ? source_[at_] : '\0'; }

  // Consumes a tag's end ("%}", "#}") and the white space that goes with it. False: it is not here.
  bool TakeEnd(std::string_view end, bool trims_newline) {
    const char sign = Sign();
    const size_t begin = at_ + (sign == 0 ? 0 : 1);
    if (std::string_view(source_).substr(begin, end.size()) != end) return false;
    if (sign == '+' && end == "}}") return false;
    size_t stop = begin + end.size();
    if (sign == '-') {
      stop += PythonSpaceAt(source_, stop);
    } else if (sign == 0 && trims_newline && source_.compare(stop, 1, "\n") == 0) {
      ++stop;
    }
    line_starting_ = source_[stop - 1] == '\n';
    Advance(stop - at_);
    return true;
  }

  Status Root() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        Add(Token::kData, std::string(rest()));
        Advance(source_.size() - at_);
        return OkStatus();
      }
      if (source_[tag + 1] == '{' || source_[tag + 1] == '%' || source_[tag + 1] == '#') break;
    }
    const char kind = source_[tag + 1];
    const size_t text_at = at_;
    const char sign =
        tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+') ? source_[tag + 2] : '\0';
    const std::string_view text = std::string_view(source_).substr(text_at, tag - text_at);
    const std::string_view kept = BeforeTag(text, sign, kind == '{');
    if (!kept.empty()) Add(Token::kData, std::string(kept));
    line_starting_ = false;
    Advance(tag + 2 + (sign == 0 ? 0 : 1) - at_);
    if (kind == '#') return Comment();
    if (kind == '{') return Tag(Token::kOutputBegin, Token::kOutputEnd, "}}");
    bool is_raw = false;
    BATON_RETURN_IF_ERROR(Raw(&is_raw));
    return is_raw ? OkStatus() : Tag(Token::kBlockBegin, Token::kBlockEnd, "%}");
  }

  Status Comment() {
    const int line = line_;
    while (at_ < source_.size()) {
      if (TakeEnd("#}", true)) return OkStatus();
      Advance(1);
    }
    return SyntaxError(line, "a comment does not end");
  }

  // "{% raw %} ... {% endraw %}", at_ after the first "{%". Not raw: at_ stays.
  Status Raw(bool* is_raw) {
    const size_t start = at_;
    const int line = line_;
    Advance(PythonSpaceAt(source_, at_));
    *is_raw = Sees("raw");
    if (*is_raw) {
      Advance(3);
      Advance(PythonSpaceAt(source_, at_));
      *is_raw = Sign() != '+' && TakeEnd("%}", false);
    }
    if (!*is_raw) {
      at_ = start;
      line_ = line;
      return OkStatus();
    }
    const size_t text_at = at_;
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      Advance(tag + 2 - at_);
      const char sign = Sign();
      if (sign != 0) Advance(1);
      Advance(PythonSpaceAt(source_, at_));
      if (!Sees("endraw")) continue;
      Advance(6);
      Advance(PythonSpaceAt(source_, at_));
      const std::string text(BeforeTag(std::string_view(source_).substr(text_at, tag - text_at), sign, false));
      if (!TakeEnd("%}", true)) continue;
      if (!text.empty()) Add(Token::kData, text);
      return OkStatus();
    }
    return SyntaxError(line, "a raw block does not end");
  }

  Status Tag(Token::Type begin, Token::Type end_type, std::string_view end) {
    const int line = line_;
    Add(begin, "");
    std::string open;  // brackets that wait for their partners
    while (at_ < source_.size()) {
      const int end_line = line_;
      if (open.empty() && TakeEnd(end, end == "%}")) {
        tokens_.push_back({end_type, "", end_line});
        return OkStatus();
      }
      if (const size_t space = PythonSpaceAt(source_, at_); space > 0) {
        Advance(space);
        continue;
      }
      BATON_RETURN_IF_ERROR(TagToken(&open));
    }
    return SyntaxError(line, "a tag does not end with " + std::string(end));
  }

  Status TagToken(std::string* open) {
    const char c = source_[at_];
    size_t bytes = 0;
    if (c >= '0' && c <= '9') return Number();
    if (c == '\'' || c == '"') return QuotedText();
    if (IsNameStart(CodePointAt(source_, at_, &bytes))) {
      size_t end = at_;
      while (end < source_.size() && IsWordCharacter(CodePointAt(source_, end, &bytes))) end += bytes;
      Add(Token::kName, source_.substr(at_, end - at_));
      Advance(end - at_);
      return OkStatus();
    }
    std::string op;
    for (std::string_view two : {"==", "!=", ">=", "<=", "//", "**"}) {
      if (Sees(two)) op = two;
    }
    if (op.empty() && std::string_view("+-/*%~[](){}><=.:|,").find(c) != std::string_view::npos) op = c;
    if (op.empty()) return SyntaxError(line_, "unexpected \"" + std::string(rest().substr(0, bytes)) + "\"");
    if (op == "(") *open += ')';
    if (op == "[") *open += ']';
    if (op == "{") *open += '}';
    if (op == ")" || op == "]" || op == "}") {
      if (open->empty() || open->back() != op[0]) return SyntaxError(line_, "unexpected \"" + op + "\"");
      open->pop_back();
    }
    Add(Token::kOperator, op);
    Advance(op.size());
    return OkStatus();
  }

  Status Number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && ((source_[end] >= '0' && source_[end] <= '9') || source_[end] == '_')) ++end;
    };
    const auto digit_at = [&](size_t i) { return i < source_.size() && source_[i] >= '0' && source_[i] <= '9'; };
    digits();
    bool is_float = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && source_.compare(end, 1, ".") == 0 && digit_at(end + 1)) {
      is_float = true;
      ++end;
      digits();
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const size_t sign = end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-') ? 1 : 0;
      if (digit_at(end + 1 + sign)) {
        is_float = true;
        end += 1 + sign;
        digits();
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    Add(is_float ? Token::kFloat : Token::kInt, text);
    Advance(end - at_);
    return OkStatus();
  }

  Status QuotedText() {
    const char quote = source_[at_];
    const int line = line_;
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return SyntaxError(line, "a text in quotes does not end");
    std::string text;
    BATON_RETURN_IF_ERROR(Unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1), &text));
    Add(Token::kText, std::move(text));
    Advance(end + 1 - at_);
    return OkStatus();
  }

  // Python's escapes.
  Status Unescape(std::string_view raw, std::string* out) const {
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\') {
        *out += raw[i];
        continue;
      }
      const char c = raw[++i];
      static constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
      const size_t simple = kFrom.find(c);
      const int width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      if (simple != std::string_view::npos) {
        *out += kTo[simple];
      } else if (width > 0) {
        uint32_t code = 0;
        if (!Digits(raw.substr(i + 1, static_cast<size_t>(width)), 16, width, &code) || code > 0x10FFFF ||
            (code >= 0xD800 && code < 0xE000)) {
          return SyntaxError(line_, std::string("bad escape \\") + c);
        }
        AppendUtf8(code, out);
        i += static_cast<size_t>(width);
      } else if (c >= '0' && c <= '7') {
        uint32_t code = 0;
        size_t n = 0;
        while (n < 3 && i + n < raw.size() && raw[i + n] >= '0' && raw[i + n] <= '7') {
          code = code * 8 + static_cast<uint32_t>(raw[i + n++] - '0');
        }
        AppendUtf8(code, out);
        i += n - 1;
      } else if (c != '\n') {
        *out += {'\\', c};
      }
    }
    return OkStatus();
  }

  static bool Digits(std::string_view text, uint32_t base, int width, uint32_t* value) {
    if (text.size() != static_cast<size_t>(width)) return false;
    for (char c : text) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : 99;
      if (digit >= static_cast<int>(base)) return false;
      *value = *value * base + static_cast<uint32_t>(digit);
    }
    return true;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the source before at_ is empty, or a tag's end swallowed a newline
  std::vector<Token> tokens_;
};

}  // namespace

StatusOr<std::vector<Token>> Lex(std::string_view source) {
  static constexpr size_t kMaxSource = 1u << 20;
  if (source.size() > kMaxSource) {
    return InvalidArgumentError("chat template: " + std::to_string(source.size()) + " bytes, at most " +
                                std::to_string(kMaxSource) + " are supported");
  }
  BATON_RETURN_IF_ERROR(ValidateUtf8(source, "chat template"));
  return Lexer(NormalizeNewlines(source)).Run();
}

}  // namespace baton::jinja
