/* Multilayer perceptrons (MLPs) with ReLU or tanh: one call computes all layers of several MLPs forward;
 * perceptron_backward.c has the backward pass. kernels/relu_mlp.py calls both.
 *
 * All arrays are float32 and contiguous. The parameters of a copy are, layer by layer, its weights [inputs, outputs] and
 * its bias [outputs]; copies lie `stride` numbers apart. The order of each sum, and so its result, depends neither on the
 * threads nor on the other rows of the batch.
 */

#include "thread_pool.h"
#include "perceptron.h"

/* One layer forward, for a few rows; `scratch` is [inputs, PANEL]. */
static void forward_layer(const float *x, int64_t inputs, const float *weights, float *y, int64_t outputs, int64_t rows,
                          Then then, float *scratch) {
    const float *bias = weights + inputs * outputs;
    if (outputs <= NARROW) {
        row_columns(weights, inputs, outputs, 0, inputs, scratch);
        forward_narrow(x, inputs, scratch, bias, y, outputs, rows, then);
        return;
    }
    for (int64_t j = 0; j < outputs; j += PANEL) {
        int64_t columns = least(PANEL, outputs - j), ld = outputs;
        const float *panel = weights + j;
        if (columns < PANEL || inputs * outputs >= WIDE) pad_columns(panel, ld, scratch, inputs, columns), panel = scratch, ld = PANEL;
        panel_product(x, inputs, 1, panel, ld, y + j, outputs, rows, inputs, columns, bias + j, 0, then);
    }
}

/* ---------------------------------------------------------------------- rows that share inputs
 *
 * Many actions of one observation: `each` rows in turn begin with the same inputs. Their part of the first layer's sums is
 * computed once, and the sums of each row begin with it. */

/* The sums of `rows` rows and PANEL columns, each beginning with its own `from`; `rows` is a compile-time constant. */
static inline __attribute__((always_inline)) void continue_tile(const float *x, int64_t inputs, const float *panel, int64_t ldpanel,
                                                                const float *const *from, float *y, int64_t outputs,
                                                                int64_t columns, Then then, const int64_t rows) {
    Vector sum[TILE][VECTORS];
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = ((const Vector *)from[r])[v];
    for (int64_t k = 0; k < inputs; k++) {
        const Vector *row = (const Vector *)(panel + k * ldpanel);
        for (int64_t r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) sum[r][v] += x[r * inputs + k] * row[v];
    }
    for (int64_t r = 0; r < rows; r++, y += outputs) {
        for (int v = 0; v < VECTORS && then == RELU; v++) sum[r][v] = (Vector)((Bits)sum[r][v] & ~(sum[r][v] < 0.0f)); /* keeps NaN */
        memcpy(y, sum[r], columns * sizeof(float));
    }
}

/* The first layer for rows `first` to first + rows - 1, at most LONG_STRIP. Row r has the inputs shared[r / each] and own[r]. */
static void first_layer(const float *shared, int64_t width, int64_t each, const float *own, int64_t inputs, const float *weights,
                        float *y, int64_t outputs, int64_t first, int64_t rows, Then then, float *scratch) {
    const float *bias = weights + (width + inputs) * outputs, *from[LONG_STRIP];
    float sums[LONG_STRIP * PANEL] __attribute__((aligned(64)));
    int64_t begin = first / each, groups = (first + rows - 1) / each + 1 - begin;
    for (int64_t r = 0; r < rows; r++) from[r] = sums + ((first + r) / each - begin) * PANEL;
    shared += begin * width, own += first * inputs;
    for (int64_t j = 0; j < outputs; j += PANEL) {
        int64_t columns = least(PANEL, outputs - j), ld = outputs, r = 0;
        const float *panel = weights + j;
        if (columns < PANEL) pad_columns(panel, ld, scratch, width + inputs, columns), panel = scratch, ld = PANEL;
        panel_product(shared, width, 1, panel, ld, sums, PANEL, groups, width, columns, bias + j, 0, PLAIN);
        panel += width * ld;
        for (; r + TILE <= rows; r += TILE)
            continue_tile(own + r * inputs, inputs, panel, ld, from + r, y + r * outputs + j, outputs, columns, then, TILE);
        for (; r < rows; r++)
            continue_tile(own + r * inputs, inputs, panel, ld, from + r, y + r * outputs + j, outputs, columns, then, 1);
    }
}

/* ---------------------------------------------------------------------- all layers */

typedef struct {
    const Network *n;
    const float *x, *shared;
    float *hidden, *y, *scratch; /* scratch: [threads, widest, PANEL] */
    int64_t rows, width, each, widest, strip, taken;
} Forth;

static void forth(void *given, Worker worker) {
    Forth *c = given;
    const Network *n = c->n;
    int64_t strips = (c->rows + c->strip - 1) / c->strip, items = strips * n->copies;
    for (int64_t item = next_piece(&c->taken); item < items; item = next_piece(&c->taken)) {
        int64_t copy = item / strips, first = item % strips * c->strip, count = least(c->strip, c->rows - first);
        int64_t own = n->widths[0] - c->width; /* inputs that are not shared */
        const float *in = c->x + first * own, *weights = n->parameters + copy * n->stride;
        float *place = c->hidden, *scratch = c->scratch + worker.number * c->widest * PANEL;
        for (int64_t l = 0; l < n->layers; l++) {
            int64_t inputs = n->widths[l], outputs = n->widths[l + 1], last = l + 1 == n->layers;
            float *out = (last ? c->y : place) + (copy * c->rows + first) * outputs;
            Then then = last || n->tanh ? PLAIN : RELU;
            if (l == 0 && c->shared)
                first_layer(c->shared, c->width, c->each, c->x, own, weights, out, outputs, first, count, then, scratch);
            else
                forward_layer(in, inputs, weights, out, outputs, count, then, scratch);
            if (last ? n->squash : n->tanh)
                for (int64_t i = 0; i < count * outputs; i++) out[i] = fast_tanh(out[i]);
            in = out, weights += (inputs + 1) * outputs, place += n->copies * c->rows * outputs;
        }
    }
}

/* Map x [rows, inputs], the input of all copies, to y [copies, rows, outputs]. The values of each hidden layer are stored in
 * `hidden`, [copies, rows, width] one after the other. If `shared` [rows / each, width] is not null, row r begins with
 * shared[r / each], and x [rows, inputs - width] has the rest. */
void perceptron(const Network *n, const float *x, const float *shared, int64_t width, int64_t each, float *hidden, float *y,
                int64_t rows, int64_t threads) {
    Forth c = {.n = n, .x = x, .shared = shared, .hidden = hidden, .y = y, .rows = rows, .width = shared ? width : 0, .each = each,
               .strip = strip_for(rows, n->copies, threads)};
    for (int64_t l = 0; l <= n->layers; l++) c.widest = n->widths[l] > c.widest ? n->widths[l] : c.widest;
    c.scratch = room_for(threads * c.widest * PANEL * sizeof(float));
    together(forth, &c, threads);
}
