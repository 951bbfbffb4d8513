/* SPDX-License-Identifier: Apache-2.0 */
/* Every exported name without a function of ours, and the table of real addresses. */
#if defined(__x86_64__)
#include "../arch/x86_64/trampoline.S"
#elif defined(__aarch64__)
#include "../arch/aarch64/trampoline.S"
#else
#error "write ../arch/<machine>/trampoline.S"
#endif
#include "gen/trampolines.inc"
