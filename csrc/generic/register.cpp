// The generic kernel of every operator.
#include "common/library.h"
#include "generic/generic.h"

namespace aoext::generic {

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
#define AOEXT_OPERATOR(name, result, parameters, c_parameters, schema) m.impl(#name, AOEXT_BOX(&name));
#include "operators.inc"
}

}  // namespace aoext::generic
