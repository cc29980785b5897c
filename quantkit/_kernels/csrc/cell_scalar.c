/* Steps of recurrent cells, portable: also the statement in C of what the others compute. */
#define TARGET
#define ISA scalar
#include "qk_cell.h"
