/* Vectors of LANES numbers, the compiler's own: as many as a register of the variant holds, so that the 16 outputs of a
   tile are SIDES registers. */
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef float FloatsAt __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

enum { SIDES = OUTPUTS / LANES };

/* Less 0: plus 0 would not be -0 of -0. */
INLINE Floats all(float x) { return x - (Floats){0}; }
INLINE Floats floats(Ints x) { return __builtin_convertvector(x, Floats); }
INLINE Floats floats_at(const float *p) { return *(const FloatsAt *)p; }
