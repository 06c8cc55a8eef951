// Finds added tokens in text: at each place the longest one, from left to right. Built once, read by any thread.
//
// Always true: a control token is found only where every byte of its own text is trusted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/ids.h"
#include "text/vocabulary.h"

namespace baton {

// Text and which of its bytes are trusted. Runs are neighbours, in order, and cover the text.
struct MarkedRuns {
  struct Run {
    size_t end;
    bool trusted;
  };
  std::string text;
  std::vector<Run> runs;

  void Append(std::string_view more, bool trusted);
  void Append(const MarkedRuns& more);
  MarkedRuns Slice(size_t begin, size_t end) const;
  bool AllTrusted(size_t begin, size_t end) const;
};

class AddedTokenMatcher {
 public:
  // `tokens` have unlike, non-empty texts.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens = {});

  // A piece of a text: an added token (id >= 0), or text between them (-1).
  struct Piece {
    size_t begin, end;
    TokenId id;
  };
  // Appends pieces that cover the text.
  void Split(const MarkedRuns& text, std::vector<Piece>* pieces) const;
  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* MatchAt(const MarkedRuns& text, size_t at) const;
  struct Node {
    uint32_t first_edge = 0, edge_count = 0;
    int32_t token = -1;
  };
  struct Edge {
    uint8_t byte;
    uint32_t node;
  };
  void Build(uint32_t node, size_t from, size_t to, size_t depth);

  std::vector<AddedToken> tokens_;  // sorted by text
  std::vector<Node> nodes_;         // a trie; node 0 is the root
  std::vector<Edge> edges_;
  bool starts_[256] = {};
};

}  // namespace baton
