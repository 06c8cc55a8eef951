#include "app/model_source.h"

#include "base/rng.h"

namespace baton {
namespace {

// A template of the family that is served everywhere, but which asks for something we do not have, must not
// stop completions: chat requests alone are refused then.
void OpenChatTemplate(ModelSource* source) {
  const std::string& text = source->file->tokenizer().chat_template;
  if (text.empty()) return;
  auto chat = ChatTemplate::Parse(text);
  if (chat.ok()) {
    source->chat = *std::move(chat);
  } else {
    source->chat_problem = chat.status().message();
  }
}

}  // namespace

StatusOr<std::unique_ptr<BpeTokenizer>> OpenTokenizer(const ModelFile& file) {
  BATON_ASSIGN_OR_RETURN(BpeVocabulary vocabulary, LoadVocabulary(file));
  auto tokenizer = BpeTokenizer::Make(std::move(vocabulary));
  if (!tokenizer.ok()) return tokenizer.status().Annotate(file.path().string());
  return tokenizer;
}

StatusOr<uint32_t> ContextLimit(const Settings& settings, const ModelFile& file) {
  const auto asked = static_cast<uint32_t>(settings.Integer("max-context"));
  const uint32_t own = file.decoder().context_tokens;
  if (own < 2) {
    return FailedPreconditionError(file.path().string() + ": a context of " + std::to_string(own) +
                                   " tokens holds no prompt and answer; 2 is the least");
  }
  if (asked > own) {
    return InvalidArgumentError("--max-context " + std::to_string(asked) + ": the model's own limit is " +
                                std::to_string(own) + " tokens");
  }
  return asked != 0 ? asked : own;
}

StatusOr<ModelSource> OpenModelSource(const Settings& settings) {
  ModelSource out;
  BATON_ASSIGN_OR_RETURN(out.file, ModelFile::Open(settings.Text("model")));
  BATON_ASSIGN_OR_RETURN(out.max_context_tokens, ContextLimit(settings, *out.file));
  BATON_ASSIGN_OR_RETURN(out.tokenizer, OpenTokenizer(*out.file));
  OpenChatTemplate(&out);
  return out;
}

RouterServerOptions MakeRouterOptions(const Settings& settings, const ModelSource& source,
                                      const ProcessId& self) {
  RouterServerOptions out;
  out.listen = settings.Text("listen");
  out.front.self = self;
  out.front.seed = Mix64(self.incarnation.random);
  out.front.protocol = static_cast<uint32_t>(settings.Integer("protocol"));
  out.front.model = source.file->identity();
  out.front.served_name = settings.Text("served-name");
  if (out.front.served_name.empty()) out.front.served_name = source.file->identity().name;
  out.front.max_context_tokens = source.max_context_tokens;
  out.front.chat.bos_token = source.tokenizer->bos_text();
  out.front.chat.eos_token = source.tokenizer->eos_text();
  out.front.limits.max_queued = static_cast<uint32_t>(settings.Integer("max-queue"));
  out.front.router.seed = Mix64(self.incarnation.random + 1);
  out.model.max_context_tokens = source.max_context_tokens;
  out.model.kv_bytes_per_token = MakeKvLayout(source.file->decoder(), kPageTokens).BytesPerToken();
  out.tokenizer = source.tokenizer.get();
  out.chat = source.chat ? &*source.chat : nullptr;
  return out;
}

}  // namespace baton
