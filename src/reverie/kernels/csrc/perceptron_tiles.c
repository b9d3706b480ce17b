/* The computation of perceptron.c by matrix units (tiles.h), where the processor has them. kernels/relu_mlp.py calls it
 * for batches.
 *
 * The order of each sum depends neither on the threads nor on the other rows of the batch.
 *
 * If a network has one output, such as a value, the gradient of the last hidden layer is dy[r] w[j] where that layer is not
 * 0: an outer product times gates of 0 and 1. The products with this gradient are computed with the gates alone, which are
 * exact in bfloat16 and so need one plane of three. The other factor is multiplied by dy[r], and the result's columns by w[j].
 */

#include <stdlib.h>

#include "thread_pool.h"
#include "blocks.h"
#include "perceptron.h"

#ifdef HAVE_TILES

#define LAYERS 32 /* the largest number of layers */
#define MOST_ROWS 256 /* rows of the backward pass that are processed at a time */

static inline int64_t tiled(int64_t outputs) { return outputs > NARROW; }

/* Whether the output of layer l has such a gradient. */
static inline int gated(const Network *n, int64_t l) {
    return l > 0 && l == n->layers - 2 && n->widths[l + 2] == 1 && tiled(n->widths[l + 1]);
}

/* The memory of a matrix, in bfloat16: pairs of tiles, `depth` numbers along the depth of a product, `across` across it. */
static inline int64_t room_of(int64_t depth, int64_t across) { return 2 * panels_of(across) * panels_of(depth) * UNIT; }

/* Offsets in the memory that a copy needs, in bfloat16: the weights of its layers as tiles; for the backward pass also their
 * inputs and gradients, the sums of gradients over strips, and the gradients of hidden layers (dhidden); the parameters'
 * gradient of half of the rows (partial), and of one part of the rows (part); the copy's share of dx; then the memory of each
 * thread (own). */
typedef struct {
    int64_t weights[LAYERS], inputs[LAYERS], gradients[LAYERS], sums[LAYERS], dhidden, partial, part, dx, own, strip, each,
        total;
} Plan;

static Plan plan_of(const Network *n, int64_t rows, int64_t threads, int back) {
    Plan p;
    int64_t widest = 0, at = 0;
    for (int64_t l = 0; l < n->layers; l++) {
        int64_t in = n->widths[l], out = n->widths[l + 1];
        widest = in > widest ? in : widest, widest = out > widest ? out : widest;
        p.weights[l] = at;
        at += room_of(back ? out : in, back ? in : out);
        p.inputs[l] = at;
        at += back && tiled(out) ? room_of(rows, in) : 0;
        p.gradients[l] = at;
        at += back && tiled(out) ? room_of(rows, out) : 0;
        p.sums[l] = at;
        at += back ? 2 * panels_of(rows) * panels_of(out) * PANEL : 0;
    }
    p.dhidden = at;
    for (int64_t l = 1; back && l < n->layers; l++) at += 2 * panels_of(rows * n->widths[l]) * PANEL;
    p.partial = at;
    at += back ? 2 * panels_of(n->stride) * PANEL : 0;
    p.part = at;
    at += back ? 2 * panels_of(n->stride) * PANEL : 0;
    p.dx = at;
    at += back ? 2 * panels_of(rows * n->widths[0]) * PANEL : 0;
    p.own = at;
    p.strip = room_of(widest, PANEL);
    p.each = 2 * p.strip; /* two strips as tiles; then two in float32, or the weights of a few outputs */
    p.each += 2 * (back ? NARROW : 2 * PANEL) * (panels_of(widest) + 1) * PANEL;
    p.total = p.own + threads * p.each;
    return p;
}

/* The arguments of a call. It processes `all` rows in parts: now `rows` of them, from row `skip` on. */
typedef struct {
    const Network *n;
    const float *x, *hidden, *dy;
    float *to_hidden, *y, *dx, *dparameters;
    int64_t all, skip, rows, strips;
    int64_t weights_at[LAYERS + 1], hidden_at[LAYERS + 1]; /* offsets of each layer; hidden_at[l]: of the input of layer l */
    Plan plan;
} Call;

