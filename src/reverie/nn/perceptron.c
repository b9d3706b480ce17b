/* Multilayer perceptrons (MLPs) with ReLU: one call computes all layers of several MLPs forward, another one backward.
 * nn/perceptron.py calls them.
 *
 * All arrays are float32 and contiguous. The parameters of a copy are, layer by layer, its weights [inputs, outputs] and
 * its bias [outputs]; copies lie `stride` numbers apart. The order of each sum, and so its result, depends neither on the
 * threads nor on the other rows of the batch.
 */

#include "../core/thread_pool.h"
#include "perceptron.h"

/* ---------------------------------------------------------------------- forwards */

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
    float *hidden, *y, *scratch;
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
 * `hidden`, [copies, rows, width] one after the other. `scratch` is [threads, widest, PANEL]. */
void perceptron(const Network *n, const float *x, float *hidden, float *y, int64_t rows, float *scratch,
                int64_t threads) {
    Forth c = {.n = n, .x = x, .hidden = hidden, .y = y, .scratch = scratch, .rows = rows};
    for (int64_t l = 0; l <= n->layers; l++) c.widest = n->widths[l] > c.widest ? n->widths[l] : c.widest;
    together(forth, &c, threads);
}

/* ---------------------------------------------------------------------- backwards */

/* One layer backward, for a few rows: dx = dy W^T, and 0 where `mask` (ReLU's output) is 0. */
static void backward_layer(const float *dy, int64_t outputs, const float *transposed, float *dx, int64_t inputs,
                           int64_t rows, const float *mask, Then then) {
    for (int64_t i = 0; i < inputs; i += PANEL, transposed += outputs * PANEL)
        panel_product(dy, outputs, 1, transposed, PANEL, dx + i, inputs, rows, outputs, least(PANEL, inputs - i), 0,
                      mask ? mask + i : 0, then);
}

/* The columns from j on of the gradient of a layer's weights, x^T dy, and of its bias; `add` adds them to the old values. */
static void gradient_panel(const float *x, int64_t inputs, const float *dy, int64_t outputs, int64_t j, float *dweights,
                           int64_t rows, int add, float *scratch) {
    if (outputs <= NARROW) {
        int64_t numbers = (inputs + 1) * outputs;
        gradient_narrow(x, inputs, dy, outputs, add ? scratch : dweights, rows);
        for (int64_t i = 0; add && i < numbers; i++) dweights[i] += scratch[i];
        return;
    }
    int64_t columns = least(PANEL, outputs - j), ld = outputs;
    const float *panel = dy + j;
    float *dbias = dweights + inputs * outputs + j;
    if (columns < PANEL) pad_columns(panel, ld, scratch, rows, columns), panel = scratch, ld = PANEL;
    panel_product(x, 1, inputs, panel, ld, dweights + j, outputs, inputs, rows, columns, 0, 0, add ? ADD : PLAIN);
    float sum[PANEL] = {0};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < PANEL; c++) sum[c] += panel[r * ld + c];
    for (int64_t c = 0; c < columns; c++) dbias[c] = add ? dbias[c] + sum[c] : sum[c];
}

typedef struct {
    const Network *n;
    const float *x, *hidden, *dy;
    float *dhidden, *dx, *dparameters, *transposed, *scratch;
    int64_t rows, some, from, in_panels, out_panels; /* some: rows at a time; from: first layer whose input needs a gradient */
    const int64_t *weights_at, *hidden_at, *transposed_at; /* offsets of each layer; hidden_at[l]: of the input of layer l */
    int64_t packed, passed, taken, scratch_each;
} Back;

static void transpose_weights(const Back *c, int64_t item) {
    int64_t copy = item / c->in_panels, panel = item % c->in_panels, L = c->n->layers;
    int64_t l = c->from + find_panel(c->n->widths + c->from, &panel), outputs = c->n->widths[l + 1];
    transpose_panel(c->n->parameters + copy * c->n->stride + c->weights_at[l], c->n->widths[l], outputs, panel * PANEL,
                    c->transposed + copy * c->transposed_at[L] + c->transposed_at[l] + panel * PANEL * outputs);
}

/* The input of layer l, and the gradient of its output, both from row `first` of a copy on. */
static inline const float *input_of(const Back *c, int64_t copy, int64_t l, int64_t first) {
    int64_t width = c->n->widths[l];
    return l ? c->hidden + c->hidden_at[l] * c->rows + (copy * c->rows + first) * width : c->x + first * width;
}

static inline float *dhidden_of(const Back *c, int64_t copy, int64_t l, int64_t first) { /* for `some` rows only */
    return c->dhidden + c->hidden_at[l] * c->some + (copy * c->some + first % c->some) * c->n->widths[l];
}

