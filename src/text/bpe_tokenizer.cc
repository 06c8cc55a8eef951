#include "text/bpe_tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"

namespace baton {
namespace {

constexpr size_t kMaxAddedTokenBytes = 1024;  // the matcher's trie is as deep

std::string Quoted(std::string_view bytes) { return "\"" + ToAlphabet(bytes) + "\""; }

Status CheckIds(const BpeVocabulary& v) {
  if (v.tokens.empty()) return InvalidArgumentError("vocabulary: no tokens");
  if (v.tokens.size() > kMaxVocabulary) {
    return InvalidArgumentError("vocabulary: " + std::to_string(v.tokens.size()) + " tokens, at most " +
                                std::to_string(kMaxVocabulary) + " are supported");
  }
  const auto check = [&](TokenId id, const char* what) {
    if (id >= 0 && static_cast<size_t>(id) < v.tokens.size()) return OkStatus();
    return InvalidArgumentError(std::string("vocabulary: ") + what + " has id " + std::to_string(id) + " of " +
                                std::to_string(v.tokens.size()) + " tokens");
  };
  for (const AddedToken& t : v.added) {
    BATON_RETURN_IF_ERROR(check(t.id, "an added token"));
    if (t.text.empty() || t.text.size() > kMaxAddedTokenBytes) {
      return InvalidArgumentError("vocabulary: added token " + std::to_string(t.id) + " has " +
                                  std::to_string(t.text.size()) + " bytes; 1 to " +
                                  std::to_string(kMaxAddedTokenBytes) + " are supported");
    }
  }
  for (TokenId id : v.prefix) BATON_RETURN_IF_ERROR(check(id, "a token put before the text"));
  for (TokenId id : v.suffix) BATON_RETURN_IF_ERROR(check(id, "a token put after the text"));
  for (TokenId id : v.eos) BATON_RETURN_IF_ERROR(check(id, "an end token"));
  if (v.bos) BATON_RETURN_IF_ERROR(check(*v.bos, "the begin token"));
  if (v.unknown) BATON_RETURN_IF_ERROR(check(*v.unknown, "the unknown token"));
  for (const auto& [left, right] : v.merges) {
    BATON_RETURN_IF_ERROR(check(left, "a merge"));
    BATON_RETURN_IF_ERROR(check(right, "a merge"));
  }
  return OkStatus();
}

// The tokens that are looked for in one form of the text. Of two with one text the later wins, as in HF.
std::vector<AddedToken> Unique(const std::vector<AddedToken>& added, bool normalized, bool nfc) {
  std::vector<AddedToken> out;
  for (AddedToken t : added) {
    if (t.normalized != normalized) continue;
    if (normalized && nfc) t.text = ToNfc(t.text);
    std::erase_if(out, [&](const AddedToken& o) { return o.text == t.text; });
    out.push_back(std::move(t));
  }
  return out;
}

}  // namespace

struct BpeTokenizer::Scratch {
  std::vector<TokenId> symbols;
  std::vector<std::string_view> words;
  BpeMerges::Scratch merges;
};

StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Make(BpeVocabulary v) {
  BATON_RETURN_IF_ERROR(CheckIds(v));
  std::unique_ptr<BpeTokenizer> t(new BpeTokenizer());
  BATON_ASSIGN_OR_RETURN(t->pre_, PreTokenizer::Make(v.splits));
  t->tokens_ = std::move(v.tokens);
  t->flags_.assign(t->tokens_.size(), 0);
  for (const AddedToken& a : v.added) {
    if (a.special) t->flags_[a.id] |= kSpecial;
    if (!a.special && !a.control) continue;
    t->flags_[a.id] |= kControl;
    t->control_.push_back(a.id);
  }
  t->whole_ = std::make_unique<std::atomic<uint8_t>[]>(t->tokens_.size());
  t->by_bytes_.Reserve(t->tokens_.size());
  std::vector<const AddedToken*> added(t->tokens_.size(), nullptr);
  for (const AddedToken& a : v.added) added[a.id] = &a;
  // What was merged in training comes before an added token of the same text.
  for (const bool twins : {false, true}) {
    for (size_t id = 0; id < t->tokens_.size(); ++id) {
      const std::string& bytes = t->tokens_[id];
      if (bytes.empty() || (t->flags_[id] & kControl) || (added[id] != nullptr) != twins) continue;
      if (twins && !added[id]->in_model) continue;
      t->by_bytes_.Insert(bytes, static_cast<TokenId>(id));
      t->longest_ = std::max(t->longest_, bytes.size());
    }
  }
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    t->byte_ids_[b] = t->by_bytes_.Find(std::string_view(&byte, 1));
  }
  t->merges_.Reserve(v.merges.size());
  std::string merged;
  for (size_t rank = 0; rank < v.merges.size(); ++rank) {
    const auto [left, right] = v.merges[rank];
    merged.assign(t->tokens_[left]).append(t->tokens_[right]);
    const TokenId id = t->by_bytes_.Find(merged);
    if (id >= 0) {
      t->merges_.Insert(left, right, static_cast<uint32_t>(rank), id);
      continue;
    }
    // A merge may make an added token, but never a control token out of plain text: that one is left out.
    const auto same = [&](const AddedToken& a) { return a.text == merged; };
    const auto made = std::find_if(v.added.begin(), v.added.end(), same);
    if (made == v.added.end()) {
      return InvalidArgumentError("vocabulary: merge " + std::to_string(rank) + " makes " + Quoted(merged) +
                                  ", which is no token");
    }
    if (!made->special && !made->control) t->merges_.Insert(left, right, static_cast<uint32_t>(rank), made->id);
  }
  t->exact_ = AddedTokenMatcher(Unique(v.added, false, v.nfc));
  t->normalized_ = AddedTokenMatcher(Unique(v.added, true, v.nfc));
  t->nfc_ = v.nfc;
  t->whole_words_first_ = v.whole_words_first;
  t->unknown_ = v.unknown;
  t->prefix_ = std::move(v.prefix);
  t->suffix_ = std::move(v.suffix);
  t->eos_ = std::move(v.eos);
  t->bos_ = v.bos;
  return t;
}

