#include <map>
#include <sstream>

#include "model/loaded_model.h"
#include "model/memory_plan.h"
#include "model/model_file.h"

namespace baton {
namespace {

std::string Hex(const Hash128& h) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint64_t half : {h.high, h.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[(half >> shift) & 15];
  }
  return out;
}

std::string Count(uint64_t n) {
  std::string digits = std::to_string(n);
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

void AddTypes(const ModelFile& file, std::ostream& out) {
  std::map<std::string, std::pair<int, uint64_t>> types;  // name -> tensors, bytes
  const auto add = [&](const SourceTensor& t) {
    auto& entry = types[std::string(Traits(t.view.dtype).name)];
    ++entry.first;
    entry.second += t.view.bytes;
  };
  add(file.embedding());
  add(file.final_norm());
  if (!file.decoder().tied_head) add(file.head());
  for (const SourceLayer& l : file.layers()) {
    for (const SourceTensor* t :
         {&l.attention_norm, &l.query, &l.key, &l.value, &l.output, &l.mlp_norm, &l.gate, &l.up, &l.down}) {
      add(*t);
    }
  }
  for (const auto& [name, entry] : types) {
    out << "  " << name << ": " << entry.first << " tensors, " << ByteWords(entry.second) << "\n";
  }
}

}  // namespace

std::string DescribeModel(const ModelFile& file) {
  const DecoderDescription& d = file.decoder();
  const TokenizerSource& t = file.tokenizer();
  std::ostringstream out;
  out << "model      " << d.name << "\n"
      << "path       " << file.path().string() << "\n"
      << "format     " << file.format() << ", " << ByteWords(file.weight_bytes()) << " of weights\n"
      << "identity   " << Hex(file.identity().weights) << "\n"
      << "family     " << d.family << ", " << Count(d.NumParameters()) << " parameters\n"
      << "layers     " << d.num_layers << " x (RMS norm, attention, RMS norm, gated SiLU MLP), eps " << d.norm_eps
      << "\n"
      << "hidden     " << d.hidden << ", MLP " << d.mlp_hidden << "\n"
      << "attention  " << d.num_heads << " heads over " << d.num_kv_heads << " KV heads of " << d.head_dim
      << ", rope base " << d.rope_theta << "\n"
      << "context    " << Count(d.context_tokens) << " tokens\n"
      << "vocabulary " << Count(d.vocab_size) << ", head " << (d.tied_head ? "tied to the embedding" : "of its own")
      << "\n"
      << "KV cache   " << ByteWords(MakeKvLayout(d, 32).BytesPerToken()) << " a token in BF16\n"
      << "in memory  " << ByteWords(PackedBytes(file)) << " of packed weights\n"
      << "types\n";
  AddTypes(file, out);
  out << "tokenizer  ";
  if (t.in_gguf) {
    out << t.vocabulary.model << (t.vocabulary.pre.empty() ? "" : " / " + t.vocabulary.pre) << ", "
        << Count(t.vocabulary.tokens.size()) << " tokens, " << Count(t.vocabulary.merges.size()) << " merges";
  } else {
    out << t.hf_folder << "/tokenizer.json";
  }
  out << "\nend tokens ";
  for (size_t i = 0; i < t.eos_ids.size(); ++i) out << (i == 0 ? "" : ", ") << t.eos_ids[i];
  if (t.eos_ids.empty()) out << "none named";
  out << "\ntemplate   " << (t.chat_template.empty() ? "none" : Count(t.chat_template.size()) + " characters") << "\n";
  return out.str();
}

}  // namespace baton
