/* What perceptron.c computes, by matrix units (tiles.h), where there are some. nn/perceptron.py calls it for batches.
 *
 * Every number is summed in an order that depends on neither the threads nor the other rows of the batch.
 */

#include <stdlib.h>

#include "../core/crew.h"
#include "perceptron.h"
#include "tiles.h"

#ifdef HAVE_TILES

#define LAYERS 32 /* at most */

static inline int64_t tiled(int64_t outputs) { return outputs > NARROW; }

/* Room for a matrix of so many numbers along the depth of a product and across it: pairs of tiles, in bfloat16. */
static inline int64_t room_of(int64_t depth, int64_t across) { return 2 * panels_of(across) * panels_of(depth) * UNIT; }

/* Where things lie in the room that a copy needs, in bfloat16: the weights of its layers as tiles; for the way back also
 * their inputs and gradients, sums of those over strips, and what goes into hidden layers; a gradient of half of the
 * rows; then what each thread needs for itself. */
typedef struct {
    int64_t weights[LAYERS], inputs[LAYERS], gradients[LAYERS], sums[LAYERS], dhidden, partial, own, strip, each, total;
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
    p.own = at;
    p.strip = room_of(widest, PANEL);
    p.each = p.strip + 2 * NARROW * (panels_of(widest) + 1) * PANEL; /* a strip as tiles, and the weights of a few outputs */
    p.total = p.own + threads * p.each;
    return p;
}

/* What is known of a call. */
typedef struct {
    const Network *n;
    const float *x, *hidden, *dy;
    float *to_hidden, *y, *dx, *dparameters;
    int64_t rows, strips, weights_at[LAYERS + 1], hidden_at[LAYERS + 1]; /* hidden_at[l]: of what goes into layer l */
    Plan plan;
} Call;

static void begin(Call *c) {
    c->strips = panels_of(c->rows);
    c->weights_at[0] = c->hidden_at[0] = 0;
    for (int64_t l = 0; l < c->n->layers; l++) {
        int64_t inputs = c->n->widths[l];
        c->weights_at[l + 1] = c->weights_at[l] + (inputs + 1) * c->n->widths[l + 1];
        c->hidden_at[l + 1] = l ? c->hidden_at[l] + c->n->copies * c->rows * inputs : 0;
    }
}

static inline const float *weights_of(const Call *c, int64_t copy, int64_t l) {
    return c->n->parameters + copy * c->n->stride + c->weights_at[l];
}

/* ---------------------------------------------------------------------- threads */

/* Where a thread works: the room of its copy, its own part of that, the strips [first, end) that are in it, and where the
 * gradient goes. */
