/* Products of float32 matrices for layers that process many rows, by matrix units (tiles.h) or, without them, by vector
 * units (panels.h). kernels/matmul.py calls it.
 *
 * The order of each sum depends neither on the threads nor on the other rows.
 */

#include "thread_pool.h"
#include "blocks.h"
#include "perceptron.h"

#ifdef HAVE_TILES

enum { LONGEST = 1280, SHORT = 256, CACHED = 4096 };
/* Along the depth, all numbers at a time, or SHORT of them if there are more than LONGEST. CACHED: of 32 rows, how many
 * numbers stay in the cache as tiles. */

/* A factor: vectors along the depth of the product, which are its rows or its columns, `ld` apart. */
typedef struct {
    const float *at;
    int64_t ld, by_rows;
} Factor;

typedef struct {
    Factor a, b;
    const float *bias;
    float *c;
    int64_t rows, columns, depth, chunk, each; /* chunk: of the depth, at a time; each: strips that a thread packs at a time */
    int64_t *taken;
    Half *packed, *own; /* tiles of b, then those of each thread's rows of a */
    int64_t room;       /* of a thread */
} Product;

/* Pack 32 vectors of a factor, from `first` on and before `end`, as tiles of rows or of pairs. */
static void pack(Factor f, int64_t first, int64_t end, int64_t from, int64_t depth, int64_t pairs, Half *to) {
    for (int64_t half = 0; half < 32; half += 16)
        for (int64_t k = 0; k < depth; k += DEPTH, to += UNIT) {
            int64_t vector = first + half, along = from + k;
            if (f.by_rows) rows_tile(f.at + vector * f.ld + along, f.ld, end - vector, depth - k, to);
            else pairs_tile(f.at + along * f.ld + vector, f.ld, depth - k, end - vector, to);
            if (f.by_rows == pairs) transpose_tile(to);
        }
}

/* Multiply strips [first, end) of a with all of b, of `depth` numbers along the product from `from` on. */
static void strips_product(const Product *p, int64_t first, int64_t end, int64_t from, int64_t depth, Half *own) {
    float out[2][SQUARE] __attribute__((aligned(64)));
    int64_t units = panels_of(depth), strip = 2 * units * UNIT, turn = 0, count = end - first;
    Block blocks[count];
    for (int64_t s = 0; s < count; s++) {
        float *to = p->c + (first + s) * SIDE * p->columns;
        Block b = {.to = to, .old = from ? to : 0, .bias = from ? 0 : p->bias, .ld = p->columns, .ld_from = SIDE,
                   .rows = p->rows - (first + s) * SIDE, .columns = p->columns};
        blocks[s] = described(b, 0);
        pack(p->a, (first + s) * SIDE, p->rows, from, depth, 0, own + s * strip);
    }
    for (int64_t j = 0; j < panels_of(p->columns); j++)
        for (int64_t s = 0; s < count; s++, turn++) { /* the previous block is finished at the same time */
            int64_t before = s ? s - 1 : count - 1;
            product_32(own + s * strip, units * UNIT, p->packed + j * strip, units * UNIT, units, out[turn % 2],
                       &blocks[before], s ? j : j - 1, out[(turn + 1) % 2], NONE);
        }
    finish_block(&blocks[count - 1], panels_of(p->columns) - 1, out[(turn + 1) % 2]);
}

static void multiply(void *given, Worker worker) {
    const Product *p = given;
    int64_t *taken = p->taken, strips = panels_of(p->rows);
    tiles_begin();
    for (int64_t from = 0; from < p->depth; from += p->chunk, taken += 2) {
        int64_t depth = least(p->chunk, p->depth - from), strip = 2 * panels_of(depth) * UNIT;
        for (int64_t j = next_piece(taken); j < panels_of(p->columns); j = next_piece(taken))
            pack(p->b, j * SIDE, p->columns, from, depth, 1, p->packed + j * strip);
        meet(worker);
        for (int64_t i = next_piece(taken + 1) * p->each; i < strips; i = next_piece(taken + 1) * p->each)
            strips_product(p, i, least(i + p->each, strips), from, depth, p->own + worker.number * p->room);
        meet(worker);
    }
    tiles_end();
}

