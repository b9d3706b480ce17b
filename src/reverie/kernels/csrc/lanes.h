/* A vector of this machine, for sources whose layout of numbers depends on its size. */

#ifndef REVERIE_LANES_H
#define REVERIE_LANES_H

#if defined(__AVX512F__)
enum { LANES = 16 }; /* numbers in a vector */
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

#endif