static inline const float *gradient_of(const Back *c, int64_t copy, int64_t l, int64_t first) {
    return l + 1 == c->n->layers ? c->dy + (copy * c->rows + first) * c->n->widths[l + 1] : dhidden_of(c, copy, l + 1, first);
}

/* The backward pass of `count` rows through the copies [copy, end). */
static void strip_back(const Back *c, int64_t first, int64_t count, int64_t copy, int64_t end) {
    for (; copy < end; copy++)
        for (int64_t l = c->n->layers - 1; l >= c->from; l--) {
            int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
            const float *w = c->transposed + copy * c->transposed_at[c->n->layers] + c->transposed_at[l];
            float *to = l ? dhidden_of(c, copy, l, first) : c->dx + first * inputs;
            backward_layer(gradient_of(c, copy, l, first), outputs, w, to, inputs, count, l ? input_of(c, copy, l, first) : 0,
                           l ? MASK : copy ? ADD : PLAIN);
        }
}

static void weights_back(const Back *c, int64_t item, int64_t first, int64_t count, float *scratch) {
    int64_t copy = item / c->out_panels, panel = item % c->out_panels, l = find_panel(c->n->widths + 1, &panel);
    gradient_panel(input_of(c, copy, l, first), c->n->widths[l], gradient_of(c, copy, l, first), c->n->widths[l + 1],
                   panel * PANEL, c->dparameters + copy * c->n->stride + c->weights_at[l], count, first > 0, scratch);
}

static void back(void *given, Worker worker) {
    Back *c = given;
    int64_t K = c->n->copies, alone = c->dx ? K : 1, item; /* copies that one thread processes: dx is their sum */
    float *scratch = c->scratch + worker.number * c->scratch_each;
    while ((item = next_piece(&c->packed)) < c->in_panels * K) transpose_weights(c, item);
    for (int64_t first = 0; first < c->rows; first += c->some) {
        int64_t count = least(c->some, c->rows - first), strips = (count + STRIP - 1) / STRIP;
        meet(worker); /* no thread reads the gradients of the last rows any more */
        if (!worker.number) c->taken = 0;
        while ((item = next_piece(&c->passed)) < strips * K / alone) {
            int64_t at = item % strips * STRIP, copy = item / strips;
            strip_back(c, first + at, least(STRIP, count - at), copy, copy + alone);
        }
        meet(worker);
        if (!worker.number) c->passed = 0;
        if (!c->dparameters) continue;
        while ((item = next_piece(&c->taken)) < c->out_panels * K) weights_back(c, item, first, count, scratch);
    }
}

/* The backward pass from dy [copies, rows, outputs]. It processes `some` rows at a time, so that their gradients stay in the
 * cache until the gradient of the weights is computed. `dhidden` has the layout of `hidden` for `some` rows; dx
 * [rows, inputs] is the sum over the copies. If dx or dparameters is null, it is not computed. `transposed` is [copies, all
 * inputs in panels, outputs] and `scratch` [threads, scratch_each], where scratch_each is enough for [some, PANEL] and for
 * the weights and biases of NARROW outputs. */
void perceptron_backward(const Network *n, const float *x, const float *hidden, const float *dy, float *dhidden,
                         float *dx, float *dparameters, int64_t rows, int64_t some, float *transposed, float *scratch,
                         int64_t scratch_each, int64_t threads) {
    int64_t K = n->copies, L = n->layers, weights_at[L + 1], hidden_at[L + 1], transposed_at[L + 1];
    Back c = {.n = n, .x = x, .hidden = hidden, .dy = dy, .dhidden = dhidden, .dx = dx, .dparameters = dparameters,
              .transposed = transposed, .scratch = scratch, .rows = rows, .some = some, .from = dx ? 0 : 1,
              .weights_at = weights_at, .hidden_at = hidden_at, .transposed_at = transposed_at,
              .scratch_each = scratch_each};
    weights_at[0] = hidden_at[0] = transposed_at[0] = 0;
    for (int64_t l = 0; l < L; l++) {
        int64_t inputs = n->widths[l], outputs = n->widths[l + 1];
        weights_at[l + 1] = weights_at[l] + (inputs + 1) * outputs;
        hidden_at[l + 1] = l ? hidden_at[l] + K * inputs : 0;
        transposed_at[l + 1] = transposed_at[l] + panels_of(inputs) * PANEL * outputs;
        c.in_panels += l >= c.from ? panels_of(inputs) : 0;
        c.out_panels += panels_of(outputs);
    }
    together(back, &c, threads);
    if (dparameters)
        for (int64_t copy = 0; copy < K; copy++)
            memset(dparameters + copy * n->stride + weights_at[L], 0, (n->stride - weights_at[L]) * sizeof(float));
}