typedef struct {
    Half *room, *own;
    int64_t first, end;
    float *gradient;
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

static void work_on(void *given, Worker worker) {
    const Task *task = given;
    const Call *c = task->call;
    int64_t K = c->n->copies, alone = worker.threads == 1, parted = task->mode != SHARED && !alone;
    Half *room = task->start + (parted ? worker.number * c->plan.total : 0);
    Place at = {room, room + c->plan.own + (parted ? 0 : worker.number * c->plan.each), 0, c->strips, c->dparameters};
    tiles_begin();
    if (task->mode == ROWS && !alone) half_of_rows(task, worker, at);
    else if (task->mode == COPIES && !alone)
        for (int64_t copy = worker.number; copy < K; copy += worker.threads)
            phase_after_phase(task, copy, (Worker){0, 1}, at);
    else
        for (int64_t copy = 0; copy < K; copy++) phase_after_phase(task, copy, worker, at);
    tiles_end();
}

/* All phases one after the other. What a thread has written another one gets slowly, so there is a room for each where that
 * can be. `apart`: copies have nothing in common. */
static void run(const Call *c, const Phase *phases, int count, int64_t threads, int apart) {
    int64_t K = c->n->copies, taken[K * count];
    Mode mode = K == 1 && threads == 2 && c->strips > 1 ? ROWS : threads > 1 && apart && K % threads == 0 ? COPIES : SHARED;
    memset(taken, 0, sizeof taken);
    Half *start = room_for(2 * c->plan.total * (mode == SHARED ? 1 : threads));
    Task task = {c, phases, count, taken, mode, start};
    together(work_on, &task, threads);
}

/* ---------------------------------------------------------------------- pieces */

/* PANEL rows as tiles along `columns`. */
static void rows_tiles(const float *x, int64_t ld, int64_t rows, int64_t columns, Half *tiles) {
    int64_t depth = panels_of(columns);
    for (int64_t half = 0; half < 2; half++)
        for (int64_t k = 0; k < depth; k++, tiles += UNIT)
            rows_tile(x + 16 * half * ld + k * DEPTH, ld, rows - 16 * half, columns - k * DEPTH, tiles);
}

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

/* y = x W + b of up to PANEL rows, then ReLU unless it is the last. */
static void tiled_layer(const float *x, int64_t inputs, const Half *weights, const float *bias, float *y,
                        int64_t outputs, int64_t rows, const float *mask, Then then, Half *own) {
    int64_t depth = panels_of(inputs);
    float out[PANEL * PANEL] __attribute__((aligned(64)));
    rows_tiles(x, inputs, rows, inputs, own);
    for (int64_t j = 0; j < outputs; j += PANEL, weights += 2 * depth * UNIT) {
        product_32(own, weights, depth * UNIT, depth, out);
        finish(out, y + j, outputs, rows, least(PANEL, outputs - j), bias ? bias + j : 0, mask ? mask + j : 0, then);
    }
}

/* dx = dy W^T of a few outputs. */
static void narrow_back(const float *dy, int64_t outputs, const float *weights, float *restrict dx, int64_t inputs,
                        int64_t rows, const float *mask, Then then, float *restrict scratch) {
    for (int64_t j = 0; j < outputs; j++)
        for (int64_t i = 0; i < inputs; i++) scratch[j * inputs + i] = weights[i * outputs + j];
    for (int64_t r = 0; r < rows; r++, dx += inputs, dy += outputs) {
        if (then != ADD) memset(dx, 0, inputs * sizeof(float));
        for (int64_t j = 0; j < outputs; j++) {
            float g = dy[j];
            for (int64_t i = 0; i < inputs; i++) dx[i] += g * scratch[j * inputs + i];
        }
        if (then == MASK)
            for (int64_t i = 0; i < inputs; i++) dx[i] = mask[r * inputs + i] != 0.0f ? dx[i] : 0.0f;
    }
}

/* A strip of rows as a column of tiles of the transposed inputs, and as a row of tiles of the gradients; `sums` of those. */
static void keep_strip(const float *x, int64_t inputs, const float *dy, int64_t outputs, int64_t strip, int64_t strips,
                       int64_t count, Half *kept_x, Half *kept_dy, float *restrict sums) {
    for (int64_t i = 0; i < 2 * panels_of(inputs); i++) {
        Half *tile = kept_x + (i * strips + strip) * UNIT;
        pairs_tile(x + 16 * i, inputs, count, inputs - 16 * i, tile);
        transpose_tile(tile);
    }
    for (int64_t j = 0; j < 2 * panels_of(outputs); j++)
        pairs_tile(dy + 16 * j, outputs, count, outputs - 16 * j, kept_dy + (j * strips + strip) * UNIT);
    memcpy(sums, dy, outputs * sizeof(float));
    for (int64_t r = 1; r < count; r++)
        for (int64_t j = 0; j < outputs; j++) sums[j] += dy[r * outputs + j];
}

/* Columns 32 * panel ... of what some strips add to the gradient of a layer's weights and bias. */
static void tiled_gradient(const Half *kept_x, int64_t inputs, const Half *kept_dy, const float *sums, int64_t outputs,
                           int64_t panel, int64_t strips, int64_t count, int64_t add, float *dweights) {
    int64_t first = panel * PANEL, columns = least(PANEL, outputs - first);
    float out[PANEL * PANEL] __attribute__((aligned(64))), *dbias = dweights + inputs * outputs + first, sum[PANEL] = {0};
    kept_dy += 2 * panel * strips * UNIT;
    for (int64_t i = 0; i < inputs; i += PANEL, kept_x += 2 * strips * UNIT) {
        product_32(kept_x, kept_dy, strips * UNIT, count, out);
        finish(out, dweights + i * outputs + first, outputs, least(PANEL, inputs - i), columns, 0, 0, add ? ADD : PLAIN);
    }
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < columns; j++) sum[j] += sums[i * outputs + first + j];
    for (int64_t j = 0; j < columns; j++) dbias[j] = add ? dbias[j] + sum[j] : sum[j];
}