/* The same call for the rows from `skip` on, at most `whole->rows` of them. */
static Call obs_part_of_column(const Call *whole, int64_t skip) {
    Call c = *whole;
    c.skip = skip, c.rows = least(c.rows, c.all - skip), c.strips = panels_of(c.rows);
    if (c.dx) c.dx += skip * c.n->widths[0];
    return c;
}

static void begin(Call *c) {
    c->strips = panels_of(c->rows);
    c->weights_at[0] = c->hidden_at[0] = 0;
    for (int64_t l = 0; l < c->n->layers; l++) {
        int64_t inputs = c->n->widths[l];
        c->weights_at[l + 1] = c->weights_at[l] + (inputs + 1) * c->n->widths[l + 1];
        c->hidden_at[l + 1] = l ? c->hidden_at[l] + c->n->copies * c->all * inputs : 0;
    }
}

static inline const float *weights_of(const Call *c, int64_t copy, int64_t l) {
    return c->n->parameters + copy * c->n->stride + c->weights_at[l];
}

/* ---------------------------------------------------------------------- threads */

/* The memory a thread uses: that of its copy, the thread's own part of it, the strips [first, end) that are in it, and the
 * outputs for the gradients of the copy. */
typedef struct {
    Half *room, *own;
    int64_t first, end;
    float *gradient, *dx;
} Place;

/* Work on a copy that is divided into items, which can be done in any order. */
typedef struct {
    int64_t (*items)(const Call *c);
    void (*item)(const Call *c, int64_t copy, int64_t item, Place at);
} Phase;

/* The number of parts into which the rows are split. */
static inline int64_t parts_of(const Call *c) { return (c->all + c->rows - 1) / c->rows; }

enum { PACK, STRIPS, PANELS }; /* the phases */

/* SHARED: all threads work on one copy after the other; COPIES: each thread has its own copies; ROWS: half of the rows. */
typedef enum { SHARED, COPIES, ROWS } Mode;

/* Whether there are matrix units and the system lets this process use them. */
int perceptron_tiles_granted(void) {
    static int granted = -1;
    if (granted < 0) granted = has_amx();
    return granted;
}

typedef struct {
    const Call *call;
    const Phase *phases;
    int64_t count, *taken;
    Mode mode;
    Half *start;
} Task;

/* Compute a worker's share of to += from. */
static void add_share(float *to, const float *from, int64_t count, Worker worker) {
    int64_t end = (worker.number + 1) * count / worker.threads;
    for (int64_t i = worker.number * count / worker.threads; i < end; i++) to[i] += from[i];
}

/* Run all phases for a part of the rows. Only the first part packs the weights. */
static void phase_after_phase(const Task *task, const Call *c, int64_t copy, Worker worker, Place at) {
    int64_t number = c->skip / task->call->rows, parts = parts_of(task->call), count = c->n->stride;
    float *whole = c->dparameters + copy * count, *part = (float *)(at.room + c->plan.part);
    at.end = c->strips, at.gradient = number ? part : whole;
    for (int64_t p = number ? STRIPS : PACK; p < task->count; p++) {
        int64_t *taken = task->taken + (copy * parts + number) * task->count + p;
        for (int64_t i = next_piece(taken); i < task->phases[p].items(c); i = next_piece(taken))
            task->phases[p].item(c, copy, i, at);
        meet(worker);
    }
    if (number && task->count > PANELS) add_share(whole, part, count, worker);
}

