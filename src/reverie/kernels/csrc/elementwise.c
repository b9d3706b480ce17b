/* Small elementwise operations of PyTorch, for tapes (kernels/tape.py): here they take less time than their dispatch in
 * PyTorch. Results equal PyTorch's bit for bit. Called by kernels/tape_ops.py.
 */

#include <stdint.h>
#include <string.h>

enum { DIMS = 4 };

/* Sizes, and strides in elements of the result and of both inputs; the last dimension is the innermost. */
typedef struct {
    int64_t sizes[DIMS], to[DIMS], a[DIMS], b[DIMS];
} Layout;

/* In the order of KINDS in kernels/tape_ops.py. */
typedef enum { COPY_1, COPY_4, COPY_8, WIDEN, NOT, FILL, NEG, ABS, SQUARE, CLAMP, ADD, LESS, ADD_8, FROM, MUL, DIV, MIN, MAX, EQ, GE, LE, LT, AND, PUT } Kind;

/* Loop over the innermost dimension; vectorized where everything is contiguous, or the second input is one number. Arrays may
 * be the same, but do not overlap otherwise. Other strides stay scalar, since vectors of them take seconds to compile. */
#define ROW(OUT, IN, EXPRESSION) { \
    OUT *row_to = (OUT *)to + at_to; \
    const IN *row_a = (const IN *)a + at_a, *row_b = (const IN *)b + at_b; \
    if (dt == 1 && da == 1 && db == 1) { \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) { IN p = row_a[i], q = row_b[i]; (void)p, (void)q; row_to[i] = (EXPRESSION); } \
    } else if (dt == 1 && da == 1 && db == 0) { \
        IN q = *row_b; \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) { IN p = row_a[i]; (void)p, (void)q; row_to[i] = (EXPRESSION); } \
    } else { \
        for (int64_t i = 0; i < n; i++) { \
            __asm__ volatile(""); \
            IN p = row_a[i * da], q = row_b[i * db]; (void)p, (void)q; row_to[i * dt] = (EXPRESSION); \
        } \
    } \
}

/* `x`, `y`: Python numbers. Without a second input, `b` may be any readable memory of the same type. */
void plain(int64_t kind, void *to, const void *a, const void *b, const Layout *l, float x, float y) {
    int64_t n = l->sizes[3], dt = l->to[3], da = l->a[3], db = l->b[3];
    for (int64_t i = 0; i < l->sizes[0]; i++)
        for (int64_t j = 0; j < l->sizes[1]; j++)
            for (int64_t k = 0; k < l->sizes[2]; k++) {
                int64_t at_to = i * l->to[0] + j * l->to[1] + k * l->to[2];
                int64_t at_a = i * l->a[0] + j * l->a[1] + k * l->a[2];
                int64_t at_b = i * l->b[0] + j * l->b[1] + k * l->b[2];
                switch ((Kind)kind) {
                    case COPY_1: ROW(uint8_t, uint8_t, p) break;
                    case COPY_4: ROW(uint32_t, uint32_t, p) break;
                    case COPY_8: ROW(uint64_t, uint64_t, p) break;
                    case WIDEN: ROW(float, uint8_t, p) break;
                    case NOT: ROW(uint8_t, uint8_t, !p) break;
                    case FILL: ROW(float, float, x) break;
                    case NEG: ROW(float, float, -p) break;
                    case ABS: ROW(float, float, __builtin_fabsf(p)) break;
                    case SQUARE: ROW(float, float, p * p) break;
                    case CLAMP: ROW(float, float, p < x ? x : p > y ? y : p) break; /* NaN stays NaN */
                    case ADD: ROW(float, float, p + q) break;
                    case LESS: ROW(float, float, p - q) break;
                    case ADD_8: ROW(int64_t, int64_t, p + q) break;
                    case FROM: ROW(float, float, x - p) break;
                    case MUL: ROW(float, float, p * q) break;
                    case DIV: ROW(float, float, p / q) break;
                    case MIN: ROW(float, float, p != p ? p : q != q ? q : p < q ? p : q) break;
                    case MAX: ROW(float, float, p != p ? p : q != q ? q : p > q ? p : q) break;
                    case EQ: ROW(uint8_t, float, p == q) break;
                    case GE: ROW(uint8_t, float, p >= q) break;
                    case LE: ROW(uint8_t, float, p <= q) break;
                    case LT: ROW(uint8_t, float, p < q) break;
                    case AND: ROW(uint8_t, uint8_t, p && q) break;
                    case PUT: /* copies where the second input, a bool, is true */
                        for (int64_t m = 0; m < n; m++)
                            if (((const uint8_t *)b)[at_b + m * db]) ((float *)to)[at_to + m * dt] = ((const float *)a)[at_a + m * da];
                        break;
                }
            }
}

/* Copy several arrays. */
void move(void *const *to, const void *const *from, const int64_t *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i++) memcpy(to[i], from[i], (size_t)bytes[i]);
}