/* ---------------------------------------------------------------------- forwards */

static void pack_forward(const Call *c, int64_t copy, int64_t item, Place at) {
    int64_t panel = item, l = find_panel(c->n->widths + 1, &panel), inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
    if (tiled(outputs)) pack_panel(weights_of(c, copy, l), inputs, outputs, panel, 0, at.room + c->plan.weights[l]);
}

static void strip_forward(const Call *c, int64_t copy, int64_t strip, Place at) {
    int64_t first = strip * PANEL, count = least(PANEL, c->rows - first), L = c->n->layers;
    const float *in = c->x + first * c->n->widths[0];
    float *scratch = (float *)(at.own + c->plan.strip);
    for (int64_t l = 0; l < L; l++) {
        int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1], last = l + 1 == L;
        const float *weights = weights_of(c, copy, l);
        float *out = (last ? c->y : c->to_hidden + c->hidden_at[l + 1]) + (copy * c->rows + first) * outputs;
        if (tiled(outputs))
            tiled_layer(in, inputs, at.room + c->plan.weights[l], weights + inputs * outputs, out, outputs, count, 0,
                        last ? PLAIN : RELU, at.own);
        else
            forward_narrow(in, inputs, weights, out, outputs, count, last ? PLAIN : RELU, scratch);
        if (last && c->n->squash)
            for (int64_t i = 0; i < count * outputs; i++) out[i] = fast_tanh(out[i]);
        in = out;
    }
}

/* As `perceptron`. */
void perceptron_tiles(const Network *n, const float *x, float *hidden, float *y, int64_t rows, int64_t threads) {
    Call c = {.n = n, .x = x, .to_hidden = hidden, .y = y, .rows = rows, .plan = plan_of(n, rows, threads, 0)};
    int64_t panels = 0;
    begin(&c);
    for (int64_t l = 0; l < n->layers; l++) panels += panels_of(n->widths[l + 1]);
    const Phase phases[] = {{panels, pack_forward}, {c.strips, strip_forward}};
    run(&c, phases, 2, threads, 1);
}

/* ---------------------------------------------------------------------- backwards */

static inline int64_t from_layer(const Call *c) { return c->dx ? 0 : 1; } /* the first whose inputs need a gradient */

static void pack_backward(const Call *c, int64_t copy, int64_t item, Place at) {
    int64_t panel = item, from = from_layer(c), l = from + find_panel(c->n->widths + from, &panel);
    int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
    if (tiled(outputs)) pack_panel(weights_of(c, copy, l), inputs, outputs, panel, 1, at.room + c->plan.weights[l]);
}

/* What goes into layer l, and the gradient of what comes out, both of one copy. */
static inline const float *input_of(const Call *c, int64_t copy, int64_t l) {
    return l ? c->hidden + c->hidden_at[l] + copy * c->rows * c->n->widths[l] : c->x;
}

static inline float *dhidden_of(const Call *c, int64_t l, Half *room) { /* of one copy at a time */
    return (float *)(room + c->plan.dhidden) + c->hidden_at[l] / c->n->copies;
}

static inline const float *gradient_of(const Call *c, int64_t copy, int64_t l, Half *room) {
    return l + 1 == c->n->layers ? c->dy + copy * c->rows * c->n->widths[l + 1] : dhidden_of(c, l + 1, room);
}