/* Run all phases for a thread's half of the rows. The gradient of the parameters is the sum of both halves'. */
static void half_of_rows(const Task *task, const Call *c, Worker worker, Place at) {
    int64_t half = (c->strips + 1) / 2, count = c->n->stride;
    const float *other = (const float *)(task->start + c->plan.total + c->plan.partial);
    float *part = (float *)(task->start + c->plan.part), *sum = c->skip ? part : c->dparameters;
    at.first = worker.number ? half : 0, at.end = worker.number ? c->strips : half;
    at.gradient = worker.number ? (float *)(at.room + c->plan.partial) : sum;
    for (int64_t p = c->skip ? STRIPS : PACK; p < task->count && (at.first < at.end || p == PACK); p++)
        for (int64_t i = p == STRIPS ? at.first : 0; i < (p == STRIPS ? at.end : task->phases[p].items(c)); i++)
            task->phases[p].item(c, 0, i, at);
    if (task->count <= PANELS) return;
    meet(worker);
    if (half < c->strips) add_share(sum, other, count, worker);
    if (c->skip) add_share(c->dparameters, part, count, worker);
    meet(worker);
}

static Mode mode_of(const Call *c, int64_t threads) {
    int64_t K = c->n->copies;
    if (K == 1 && threads == 2 && c->strips > 1) return ROWS;
    return threads > 1 && (c->dx ? K == threads : K % threads == 0) ? COPIES : SHARED;
}

/* Run all phases for a thread's own copy. The gradient of x is the sum over all copies. */
static void copy_of_own(const Task *task, const Call *c, Worker worker, Place at) {
    at.dx = worker.number ? (float *)(at.room + c->plan.dx) : c->dx;
    phase_after_phase(task, c, worker.number, (Worker){0, 1}, at);
    meet(worker);
    for (int64_t copy = 1; copy < worker.threads; copy++) {
        const float *other = (const float *)(task->start + copy * c->plan.total + c->plan.dx);
        add_share(c->dx, other, c->rows * c->n->widths[0], worker);
    }
    meet(worker);
}

static void work_on(void *given, Worker worker) {
    const Task *task = given;
    const Call *whole = task->call;
    int64_t K = whole->n->copies, T = worker.threads;
    Mode mode = mode_of(whole, T) == task->mode ? task->mode : SHARED; /* there may be fewer threads than requested */
    int64_t first = mode == COPIES ? worker.number : 0, step = mode == COPIES ? T : 1;
    Half *room = task->start + (mode == SHARED ? 0 : worker.number * whole->plan.total);
    Place at = {.room = room, .own = room + whole->plan.own + (mode == SHARED ? worker.number * whole->plan.each : 0)};
    tiles_begin();
    for (int64_t copy = first; copy < K; copy += step)
        for (int64_t skip = 0; skip < whole->all; skip += whole->rows) {
            Call c = obs_part_of_column(whole, skip);
            at.dx = c.dx;
            if (mode == ROWS) half_of_rows(task, &c, worker, at);
            else if (mode == COPIES && c.dx) copy_of_own(task, &c, worker, at);
            else phase_after_phase(task, &c, copy, mode == COPIES ? (Worker){0, 1} : worker, at);
        }
    tiles_end();
}

/* Run all phases, one after the other. Reading what another thread has written is slow, so each thread gets its own memory
 * where possible. */
static void run(const Call *c, const Phase *phases, int count, int64_t threads) {
    int64_t items = c->n->copies * parts_of(c) * count, few[64] = {0};
    int64_t *taken = items <= 64 ? few : calloc((size_t)items, sizeof *taken);
    Mode mode = mode_of(c, threads);
    Half *start = room_for(2 * c->plan.total * (mode == SHARED ? 1 : threads));
    Task task = {c, phases, count, taken, mode, start};
    together(work_on, &task, threads);
    if (taken != few) free(taken);
}

/* ---------------------------------------------------------------------- pieces */

