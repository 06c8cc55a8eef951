#include "transport/grpc/descriptor.h"

#include "base/hash.h"
#include "transport/wire.h"

namespace baton {
namespace {

constexpr uint32_t kMagic = 0x474b5642;  // "BVKG"
constexpr uint16_t kVersion = 1;
constexpr size_t kMaxAddress = 512;

Status Bad(const std::string& why) { return InvalidArgumentError("transport descriptor: " + why); }

}  // namespace

std::vector<std::byte> GrpcDescriptor::Encode() const {
  WireWriter out;
  out.Put(kMagic);
  out.Put(kVersion);
  out.Put(instance);
  out.PutText(address);
  out.Put(static_cast<uint8_t>(encrypted));
  out.Put(Hash64(out.bytes()));
  return out.Take();
}

StatusOr<GrpcDescriptor> GrpcDescriptor::Parse(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint16_t>();
  if (!in.ok() || magic != kMagic) return Bad("not of a grpc transport; do both workers use the same --transport?");
  if (version != kVersion) {
    return Bad("version " + std::to_string(version) + ", this process speaks " + std::to_string(kVersion) +
               "; run one release on both workers");
  }
  GrpcDescriptor d;
  d.instance = in.Get<uint64_t>();
  d.address = in.GetText(kMaxAddress);
  const auto encrypted = in.Get<uint8_t>();
  const auto checksum = in.Get<uint64_t>();
  if (!in.Finished()) return Bad("truncated or too long");
  if (checksum != Hash64(bytes.first(bytes.size() - sizeof(uint64_t)))) return Bad("damaged (checksum)");
  if (d.address.empty() || encrypted > 1) return Bad("without an address");
  d.encrypted = encrypted == 1;
  return d;
}

}  // namespace baton
