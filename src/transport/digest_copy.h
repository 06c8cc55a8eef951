// Copy and digest in one pass over memory: the writer's half of the same-host paths. A digest after or before a
// plain copy reads the source twice and costs a fifth of the bandwidth; here each block of 1 KiB is fetched while the
// block before it is stored past the cache, so that digest and copy together run at the speed of memcpy.
#pragma once

#include <cstddef>
#include <span>

#include "base/hash.h"

namespace baton {

// Copies `from` to `to` (no overlap) and adds it to `hash`. `next`: what will be copied next, or empty; its first
// block is fetched ahead.
void DigestAndCopy(std::byte* to, std::span<const std::byte> from, StreamHash64* hash,
                   std::span<const std::byte> next = {});

// Everything that DigestAndCopy stored is visible to other cores before anything stored after this call. Needed
// before telling anybody.
void FenceCopies();

}  // namespace baton
