/* What perceptron.c computes, by matrix units (tiles.h), where there are some. nn/perceptron.py calls it for batches.
 *
 * Every number is summed in an order that depends on neither the threads nor the other rows of the batch.
 */

#include <stdlib.h>

#include "../core/crew.h"
#include "blocks.h"
#include "perceptron.h"

#ifdef HAVE_TILES

#define LAYERS 32 /* at most */
#define MOST_ROWS 1024 /* backwards at a time */

static inline int64_t tiled(int64_t outputs) { return outputs > NARROW; }

/* Room for a matrix of so many numbers along the depth of a product and across it: pairs of tiles, in bfloat16. */
static inline int64_t room_of(int64_t depth, int64_t across) { return 2 * panels_of(across) * panels_of(depth) * UNIT; }

/* Where things lie in the room that a copy needs, in bfloat16: the weights of its layers as tiles; for the way back also
 * their inputs and gradients, sums of those over strips, and what goes into hidden layers; a gradient of half of the
 * rows; what the copy alone says of dx; then what each thread needs for itself. */
typedef struct {
    int64_t weights[LAYERS], inputs[LAYERS], gradients[LAYERS], sums[LAYERS], dhidden, partial, dx, own, strip, each, total;
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
    p.dx = at;
    at += back ? 2 * panels_of(rows * n->widths[0]) * PANEL : 0;
    p.own = at;
    p.strip = room_of(widest, PANEL);
    p.each = 2 * p.strip; /* two strips as tiles; then two as they are, or weights of a few outputs */
    p.each += 2 * (back ? NARROW : 2 * PANEL) * (panels_of(widest) + 1) * PANEL;
    p.total = p.own + threads * p.each;
    return p;
}

/* What is known of a call: it is about `rows` rows, from `skip` on, of `all` that lie there. */
typedef struct {
    const Network *n;
    const float *x, *hidden, *dy;
    float *to_hidden, *y, *dx, *dparameters;
    int64_t all, skip, rows, strips;
    int64_t weights_at[LAYERS + 1], hidden_at[LAYERS + 1]; /* hidden_at[l]: of what goes into layer l */
    Plan plan;
} Call;

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

/* Where a thread works: the room of its copy, its own part of that, the strips [first, end) that are in it, and where the
 * gradients go. */
typedef struct {
    Half *room, *own;
    int64_t first, end;
    float *gradient, *dx;
} Place;

/* Work on a copy in so many items, in any order. */
typedef struct {
    int64_t items;
    void (*item)(const Call *c, int64_t copy, int64_t item, Place at);
} Phase;

enum { PACK, STRIPS, PANELS }; /* the phases */

/* All threads share the work on one copy after the other, or each has copies of its own, or half of the rows. */
typedef enum { SHARED, COPIES, ROWS } Mode;

/* Whether there are matrix units that may be used. */
int perceptron_tiles_granted(void) {
    static int granted = -1;
    if (granted < 0) granted = tiles_granted();
    return granted;
}

/* Room for a call, kept for the next one of the same thread: a new one would have to be cleared by the system first. 0 if
 * there is none. */
static Half *room_for(int64_t bytes) {
    static _Thread_local void *kept = 0;
    static _Thread_local int64_t size = 0;
    if (bytes > size) {
        free(kept);
        size = (bytes + 4095) / 4096 * 4096;
        kept = aligned_alloc(4096, (size_t)size);
        size = kept ? size : 0;
    }
    return kept;
}

typedef struct {
    const Call *call;
    const Phase *phases;
    int64_t count, *taken;
    Mode mode;
    Half *start;
} Task;

static void phase_after_phase(const Task *task, int64_t copy, Worker worker, Place at) {
    for (int64_t p = 0; p < task->count; p++) {
        int64_t *taken = task->taken + copy * task->count + p;
        for (int64_t i = next_piece(taken); i < task->phases[p].items; i = next_piece(taken))
            task->phases[p].item(task->call, copy, i, at);
        meet(worker);
    }
}

/* The gradient of the parameters is the sum of what both halves of the rows say. */
static void half_of_rows(const Task *task, Worker worker, Place at) {
    const Call *c = task->call;
    int64_t half = (c->strips + 1) / 2, count = c->n->stride;
    float *other = (float *)(task->start + c->plan.total + c->plan.partial);
    at.first = worker.number ? half : 0, at.end = worker.number ? c->strips : half;
    at.gradient = worker.number ? other : c->dparameters;
    for (int64_t p = 0; p < task->count; p++) {
        int64_t first = p == STRIPS ? at.first : 0, end = p == STRIPS ? at.end : task->phases[p].items;
        for (int64_t i = first; i < end; i++) task->phases[p].item(c, 0, i, at);
    }
    if (task->count <= PANELS) return;
    meet(worker);
    for (int64_t i = worker.number * count / 2; i < (worker.number + 1) * count / 2; i++) c->dparameters[i] += other[i];
}