/* Pack a panel of a layer's weights as tiles. */
static void pack_panel(const float *w, int64_t in, int64_t out, int64_t panel, Half *weights) {
    int64_t depth = panels_of(in);
    Half *tile = weights + 2 * panel * depth * UNIT;
    for (int64_t half = 0; half < 2; half++)
        for (int64_t k = 0; k < depth; k++, tile += UNIT) {
            int64_t across = panel * PANEL + 16 * half, along = k * DEPTH;
            pairs_tile(w + along * out + across, out, in - along, out - across, tile);
        }
}

/* Pack up to PANEL `rows` of a layer's weights as tiles of the transposed weights. */
static void pack_transposed(const float *w, int64_t rows, int64_t out, Half *tile) {
    for (int64_t across = 0; across < PANEL; across += 16)
        for (int64_t along = 0; along < out; along += DEPTH, tile += UNIT) {
            rows_tile(w + across * out + along, out, rows - across, out - along, tile);
            transpose_tile(tile);
        }
}

/* Pack PANEL rows as tiles along `columns`. */
static void rows_tiles(const float *x, int64_t ld, int64_t rows, int64_t columns, Half *tiles) {
    int64_t depth = panels_of(columns);
    for (int64_t half = 0; half < 2; half++)
        for (int64_t k = 0; k < depth; k++, tiles += UNIT)
            rows_tile(x + 16 * half * ld + k * DEPTH, ld, rows - 16 * half, columns - k * DEPTH, tiles);
}

/* Multiply a strip of up to PANEL rows with a layer's weights, both as tiles; `whole` says how the product is finished. */
static void strip_product(const Half *x, const Half *weights, int64_t depth, const Block *whole, Gates gates) {
    float out[2][SQUARE] __attribute__((aligned(64)));
    int64_t panels = panels_of(whole->columns), next = depth * (gates == ROWS_ARE ? PLANE : UNIT);
    for (int64_t j = 0; j < panels; j++, weights += 2 * depth * UNIT)
        product_32(x, next, weights, depth * UNIT, depth, out[j % 2], whole, j - 1, out[(j + 1) % 2], gates);
    finish_block(whole, panels - 1, out[(panels - 1) % 2]);
}

/* Write the gates of up to PANEL rows of a hidden layer to the tiles and pairs of `whole`, which have one plane each, and the
 * sums over rows of its gradient dy[r] w[j] to `whole->sums`, if these are not null. */
static void gates_of(const float *hidden, const float *dy, const float *w, const Block *whole) {
    int64_t columns = whole->columns;
    for (int64_t i = 0; i < panels_of(columns); i++) {
        __mmask16 all[2] = {first_item(columns - i * PANEL), first_item(columns - i * PANEL - 16)};
        __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int64_t pair = 0; pair < 16; pair++) {
            __mmask16 open[2][2] = {{0}};
            for (int64_t o = 0; o < 2 && 2 * pair + o < whole->rows; o++) {
                const float *row = hidden + (2 * pair + o) * columns + i * PANEL;
                __m512 g = _mm512_set1_ps(dy[2 * pair + o]);
                for (int h = 0; h < 2; h++) {
                    open[o][h] = not_zero(some(row + 16 * h, all[h]));
                    sum[h] = _mm512_mask_add_ps(sum[h], open[o][h], sum[h], g);
                }
            }
            for (int o = 0; whole->tiles && o < 2; o++) {
                __mmask32 both = (__mmask32)open[o][1] << 16 | open[o][0];
                Half *row = whole->tiles + i * PLANE + pair / 8 * whole->next + (pair % 8 * 2 + o) * DEPTH;
                _mm512_store_si512(row, _mm512_maskz_set1_epi16(both, GATE));
            }
            for (int h = 0; whole->pairs && h < 2; h++) {
                __m512i low = _mm512_maskz_set1_epi32(open[0][h], GATE), high = _mm512_maskz_set1_epi32(open[1][h], GATE << 16);
                Half *row = whole->pairs + (2 * i + h) * whole->next_pairs + pair * DEPTH;
                _mm512_store_si512(row, _mm512_or_si512(low, high));
            }
        }
        for (int h = 0; whole->sums && h < 2; h++) {
            const float *times_w = w + i * PANEL + 16 * h;
            _mm512_mask_storeu_ps(whole->sums + i * PANEL + 16 * h, all[h], _mm512_mul_ps(sum[h], some(times_w, all[h])));
        }
    }
}

