// VALUES on a pair session: the writer (a worker that hands off) dials the reader. Fields follow the
// hand-off protocol; src/handoff/README.md restates it. The first message each way is a Hello.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "baton/front_link.h"
#include "baton/kv_transport.h"
#include "baton/protocol.h"

namespace baton {

// ---- writer -> reader -------------------------------------------------------------------------
struct PairHello {
  uint32_t protocol = kProtocol;  // the highest the writer speaks
  ProcessId writer;
  ProcessId reader;      // whom the writer believes it dialed; another incarnation is refused
  uint64_t session = 0;  // random
  ModelIdentity model;
  KvLayout layout;
  Hash128 numeric;
  std::string host;  // the writer's boot and host identity, to know whether pidfds work
  uint64_t pid = 0;
};
struct Reserve {
  ChildId child;
  Epoch epoch = 0;
  Attempt attempt = 1;
  RequestPtr request;
  Progress progress;                 // without logprobs
  std::vector<Hash128> page_hashes;  // of the prompt's full pages, chained; to find what the reader holds
  uint32_t num_tokens = 0;           // tokens whose KV will be handed over: prompt plus tokens so far
  TransferMode mode{};               // how the writer will push: it decides how the reader can fence
  // The writer decodes it meanwhile: EXTEND may follow, and COMMIT brings what was said since. num_tokens: that have
  // KV now, all of prompt and progress (the last token of the answer, which has none yet, is not among these).
  bool migration = false;
};
// A migrating sequence grew: blocks for so many tokens. Answered with a GRANT of that extension, or not at all while
// there is no room; the writer asks again.
struct Extend {
  ChildId child;
  Epoch epoch = 0;
  Ticket ticket;
  uint32_t extension = 1;  // counts them, from 1
  uint32_t num_tokens = 0;
};
struct ChunkDigest {
  ChunkIndex chunk = 0;
  uint64_t digest = 0;
  friend bool operator==(const ChunkDigest&, const ChunkDigest&) = default;
};
struct Commit {
  ChildId child;
  Epoch epoch = 0;
  Ticket ticket;
  Attempt attempt = 1;
  Progress progress;  // now with the first token; logprobs of undelivered tokens only
  uint32_t token_count = 0;
  std::vector<ChunkDigest> digests;
};
struct Drained {
  Ticket ticket;
  bool severed = false;  // true: the source is no longer read, completion at the target is unknown
};
struct PairHeartbeat {
  std::vector<Ticket> alive;  // tickets that the writer still works on; renews their leases
};
// ---- reader -> writer -------------------------------------------------------------------------
struct PairHelloAnswer {
  Status status;  // not ok: refused for good, with the reason in words
  ProcessId reader;
  uint64_t session = 0;
  std::vector<std::byte> descriptor;  // of the reader's transport
  std::vector<Ticket> open_tickets;   // not FREE, of this writer; each is answered (L2)
};
struct Grant {
  ChildId child;
  Epoch epoch = 0;
  Attempt attempt = 1;
  Ticket ticket;
  uint32_t hit_tokens = 0;                   // whole blocks that the reader holds already
  std::vector<std::vector<BlockId>> blocks;  // [group]: the new ones, in order
  std::vector<std::vector<uint64_t>> base;   // [group]: their byte offsets in the reader's pool
  // Layouts are unlike: `blocks` are staging (StagingMap), of so many bytes each [group]. Empty: they take the
  // writer's blocks one for one.
  std::vector<uint64_t> staging_block_bytes;
  // Answers that EXTEND, with its blocks alone, behind those of before. 0: answers RESERVE.
  uint32_t extension = 0;
  bool staged() const { return !staging_block_bytes.empty(); }
};
struct Busy {
  ChildId child;
  Epoch epoch = 0;
  Attempt attempt = 1;
  Duration retry_after{};
};
enum class RefuseReason : uint8_t { kTooLarge, kOldEpoch, kDraining, kNoFrontSession, kRole };
struct Refused {
  ChildId child;
  Epoch epoch = 0;
  Attempt attempt = 1;
  RefuseReason why{};
  std::string detail;
};
enum class CommitVerdict : uint8_t { kAck, kMissing, kCorrupt, kStaleTicket };
// Also answers a RESERVE for a child that is READY or later (kAck, attempt 0).
struct CommitAnswer {
  ChildId child;
  Epoch epoch = 0;
  Ticket ticket;
  Attempt attempt = 1;
  CommitVerdict verdict{};
  std::vector<ChunkIndex> missing;
};
struct AbortTicket {
  Ticket ticket;
};
struct DrainedAck {
  Ticket ticket;
};

using PairMessage = std::variant<PairHello, Reserve, Extend, Commit, Drained, PairHeartbeat, PairHelloAnswer, Grant,
                                 Busy, Refused, CommitAnswer, AbortTicket, DrainedAck>;

}  // namespace baton