static Mode mode_of(const Call *c, int64_t threads) {
    int64_t K = c->n->copies;
    if (K == 1 && threads == 2 && c->strips > 1) return ROWS;
    return threads > 1 && (c->dx ? K == threads : K % threads == 0) ? COPIES : SHARED;
}

/* The gradient of x is the sum of what all copies say, of which each thread has one. */
static void copy_of_own(const Task *task, Worker worker, Place at) {
    const Call *c = task->call;
    int64_t count = c->rows * c->n->widths[0];
    if (worker.number) at.dx = (float *)(at.room + c->plan.dx);
    phase_after_phase(task, worker.number, (Worker){0, 1}, at);
    meet(worker);
    for (int64_t copy = 1; copy < worker.threads; copy++) {
        const float *other = (const float *)(task->start + copy * c->plan.total + c->plan.dx);
        for (int64_t i = worker.number * count / worker.threads; i < (worker.number + 1) * count / worker.threads; i++)
            c->dx[i] += other[i];
    }
}

static void work_on(void *given, Worker worker) {
    const Task *task = given;
    const Call *c = task->call;
    int64_t K = c->n->copies;
    Mode mode = mode_of(c, worker.threads) == task->mode ? task->mode : SHARED; /* there may be fewer than were asked for */
    Half *room = task->start + (mode == SHARED ? 0 : worker.number * c->plan.total);
    Place at = {.room = room, .own = room + c->plan.own + (mode == SHARED ? worker.number * c->plan.each : 0),
                .end = c->strips, .gradient = c->dparameters, .dx = c->dx};
    tiles_begin();
    if (mode == ROWS) half_of_rows(task, worker, at);
    else if (mode == COPIES && c->dx) copy_of_own(task, worker, at);
    else if (mode == COPIES)
        for (int64_t copy = worker.number; copy < K; copy += worker.threads)
            phase_after_phase(task, copy, (Worker){0, 1}, at);
    else
        for (int64_t copy = 0; copy < K; copy++) phase_after_phase(task, copy, worker, at);
    tiles_end();
}

/* All phases one after the other. What a thread has written another one gets slowly, so there is a room for each where that
 * can be. */
static void run(const Call *c, const Phase *phases, int count, int64_t threads) {
    int64_t K = c->n->copies, taken[K * count];
    Mode mode = mode_of(c, threads);
    memset(taken, 0, sizeof taken);
    Half *start = room_for(2 * c->plan.total * (mode == SHARED ? 1 : threads));
    Task task = {c, phases, count, taken, mode, start};
    together(work_on, &task, threads);
}

/* ---------------------------------------------------------------------- pieces */

/* A panel of a layer's weights as tiles, `back` transposed. */
static void pack_panel(const float *w, int64_t in, int64_t out, int64_t panel, int back, Half *weights) {
    int64_t depth = panels_of(back ? out : in);
    Half *tile = weights + 2 * panel * depth * UNIT;
    for (int64_t half = 0; half < 2; half++)
        for (int64_t k = 0; k < depth; k++, tile += UNIT) {
            int64_t across = panel * PANEL + 16 * half, along = k * DEPTH;
            if (back) {
                rows_tile(w + across * out + along, out, in - across, out - along, tile);
                transpose_tile(tile);
            } else {
                pairs_tile(w + along * out + across, out, in - along, out - across, tile);
            }
        }
}

/* PANEL rows as tiles along `columns`. */
static void rows_tiles(const float *x, int64_t ld, int64_t rows, int64_t columns, Half *tiles) {
    int64_t depth = panels_of(columns);
    for (int64_t half = 0; half < 2; half++)
        for (int64_t k = 0; k < depth; k++, tiles += UNIT)
            rows_tile(x + 16 * half * ld + k * DEPTH, ld, rows - 16 * half, columns - k * DEPTH, tiles);
}

/* A strip of up to PANEL rows times a layer's weights, both as tiles; `whole` says what becomes of that. */
static void strip_product(const Half *x, const Half *weights, int64_t depth, const Block *whole) {
    float out[2][SQUARE] __attribute__((aligned(64)));
    int64_t panels = panels_of(whole->columns);
    for (int64_t j = 0; j < panels; j++, weights += 2 * depth * UNIT)
        product_32(x, depth * UNIT, weights, depth * UNIT, depth, out[j % 2], whole, j - 1, out[(j + 1) % 2]);
    finish_block(whole, panels - 1, out[(panels - 1) % 2]);
}

