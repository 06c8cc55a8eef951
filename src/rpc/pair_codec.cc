// The worker-worker protocol: pair_link.h to and from handoff.proto.
#include <utility>

#include "baton/internal/v1/handoff.pb.h"
#include "rpc/value_codec.h"

namespace baton {

namespace {
using namespace codec;

void PutTicket(const Ticket& from, wire::Ticket* to) {
  Put(from.reader, to->mutable_reader());
  to->set_slot(from.slot);
  to->set_generation(from.generation);
}
Ticket GetTicket(const wire::Ticket& from) { return {GetIncarnation(from.reader()), from.slot(), from.generation()}; }
std::vector<Ticket> GetTickets(const google::protobuf::RepeatedPtrField<wire::Ticket>& from) {
  std::vector<Ticket> tickets;
  tickets.reserve(from.size());
  for (const wire::Ticket& ticket : from) tickets.push_back(GetTicket(ticket));
  return tickets;
}

struct PairWriter {
  wire::PairMessage* out;

  // Names the child, epoch and attempt of a message that has all three.
  template <typename From, typename To>
  static void Name(const From& from, To* to) {
    Put(from.child, to->mutable_child());
    to->set_epoch(from.epoch);
    to->set_attempt(from.attempt);
  }
  void operator()(const PairHello& from) const {
    wire::PairHello* to = out->mutable_hello();
    to->set_protocol(from.protocol);
    Put(from.writer, to->mutable_writer());
    Put(from.reader, to->mutable_reader());
    to->set_session(from.session);
    Put(from.model, to->mutable_model());
    Put(from.layout, to->mutable_layout());
    Put(from.numeric, to->mutable_numeric());
    to->set_host(from.host);
    to->set_pid(from.pid);
  }
  void operator()(const Reserve& from) const {
    wire::Reserve* to = out->mutable_reserve();
    Name(from, to);
    Put(*from.request, to->mutable_request());
    Put(from.progress, to->mutable_progress());
    Put(from.page_hashes, to->mutable_page_hashes());
    to->set_num_tokens(from.num_tokens);
    to->set_mode(static_cast<uint32_t>(from.mode));
    to->set_migration(from.migration);
  }
  void operator()(const Commit& from) const {
    wire::Commit* to = out->mutable_commit();
    Name(from, to);
    PutTicket(from.ticket, to->mutable_ticket());
    Put(from.progress, to->mutable_progress());
    to->set_token_count(from.token_count);
    for (const ChunkDigest& digest : from.digests) {
      wire::ChunkDigest* d = to->add_digests();
      d->set_chunk(digest.chunk);
      d->set_digest(digest.digest);
    }
  }
  void operator()(const Drained& from) const {
    PutTicket(from.ticket, out->mutable_drained()->mutable_ticket());
    out->mutable_drained()->set_severed(from.severed);
  }
  void operator()(const PairHeartbeat& from) const {
    wire::PairHeartbeat* to = out->mutable_heartbeat();
    for (const Ticket& ticket : from.alive) PutTicket(ticket, to->add_alive());
  }
  void operator()(const PairHelloAnswer& from) const {
    wire::PairHelloAnswer* to = out->mutable_hello_answer();
    Put(from.status, to->mutable_status());
    Put(from.reader, to->mutable_reader());
    to->set_session(from.session);
    to->set_descriptor_bytes(from.descriptor.data(), from.descriptor.size());
    for (const Ticket& ticket : from.open_tickets) PutTicket(ticket, to->add_open_tickets());
  }
  void operator()(const Grant& from) const {
    wire::Grant* to = out->mutable_grant();
    Name(from, to);
    PutTicket(from.ticket, to->mutable_ticket());
    to->set_hit_tokens(from.hit_tokens);
    BATON_CHECK(from.blocks.size() == from.base.size(), "a grant lists blocks and bytes of unlike groups");
    for (size_t group = 0; group < from.blocks.size(); ++group) {
      wire::GrantedBlocks* granted = to->add_groups();
      for (BlockId block : from.blocks[group]) granted->add_blocks(Index(block));
      granted->mutable_base()->Add(from.base[group].begin(), from.base[group].end());
    }
    to->mutable_staging_block_bytes()->Add(from.staging_block_bytes.begin(), from.staging_block_bytes.end());
    to->set_extension(from.extension);
  }
  void operator()(const Extend& from) const {
    wire::Extend* to = out->mutable_extend();
    codec::Put(from.child, to->mutable_child());
    to->set_epoch(from.epoch);
    PutTicket(from.ticket, to->mutable_ticket());
    to->set_extension(from.extension);
    to->set_num_tokens(from.num_tokens);
  }
  void operator()(const Busy& from) const {
    Name(from, out->mutable_busy());
    out->mutable_busy()->set_retry_after_ns(from.retry_after.count());
  }
  void operator()(const Refused& from) const {
    wire::Refused* to = out->mutable_refused();
    Name(from, to);
    to->set_why(static_cast<uint32_t>(from.why));
    to->set_detail(CutText(from.detail));
  }
  void operator()(const CommitAnswer& from) const {
    wire::CommitAnswer* to = out->mutable_commit_answer();
    Name(from, to);
    PutTicket(from.ticket, to->mutable_ticket());
    to->set_verdict(static_cast<uint32_t>(from.verdict));
    to->mutable_missing()->Add(from.missing.begin(), from.missing.end());
  }
  void operator()(const AbortTicket& from) const { PutTicket(from.ticket, out->mutable_abort()); }
  void operator()(const DrainedAck& from) const { PutTicket(from.ticket, out->mutable_drained_ack()); }
};

PairHello GetHello(const wire::PairHello& from, Checker* check) {
  check->Require("hello.layout", from.has_layout());
  check->AtMost("hello.host length", from.host().size(), kMaxWireName);
  PairHello hello;
  hello.protocol = from.protocol();
  hello.writer = GetProcess(from.writer(), check);
  hello.reader = GetProcess(from.reader(), check);
  check->AtLeast("hello.writer.name length", hello.writer.name.size(), 1);
  check->AtLeast("hello.reader.name length", hello.reader.name.size(), 1);
  hello.session = from.session();
  hello.model = GetModel(from.model(), check);
  hello.layout = GetLayout(from.layout(), check);
  hello.numeric = GetHash(from.numeric());
  hello.host = from.host();
  hello.pid = from.pid();
  return hello;
}

Reserve GetReserve(const wire::Reserve& from, Checker* check) {
  Reserve reserve{GetChild(from.child()),
                  from.epoch(),
                  from.attempt(),
                  GetRequest(from.request(), check),
                  GetProgress(from.progress(), check),
                  GetHashes("reserve.page_hashes", from.page_hashes(), check),
                  from.num_tokens(),
                  ToEnum(check, "reserve.mode", from.mode(), TransferMode::kKeyedPut),
                  from.migration()};
  const uint64_t tokens = reserve.request->prompt.size() + reserve.progress.tokens.size();
  check->AtLeast("reserve.num_tokens", reserve.num_tokens, 1);
  check->AtMost("reserve.num_tokens", reserve.num_tokens, tokens);
  check->AtMost("reserve.page_hashes", reserve.page_hashes.size(), tokens / kPageTokens);
  return reserve;
}

Commit GetCommit(const wire::Commit& from, Checker* check) {
  Commit commit{GetChild(from.child()),
                from.epoch(),
                GetTicket(from.ticket()),
                from.attempt(),
                GetProgress(from.progress(), check),
                from.token_count(),
                {}};
  check->AtMost("commit.token_count", commit.token_count, 2 * kMaxWireTokens);
  commit.digests.reserve(from.digests_size());
  for (const wire::ChunkDigest& digest : from.digests()) commit.digests.push_back({digest.chunk(), digest.digest()});
  return commit;
}

PairHelloAnswer GetAnswer(const wire::PairHelloAnswer& from, Checker* check) {
  PairHelloAnswer answer;
  answer.status = GetStatus(from.status(), check);
  answer.reader = GetProcess(from.reader(), check);
  answer.session = from.session();
  check->AtMost("hello_answer.descriptor length", from.descriptor_bytes().size(), size_t{1} << 20);
  if (!check->ok()) return answer;
  const auto* bytes = reinterpret_cast<const std::byte*>(from.descriptor_bytes().data());
  answer.descriptor.assign(bytes, bytes + from.descriptor_bytes().size());
  answer.open_tickets = GetTickets(from.open_tickets());
  return answer;
}

Grant GetGrant(const wire::Grant& from, Checker* check) {
  Grant grant{
      GetChild(from.child()), from.epoch(), from.attempt(), GetTicket(from.ticket()), from.hit_tokens(), {}, {}, {},
      from.extension()};
  check->AtMost("grant.groups", from.groups_size(), kMaxWireGroups);
  if (!check->ok()) return grant;
  for (const wire::GrantedBlocks& granted : from.groups()) {
    if (granted.blocks_size() != granted.base_size()) check->Fail("grant", "blocks and byte offsets differ in number");
    std::vector<BlockId>& blocks = grant.blocks.emplace_back();
    blocks.reserve(granted.blocks_size());
    for (uint32_t block : granted.blocks()) blocks.push_back(BlockId{block});
    grant.base.emplace_back(granted.base().begin(), granted.base().end());
  }
  if (from.staging_block_bytes_size() != 0 && from.staging_block_bytes_size() != from.groups_size()) {
    check->Fail("grant.staging_block_bytes", "not one number a group");
  }
  grant.staging_block_bytes.assign(from.staging_block_bytes().begin(), from.staging_block_bytes().end());
  return grant;
}

PairMessage GetPairMessage(const wire::PairMessage& in, Checker* check) {
  switch (in.kind_case()) {
    case wire::PairMessage::kHello:
      return GetHello(in.hello(), check);
    case wire::PairMessage::kReserve:
      return GetReserve(in.reserve(), check);
    case wire::PairMessage::kExtend: {
      const wire::Extend& from = in.extend();
      check->AtLeast("extend.extension", from.extension(), 1);
      check->AtMost("extend.num_tokens", from.num_tokens(), 2 * kMaxWireTokens);
      return Extend{GetChild(from.child()), from.epoch(), GetTicket(from.ticket()), from.extension(),
                    from.num_tokens()};
    }
    case wire::PairMessage::kCommit:
      return GetCommit(in.commit(), check);
    case wire::PairMessage::kDrained:
      return Drained{GetTicket(in.drained().ticket()), in.drained().severed()};
    case wire::PairMessage::kHeartbeat:
      return PairHeartbeat{GetTickets(in.heartbeat().alive())};
    case wire::PairMessage::kHelloAnswer:
      return GetAnswer(in.hello_answer(), check);
    case wire::PairMessage::kGrant:
      return GetGrant(in.grant(), check);
    case wire::PairMessage::kBusy: {
      const wire::Busy& from = in.busy();
      check->NotNegative("busy.retry_after", from.retry_after_ns());
      return Busy{GetChild(from.child()), from.epoch(), from.attempt(), Duration(from.retry_after_ns())};
    }
    case wire::PairMessage::kRefused: {
      const wire::Refused& from = in.refused();
      check->AtMost("refused.detail length", from.detail().size(), kMaxWireText);
      return Refused{GetChild(from.child()), from.epoch(), from.attempt(),
                     ToEnum(check, "refused.why", from.why(), RefuseReason::kRole), from.detail()};
    }
    case wire::PairMessage::kCommitAnswer: {
      const wire::CommitAnswer& from = in.commit_answer();
      CommitAnswer answer{GetChild(from.child()), from.epoch(), GetTicket(from.ticket()), from.attempt(), {}, {}};
      answer.verdict = ToEnum(check, "commit_answer.verdict", from.verdict(), CommitVerdict::kStaleTicket);
      answer.missing.assign(from.missing().begin(), from.missing().end());
      return answer;
    }
    case wire::PairMessage::kAbort:
      return AbortTicket{GetTicket(in.abort())};
    case wire::PairMessage::kDrainedAck:
      return DrainedAck{GetTicket(in.drained_ack())};
    case wire::PairMessage::KIND_NOT_SET:
      break;
  }
  check->Fail("message", "of no known kind");
  return PairHeartbeat{};
}

}  // namespace

void Encode(const PairMessage& message, wire::PairMessage* out) { std::visit(PairWriter{out}, message); }

StatusOr<PairMessage> Decode(const wire::PairMessage& in) {
  Checker check;
  PairMessage out = GetPairMessage(in, &check);
  if (!check.ok()) return check.status().Annotate("pair message");
  return out;
}

}  // namespace baton
