#include "transport/link_messages.h"

#include "transport/wire.h"

namespace baton {
namespace {

constexpr size_t kMaxAddress = 64 << 10;
constexpr size_t kMaxKey = 4 << 10;
constexpr size_t kMaxStatusText = 1024;

void PutStatus(WireWriter& out, const Status& status) {
  out.Put(static_cast<uint8_t>(status.code()));
  out.PutText(std::string_view(status.message()).substr(0, kMaxStatusText));
}

Status GetStatus(WireReader& in) {
  const auto code = in.Get<uint8_t>();
  std::string text = in.GetText(kMaxStatusText);
  if (code == 0) return OkStatus();
  return {code <= static_cast<uint8_t>(Code::kUnauthenticated) ? static_cast<Code>(code) : Code::kUnknown,
          std::move(text)};
}

void PutPieces(WireWriter& out, std::span<const TargetPiece> pieces) {
  out.Put(static_cast<uint32_t>(pieces.size()));
  for (const TargetPiece& p : pieces) {
    out.Put(p.block);
    out.Put(p.bytes);
    out.Put(p.offset);
  }
}

// False: more than `limit`, or not as many as announced.
bool GetPieces(WireReader& in, uint32_t limit, std::vector<TargetPiece>* pieces) {
  const auto count = in.Get<uint32_t>();
  if (count > limit || in.remaining() < size_t{count} * 16) return false;
  pieces->reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    TargetPiece p;
    p.block = in.Get<uint32_t>();
    p.bytes = in.Get<uint32_t>();
    p.offset = in.Get<uint64_t>();
    pieces->push_back(p);
  }
  return true;
}

template <typename T>
std::optional<T> Checked(T value, const WireReader& in) {
  if (!in.Finished()) return std::nullopt;
  return value;
}

}  // namespace

std::vector<std::byte> LinkHello::Encode() const {
  WireWriter out;
  out.Put(kLinkProtocol);
  out.Put(link);
  out.Put(instance);
  out.PutProcess(writer);
  out.Put(static_cast<uint8_t>(mode));
  out.PutBytes(address);
  return out.Take();
}

std::optional<LinkHello> LinkHello::Parse(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  if (in.Get<uint16_t>() != kLinkProtocol) return std::nullopt;
  LinkHello m;
  m.link = in.Get<uint64_t>();
  m.instance = in.Get<uint64_t>();
  m.writer = in.GetProcess(kMaxProcessName);
  const auto mode = in.Get<uint8_t>();
  if (mode > static_cast<uint8_t>(TransferMode::kKeyedPut)) return std::nullopt;
  m.mode = static_cast<TransferMode>(mode);
  const auto address = in.GetBytes(kMaxAddress);
  m.address.assign(address.begin(), address.end());
  return Checked(std::move(m), in);
}

std::vector<std::byte> LinkAnswer::Encode() const {
  WireWriter out;
  out.Put(link);
  PutStatus(out, status);
  if (!key.empty()) out.PutBytes(key);
  return out.Take();
}

std::optional<LinkAnswer> LinkAnswer::Parse(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  LinkAnswer m;
  m.link = in.Get<uint64_t>();
  m.status = GetStatus(in);
  if (in.ok() && in.remaining() > 0) {
    const auto key = in.GetBytes(kMaxKey);
    m.key.assign(key.begin(), key.end());
  }
  return Checked(std::move(m), in);
}

std::vector<std::byte> LinkData::Encode() const {
  WireWriter out;
  out.Put(link);
  out.PutTicket(ticket);
  out.Put(Raw(op));
  out.Put(part);
  PutPieces(out, pieces);
  return out.Take();
}

std::optional<LinkData> LinkData::Parse(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  LinkData m;
  m.link = in.Get<uint64_t>();
  m.ticket = in.GetTicket();
  m.op = static_cast<OpId>(in.Get<uint64_t>());
  m.part = in.Get<uint32_t>();
  if (!GetPieces(in, kMaxDataPieces, &m.pieces) || m.pieces.empty()) return std::nullopt;
  return Checked(std::move(m), in);
}

std::vector<std::byte> LinkPlaced::Encode() const {
  WireWriter out;
  out.Put(link);
  out.Put(Raw(op));
  out.Put(part);
  PutStatus(out, status);
  return out.Take();
}

std::optional<LinkPlaced> LinkPlaced::Parse(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  LinkPlaced m;
  m.link = in.Get<uint64_t>();
  m.op = static_cast<OpId>(in.Get<uint64_t>());
  m.part = in.Get<uint32_t>();
  m.status = GetStatus(in);
  return Checked(std::move(m), in);
}

std::vector<std::byte> LinkNotice::Encode() const {
  WireWriter out;
  out.Put(link);
  out.PutTicket(ticket);
  out.Put(chunk);
  out.Put(attempt);
  PutPieces(out, pieces);
  return out.Take();
}

std::optional<LinkNotice> LinkNotice::Parse(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  LinkNotice m;
  m.link = in.Get<uint64_t>();
  m.ticket = in.GetTicket();
  m.chunk = in.Get<ChunkIndex>();
  m.attempt = in.Get<Attempt>();
  if (!GetPieces(in, kMaxPiecesPerPost, &m.pieces)) return std::nullopt;
  return Checked(std::move(m), in);
}

}  // namespace baton