/* The same of dy W^T of a few outputs; `columns` as of columns_of(). */
static void narrow_back(const float *dy, int64_t outputs, const float *columns, const Block *whole) {
    float out[SQUARE] __attribute__((aligned(64)));
    int64_t inputs = whole->columns;
    for (int64_t i = 0; i < panels_of(inputs); i++) {
        __mmask16 low = first_of(inputs - i * PANEL), high = first_of(inputs - i * PANEL - 16);
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

/* Columns 32 * panel ... of what some strips say about the gradient of a layer's weights and bias. Those of each half are
 * summed by themselves. */
static void tiled_gradient(const Half *kept_x, int64_t inputs, const Half *kept_dy, const float *sums, int64_t outputs,
                           int64_t panel, int64_t strips, int64_t first, int64_t end, float *dweights) {
    int64_t at = panel * PANEL, columns = least(PANEL, outputs - at), next = strips * UNIT, half = (strips + 1) / 2;
    int64_t middle = first < half && half < end ? half : end, panels = panels_of(inputs);
    float out[2][2 * SQUARE] __attribute__((aligned(64))), *dbias = dweights + inputs * outputs + at;
    Block whole = {.to = dweights + at, .ld = outputs, .ld_from = PANEL, .rows = inputs, .columns = columns};
    const Block upper = described(whole, DOWN | (middle < end ? TWO | UPPER : 0));
    const Block lower = described(whole, DOWN | TWO | LOWER);
    kept_dy += 2 * panel * next;
    for (int64_t i = 0; i < panels; i++, kept_x += 2 * next) {
        const float *before = out[(i + 1) % 2];
        float *now = out[i % 2];
        product_32(kept_x + first * UNIT, next, kept_dy + first * UNIT, next, middle - first, now, &upper, i - 1, before);
        if (middle < end)
            product_32(kept_x + middle * UNIT, next, kept_dy + middle * UNIT, next, end - middle, now + SQUARE, &lower, i - 1,
                       before);
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
    if (tiled(outputs)) pack_panel(weights_of(c, copy, l), inputs, outputs, panel, 0, to);
    else columns_of(weights_of(c, copy, l), inputs, outputs, 0, inputs, (float *)to);
}

/* Strips as tiles, of which one becomes the other: layer l takes its own from here. */
static inline Half *tiles_of(const Call *c, int64_t l, Place at) { return at.own + l % 2 * c->plan.strip; }

static void strip_forward(const Call *c, int64_t copy, int64_t strip, Place at) {
    int64_t first = strip * PANEL, count = least(PANEL, c->rows - first), L = c->n->layers;
    const float *in = c->x + first * c->n->widths[0];
    float *strips = (float *)(at.own + 2 * c->plan.strip); /* where hidden layers are not kept */
    for (int64_t l = 0; l < L; l++) {
        int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1], last = l + 1 == L, row = copy * c->rows + first;
        int64_t tiles = !last && tiled(outputs) && tiled(c->n->widths[l + 2]); /* is what the next layer wants */
        const float *bias = weights_of(c, copy, l) + inputs * outputs;
        const Half *weights = at.room + c->plan.weights[l];
        float *out = last ? c->y + row * outputs : c->to_hidden ? c->to_hidden + c->hidden_at[l + 1] + row * outputs
                                                                : strips + l % 2 * (c->plan.each - 2 * c->plan.strip) / 4;
        if (tiled(outputs)) {
            Block to = {.bias = bias, .to = tiles && !c->to_hidden ? 0 : out, .ld = outputs, .ld_from = PANEL, .rows = count,
                        .columns = outputs, .tiles = tiles ? tiles_of(c, l + 1, at) : 0, .next = panels_of(outputs) * UNIT};
            to = described(to, last ? 0 : RELUS);
            if (!l || !tiled(inputs)) rows_tiles(in, inputs, count, inputs, tiles_of(c, l, at));
            strip_product(tiles_of(c, l, at), weights, panels_of(inputs), &to);
        } else {
            forward_narrow(in, inputs, (const float *)weights, bias, out, outputs, count, last ? PLAIN : RELU);
        }
        if (last && c->n->squash)
            for (int64_t i = 0; i < count * outputs; i++) out[i] = fast_tanh(out[i]);
        in = out;
    }
}

/* As `perceptron`. Where `hidden` is absent hidden layers are not kept. */
void perceptron_tiles(const Network *n, const float *x, float *hidden, float *y, int64_t rows, int64_t threads) {
    Call c = {.n = n, .x = x, .to_hidden = hidden, .y = y, .all = rows, .rows = rows,
              .plan = plan_of(n, rows, threads, 0)};
    int64_t panels = 0;
    begin(&c);
    for (int64_t l = 0; l < n->layers; l++) panels += panels_of(n->widths[l + 1]);
    const Phase phases[] = {{panels, pack_forward}, {c.strips, strip_forward}};
    run(&c, phases, 2, threads);
}

/* ---------------------------------------------------------------------- backwards */

static inline int64_t from_layer(const Call *c) { return c->dx ? 0 : 1; } /* the first whose inputs need a gradient */

static void pack_backward(const Call *c, int64_t copy, int64_t item, Place at) {
    int64_t panel = item, from = from_layer(c), l = from + find_panel(c->n->widths + from, &panel), first = panel * PANEL;
    int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
    Half *to = at.room + c->plan.weights[l];
    if (tiled(outputs)) pack_panel(weights_of(c, copy, l), inputs, outputs, panel, 1, to);
    else columns_of(weights_of(c, copy, l), inputs, outputs, first, least(first + PANEL, inputs), (float *)to);
}

/* What goes into layer l, and the gradient of what comes out, both of one copy. */
static inline const float *input_of(const Call *c, int64_t copy, int64_t l) {
    int64_t width = c->n->widths[l];
    return l ? c->hidden + c->hidden_at[l] + (copy * c->all + c->skip) * width : c->x + c->skip * width;
}

static inline float *dhidden_of(const Call *c, int64_t l, Half *room) { /* of one copy at a time */
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
                    .next_pairs = next};
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
        if (tiled(outputs)) strip_product(tiles_of(c, l, at), weights, panels_of(outputs), &to);
        else narrow_back(g, outputs, (const float *)weights, &to);
    }
}

