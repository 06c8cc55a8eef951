// The reader's half of a UCX transport: links that writers opened to this process. Progress thread only. Receiver-
// posted data is placed straight into the blocks of an admitted ticket, and answered; a message of another ticket is
// dropped without posting a receive. A notice starts a digest over the bytes as they lie here, computed in slices.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "baton/clock.h"
#include "baton/kv_transport.h"
#include "transport/admission_table.h"
#include "transport/counters.h"
#include "transport/digest_queue.h"
#include "transport/ucx/context.h"
#include "transport/ucx/endpoint.h"
#include "transport/ucx/ucx_transport.h"

namespace baton {

class UcxReader {
 public:
  UcxReader(UcxContext* context, const UcxOptions& options, uint64_t instance, AdmissionTable* admissions,
            AtomicTransportCounters* counters);
  ~UcxReader();

  void OnHello(std::span<const std::byte> message);
  void OnNotice(std::span<const std::byte> message);
  // The payload of a data message: `bytes` here, or a descriptor to receive from (rendezvous).
  ucs_status_t OnData(std::span<const std::byte> header, void* data, size_t bytes, bool rendezvous);

  // The ticket was retired while bytes were being placed; its links are cut if that outlives the deadline.
  void WatchRetired(const Ticket& ticket, TimePoint deadline);
  void Close(const ProcessId& peer);
  void Fence(const ProcessId& writer);  // over when it is not Closing any more
  bool Advance(TimePoint now);          // hellos, broken links, one slice of a digest; true if anything was done
  bool Pending() const;
  bool Closing(const ProcessId& peer) const;
  bool closing_any() const;
  TimePoint NextDeadline() const;
  void CloseAll();
  bool idle() const { return links_.empty(); }

 private:
  struct Link;
  struct Placement;

  Link* FindLink(uint64_t number);
  void AcceptHello(const LinkHello& hello);
  Status CheckHello(const LinkHello& hello) const;
  Status GiveKey(Link& link, std::vector<std::byte>* packed);
  void Cut(Link& link);  // by force; its key is withdrawn at once
  void Answer(Link& link, OpId op, uint32_t part, Status status);
  void Place(Link& link, const LinkData& data, std::span<const std::span<std::byte>> places, void* descriptor);
  void CutOverdue(TimePoint now);
  static void OnPlacedData(void* request, ucs_status_t status, size_t bytes, void* user);
  void FinishPlacement(Placement& placement, const Status& status);

  UcxContext* const context_;
  const UcxOptions& options_;
  const uint64_t instance_;
  AdmissionTable* const admissions_;
  AtomicTransportCounters* const counters_;
  std::vector<LinkHello> hellos_;  // accepted outside of UCX's callbacks
  std::map<uint64_t, std::unique_ptr<Link>> links_;
  DigestQueue digests_;
  std::vector<std::pair<Ticket, TimePoint>> retired_;
};

}  // namespace baton
