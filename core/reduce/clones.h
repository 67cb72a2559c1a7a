// Compiling one loop for several instruction sets. DSGD_CLONES before a function that is not a template makes
// a portable, an AVX2 and an AVX-512 version, picked when the library is loaded. With sanitizers
// (DSGD_SANITIZED) there is the portable one only: the pick happens before their runtime is up. With
// -ffp-contract=off all versions give the same bits.
#pragma once

#if defined(__has_attribute) && defined(__x86_64__) && defined(__gnu_linux__) && !defined(DSGD_SANITIZED)
#if __has_attribute(target_clones)
#define DSGD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef DSGD_CLONES
#define DSGD_CLONES
#endif

// For loop bodies that a DSGD_CLONES function calls: they must become part of it, or they stay portable.
#define DSGD_INLINED __attribute__((always_inline)) inline

// Before a loop whose iterations touch no common element, although its pointers may be equal.
#if defined(__clang__)
#define DSGD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define DSGD_INDEPENDENT _Pragma("GCC ivdep")
#else
#define DSGD_INDEPENDENT
#endif
