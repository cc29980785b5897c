#include "qk_dispatch.h"

static qk_isa active = QK_ISA_SCALAR;

qk_isa qk_active_isa(void) { return active; }

void qk_use_isa(qk_isa isa) { active = isa; }