/* The product dy W^T of a few outputs, finished as `whole` says; `columns` are those of row_columns(). */
static void narrow_back(const float *dy, int64_t outputs, const float *columns, const Block *whole) {
    float out[SQUARE] __attribute__((aligned(64)));
    int64_t inputs = whole->columns;
    for (int64_t i = 0; i < panels_of(inputs); i++) {
        __mmask16 low = first_item(inputs - i * PANEL), high = first_item(inputs - i * PANEL - 16);
        for (int64_t r = 0; r < whole->rows; r++) {
            __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
            for (int64_t j = 0; j < outputs; j++) {
                const float *column = columns + j * inputs + i * PANEL;
                __m512 g = _mm512_set1_ps(dy[r * outputs + j]);
                even = _mm512_fmadd_ps(g, some(column, low), even);
                odd = _mm512_fmadd_ps(g, some(column + 16, high), odd);
            }
            _mm512_store_ps(out + r * PANEL, even);
            _mm512_store_ps(out + r * PANEL + 16, odd);
        }
        finish_block(whole, i, out);
    }
}

/* The columns of one panel of the gradient of a layer's weights and bias, from the strips [first, end). Each half of the
 * strips is summed separately. With `times`, kept_dy are gates, and columns are multiplied by `times`. */
static void tiled_gradient(const Half *kept_x, int64_t inputs, const Half *kept_dy, const float *sums, int64_t outputs,
                           int64_t panel, int64_t strips, int64_t first, int64_t end, float *dweights, const float *times) {
    int64_t at = panel * PANEL, columns = least(PANEL, outputs - at), next = strips * UNIT, half = (strips + 1) / 2;
    int64_t middle = first < half && half < end ? half : end, panels = panels_of(inputs), unit = times ? PLANE : UNIT;
    float out[2][2 * SQUARE] __attribute__((aligned(64))), *dbias = dweights + inputs * outputs + at;
    Block whole = {.to = dweights + at, .ld = outputs, .ld_from = PANEL, .rows = inputs, .columns = columns,
                   .times = times ? times + at : 0};
    Gates gates = times ? PAIRS_ARE : NONE;
    const Block upper = described(whole, DOWN | (middle < end ? TWO | UPPER : 0));
    const Block lower = described(whole, DOWN | TWO | LOWER);
    kept_dy += 2 * panel * strips * unit;
    for (int64_t i = 0; i < panels; i++, kept_x += 2 * next) {
        const float *before = out[(i + 1) % 2];
        float *now = out[i % 2];
        product_32(kept_x + first * UNIT, next, kept_dy + first * unit, strips * unit, middle - first, now, &upper, i - 1,
                   before, gates);
        if (middle < end)
            product_32(kept_x + middle * UNIT, next, kept_dy + middle * unit, strips * unit, end - middle, now + SQUARE,
                       &lower, i - 1, before, gates);
    }
    finish_block(&upper, panels - 1, out[(panels - 1) % 2]);
    if (middle < end) finish_block(&lower, panels - 1, out[(panels - 1) % 2]);
    for (int64_t from = first, to = middle; from < end; from = to, to = end) {
        float sum[PANEL] = {0};
        for (int64_t i = from; i < to; i++)
            for (int64_t j = 0; j < columns; j++) sum[j] += sums[i * outputs + at + j];
        for (int64_t j = 0; j < columns; j++) dbias[j] = from > first ? dbias[j] + sum[j] : sum[j];
    }
}

/* ---------------------------------------------------------------------- forwards */

