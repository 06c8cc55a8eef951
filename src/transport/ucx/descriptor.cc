#include "transport/ucx/descriptor.h"

#include <unistd.h>

#include <fstream>

#include "base/hash.h"
#include "transport/wire.h"

namespace baton {
namespace {

constexpr uint32_t kMagic = 0x554b5642;  // "BVKU"
constexpr uint16_t kVersion = 1, kVersionWithPutLanes = 2;
constexpr size_t kMaxHost = 256, kMaxTls = 16, kMaxAddress = 64 << 10, kMaxRkey = 4 << 10;
constexpr size_t kMaxPutLanes = 64, kMaxLaneName = 64;

Status Bad(const std::string& why) { return InvalidArgumentError("transport descriptor: " + why); }

}  // namespace

std::vector<std::byte> UcxDescriptor::Encode() const {
  WireWriter out;
  out.Put(kMagic);
  out.Put(put_lanes.empty() ? kVersion : kVersionWithPutLanes);
  out.PutText(host);
  out.Put(instance);
  out.PutText(tls);
  out.PutBytes(address);
  out.PutBytes(rkey);
  out.Put(pool_base);
  out.Put(pool_bytes);
  if (!put_lanes.empty()) {
    out.Put(static_cast<uint16_t>(put_lanes.size()));
    for (const std::string& lane : put_lanes) out.PutText(lane);
  }
  out.Put(Hash64(out.bytes()));
  return out.Take();
}

StatusOr<UcxDescriptor> UcxDescriptor::Parse(std::span<const std::byte> bytes) {
  if (bytes.size() < 8) return Bad("of " + std::to_string(bytes.size()) + " bytes is too short");
  WireReader in(bytes);
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint16_t>();
  if (!in.ok() || magic != kMagic) return Bad("not of a ucx transport; do both workers use the same transport?");
  if (version != kVersion && version != kVersionWithPutLanes) {
    return Bad("version " + std::to_string(version) + ", this process speaks " + std::to_string(kVersionWithPutLanes) +
               " and lower; run one release on both workers");
  }
  UcxDescriptor d;
  d.host = in.GetText(kMaxHost);
  d.instance = in.Get<uint64_t>();
  d.tls = in.GetText(kMaxTls);
  const auto address = in.GetBytes(kMaxAddress);
  d.address.assign(address.begin(), address.end());
  const auto rkey = in.GetBytes(kMaxRkey);
  d.rkey.assign(rkey.begin(), rkey.end());
  d.pool_base = in.Get<uint64_t>();
  d.pool_bytes = in.Get<uint64_t>();
  if (version == kVersionWithPutLanes) {
    const auto lanes = in.Get<uint16_t>();
    if (lanes == 0 || lanes > kMaxPutLanes) return Bad("of " + std::to_string(lanes) + " lanes for puts");
    for (uint16_t i = 0; i < lanes; ++i) d.put_lanes.push_back(in.GetText(kMaxLaneName));
  }
  const auto checksum = in.Get<uint64_t>();
  if (!in.Finished()) return Bad("truncated or too long");
  if (checksum != Hash64(bytes.first(bytes.size() - sizeof(uint64_t)))) return Bad("damaged (checksum)");
  if (d.address.empty()) return Bad("without a worker address");
  if (d.tls != "shm" && d.tls != "tcp" && d.tls != "rdma" && d.tls != "auto")
    return Bad("unknown tls \"" + d.tls + "\"");
  if (d.pool_bytes == 0 || d.pool_bytes > UINT64_MAX - d.pool_base) return Bad("pool range is not valid");
  return d;
}

std::string ThisHost() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char ns[64] = {};
  const ssize_t n = readlink("/proc/self/ns/pid", ns, sizeof(ns) - 1);
  return boot + "/" + std::string(ns, n > 0 ? static_cast<size_t>(n) : 0);
}

}  // namespace baton
