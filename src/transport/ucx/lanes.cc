#include "transport/ucx/lanes.h"

#include <ucp/api/ucp.h>
#include <ucs/async/async_fwd.h>
#include <ucs/config/global_opts.h>
#include <uct/api/uct.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <tuple>

#include "transport/ucx/context.h"

namespace baton {
namespace {

template <typename T, void (*kFree)(T*)>
struct Freed {
  void operator()(T* p) const { kFree(p); }
};
template <typename T, void (*kFree)(T*)>
using Handle = std::unique_ptr<T, Freed<T, kFree>>;

void ReleaseConfig(void* config) { uct_config_release(config); }
using Config = std::unique_ptr<void, Freed<void, ReleaseConfig>>;
using Async = Handle<ucs_async_context_t, ucs_async_context_destroy>;
using Worker = Handle<uct_worker, uct_worker_destroy>;
using Domain = Handle<uct_md, uct_md_close>;
using Interface = Handle<uct_iface, uct_iface_close>;

UcxLaneKind KindOf(uct_device_type_t type) {
  switch (type) {
    case UCT_DEVICE_TYPE_SHM:
      return UcxLaneKind::kSharedMemory;
    case UCT_DEVICE_TYPE_ACC:
      return UcxLaneKind::kAccelerator;
    case UCT_DEVICE_TYPE_SELF:
      return UcxLaneKind::kSelf;
    default:
      return UcxLaneKind::kNetwork;
  }
}

// Nothing: it does not open here.
void AddLane(uct_md_h md, const uct_md_attr_t& md_attr, uct_worker_h worker, const uct_tl_resource_desc_t& resource,
             std::vector<UcxLane>* lanes) {
  uct_iface_config_t* raw_config = nullptr;
  if (uct_md_iface_config_read(md, resource.tl_name, nullptr, nullptr, &raw_config) != UCS_OK) return;
  const Config config(raw_config);
  uct_iface_params_t params{};
  params.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE |
                      UCT_IFACE_PARAM_FIELD_STATS_ROOT | UCT_IFACE_PARAM_FIELD_RX_HEADROOM |
                      UCT_IFACE_PARAM_FIELD_CPU_MASK;
  params.open_mode = UCT_IFACE_OPEN_MODE_DEVICE;
  params.mode.device.tl_name = resource.tl_name;
  params.mode.device.dev_name = resource.dev_name;
  uct_iface_h raw_iface = nullptr;
  if (uct_iface_open(md, worker, &params, raw_config, &raw_iface) != UCS_OK) return;
  const Interface iface(raw_iface);
  uct_iface_attr_t attr{};
  if (uct_iface_query(iface.get(), &attr) != UCS_OK) return;
  const auto can = [&attr](uint64_t flags) { return (attr.cap.flags & flags) != 0; };
  UcxLane lane;
  lane.transport = resource.tl_name;
  lane.device = resource.dev_name;
  lane.kind = KindOf(resource.dev_type);
  lane.messages = can(UCT_IFACE_FLAG_AM_SHORT | UCT_IFACE_FLAG_AM_BCOPY | UCT_IFACE_FLAG_AM_ZCOPY);
  lane.put = can(UCT_IFACE_FLAG_PUT_ZCOPY);
  lane.get = can(UCT_IFACE_FLAG_GET_ZCOPY);
  lane.remote_key = (md_attr.cap.flags & UCT_MD_FLAG_NEED_RKEY) != 0 && md_attr.rkey_packed_size > 0;
  lane.maps = (md_attr.cap.flags & UCT_MD_FLAG_RKEY_PTR) != 0;
  lane.peer_failure = can(UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE);
  lane.bytes_per_second = attr.bandwidth.dedicated + attr.bandwidth.shared;
  lane.latency_seconds = attr.latency.c;
  lanes->push_back(std::move(lane));
}

void AddLanesOf(uct_component_h component, const char* md_name, uct_worker_h worker, std::vector<UcxLane>* lanes) {
  uct_md_config_t* raw_config = nullptr;
  if (uct_md_config_read(component, nullptr, nullptr, &raw_config) != UCS_OK) return;
  const Config config(raw_config);
  uct_md_h raw_md = nullptr;
  if (uct_md_open(component, md_name, raw_config, &raw_md) != UCS_OK) return;
  const Domain md(raw_md);
  uct_md_attr_t attr{};
  if (uct_md_query(md.get(), &attr) != UCS_OK) return;
  uct_tl_resource_desc_t* resources = nullptr;
  unsigned count = 0;
  if (uct_md_query_tl_resources(md.get(), &resources, &count) != UCS_OK) return;
  for (unsigned i = 0; i < count; ++i) AddLane(md.get(), attr, worker, resources[i], lanes);
  uct_release_tl_resource_list(resources);
}

void AddComponent(uct_component_h component, uct_worker_h worker, UcxOffer* offer) {
  uct_component_attr_t attr{};
  attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME | UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
  if (uct_component_query(component, &attr) != UCS_OK) return;
  // The one name that is looked at: without a device no capability can tell that the module is there.
  offer->rdma_built |= std::string_view(attr.name) == "ib";
  std::vector<uct_md_resource_desc_t> domains(attr.md_resource_count);
  attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
  attr.md_resources = domains.data();
  if (domains.empty() || uct_component_query(component, &attr) != UCS_OK) return;
  for (const uct_md_resource_desc_t& domain : domains) AddLanesOf(component, domain.md_name, worker, &offer->lanes);
}

}  // namespace

std::string_view Word(UcxLaneKind kind) {
  switch (kind) {
    case UcxLaneKind::kNetwork:
      return "network";
    case UcxLaneKind::kSharedMemory:
      return "shared memory";
    case UcxLaneKind::kAccelerator:
      return "accelerator";
    case UcxLaneKind::kSelf:
      return "itself";
  }
  return "?";
}

std::vector<std::string> PutTransports(const std::vector<UcxLane>& lanes, const std::string& net_devices) {
  std::vector<std::string> out;
  const std::string listed = "," + net_devices + ",";
  for (const UcxLane& lane : lanes) {
    const bool allowed = net_devices == "all" || listed.find("," + lane.device + ",") != std::string::npos;
    if (!lane.rdma() || !allowed || std::find(out.begin(), out.end(), lane.transport) != out.end()) continue;
    out.push_back(lane.transport);
  }
  return out;
}

std::string CommonTransport(const std::vector<std::string>& ours, const std::vector<std::string>& theirs) {
  for (const std::string& transport : ours) {
    if (std::find(theirs.begin(), theirs.end(), transport) != theirs.end()) return transport;
  }
  return "";
}

void SilenceUcx() {
  if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_global_opts_set_value("LOG_LEVEL", "fatal");
}

StatusOr<UcxOffer> QueryUcx() {
  UcxOffer offer;
  offer.version = ucp_get_version_string();
  ucs_async_context_t* raw_async = nullptr;
  if (ucs_status_t s = ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &raw_async); s != UCS_OK) {
    return FromUcx(s, "ucx: async context");
  }
  const Async async(raw_async);
  uct_worker_h raw_worker = nullptr;
  if (ucs_status_t s = uct_worker_create(async.get(), UCS_THREAD_MODE_SINGLE, &raw_worker); s != UCS_OK) {
    return FromUcx(s, "ucx: worker");
  }
  const Worker worker(raw_worker);
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (ucs_status_t s = uct_query_components(&components, &count); s != UCS_OK) {
    return FromUcx(s, "ucx: components");
  }
  for (unsigned i = 0; i < count; ++i) AddComponent(components[i], worker.get(), &offer);
  uct_release_component_list(components);
  std::sort(offer.lanes.begin(), offer.lanes.end(), [](const UcxLane& a, const UcxLane& b) {
    return std::tie(a.transport, a.device) < std::tie(b.transport, b.device);
  });
  return offer;
}

}  // namespace baton