static void panel_backward(const Call *c, int64_t copy, int64_t item, Place at) {
    int64_t panel = item, l = find_panel(c->n->widths + 1, &panel), inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
    const float *in = input_of(c, copy, l), *g = gradient_of(c, copy, l, at.room);
    float *to = at.gradient + copy * c->n->stride + c->weights_at[l], *scratch = (float *)(at.own + 2 * c->plan.strip);
    if (tiled(outputs)) {
        tiled_gradient(at.room + c->plan.inputs[l], inputs, at.room + c->plan.gradients[l], sums_of(c, l, at.room), outputs,
                       panel, c->strips, at.first, at.end, to);
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

/* Of `rows` rows, from `skip` on. */
static void some_back(Call c, int64_t skip, int64_t rows, float *dparameters, int64_t threads) {
    int64_t in_panels = 0, out_panels = 0;
    c.skip = skip, c.rows = rows, c.dparameters = dparameters, c.plan = plan_of(c.n, rows, threads, 1);
    if (c.dx) c.dx += skip * c.n->widths[0];
    begin(&c);
    for (int64_t l = 0; l < c.n->layers; l++) {
        in_panels += l >= from_layer(&c) ? panels_of(c.n->widths[l]) : 0;
        out_panels += panels_of(c.n->widths[l + 1]);
    }
    const Phase phases[] = {{in_panels, pack_backward}, {c.strips, strip_backward}, {out_panels, panel_backward}};
    run(&c, phases, dparameters ? PANELS + 1 : PANELS, threads);
    int64_t used = c.weights_at[c.n->layers];
    for (int64_t copy = 0; dparameters && copy < c.n->copies; copy++)
        memset(dparameters + copy * c.n->stride + used, 0, (c.n->stride - used) * sizeof(float));
}

/* As `perceptron_backward`. Of many rows some at a time: what is kept of them for the gradient stays in the cache. */
void perceptron_tiles_backward(const Network *n, const float *x, const float *hidden, const float *dy, float *dx,
                               float *dparameters, int64_t rows, int64_t threads) {
    Call c = {.n = n, .x = x, .hidden = hidden, .dy = dy, .dx = dx, .all = rows};
    int64_t count = n->copies * n->stride, most = rows;
    float *more = dparameters && rows > MOST_ROWS ? malloc((size_t)count * sizeof(float)) : 0;
    if (more || !dparameters) most = MOST_ROWS;
    for (int64_t first = 0; first < rows; first += most) {
        some_back(c, first, least(most, rows - first), first ? more : dparameters, threads);
        for (int64_t i = 0; first && more && i < count; i++) dparameters[i] += more[i];
    }
    free(more);
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