static void pack_forward(const Call *c, int64_t copy, int64_t item, Place at) {
    int64_t panel = item, l = find_panel(c->n->widths + 1, &panel), inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
    Half *to = at.room + c->plan.weights[l];
    if (tiled(outputs)) pack_panel(weights_of(c, copy, l), inputs, outputs, panel, to);
    else row_columns(weights_of(c, copy, l), inputs, outputs, 0, inputs, (float *)to);
}

/* The input of layer l as tiles: two alternating buffers. */
static inline Half *tiles_of(const Call *c, int64_t l, Place at) { return at.own + l % 2 * c->plan.strip; }

static void strip_forward(const Call *c, int64_t copy, int64_t strip, Place at) {
    int64_t first = strip * PANEL, count = least(PANEL, c->rows - first), L = c->n->layers;
    const float *in = c->x + first * c->n->widths[0];
    float *strips = (float *)(at.own + 2 * c->plan.strip); /* where hidden layers are not kept */
    for (int64_t l = 0; l < L; l++) {
        int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1], last = l + 1 == L, row = copy * c->rows + first;
        int64_t tiles = !last && tiled(outputs) && tiled(c->n->widths[l + 2]); /* whether the next layer reads tiles */
        const float *bias = weights_of(c, copy, l) + inputs * outputs;
        const Half *weights = at.room + c->plan.weights[l];
        float *out = last ? c->y + row * outputs : c->to_hidden ? c->to_hidden + c->hidden_at[l + 1] + row * outputs
                                                                : strips + l % 2 * (c->plan.each - 2 * c->plan.strip) / 4;
        if (tiled(outputs)) {
            Block to = {.bias = bias, .to = tiles && !c->to_hidden ? 0 : out, .ld = outputs, .ld_from = PANEL, .rows = count,
                        .columns = outputs, .tiles = tiles ? tiles_of(c, l + 1, at) : 0, .next = panels_of(outputs) * UNIT};
            to = described(to, last ? 0 : RELUS);
            if (!l || !tiled(inputs)) rows_tiles(in, inputs, count, inputs, tiles_of(c, l, at));
            strip_product(tiles_of(c, l, at), weights, panels_of(inputs), &to, NONE);
        } else {
            forward_narrow(in, inputs, (const float *)weights, bias, out, outputs, count, last ? PLAIN : RELU);
        }
        if (last && c->n->squash)
            for (int64_t i = 0; i < count * outputs; i++) out[i] = fast_tanh(out[i]);
        in = out;
    }
}

static int64_t strips_in(const Call *c) { return c->strips; }

static int64_t panels_out(const Call *c) {
    int64_t panels = 0;
    for (int64_t l = 0; l < c->n->layers; l++) panels += panels_of(c->n->widths[l + 1]);
    return panels;
}

/* As `perceptron`. If `hidden` is null, hidden layers are not stored. */
void perceptron_tiles(const Network *n, const float *x, float *hidden, float *y, int64_t rows, int64_t threads) {
    Call c = {.n = n, .x = x, .to_hidden = hidden, .y = y, .all = rows, .rows = rows,
              .plan = plan_of(n, rows, threads, 0)};
    const Phase phases[] = {{panels_out, pack_forward}, {strips_in, strip_forward}};
    begin(&c);
    run(&c, phases, 2, threads);
}

/* ---------------------------------------------------------------------- backwards */

static inline int64_t from_layer(const Call *c) { return c->dx ? 0 : 1; } /* the first whose input needs a gradient */

static void pack_backward(const Call *c, int64_t copy, int64_t item, Place at) {
    int64_t panel = item, from = from_layer(c), l = from + find_panel(c->n->widths + from, &panel), first = panel * PANEL;
    int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1], rows = least(PANEL, inputs - first);
    const float *w = weights_of(c, copy, l);
    Half *to = at.room + c->plan.weights[l];
    if (!tiled(outputs)) {
        row_columns(w, inputs, outputs, first, first + rows, (float *)to);
        return;
    }
    w += first * outputs;
    if (gated(c->n, l)) {
        const float *above = weights_of(c, copy, l + 1);
        float *scaled = (float *)at.own; /* strips use this memory later */
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < outputs; j++) scaled[i * outputs + j] = w[i * outputs + j] * above[j];
        w = scaled;
    }
    pack_transposed(w, rows, outputs, to + 2 * panel * panels_of(outputs) * UNIT);
}

