// Everything that has no kernel here runs on the CPU's kernel, over the device's memory, and is counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace xpu_sim {

// Calls by operator name without overload, such as "aten::mul".
std::map<std::string, int64_t> fallbacks();
void reset_fallbacks();

// Results of the operator (all its overloads) are multiplied by the factor, until it is cleared. Throws where
// no operator has the name.
void set_fault(const std::string& op, double factor);
void clear_fault(const std::string& op);
// How many results have been falsified since the fault was set.
int64_t fault_hits(const std::string& op);

}  // namespace xpu_sim
