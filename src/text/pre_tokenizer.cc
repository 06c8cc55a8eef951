#include "text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace baton {

const char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kQwen2Pattern[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
                             R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

constexpr char kWhiteSpace[] =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

// What a thread needs to match: PCRE2 wants its own of each.
struct MatchState {
  MatchState() {
    data = pcre2_match_data_create(1, nullptr);
    context = pcre2_match_context_create(nullptr);
    stack = pcre2_jit_stack_create(32 * 1024, 1024 * 1024, nullptr);
    BATON_CHECK(data != nullptr && context != nullptr && stack != nullptr, "out of memory");
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, 10'000'000);
  }
  ~MatchState() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

Status Unlike(std::string_view pattern, std::string_view what) {
  return UnimplementedError("pre-tokenizer pattern \"" + std::string(pattern) + "\": " + std::string(what) +
                            " is not supported");
}

// Reads one escape at pattern[at] == '\\' and appends its translation. Returns the index after it.
StatusOr<size_t> TranslateEscape(std::string_view pattern, size_t at, bool in_class, std::string* out) {
  if (at + 1 == pattern.size()) return InvalidArgumentError("pre-tokenizer pattern ends in a backslash");
  const char c = pattern[at + 1];
  switch (c) {
    case 's':
      *out += in_class ? std::string(kWhiteSpace) : "[" + std::string(kWhiteSpace) + "]";
      return at + 2;
    case 'S':
      if (in_class) return Unlike(pattern, "\\S inside brackets");
      *out += "[^" + std::string(kWhiteSpace) + "]";
      return at + 2;
    case 'u':
      if (at + 6 > pattern.size()) return InvalidArgumentError("pre-tokenizer pattern: \\u needs four digits");
      *out += "\\x{" + std::string(pattern.substr(at + 2, 4)) + "}";
      return at + 6;
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'x':
    case 'd':
    case 'D':
    case 'p':
    case 'P':
      break;
    default:
      if (('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9')) {
        return Unlike(pattern, std::string("\\") + c);
      }
  }
  size_t end = at + 2;
  if (pattern.substr(end, 1) == "{" && std::string_view("xpP").find(c) != std::string_view::npos) {
    end = std::min(pattern.find('}', end), pattern.size() - 1) + 1;
  }
  *out += pattern.substr(at, end - at);
  return end;
}

bool GroupIsAlike(std::string_view rest) {  // rest begins after "(?"
  for (std::string_view known : {":", "=", "!", "<=", "<!", ">", "i:", "i)"}) {
    if (rest.substr(0, known.size()) == known) return true;
  }
  return false;
}

}  // namespace

StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t at = 0; at < pattern.size();) {
    const char c = pattern[at];
    const char next = at + 1 < pattern.size() ? pattern[at + 1] : '\0';
    if (c == '\\') {
      BATON_ASSIGN_OR_RETURN(at, TranslateEscape(pattern, at, in_class, &out));
      continue;
    }
    if (in_class) {
      if (c == '[') return Unlike(pattern, "a bracket inside brackets");
      if (c == '&' && next == '&') return Unlike(pattern, "&&");
      if (c == ']') in_class = false;
    } else {
      if (c == '[') {
        in_class = true;
        if (next == ']' || pattern.substr(at, 3) == "[^]") return Unlike(pattern, "] first in brackets");
      }
      if (c == '^' || c == '$') return Unlike(pattern, std::string(1, c));
      if (c == '(' && next == '?' && !GroupIsAlike(pattern.substr(at + 2))) {
        return Unlike(pattern, pattern.substr(at, 4));
      }
      if (c == '{' && next == ',') return Unlike(pattern, "{,");
      if (c == '}' && next == '+') return Unlike(pattern, "}+");
    }
    out += c;
    ++at;
    if (in_class && c == '[' && next == '^') out += '^', ++at;
  }
  return out;
}

struct PreTokenizer::Step {
  std::unique_ptr<pcre2_code, CodeDeleter> code;
  bool jit = false;
  bool drop_gaps = false;

  // The next match at or after `from` that is not empty. False: none, or the pattern gave up (*gave_up).
  bool Next(std::string_view text, size_t from, MatchState* state, size_t* begin, size_t* end, bool* gave_up) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    while (from < text.size()) {
      int rc = PCRE2_ERROR_JIT_STACKLIMIT;
      if (jit) rc = pcre2_jit_match(code.get(), subject, text.size(), from, 0, state->data, state->context);
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state->data,
                         state->context);
      }
      if (rc < 0) {
        *gave_up = rc != PCRE2_ERROR_NOMATCH;
        return false;
      }
      const PCRE2_SIZE* found = pcre2_get_ovector_pointer(state->data);
      *begin = found[0];
      *end = found[1];
      if (*end > *begin) return true;
      if (*end >= text.size()) return false;
      from = *end + DecodeUtf8(text.substr(*end)).length;
    }
    return false;
  }

  void Cut(std::string_view text, MatchState* state, std::vector<std::string_view>* out) const {
    size_t at = 0, begin = 0, end = 0;
    bool gave_up = false;
    while (Next(text, at, state, &begin, &end, &gave_up)) {
      if (begin > at && !drop_gaps) out->push_back(text.substr(at, begin - at));
      out->push_back(text.substr(begin, end - begin));
      at = end;
    }
    if (at < text.size() && (!drop_gaps || gave_up)) out->push_back(text.substr(at));
  }
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

StatusOr<PreTokenizer> PreTokenizer::Make(const std::vector<SplitStep>& steps) {
  PreTokenizer made;
  for (const SplitStep& step : steps) {
    BATON_ASSIGN_OR_RETURN(const std::string pattern, TranslateOnigurumaPattern(step.regex));
    int error = 0;
    PCRE2_SIZE offset = 0;
    Step& s = made.steps_.emplace_back();
    s.drop_gaps = step.drop_gaps;
    s.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                               PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                               nullptr));
    if (s.code == nullptr) {
      PCRE2_UCHAR message[128] = {};
      pcre2_get_error_message(error, message, sizeof message);
      return InvalidArgumentError("pre-tokenizer pattern \"" + step.regex + "\": " +
                                  reinterpret_cast<const char*>(message) + " near offset " + std::to_string(offset));
    }
    s.jit = pcre2_jit_compile(s.code.get(), PCRE2_JIT_COMPLETE) == 0;
  }
  return made;
}

void PreTokenizer::Cut(std::string_view text, std::vector<std::string_view>* words) const {
  if (text.empty()) return;
  if (steps_.empty()) {
    words->push_back(text);
    return;
  }
  thread_local MatchState state;
  std::vector<std::string_view> pieces{text}, next;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const bool last = i + 1 == steps_.size();
    for (std::string_view piece : pieces) steps_[i].Cut(piece, &state, last ? words : &next);
    pieces.swap(next);
    next.clear();
  }
}

}  // namespace baton
