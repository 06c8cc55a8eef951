#include "transport/admission_table.h"

#include <string>
#include <utility>

namespace baton {
namespace {

std::string Name(const Ticket& t) { return std::to_string(t.slot) + "/" + std::to_string(t.generation); }

}  // namespace

void AdmissionTable::SetPool(std::span<std::byte> pool) {
  std::lock_guard lock(mutex_);
  pool_ = pool;
}

void AdmissionTable::Admit(const Ticket& ticket, const ProcessId& writer, std::vector<uint64_t> block_base,
                           std::vector<uint64_t> block_bytes) {
  std::lock_guard lock(mutex_);
  BATON_CHECK(block_base.size() == block_bytes.size(), "one size per block");
  for (size_t i = 0; i < block_base.size(); ++i) {
    BATON_CHECK(block_base[i] <= pool_.size() && block_bytes[i] <= pool_.size() - block_base[i],
                "an admitted block lies outside the pool");
  }
  Admission& admission = tickets_.try_emplace(ticket, Admission{writer}).first->second;
  BATON_CHECK(admission.writer == writer && !admission.retired, "ticket " + Name(ticket) + " is over or another's");
  admission.base.insert(admission.base.end(), block_base.begin(), block_base.end());
  admission.bytes.insert(admission.bytes.end(), block_bytes.begin(), block_bytes.end());
}

bool AdmissionTable::Retire(const Ticket& ticket) {
  std::lock_guard lock(mutex_);
  const auto it = tickets_.find(ticket);
  if (it != tickets_.end() && it->second.in_progress > 0) {
    it->second.retired = true;
    return false;
  }
  if (it != tickets_.end()) tickets_.erase(it);
  events_->Push(Quiet{ticket});
  return true;
}

Status AdmissionTable::Begin(const Ticket& ticket, const ProcessId& writer, std::span<const TargetPiece> pieces,
                             std::vector<std::span<std::byte>>* places) {
  std::lock_guard lock(mutex_);
  if (stopped_) return UnavailableError("the reader is gone");
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end() || it->second.retired || it->second.writer != writer) {
    return NotFoundError("ticket " + Name(ticket) + " is not admitted for writer " + writer.name);
  }
  Admission& admission = it->second;
  places->clear();
  places->reserve(pieces.size());
  for (const TargetPiece& p : pieces) {
    if (p.block >= admission.bytes.size() || p.offset > admission.bytes[p.block] ||
        p.bytes > admission.bytes[p.block] - p.offset) {
      return OutOfRangeError("ticket " + Name(ticket) + ": block " + std::to_string(p.block) + " [" +
                             std::to_string(p.offset) + ", +" + std::to_string(p.bytes) +
                             ") lies outside the granted blocks");
    }
    places->push_back(pool_.subspan(admission.base[p.block] + p.offset, p.bytes));
  }
  ++admission.in_progress;
  return OkStatus();
}

void AdmissionTable::End(const Ticket& ticket) {
  std::lock_guard lock(mutex_);
  EndLocked(tickets_.find(ticket));
}

void AdmissionTable::EndWithArrival(const ChunkArrived& arrival) {
  std::lock_guard lock(mutex_);
  const auto it = tickets_.find(arrival.ticket);
  BATON_CHECK(it != tickets_.end(), "End without Begin");
  const bool delivered = !it->second.retired && events_->PushArrival(arrival);
  Count(delivered ? counters_->notices : counters_->notices_dropped);
  EndLocked(it);
}

void AdmissionTable::EndLocked(std::map<Ticket, Admission>::iterator it) {
  BATON_CHECK(it != tickets_.end() && it->second.in_progress > 0, "End without Begin");
  if (--it->second.in_progress > 0 || !it->second.retired) return;
  const Ticket ticket = it->first;
  tickets_.erase(it);
  events_->Push(Quiet{ticket});
}

void AdmissionTable::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
}

}  // namespace baton
