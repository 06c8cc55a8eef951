// Reads the header of one safetensors file: a u64 length, JSON {name: dtype, shape, data_offsets}, data. The
// file is not trusted. Views borrow the caller's bytes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "baton/status.h"
#include "baton/tensor.h"

namespace baton {

struct SafeTensor {
  std::string name;
  TensorView view;
};

// INVALID_ARGUMENT with the tensor's name: header over 100 MB, offsets outside the data or overlapping, a
// shape that does not give the bytes, a name twice, a type that is not F32, F16 or BF16.
StatusOr<std::vector<SafeTensor>> ParseSafetensors(std::span<const std::byte> bytes);

}  // namespace baton