static inline float *sums_of(const Call *c, int64_t l, Half *room) { return (float *)(room + c->plan.sums[l]); }

static void strip_backward(const Call *c, int64_t copy, int64_t strip, Place at) {
    int64_t first = strip * PANEL, count = least(PANEL, c->rows - first);
    float *scratch = (float *)(at.own + c->plan.strip);
    for (int64_t l = c->n->layers - 1; l >= 0; l--) {
        int64_t inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
        const float *g = gradient_of(c, copy, l, at.room) + first * outputs, *in = input_of(c, copy, l) + first * inputs;
        if (c->dparameters && tiled(outputs))
            keep_strip(in, inputs, g, outputs, strip, c->strips, count, at.room + c->plan.inputs[l],
                       at.room + c->plan.gradients[l], sums_of(c, l, at.room) + strip * outputs);
        if (l < from_layer(c)) continue;
        float *to = (l ? dhidden_of(c, l, at.room) : c->dx) + first * inputs;
        const float *mask = l ? in : 0;
        Then then = l ? MASK : copy ? ADD : PLAIN; /* dx is the sum over the copies */
        if (tiled(outputs))
            tiled_layer(g, outputs, at.room + c->plan.weights[l], 0, to, inputs, count, mask, then, at.own);
        else
            narrow_back(g, outputs, weights_of(c, copy, l), to, inputs, count, mask, then, scratch);
    }
}

static void panel_backward(const Call *c, int64_t copy, int64_t item, Place at) {
    int64_t panel = item, l = find_panel(c->n->widths + 1, &panel), inputs = c->n->widths[l], outputs = c->n->widths[l + 1];
    const float *in = input_of(c, copy, l), *g = gradient_of(c, copy, l, at.room);
    float *to = at.gradient + copy * c->n->stride + c->weights_at[l], *scratch = (float *)(at.own + c->plan.strip);
    int64_t half = (c->strips + 1) / 2;
    for (int64_t first = at.first; first < at.end; first = half) {
        int64_t end = first < half ? least(half, at.end) : at.end, row = first * PANEL, add = first > at.first;
        int64_t rows = least(c->rows, end * PANEL) - row;
        if (tiled(outputs)) {
            tiled_gradient(at.room + c->plan.inputs[l] + first * UNIT, inputs, at.room + c->plan.gradients[l] + first * UNIT,
                           sums_of(c, l, at.room) + first * outputs, outputs, panel, c->strips, end - first, add, to);
        } else if (!add) {
            gradient_narrow(in + row * inputs, inputs, g + row * outputs, outputs, to, rows);
        } else {
            gradient_narrow(in + row * inputs, inputs, g + row * outputs, outputs, scratch, rows);
            for (int64_t i = 0; i < (inputs + 1) * outputs; i++) to[i] += scratch[i];
        }
        if (end == at.end) break;
    }
}

/* As `perceptron_backward`. */
void perceptron_tiles_backward(const Network *n, const float *x, const float *hidden, const float *dy, float *dx,
                               float *dparameters, int64_t rows, int64_t threads) {
    Call c = {.n = n, .x = x, .hidden = hidden, .dy = dy, .dx = dx, .dparameters = dparameters, .rows = rows,
              .plan = plan_of(n, rows, threads, 1)};
    int64_t in_panels = 0, out_panels = 0;
    begin(&c);
    for (int64_t l = 0; l < n->layers; l++) {
        in_panels += l >= from_layer(&c) ? panels_of(n->widths[l]) : 0;
        out_panels += panels_of(n->widths[l + 1]);
    }
    const Phase phases[] = {{in_panels, pack_backward}, {c.strips, strip_backward}, {out_panels, panel_backward}};
    run(&c, phases, dparameters ? PANELS + 1 : PANELS, threads, !dx);
    int64_t used = c.weights_at[n->layers];
    for (int64_t copy = 0; dparameters && copy < n->copies; copy++)
        memset(dparameters + copy * n->stride + used, 0, (n->stride - used) * sizeof(float));
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
