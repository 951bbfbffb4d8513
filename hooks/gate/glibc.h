/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every file: binds the names that glibc 2.34 and later give a
 * new version to the version that glibc 2.17 has too, so that a library built
 * on a new system loads in a container with an old one. A test looks at the
 * result.
 */
#ifndef VGPU_GLIBC_H
#define VGPU_GLIBC_H

#if defined(__linux__) && defined(__GNUC__)
#if defined(__x86_64__)
#define VGPU_GLIBC_OLD "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define VGPU_GLIBC_OLD "GLIBC_2.17"
#endif
#define VGPU_OLD(name) __asm__(".symver " #name ", " #name "@" VGPU_GLIBC_OLD)
VGPU_OLD(dlopen);
VGPU_OLD(dlclose);
VGPU_OLD(dlsym);
VGPU_OLD(dlerror);
VGPU_OLD(dladdr);
VGPU_OLD(pthread_create);
VGPU_OLD(pthread_join);
VGPU_OLD(pthread_sigmask);
VGPU_OLD(pthread_once);
VGPU_OLD(pthread_key_create);
VGPU_OLD(pthread_setspecific);
VGPU_OLD(pthread_mutex_trylock);
VGPU_OLD(pthread_rwlock_rdlock);
VGPU_OLD(pthread_rwlock_wrlock);
VGPU_OLD(pthread_rwlock_trywrlock);
VGPU_OLD(pthread_rwlock_unlock);
VGPU_OLD(pthread_attr_setstacksize);
#undef VGPU_OLD
#endif

#endif
