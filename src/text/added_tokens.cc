#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"

namespace baton {

void MarkedRuns::Append(std::string_view more, bool trusted) {
  if (more.empty()) return;
  text.append(more);
  if (!runs.empty() && runs.back().trusted == trusted) {
    runs.back().end = text.size();
  } else {
    runs.push_back({text.size(), trusted});
  }
}

void MarkedRuns::Append(const MarkedRuns& more) {
  size_t at = 0;
  for (const Run& run : more.runs) {
    Append(std::string_view(more.text).substr(at, run.end - at), run.trusted);
    at = run.end;
  }
}

namespace {

size_t RunAt(const std::vector<MarkedRuns::Run>& runs, size_t at) {
  return static_cast<size_t>(
      std::upper_bound(runs.begin(), runs.end(), at, [](size_t a, const MarkedRuns::Run& r) { return a < r.end; }) -
      runs.begin());
}

}  // namespace

MarkedRuns MarkedRuns::Slice(size_t begin, size_t end) const {
  MarkedRuns out;
  for (size_t at = begin, r = RunAt(runs, begin); at < end; ++r) {
    const size_t stop = std::min(runs[r].end, end);
    out.Append(std::string_view(text).substr(at, stop - at), runs[r].trusted);
    at = stop;
  }
  return out;
}

bool MarkedRuns::AllTrusted(size_t begin, size_t end) const {
  for (size_t r = RunAt(runs, begin); r < runs.size(); ++r) {
    if (!runs[r].trusted) return false;
    if (runs[r].end >= end) return true;
  }
  return begin >= end;
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.text < b.text; });
  nodes_.emplace_back();
  Build(0, 0, tokens_.size(), 0);
  for (const AddedToken& t : tokens_) starts_[static_cast<uint8_t>(t.text[0])] = true;
}

// Tokens [from, to) share their first `depth` bytes, which lead to `node`.
void AddedTokenMatcher::Build(uint32_t node, size_t from, size_t to, size_t depth) {
  if (from < to && tokens_[from].text.size() == depth) nodes_[node].token = static_cast<int32_t>(from++);
  struct Group {
    size_t from, to;
  };
  std::vector<Group> groups;
  for (size_t i = from; i < to; ++i) {
    if (i == from || tokens_[i].text[depth] != tokens_[i - 1].text[depth]) groups.push_back({i, i});
    groups.back().to = i + 1;
  }
  nodes_[node].first_edge = static_cast<uint32_t>(edges_.size());
  nodes_[node].edge_count = static_cast<uint32_t>(groups.size());
  const size_t first_edge = edges_.size();
  for (const Group& g : groups) {
    edges_.push_back({static_cast<uint8_t>(tokens_[g.from].text[depth]), static_cast<uint32_t>(nodes_.size())});
    nodes_.emplace_back();
  }
  for (size_t i = 0; i < groups.size(); ++i)
    Build(edges_[first_edge + i].node, groups[i].from, groups[i].to, depth + 1);
}

const AddedToken* AddedTokenMatcher::MatchAt(const MarkedRuns& text, size_t at) const {
  const AddedToken* best = nullptr;
  const Node* node = &nodes_[0];
  for (size_t i = at; i < text.text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text.text[i]);
    const Edge* edge = edges_.data() + node->first_edge;
    const Edge* end = edge + node->edge_count;
    edge = std::find_if(edge, end, [&](const Edge& e) { return e.byte == byte; });
    if (edge == end) break;
    node = &nodes_[edge->node];
    if (node->token < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(node->token)];
    if (!token.control || text.AllTrusted(at, i + 1)) best = &token;
  }
  return best;
}

void AddedTokenMatcher::Split(const MarkedRuns& text, std::vector<Piece>* pieces) const {
  const std::string_view all = text.text;
  size_t done = 0;
  for (size_t at = 0; at < all.size();) {
    const AddedToken* token = starts_[static_cast<uint8_t>(all[at])] ? MatchAt(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->text.size();
    at = end;
    if (token->single_word && (EndsInWord(all.substr(0, begin)) || BeginsInWord(all.substr(end)))) continue;
    if (token->lstrip) begin = std::max(done, begin - TrailingWhiteSpace(all.substr(done, begin - done)));
    if (token->rstrip) end += LeadingWhiteSpace(all.substr(end));
    if (begin > done) pieces->push_back({done, begin, -1});
    pieces->push_back({begin, end, token->id});
    at = done = end;
  }
  if (done < all.size()) pieces->push_back({done, all.size(), -1});
}

}  // namespace baton
