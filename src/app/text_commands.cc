// `tokenize`, `detokenize` and `model inspect`: a model's files, without a server.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/model_source.h"
#include "app/process.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace baton {
namespace {

StatusOr<std::unique_ptr<BpeTokenizer>> TokenizerOf(const std::string& model) {
  BATON_ASSIGN_OR_RETURN(const auto file, ModelFile::Open(model));
  return OpenTokenizer(*file);
}

// Trusted text: control tokens are recognised; nothing is put before or after it.
Status PrintIds(const BpeTokenizer& tokenizer, std::string text) {
  BATON_RETURN_IF_ERROR(ValidateUtf8(text, "text"));
  std::vector<TokenId> ids;
  tokenizer.Encode({{std::move(text), true}}, false, &ids);
  std::string out = "[";
  for (const TokenId id : ids) {
    if (out.size() > 1) out += ", ";
    out += std::to_string(id);
  }
  out += "]\n";
  std::fwrite(out.data(), 1, out.size(), stdout);
  return OkStatus();
}

// One JSON string a line.
Status PrintBatch(const BpeTokenizer& tokenizer, std::istream& in, const std::string& name) {
  std::string line;
  for (uint64_t number = 1; std::getline(in, line); ++number) {
    const std::string where = name + ", line " + std::to_string(number);
    const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_string()) return InvalidArgumentError(where + ": not a JSON string");
    if (Status s = PrintIds(tokenizer, value.get<std::string>()); !s.ok()) return s.Annotate(where);
    if (std::ferror(stdout) != 0) break;  // nobody gets the rest
  }
  if (in.bad()) return FailedPreconditionError(name + ": cannot be read");
  return OkStatus();
}

int Finish(const Status& status) { return FinishOutput(status.ok() ? kExitDone : Fail(kExitUsage, status)); }

}  // namespace

int RunTokenize(const std::string& model, const std::optional<std::string>& text, const std::string& batch_file) {
  auto tokenizer = TokenizerOf(model);
  if (!tokenizer.ok()) return Fail(kExitUsage, tokenizer.status());
  if (batch_file.empty()) {
    if (text) return Finish(PrintIds(**tokenizer, *text));
    auto input = ReadAll(std::cin, "standard input");
    if (!input.ok()) return Fail(kExitUsage, input.status());
    return Finish(PrintIds(**tokenizer, *std::move(input)));
  }
  if (batch_file == "-") return Finish(PrintBatch(**tokenizer, std::cin, "standard input"));
  std::ifstream in(batch_file, std::ios::binary);
  if (!in) return Fail(kExitUsage, NotFoundError("--batch " + batch_file + ": cannot be read"));
  return Finish(PrintBatch(**tokenizer, in, batch_file));
}

int RunDetokenize(const std::string& model, const std::string& ids_text) {
  auto tokenizer = TokenizerOf(model);
  if (!tokenizer.ok()) return Fail(kExitUsage, tokenizer.status());
  std::vector<TokenId> ids;
  if (!ids_text.empty()) {
    auto parsed = ParseTokenIds(ids_text);
    if (!parsed.ok()) return Fail(kExitUsage, parsed.status().Annotate("ids"));
    ids = *std::move(parsed);
  }
  for (const TokenId id : ids) {
    if (id < (*tokenizer)->vocab_size()) continue;
    return Fail(kExitUsage, InvalidArgumentError("token " + std::to_string(id) + " is not in the vocabulary of " +
                                                 std::to_string((*tokenizer)->vocab_size())));
  }
  const std::string text = Decode(**tokenizer, ids, false) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  return FinishOutput(kExitDone);
}

int RunModelInspect(const std::string& model) {
  auto file = ModelFile::Open(model);
  if (!file.ok()) return Fail(kExitUsage, file.status());
  std::printf("%s", DescribeModel(**file).c_str());
  return FinishOutput(kExitDone);
}

}  // namespace baton