/* The input of layer l, and the gradient of its output, both of one copy. */
static inline const float *input_of(const Call *c, int64_t copy, int64_t l) {
    int64_t width = c->n->widths[l];
    return l ? c->hidden + c->hidden_at[l] + (copy * c->all + c->skip) * width : c->x + c->skip * width;
}

static inline float *dhidden_of(const Call *c, int64_t l, Half *room) { /* for one copy at a time */
    return (float *)(room + c->plan.dhidden) + c->hidden_at[l] / (c->n->copies * c->all) * c->rows;
}

static inline const float *gradient_of(const Call *c, int64_t copy, int64_t l, Half *room) {
    return l + 1 == c->n->layers ? c->dy + (copy * c->all + c->skip) * c->n->widths[l + 1] : dhidden_of(c, l + 1, room);
}

static inline float *sums_of(const Call *c, int64_t l, Half *room) { return (float *)(room + c->plan.sums[l]); }

static void strip_backward(const Call *c, int64_t copy, int64_t strip, Place at) {
    int64_t first = strip * PANEL, count = least(PANEL, c->rows - first), L = c->n->layers, next = c->strips * UNIT;
    for (int64_t l = L - 1; l >= 0; l--) {
        int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1], goes = l >= from_layer(c), kept = !!c->dparameters;
        int64_t below = l && gated(c->n, l - 1); /* whether the input's gradient is gated */
        const float *g = gradient_of(c, copy, l, at.room) + first * outputs, *in = input_of(c, copy, l) + first * inputs;
        if (tiled(outputs) && l + 1 == L) {
            Block whole = {.ld_from = outputs, .rows = count, .columns = outputs, .next = panels_of(outputs) * UNIT,
                           .next_pairs = next, .tiles = goes ? tiles_of(c, l, at) : 0};
            if (kept) whole.pairs = at.room + c->plan.gradients[l] + strip * UNIT;
            if (kept) whole.sums = sums_of(c, l, at.room) + strip * outputs;
            whole = described(whole, 0);
            for (int64_t j = 0; j < panels_of(outputs); j++) finish_block(&whole, j, g + j * PANEL);
        }
        Half *kept_x = kept && tiled(outputs) ? at.room + c->plan.inputs[l] + strip * UNIT : 0;
        for (int64_t i = 0; kept_x && !(goes && l) && i < 2 * panels_of(inputs); i++) {
            pairs_tile(in + 16 * i, inputs, count, inputs - 16 * i, kept_x + i * next);
            transpose_tile(kept_x + i * next);
        }
        if (!goes) continue;
        Block to = {.ld = inputs, .ld_from = PANEL, .rows = count, .columns = inputs, .next = panels_of(inputs) * UNIT,
                    .next_pairs = next, .scale = gated(c->n, l) ? c->dy + copy * c->all + c->skip + first : 0};
        if (below) {
            to.next = panels_of(inputs) * PLANE, to.next_pairs = c->strips * PLANE, to.tiles = tiles_of(c, l - 1, at);
            if (kept) to.pairs = at.room + c->plan.gradients[l - 1] + strip * PLANE;
            if (kept) to.sums = sums_of(c, l - 1, at.room) + strip * inputs;
            gates_of(in, g, weights_of(c, copy, l), &to);
            continue;
        }
        if (l == 0) {
            to.to = at.dx + first * inputs;
            to.old = copy && at.dx == c->dx ? to.to : 0; /* dx is the sum over the copies */
        } else {
            to.mask = in, to.kept = kept_x;
            if (!tiled(inputs)) to.to = dhidden_of(c, l, at.room) + first * inputs;
            else if (l > from_layer(c)) to.tiles = tiles_of(c, l - 1, at);
            if (tiled(inputs) && kept) {
                to.pairs = at.room + c->plan.gradients[l - 1] + strip * UNIT;
                to.sums = sums_of(c, l - 1, at.room) + strip * inputs;
            }
        }
        to = described(to, 0);
        const Half *weights = at.room + c->plan.weights[l];
        Gates gates = gated(c->n, l) ? ROWS_ARE : NONE;
        if (tiled(outputs)) strip_product(tiles_of(c, l, at), weights, panels_of(outputs), &to, gates);
        else narrow_back(g, outputs, (const float *)weights, &to);
    }
}

