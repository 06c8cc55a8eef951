// A model opened for serving text: the file's header, its tokenizer and its chat template; and what a front
// needs to know of it. Nothing is loaded here.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "app/settings.h"
#include "baton/status.h"
#include "model/model_file.h"
#include "rpc/router_server.h"
#include "text/bpe_tokenizer.h"
#include "text/chat_template.h"

namespace baton {

struct ModelSource {
  std::unique_ptr<ModelFile> file;
  std::unique_ptr<BpeTokenizer> tokenizer;
  std::optional<ChatTemplate> chat;  // none: chat requests are refused
  std::string chat_problem;          // why there is none, although the model brings one
  uint32_t max_context_tokens = 0;   // --max-context, or the model's
};

StatusOr<std::unique_ptr<BpeTokenizer>> OpenTokenizer(const ModelFile& file);
StatusOr<ModelSource> OpenModelSource(const Settings& settings);
// The context limit that the settings and the model give together.
StatusOr<uint32_t> ContextLimit(const Settings& settings, const ModelFile& file);

// Everything a router serves; `source` outlives the server.
RouterServerOptions MakeRouterOptions(const Settings& settings, const ModelSource& source,
                                      const ProcessId& self);

}  // namespace baton
