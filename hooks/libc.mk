# SPDX-License-Identifier: Apache-2.0
# What a library of ours needs of each C library. Included with LIBC,
# MACHINE and CFLAGS set.

ifeq ($(LIBC),glibc)
CFLAGS += -include $(dir $(lastword $(MAKEFILE_LIST)))gate/glibc.h
else ifeq ($(LIBC),musl)
# Libraries that come by dlopen get no static TLS there; gnu2 makes the other
# model cheap. The kernel's headers stand outside the compiler's own paths.
CFLAGS += -DVGPU_TLS_MODEL='"global-dynamic"' -idirafter /usr/include -idirafter /usr/include/$(shell cc -dumpmachine)
ifeq ($(MACHINE),x86_64)
CFLAGS += -mtls-dialect=gnu2
endif
else
$(error LIBC is $(LIBC): glibc or musl)
endif
