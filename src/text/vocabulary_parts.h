// What the two vocabulary loaders share. Private to src/text.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/ids.h"
#include "baton/status.h"
#include "text/token_table.h"

namespace baton {

// "<think>", "[INST]": a token that the files call plain but that structures a conversation.
bool LooksLikeMarkup(std::string_view text);

// "left right", as files write a merge.
StatusOr<std::pair<std::string_view, std::string_view>> CutMerge(std::string_view merge, size_t rank);
StatusOr<std::pair<TokenId, TokenId>> FindMerge(const TokenTable& by_text, std::string_view left,
                                                std::string_view right, size_t rank);

inline void AddOnce(TokenId id, std::vector<TokenId>* ids) {
  if (std::find(ids->begin(), ids->end(), id) == ids->end()) ids->push_back(id);
}

}  // namespace baton
