/* Multilayer perceptrons (MLPs) with ReLU: one call computes all layers of several MLPs forward; perceptron_backward.c has the
 * backward pass. nn/perceptron.py calls both.
 *
 * All arrays are float32 and contiguous. The parameters of a copy are, layer by layer, its weights [inputs, outputs] and
 * its bias [outputs]; copies lie `stride` numbers apart. The order of each sum, and so its result, depends neither on the
 * threads nor on the other rows of the batch.
 */

#include "../core/thread_pool.h"
#include "perceptron.h"

/* One layer forward, for a few rows; `scratch` is [inputs, PANEL]. */
static void forward_layer(const float *x, int64_t inputs, const float *weights, float *y, int64_t outputs, int64_t rows,
                          Then then, float *scratch) {
    const float *bias = weights + inputs * outputs;
    if (outputs <= NARROW) {
        columns_of(weights, inputs, outputs, 0, inputs, scratch);
        forward_narrow(x, inputs, scratch, bias, y, outputs, rows, then);
        return;
    }
    for (int64_t j = 0; j < outputs; j += PANEL) {
        int64_t columns = least(PANEL, outputs - j), ld = outputs;
        const float *panel = weights + j;
        if (columns < PANEL) pad_columns(panel, ld, scratch, inputs, columns), panel = scratch, ld = PANEL;
        panel_product(x, inputs, 1, panel, ld, y + j, outputs, rows, inputs, columns, bias + j, 0, then);
    }
}

typedef struct {
    const Network *n;
    const float *x;
    float *hidden, *y, *scratch; /* scratch: [threads, widest, PANEL] */
    int64_t rows, widest, taken;
} Forth;

static void forth(void *given, Worker worker) {
    Forth *c = given;
    const Network *n = c->n;
    int64_t strips = (c->rows + STRIP - 1) / STRIP, items = strips * n->copies;
    for (int64_t item = next_piece(&c->taken); item < items; item = next_piece(&c->taken)) {
        int64_t copy = item / strips, first = item % strips * STRIP, count = least(STRIP, c->rows - first);
        const float *in = c->x + first * n->widths[0], *weights = n->parameters + copy * n->stride;
        float *place = c->hidden;
        for (int64_t l = 0; l < n->layers; l++) {
            int64_t inputs = n->widths[l], outputs = n->widths[l + 1], last = l + 1 == n->layers;
            float *out = (last ? c->y : place) + (copy * c->rows + first) * outputs;
            forward_layer(in, inputs, weights, out, outputs, count, last ? PLAIN : RELU,
                          c->scratch + worker.number * c->widest * PANEL);
            if (last && n->squash)
                for (int64_t i = 0; i < count * outputs; i++) out[i] = fast_tanh(out[i]);
            in = out, weights += (inputs + 1) * outputs, place += n->copies * c->rows * outputs;
        }
    }
}

/* Map x [rows, inputs], the input of all copies, to y [copies, rows, outputs]. The values of each hidden layer are stored in
 * `hidden`, [copies, rows, width] one after the other. */
void perceptron(const Network *n, const float *x, float *hidden, float *y, int64_t rows, int64_t threads) {
    Forth c = {.n = n, .x = x, .hidden = hidden, .y = y, .rows = rows};
    for (int64_t l = 0; l <= n->layers; l++) c.widest = n->widths[l] > c.widest ? n->widths[l] : c.widest;
    c.scratch = room_for(threads * c.widest * PANEL * sizeof(float));
    together(forth, &c, threads);
}
