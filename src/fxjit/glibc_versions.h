/* The oldest version of each glibc symbol that the extension calls, so that a wheel built on a new Linux loads on an old one.
 *
 * glibc 2.34 moved libdl and libpthread into libc and gave their functions new versions with the same code; linked as usual,
 * the extension would need 2.34; so it needs 2.17 (torch's own wheels need 2.28). setup.py includes this header in every C file,
 * before Python.h: no system header may come in here. */
#ifndef FXJIT_GLIBC_VERSIONS_H
#define FXJIT_GLIBC_VERSIONS_H

#if defined(__x86_64__) || defined(__aarch64__)
#ifdef __x86_64__
#define FX_OLDEST_GLIBC "GLIBC_2.2.5"
#else
#define FX_OLDEST_GLIBC "GLIBC_2.17"
#endif
#define FX_OLDEST(name) __asm__(".symver " #name "," #name "@" FX_OLDEST_GLIBC)

FX_OLDEST(dladdr);
FX_OLDEST(dlerror);
FX_OLDEST(dlopen);
FX_OLDEST(dlsym);
FX_OLDEST(pthread_attr_getstack);
FX_OLDEST(pthread_getattr_np);
#endif

#endif