void BpeTokenizer::Encode(const std::vector<TextSpan>& text, bool add_special, std::vector<TokenId>* ids) const {
  MarkedRuns whole;
  for (const TextSpan& span : text) {
    const bool valid = FirstInvalidUtf8(span.text) == span.text.size();
    whole.Append(valid ? span.text : Utf8Assembler::Whole(span.text), span.trusted);
  }
  if (add_special) ids->insert(ids->end(), prefix_.begin(), prefix_.end());
  Scratch scratch;
  std::vector<AddedTokenMatcher::Piece> pieces;
  exact_.Split(whole, &pieces);
  for (const AddedTokenMatcher::Piece& piece : pieces) {
    if (piece.id >= 0) {
      ids->push_back(piece.id);
    } else if (!nfc_ && normalized_.empty()) {
      EncodePlain(std::string_view(whole.text).substr(piece.begin, piece.end - piece.begin), &scratch, ids);
    } else {
      EncodeNormalized(whole.Slice(piece.begin, piece.end), &scratch, ids);
    }
  }
  if (add_special) ids->insert(ids->end(), suffix_.begin(), suffix_.end());
}

void BpeTokenizer::EncodeNormalized(const MarkedRuns& stretch, Scratch* scratch, std::vector<TokenId>* ids) const {
  const MarkedRuns* marked = &stretch;
  MarkedRuns normal;
  if (nfc_) {
    size_t at = 0;
    for (const MarkedRuns::Run& run : marked->runs) {
      normal.Append(ToNfc(std::string_view(marked->text).substr(at, run.end - at)), run.trusted);
      at = run.end;
    }
    // Characters that compose across the seam of two runs: nobody can say whose the result is.
    if (std::string joined = ToNfc(normal.text); joined != normal.text) {
      normal = {};
      normal.Append(joined, false);
    }
    marked = &normal;
  }
  std::vector<AddedTokenMatcher::Piece> pieces;
  normalized_.Split(*marked, &pieces);
  for (const AddedTokenMatcher::Piece& piece : pieces) {
    if (piece.id >= 0) {
      ids->push_back(piece.id);
    } else {
      EncodePlain(std::string_view(marked->text).substr(piece.begin, piece.end - piece.begin), scratch, ids);
    }
  }
}

void BpeTokenizer::EncodePlain(std::string_view text, Scratch* scratch, std::vector<TokenId>* ids) const {
  scratch->words.clear();
  pre_.Cut(text, &scratch->words);
  for (std::string_view word : scratch->words) EncodeWord(word, scratch, ids);
}

void BpeTokenizer::EncodeWord(std::string_view word, Scratch* scratch, std::vector<TokenId>* ids) const {
  const TokenId whole = word.size() <= longest_ ? by_bytes_.Find(word) : -1;
  if (whole >= 0 && (whole_words_first_ || whole_[whole].load(std::memory_order_relaxed) == kYes)) {
    ids->push_back(whole);
    return;
  }
  std::vector<TokenId>& symbols = scratch->symbols;
  symbols.clear();
  for (char c : word) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (unknown_) {
      symbols.push_back(*unknown_);
    }
  }
  merges_.Apply(&symbols, &scratch->merges);
  if (whole >= 0) {
    const bool yes = symbols.size() == 1 && symbols[0] == whole;
    whole_[whole].store(yes ? kYes : kNo, std::memory_order_relaxed);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

std::string_view BpeTokenizer::TokenBytes(TokenId id, bool with_special) const {
  BATON_CHECK(id >= 0 && static_cast<size_t>(id) < tokens_.size(), "token ids are validated before");
  if (!with_special && (flags_[id] & kSpecial)) return {};
  return tokens_[id];
}

bool BpeTokenizer::IsSpecial(TokenId id) const {
  BATON_CHECK(id >= 0 && static_cast<size_t>(id) < tokens_.size(), "token ids are validated before");
  return flags_[id] & kSpecial;
}

std::string_view BpeTokenizer::bos_text() const { return bos_ ? std::string_view(tokens_[*bos_]) : ""; }
std::string_view BpeTokenizer::eos_text() const { return eos_.empty() ? "" : std::string_view(tokens_[eos_[0]]); }

std::optional<TokenId> BpeTokenizer::Find(std::string_view text) const {
  if (const TokenId id = by_bytes_.Find(text); id >= 0) return id;
  for (TokenId id : control_) {
    if (tokens_[id] == text) return id;
  }
  return std::nullopt;
}

}  // namespace baton