static void panel_backward(const Call *c, int64_t copy, int64_t item, Place at) {
    int64_t panel = item, l = find_panel(c->n->widths + 1, &panel), inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
    const float *in = input_of(c, copy, l), *g = gradient_of(c, copy, l, at.room);
    float *to = at.gradient + c->weights_at[l], *scratch = (float *)(at.own + 2 * c->plan.strip);
    if (tiled(outputs)) {
        tiled_gradient(at.room + c->plan.inputs[l], inputs, at.room + c->plan.gradients[l], sums_of(c, l, at.room), outputs,
                       panel, c->strips, at.first, at.end, to, gated(c->n, l) ? weights_of(c, copy, l + 1) : 0);
        return;
    }
    int64_t half = (c->strips + 1) / 2;
    for (int64_t first = at.first; first < at.end; first = half) {
        int64_t end = first < half ? least(half, at.end) : at.end, row = first * PANEL, add = first > at.first;
        gradient_narrow(in + row * inputs, inputs, g + row * outputs, outputs, add ? scratch : to,
                        least(c->rows, end * PANEL) - row);
        for (int64_t i = 0; add && i < (inputs + 1) * outputs; i++) to[i] += scratch[i];
        if (end == at.end) break;
    }
}

static int64_t panels_back(const Call *c) {
    int64_t panels = 0;
    for (int64_t l = from_layer(c); l < c->n->layers; l++) panels += panels_of(c->n->widths[l]);
    return panels;
}

/* As `perceptron_backward` without `skip`. Many rows are processed in parts, whose inputs and gradients as tiles stay in the cache. */
void perceptron_tiles_backward(const Network *n, const float *x, const float *hidden, const float *dy, float *dx,
                               float *dparameters, int64_t rows, int64_t threads) {
    int64_t some = least(rows, MOST_ROWS);
    Call c = {.n = n, .x = x, .hidden = hidden, .dy = dy, .dx = dx, .dparameters = dparameters, .all = rows, .rows = some,
              .plan = plan_of(n, some, threads, 1)};
    const Phase phases[] = {{panels_back, pack_backward}, {strips_in, strip_backward}, {panels_out, panel_backward}};
    begin(&c);
    run(&c, phases, dparameters ? PANELS + 1 : PANELS, threads);
    int64_t used = c.weights_at[n->layers];
    for (int64_t copy = 0; dparameters && copy < n->copies; copy++)
        memset(dparameters + copy * n->stride + used, 0, (size_t)(n->stride - used) * sizeof(float));
}

#else

int perceptron_tiles_granted(void) { return 0; }

void perceptron_tiles(const Network *n, const float *x, float *hidden, float *y, int64_t rows, int64_t threads) {
    (void)n, (void)x, (void)hidden, (void)y, (void)rows, (void)threads;
}

void perceptron_tiles_backward(const Network *n, const float *x, const float *hidden, const float *dy, float *dx,
                               float *dparameters, int64_t rows, int64_t threads) {
    (void)n, (void)x, (void)hidden, (void)dy, (void)dx, (void)dparameters, (void)rows, (void)threads;
}

#endif