/* product() by matrix units. */
static void tiles_product(const float *a, int64_t a_down, int64_t a_along, const float *b, int64_t b_down, int64_t b_along,
                          const float *bias, float *c, int64_t rows, int64_t columns, int64_t depth, int64_t threads) {
    int64_t chunk = depth > LONGEST ? SHORT : depth, chunks = (depth + chunk - 1) / chunk;
    int64_t here = panels_of(chunk), strips = panels_of(rows);
    int64_t each = least(CACHED / (here * DEPTH) + 1, (strips + threads - 1) / threads), taken[2 * chunks];
    memset(taken, 0, sizeof taken);
    Product p = {.a = {a, a_along == 1 ? a_down : a_along, a_along == 1}, .bias = bias, .c = c, .taken = taken, .rows = rows,
                 .b = {b, b_along == 1 ? b_down : b_along, b_along != 1}, .columns = columns, .depth = depth, .chunk = chunk,
                 .each = each};
    p.room = 2 * each * here * UNIT;
    int64_t packed = 2 * panels_of(columns) * here * UNIT;
    p.packed = room_for(2 * (packed + threads * p.room));
    p.own = p.packed + packed;
    together(multiply, &p, threads);
}

#endif

/* ---------------------------------------------------------------------- by the vector units */

enum { DEEP = 1024, SIDES = 16 }; /* DEEP: of the depth, at a time; SIDES: tiles of a's columns that are packed at a time */

typedef struct {
    const float *a, *b, *bias;
    float *c, *packed, *panels; /* packed: a [depth, rows] as tiles [depth, TILE], or null; panels: of b, one of each thread */
    int64_t a_down, a_along, b_down, b_along, rows, columns, depth, packs, taken;
} Panels;

/* Pack SIDES tiles from column i * SIDES * TILE of a^T on. */
static void pack_tiles(const Panels *p, int64_t i) {
    int64_t first = i * SIDES * TILE, end = least(p->rows, first + SIDES * TILE);
    for (int64_t k = 0; k < p->depth; k++)
        for (int64_t r = first; r < end; r += TILE)
            memcpy(p->packed + r * p->depth + k * TILE, p->a + k * p->a_along + r, least(TILE, end - r) * sizeof(float));
}

/* Panel j of c, with numbers [from, from + depth) along the product. */
static void panel_of_product(const Panels *p, int64_t j, int64_t from, int64_t depth, float *panel) {
    int64_t columns = least(PANEL, p->columns - j * PANEL);
    const float *b = p->b + j * PANEL * p->b_along + from * p->b_down, *bias = p->bias && !from ? p->bias + j * PANEL : 0;
    float *c = p->c + j * PANEL;
    Then then = from ? ADD : PLAIN;
    if (p->b_along == 1) pad_columns(b, p->b_down, panel, depth, columns);
    else transpose_rows(b, p->b_along, columns, depth, panel);
    if (!p->packed) {
        panel_product(p->a + from, p->a_down, 1, panel, PANEL, c, p->columns, p->rows, depth, columns, bias, 0, then);
        return;
    }
    for (int64_t r = 0; r < p->rows; r += TILE)
        panel_product(p->packed + r * p->depth + from * TILE, 1, TILE, panel, PANEL, c + r * p->columns, p->columns,
                      least(TILE, p->rows - r), depth, columns, bias, 0, then);
}

static void multiply_panels(void *given, Worker worker) {
    Panels *p = given;
    int64_t item;
    if (p->packed) {
        while ((item = next_piece(&p->packs)) * SIDES * TILE < p->rows) pack_tiles(p, item);
        meet(worker);
    }
    while ((item = next_piece(&p->taken)) < panels_of(p->columns))
        for (int64_t from = 0; from < p->depth; from += DEEP)
            panel_of_product(p, item, from, least(DEEP, p->depth - from), p->panels + worker.number * DEEP * PANEL);
}

/* c = a b + bias, with a [rows, depth], b [depth, columns], bias [columns] or null; c has no gaps. One step of a and
 * of b, to the next row or to the next column, is 1. */
void product(const float *a, int64_t a_down, int64_t a_along, const float *b, int64_t b_down, int64_t b_along,
             const float *bias, float *c, int64_t rows, int64_t columns, int64_t depth, int64_t threads) {
#ifdef HAVE_TILES
    if (perceptron_tiles_granted()) {
        tiles_product(a, a_down, a_along, b, b_down, b_along, bias, c, rows, columns, depth, threads);
        return;
    }
#endif
    Panels p = {.a = a, .b = b, .bias = bias, .c = c, .a_down = a_down, .a_along = a_along, .b_down = b_down,
                .b_along = b_along, .rows = rows, .columns = columns, .depth = depth};
    int64_t room = threads * DEEP * PANEL, packed = a_along == 1 ? 0 : (rows + TILE - 1) / TILE * TILE * depth;
    p.panels = room_for((room + packed) * sizeof(float));
    p.packed = packed ? p.panels + room : 0;
    together(multiply_panels, &p, threads);
}
