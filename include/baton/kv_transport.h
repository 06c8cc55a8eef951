// PORT. Moves KV bytes and chunk notices between the pools of two workers. It knows tickets only as tags;
// the protocol lives in src/handoff. Nothing here blocks and nothing calls back: the engine thread posts and
// polls. Implementations: local, ucx, grpc, fake, the simulator's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "baton/ids.h"
#include "baton/metric.h"
#include "baton/status.h"

namespace baton {

// kOneSided (W): the writer puts into the reader's memory; no local fence exists.
// kReceiverPosted (R): the reader's side places the bytes; it can stop.
// kKeyedPut (K): the writer puts into the reader's memory through a link and a key of its own, which the reader takes
// back: Fence.
enum class TransferMode : uint8_t { kOneSided, kReceiverPosted, kKeyedPut };
std::string_view Word(TransferMode mode);  // "one-sided", "receiver-posted", "keyed-put"

// A chunk of a hand-off: some layers of some of the ticket's blocks. Numbered by the copy planner, the same
// way on both sides.
using ChunkIndex = uint32_t;

// One contiguous copy. The destination is the ticket's n-th granted block, never an address.
struct CopyPiece {
  uint64_t source = 0;         // byte offset in the writer's pool
  uint32_t target_block = 0;   // index into the ticket's granted blocks (groups one after another)
  uint64_t target_offset = 0;  // bytes inside that block
  uint64_t bytes = 0;
  friend bool operator==(const CopyPiece&, const CopyPiece&) = default;
};

struct TransferPost {
  OpId op{};
  ProcessId reader;
  Ticket ticket;
  ChunkIndex chunk = 0;
  Attempt attempt = 1;            // the COMMIT attempt this push belongs to
  std::vector<CopyPiece> pieces;  // in plan order: the digest runs over the bytes in this order
  // The granted blocks' byte offsets in the reader's pool, from GRANT; read unless the mode is kReceiverPosted.
  std::vector<uint64_t> target_base;
};

// ---- events -----------------------------------------------------------------------------------
// Writer: every byte is complete at the target and the notice is on its way (status ok), or the source is
// no longer read and the target is in doubt (status not ok). Exactly one per op.
struct Quiesced {
  OpId op{};
  Status status;
  uint64_t digest = 0;  // XXH3-64 over the writer's bytes as posted
};
// Reader: a notice of an admitted ticket, with the digest over the bytes as they lie in this pool.
struct ChunkArrived {
  ProcessId writer;
  Ticket ticket;
  ChunkIndex chunk = 0;
  Attempt attempt = 1;
  uint64_t digest = 0;
};
// Reader: this side places no byte for the ticket any more (kReceiverPosted), or will never again deliver
// a notice for it (the other modes: says nothing about the writer's puts).
struct Quiet {
  Ticket ticket;
};
struct PeerOpened {
  ProcessId peer;
  Status status;
  TransferMode mode{};
  std::string lane;  // what carries the bytes, for operators: "posix", "tcp"; may be empty
};
// The path to the peer broke. Its ops have been or will be reported as Quiesced with an error.
struct PeerLost {
  ProcessId peer;
  Status why;
};
// After Close(peer): the endpoint is gone, no source byte is read for it any more.
struct Severed {
  ProcessId peer;
};
// Reader: after Fence(writer). What that writer had opened here is closed and its keys are withdrawn: nothing that it
// was granted before the Fence is written any more. It may have opened anew meanwhile.
struct Fenced {
  ProcessId writer;
};
using TransportEvent = std::variant<Quiesced, ChunkArrived, Quiet, PeerOpened, PeerLost, Severed, Fenced>;

// All calls from the engine thread, except AllocatePool and LocalDescriptor (before it starts).
class KvTransport {
 public:
  virtual ~KvTransport() = default;
  virtual std::string_view name() const = 0;
  // Once, before anything else: zeroed memory that the transport can share or register. 4096-aligned.
  virtual StatusOr<std::span<std::byte>> AllocatePool(size_t bytes) = 0;
  // What a writer needs to Open this process. Travels in Hello's answer.
  virtual std::vector<std::byte> LocalDescriptor() const = 0;

  virtual void Open(const ProcessId& reader, std::span<const std::byte> descriptor) = 0;  // -> PeerOpened
  virtual void Close(const ProcessId& peer) = 0;  // force; -> Quiesced for its ops, then Severed

  // Reader: from now on `writer` may place bytes into these blocks under this ticket.
  // block_base[i]: byte offset of the ticket's i-th block in this pool; block_bytes[i]: its size. Again for the same
  // ticket, before Retire: further blocks, numbered behind those before.
  virtual void Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
                     std::vector<uint64_t> block_bytes) = 0;
  virtual void Retire(const Ticket& ticket) = 0;  // -> Quiet
  // Reader: cuts the writer's access by force. Only where it opened in mode kKeyedPut.
  virtual void Fence(const ProcessId& /*writer*/) {}  // -> Fenced

  virtual void Post(TransferPost post) = 0;  // -> Quiesced
  virtual void Poll(std::vector<TransportEvent>* events) = 0;

  // What operators may want to know of it; any order, names of its own.
  virtual void AppendMetrics(std::vector<Metric>* /*metrics*/) const {}
};

}  // namespace baton
