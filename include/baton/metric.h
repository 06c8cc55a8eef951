// VALUE. A number for operators: nothing is decided by it.
#pragma once

#include <string>

namespace baton {

struct Metric {
  std::string name;  // a Prometheus name, with labels where it has some: kv_aborts_total{code="lease"}
  double value = 0;
};

}  // namespace baton
