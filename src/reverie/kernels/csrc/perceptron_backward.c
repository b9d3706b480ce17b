/* The backward pass of multilayer perceptrons (see perceptron.c for their parameters). kernels/relu_mlp.py calls it.
 *
 * The order of each sum, and so its result, does not depend on the threads.
 */

#include "thread_pool.h"
#include "gates.h"
#include "perceptron.h"

#define TOGETHER 512 /* rows that are processed at a time: many strips */

/* One layer backward, for a few rows: dx = dy W^T, and 0 where `mask` (ReLU's output) is 0; `scratch` is [outputs, PANEL]. */
static void backward_layer(const float *dy, int64_t outputs, const float *weights, float *dx, int64_t inputs, int64_t rows,
                           const float *mask, Then then, float *scratch) {
    for (int64_t i = 0; i < inputs; i += PANEL) {
        transpose_panel(weights, inputs, outputs, i, scratch);
        panel_product(dy, outputs, 1, scratch, PANEL, dx + i, inputs, rows, outputs, least(PANEL, inputs - i), 0,
                      mask ? mask + i : 0, then);
    }
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

/* What a backward pass needs. `some` rows are processed at a time, so that their gradients stay in the cache until the
 * gradients of the weights are computed. */
typedef struct {
    const Network *n;
    const float *x, *hidden, *dy;
    float *dx, *dparameters;
    int64_t rows, some, skip, out_panels; /* skip: first inputs, whose gradient is not computed */
    int64_t gated; /* the layer whose output has its own gates (see gates_back), or 0 */
    const int64_t *weights_at, *hidden_at; /* offsets of each layer; hidden_at[l]: of the input of layer l */
    float *dhidden; /* gradients, in the layout of `hidden` for `some` rows */
    float *turned, *sums; /* of the gated layer: the sums of its weights' gradient, in panels; and those of its bias */
    uint64_t *open, *open_rows; /* its gates: words along its outputs, [copies, some, words]; words along the rows */
    float *scratch;
    int64_t scratch_each;
    int64_t seen, passed, below, first, taken; /* the next piece of each phase */
} Back;

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

static inline const float *weights_of(const Back *c, int64_t copy, int64_t l) {
    return c->n->parameters + copy * c->n->stride + c->weights_at[l];
}

/* The backward pass of `count` rows through a copy, from layer `l` to the second. */
static void strip_back(const Back *c, int64_t l, int64_t first, int64_t count, int64_t copy, float *scratch) {
    for (; l > 0; l--) {
        int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
        float *to = dhidden_of(c, copy, l, first);
        const float *hidden = input_of(c, copy, l, first), *mask = c->n->tanh ? 0 : hidden;
        backward_layer(gradient_of(c, copy, l, first), outputs, weights_of(c, copy, l), to, inputs, count, mask,
                       mask ? MASK : PLAIN, scratch);
        for (int64_t i = 0; !mask && i < count * inputs; i++) to[i] *= 1.0f - hidden[i] * hidden[i];
    }
}

/* A panel of dx, the sum over the copies. The weights are transposed in `scratch`. */
static void inputs_back(const Back *c, int64_t panel, int64_t first, int64_t count, float *scratch) {
    int64_t inputs = c->n->widths[0], outputs = c->n->widths[1], width = inputs - c->skip, i = panel * PANEL;
    for (int64_t copy = 0; copy < c->n->copies; copy++) {
        transpose_panel(weights_of(c, copy, 0), inputs, outputs, c->skip + i, scratch);
        panel_product(gradient_of(c, copy, 0, first), outputs, 1, scratch, PANEL, c->dx + first * width + i, width, count,
                      outputs, least(PANEL, width - i), 0, 0, copy ? ADD : PLAIN);
    }
}

static void weights_back(const Back *c, int64_t copy, int64_t l, int64_t panel, int64_t first, int64_t count, float *scratch) {
    gradient_panel(input_of(c, copy, l, first), c->n->widths[l], gradient_of(c, copy, l, first), c->n->widths[l + 1],
                   panel * PANEL, c->dparameters + copy * c->n->stride + c->weights_at[l], count, first > 0, scratch);
}

/* ---------------------------------------------------------------------- a layer after gates
 *
 * If a network has one output, such as a value, the gradient of the last hidden layer is dy[r] w[j] where that layer is not 0:
 * an outer product times gates. So the products with this gradient are products with the gates alone (gates.h): the other
 * factor's rows are multiplied by w[j] or dy[r] before, and the result's by the other of the two. */

#define GATED_ROWS 64 /* with fewer rows, the tables do not pay off */

static int64_t gated_layer(const Network *n, int64_t rows) {
    int64_t l = n->layers - 2;
    return !n->tanh && l > 0 && rows >= GATED_ROWS && n->widths[n->layers] == 1 && n->widths[l] > NARROW && n->widths[l + 1] > NARROW ? l : 0;
}

static inline uint64_t *open_of(const Back *c, int64_t copy, int64_t first) {
    return c->open + (copy * c->some + first % c->some) * words_of(c->n->widths[c->gated + 1]);
}

static inline int64_t strip_of(const Back *c, int64_t copy, int64_t first) { /* its number among those of `some` rows */
    return copy * words_of(c->some) + first % c->some / STRIP;
}

/* The gates of a strip of rows, and the sums of dy over the rows whose gates are open: the gradient of the bias over w. */
static void see_gates(const Back *c, int64_t copy, int64_t first, int64_t count) {
    int64_t outputs = c->n->widths[c->gated + 1], words = words_of(outputs), strip = strip_of(c, copy, first);
    const float *hidden = input_of(c, copy, c->gated + 1, first), *dy = gradient_of(c, copy, c->gated + 1, first);
    uint64_t *open = open_of(c, copy, first);
    for (int64_t r = 0; r < count; r++)
        for (int64_t w = 0; w < words; w++)
            open[r * words + w] = gates_of(hidden + r * outputs + w * WORD, least(WORD, outputs - w * WORD));
    if (!c->dparameters) return;
    for (int64_t w = 0; w < words; w++) {
        uint64_t *turned = c->open_rows + (strip * words + w) * WORD;
        for (int64_t r = 0; r < WORD; r++) turned[r] = r < count ? open[r * words + w] : 0;
        transpose_bits(turned);
    }
    open_sums(hidden, dy, count, outputs, c->sums + strip * outputs);
}

/* A panel of the gradient of the gated layer's input. */
static void gates_back(const Back *c, int64_t copy, int64_t panel, int64_t first, int64_t count, float *table) {
    int64_t l = c->gated, inputs = c->n->widths[l], outputs = c->n->widths[l + 1], words = words_of(outputs), i = panel * PANEL;
    const float *above = weights_of(c, copy, l + 1), *dy = gradient_of(c, copy, l + 1, first);
    float *transposed = table + TABLE;
    transpose_panel(weights_of(c, copy, l), inputs, outputs, i, transposed);
    for (int64_t w = 0; w < words; w++) {
        int64_t j = w * WORD, last = w + 1 == words;
        subset_sums(transposed + j * PANEL, PANEL, above + j, least(WORD, outputs - j), PANEL, table);
        add_gated(table, open_of(c, copy, first) + w, words, dhidden_of(c, copy, l, first) + i, inputs, count,
                  least(PANEL, inputs - i), w == 0, last ? dy : 0, last ? input_of(c, copy, l, first) + i : 0);
    }
}

/* A panel of the gradient of the gated layer's weights: x^T dh, for a panel of its inputs x. The sums of all rows so far are
 * in `turned`, [outputs, PANEL], and become the gradient with the last rows. Panel 0 does the bias as well. */
static void gated_weights_back(const Back *c, int64_t copy, int64_t panel, int64_t first, int64_t count, float *table) {
    int64_t l = c->gated, inputs = c->n->widths[l], outputs = c->n->widths[l + 1], words = words_of(outputs), i = panel * PANEL;
    int64_t columns = least(PANEL, inputs - i);
    const float *above = weights_of(c, copy, l + 1);
    float *turned = c->turned + (copy * panels_of(inputs) + panel) * PANEL * outputs;
    float *dweights = c->dparameters + copy * c->n->stride + c->weights_at[l], *dbias = dweights + inputs * outputs;
    for (int64_t at = first; at < first + count; at += STRIP) {
        const uint64_t *open = c->open_rows + strip_of(c, copy, at) * words * WORD;
        const float *sums = c->sums + strip_of(c, copy, at) * outputs;
        subset_sums(input_of(c, copy, l, at) + i, inputs, gradient_of(c, copy, l + 1, at), least(STRIP, first + count - at),
                    columns, table);
        add_gated(table, open, 1, turned, PANEL, outputs, PANEL, at == 0, 0, 0);
        for (int64_t j = 0; panel == 0 && j < outputs; j++) dbias[j] = (at ? dbias[j] : 0.0f) + above[j] * sums[j];
    }
    if (first + count < c->rows) return;
    for (int64_t j = 0; j < outputs; j += LANES)
        for (int64_t k = 0; k < columns; k++)
            for (int64_t q = j; q < least(j + LANES, outputs); q++) dweights[(i + k) * outputs + q] = above[q] * turned[q * PANEL + k];
}

/* ---------------------------------------------------------------------- all layers backward */

/* The number of pieces into which the gradient of layer l's weights is divided: panels of its outputs, or of its inputs. */
static inline int64_t pieces_of(const Back *c, int64_t l) { return panels_of(c->n->widths[c->gated && l == c->gated ? l : l + 1]); }

static void gradient_piece(const Back *c, int64_t item, int64_t first, int64_t count, float *scratch) {
    int64_t copy = item / c->out_panels, piece = item % c->out_panels, l = 0;
    while (piece >= pieces_of(c, l)) piece -= pieces_of(c, l++);
    (c->gated && l == c->gated ? gated_weights_back(c, copy, piece, first, count, scratch)
                               : weights_back(c, copy, l, piece, first, count, scratch));
}

static void back(void *given, Worker worker) {
    Back *c = given;
    int64_t K = c->n->copies, item, lowest = c->dx ? panels_of(c->n->widths[0] - c->skip) : 0;
    int64_t gated = c->gated, panels = gated ? panels_of(c->n->widths[gated]) : 0, top = gated ? gated - 1 : c->n->layers - 1;
    float *scratch = c->scratch + worker.number * c->scratch_each;
    for (int64_t first = 0; first < c->rows; first += c->some) {
        int64_t count = least(c->some, c->rows - first), strips = (count + STRIP - 1) / STRIP;
        int64_t strip = strip_for(count, K, worker.threads), long_strips = (count + strip - 1) / strip;
        meet(worker); /* no thread reads the gradients of the last rows any longer */
        if (!worker.number) c->first = c->taken = 0;
        while (gated && (item = next_piece(&c->seen)) < strips * K) {
            int64_t at = item % strips * STRIP;
            see_gates(c, item / strips, first + at, least(STRIP, count - at));
        }
        if (gated) meet(worker);
        while (gated && (item = next_piece(&c->passed)) < panels * K)
            gates_back(c, item / panels, item % panels, first, count, scratch);
        if (gated) meet(worker);
        if (!worker.number) c->seen = 0;
        while ((item = next_piece(&c->below)) < long_strips * K) {
            int64_t at = item % long_strips * strip;
            strip_back(c, top, first + at, least(strip, count - at), item / long_strips, scratch);
        }
        meet(worker);
        if (!worker.number) c->passed = c->below = 0;
        while ((item = next_piece(&c->first)) < lowest) inputs_back(c, item, first, count, scratch);
        if (!c->dparameters) continue;
        while ((item = next_piece(&c->taken)) < c->out_panels * K) gradient_piece(c, item, first, count, scratch);
    }
}

/* Divide the memory that a backward pass needs, from `room` on if that is not null, into whole cache lines; return its size in
 * floats. */
static int64_t divide(Back *c, float *room, int64_t threads) {
    const int64_t *widths = c->n->widths, K = c->n->copies, L = c->n->layers, g = c->gated;
    int64_t at = 0, widest = 0, words = g ? words_of(widths[g + 1]) : 0, strips = K * words_of(c->some);
    for (int64_t l = 0; l <= L; l++) widest = widths[l] > widest ? widths[l] : widest;
#define TAKE(place, floats) place = room ? (void *)(room + at) : 0, at += ((floats) + 15) / 16 * 16
    TAKE(c->dhidden, c->hidden_at[L] * c->some);
    TAKE(c->turned, g ? K * panels_of(widths[g]) * PANEL * widths[g + 1] : 0);
    TAKE(c->sums, g ? strips * widths[g + 1] : 0);
    TAKE(c->open, 2 * K * c->some * words);
    TAKE(c->open_rows, 2 * strips * words * WORD);
    c->scratch_each = PANEL * c->some;
    if (c->scratch_each < NARROW * (widest + 1)) c->scratch_each = (NARROW * (widest + 1) + 15) / 16 * 16;
    if (c->scratch_each < TABLE + PANEL * widest) c->scratch_each = TABLE + PANEL * widest;
    TAKE(c->scratch, threads * c->scratch_each);
#undef TAKE
    return at;
}

/* The backward pass from dy [copies, rows, outputs]; dx [rows, inputs - skip] is the sum over the copies, without the first
 * inputs. If dx or dparameters is null, it is not computed. */
void perceptron_backward(const Network *n, const float *x, const float *hidden, const float *dy, float *dx,
                         float *dparameters, int64_t rows, int64_t skip, int64_t threads) {
    int64_t K = n->copies, L = n->layers, weights_at[L + 1], hidden_at[L + 1];
    Back c = {.n = n, .x = x, .hidden = hidden, .dy = dy, .dx = dx, .dparameters = dparameters, .rows = rows,
              .some = least(rows, TOGETHER), .skip = skip, .gated = gated_layer(n, rows), .weights_at = weights_at,
              .hidden_at = hidden_at};
    weights_at[0] = hidden_at[0] = 0;
    for (int64_t l = 0; l < L; l++) {
        int64_t inputs = n->widths[l], outputs = n->widths[l + 1];
        weights_at[l + 1] = weights_at[l] + (inputs + 1) * outputs;
        hidden_at[l + 1] = l ? hidden_at[l] + K * inputs : 0;
        c.out_panels += pieces_of(&c, l);
    }
    divide(&c, room_for(divide(&c, 0, threads) * sizeof(float)), threads);
    together(back, &c, threads);
    if (dparameters)
        for (int64_t copy = 0; copy < K; copy++)
            memset(dparameters + copy * n->stride + weights_at[L], 0, (n->stride - weights_at[L]) * sizeof(float));
}
