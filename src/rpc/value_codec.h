// The values that both link protocols share, to and from their wire messages. Private to the link codecs.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <concepts>
#include <string>
#include <string_view>
#include <vector>

#include "baton/front_link.h"
#include "baton/internal/v1/worker.pb.h"
#include "rpc/link_codec.h"

namespace baton::codec {

// Collects the first fault of a message. Checks after a fault are cheap and harmless, so decoders read straight
// through and ask once at the end.
class Checker {
 public:
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  void Fail(std::string_view field, std::string_view what);
  // `value` <= `limit`, else a fault that names both.
  void AtMost(std::string_view field, uint64_t value, uint64_t limit);
  void AtLeast(std::string_view field, uint64_t value, uint64_t limit);
  void NotNegative(std::string_view field, int64_t value);
  void Require(std::string_view field, bool present);
  void PlainWord(std::string_view field, std::string_view value);  // printable ASCII without spaces
  void Finite(std::string_view field, double value);

 private:
  Status status_;
};

// An enum whose values run from 0 to `last`.
template <typename E>
E ToEnum(Checker* check, std::string_view field, uint32_t value, E last) {
  check->AtMost(field, value, static_cast<uint32_t>(last));
  return check->ok() ? static_cast<E>(value) : E{};
}

std::string CutText(std::string_view text);  // to kMaxWireText

void Put(const Status& from, wire::Status* to);
void Put(const Incarnation& from, wire::Incarnation* to);
void Put(const ProcessId& from, wire::ProcessId* to);
void Put(const ChildId& from, wire::ChildId* to);
void Put(const Hash128& from, wire::Hash128* to);
void Put(const PeerAddress& from, wire::PeerAddress* to);
void Put(const ModelIdentity& from, wire::ModelIdentity* to);
void Put(const KvLayout& from, wire::KvLayout* to);
void Put(const RoleMask& from, wire::RoleMask* to);
void Put(const OutputToken& from, wire::OutputToken* to);
void Put(const Progress& from, wire::Progress* to);
void Put(const Request& from, wire::Request* to);
void Put(const std::vector<Hash128>& from, google::protobuf::RepeatedField<uint64_t>* to);

Status GetStatus(const wire::Status& from, Checker* check);
Incarnation GetIncarnation(const wire::Incarnation& from);
ProcessId GetProcess(const wire::ProcessId& from, Checker* check);
ChildId GetChild(const wire::ChildId& from);
Hash128 GetHash(const wire::Hash128& from);
PeerAddress GetPeer(const wire::PeerAddress& from, Checker* check);
ModelIdentity GetModel(const wire::ModelIdentity& from, Checker* check);
KvLayout GetLayout(const wire::KvLayout& from, Checker* check);
RoleMask GetRoles(const wire::RoleMask& from);
OutputToken GetToken(const wire::OutputToken& from, Checker* check);
Progress GetProgress(const wire::Progress& from, Checker* check);
RequestPtr GetRequest(const wire::Request& from, Checker* check);
std::vector<Hash128> GetHashes(std::string_view field, const google::protobuf::RepeatedField<uint64_t>& from,
                               Checker* check);
std::vector<uint32_t> GetGroupCounts(std::string_view field, const google::protobuf::RepeatedField<uint32_t>& from,
                                     Checker* check);

}  // namespace baton::codec
