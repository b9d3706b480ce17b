/* Steps of a tree search: the way down to a new node, and the return back up.
 *
 * objectives/tree_search.py defines the computation, kernels/search.py calls this. A tree is a table of addresses of
 * contiguous arrays, in the order of the fields of `Tree` there, each with N roots in front.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

typedef struct {
    float *logits, *visits, *reward, *discount, *value; /* [M, A] */
    int64_t *child;                                     /* [M, A] */
    float *raw, *mean;                                  /* [M] */
    int64_t *parent, *action;                           /* [M] */
    const uint8_t *legal;                               /* [A] */
    const float *gumbel, *considered;                   /* [A], [S] */
} Root;

/* Root i of the trees. */
static Root root_at(void *const *tree, int64_t i, int64_t nodes, int64_t actions, int64_t simulations) {
    int64_t edge = i * nodes * actions, node = i * nodes;
    Root root = {(float *)tree[0] + edge, (float *)tree[1] + edge, (float *)tree[2] + edge, (float *)tree[3] + edge,
                 (float *)tree[4] + edge, (int64_t *)tree[5] + edge, (float *)tree[6] + node, (float *)tree[7] + node,
                 (int64_t *)tree[8] + node, (int64_t *)tree[9] + node, (const uint8_t *)tree[10] + i * actions,
                 (const float *)tree[11] + i * actions, (const float *)tree[12] + i * simulations};
    return root;
}

/* Write e^(x - max x) of `count` numbers to `out`; return their sum. */
static float exponentials(const float *x, float *out, int64_t count) {
    float most = largest(x, count), sum = 0;
    for (int64_t a = 0; a < count; a++) {
        out[a] = fast_exp(x[a] - most);
        sum += out[a];
    }
    return sum;
}

/* Write sigma of all actions of a node; return the sum of its visits. `prior` [A] is overwritten. */
static float sigma_at(const Root *t, int64_t node, int64_t actions, float c_visit, float c_scale, float floor_, float *sigma,
                      float *prior) {
    int64_t at = node * actions;
    const float *visits = t->visits + at;
    float sum = exponentials(t->logits + at, prior, actions), count = 0, most = 0, share = 0, mixed = 0;
    for (int64_t a = 0; a < actions; a++) {
        float p = prior[a] / sum, n = visits[a];
        p = p < 1.17549435e-38f ? 1.17549435e-38f : p;
        sigma[a] = t->reward[at + a] + t->discount[at + a] * t->value[at + a];
        count += n;
        most = n > most ? n : most;
        if (n > 0) share += p, mixed += p * sigma[a];
    }
    mixed = (t->raw[node] + (share > 0 ? count * (mixed / share) : 0)) / (1 + count);
    for (int64_t a = 0; a < actions; a++) sigma[a] = visits[a] > 0 ? sigma[a] : mixed;
    float low = sigma[0], high = sigma[0], range = 0;
    for (int64_t a = 0; a < actions; a++) {
        low = sigma[a] < low ? sigma[a] : low;
        high = sigma[a] > high ? sigma[a] : high;
        range = isnan(sigma[a]) ? sigma[a] : range; /* comparisons skip NaN */
    }
    range = isnan(range) || high - low > floor_ ? range + (high - low) : floor_;
    float scale = (c_visit + most) * c_scale;
    for (int64_t a = 0; a < actions; a++) sigma[a] = scale * ((sigma[a] - low) / range);
    return count;
}

/* The legal action of the root with the highest score among those with `considered` visits. */
static int64_t best_considered(const Root *t, int64_t actions, float considered, const float *sigma) {
    float best = -INFINITY, top = largest(t->logits, actions);
    int64_t chosen = 0;
    for (int64_t a = 0; a < actions; a++) {
        if (!t->legal[a] || t->visits[a] != considered) continue;
        float score = t->gumbel[a] + (t->logits[a] - top) + sigma[a];
        score = score > -1e9f ? score : -1e9f; /* also of NaN */
        if (score > best) best = score, chosen = a;
    }
    return chosen;
}

/* The action below the root: argmax softmax(l + sigma) - N / (1 + sum N). `sigma` and `prior` [A] are overwritten. */
static int64_t best_inside(const Root *t, int64_t node, int64_t actions, float count, float *sigma, float *prior) {
    int64_t at = node * actions, chosen = 0;
    float best = -INFINITY;
    for (int64_t a = 0; a < actions; a++) sigma[a] += t->logits[at + a];
    float sum = exponentials(sigma, prior, actions);
    for (int64_t a = 0; a < actions; a++) {
        float p = prior[a] / sum, score = (isnan(p) ? 0 : p) - t->visits[at + a] / (1 + count);
        if (score > best) best = score, chosen = a;
    }
    return chosen;
}

/* Write the node and the action [N] that a simulation reaches. `memory` [2 A] is overwritten. */
void search_select(void *const *tree, int64_t roots, int64_t nodes, int64_t actions, int64_t simulations,
                   int64_t simulation, float c_visit, float c_scale, float floor_, float *memory, int64_t *node,
                   int64_t *action) {
    float *sigma = memory, *prior = memory + actions;
    for (int64_t i = 0; i < roots; i++) {
        Root t = root_at(tree, i, nodes, actions, simulations);
        sigma_at(&t, 0, actions, c_visit, c_scale, floor_, sigma, prior);
        int64_t at = 0, a = best_considered(&t, actions, t.considered[simulation], sigma), child;
        while ((child = t.child[at * actions + a]) >= 0) {
            at = child;
            float count = sigma_at(&t, at, actions, c_visit, c_scale, floor_, sigma, prior);
            a = best_inside(&t, at, actions, count, sigma, prior);
        }
        node[i] = at;
        action[i] = a;
    }
}

/* Add node `leaf` of each root, which `action` [N] of `node` [N] leads to, and its return to all nodes above it. The rows
 * of what was predicted lie as far apart as the number after each array says. */
void search_backup(void *const *tree, int64_t roots, int64_t nodes, int64_t actions, int64_t simulations, int64_t leaf,
                   const int64_t *node_, const int64_t *action, const float *reward, int64_t reward_stride,
                   const float *discount, int64_t discount_stride, const float *value, int64_t value_stride,
                   const float *logits, int64_t logits_stride) {
    for (int64_t i = 0; i < roots; i++) {
        Root t = root_at(tree, i, nodes, actions, simulations);
        int64_t first = node_[i] * actions + action[i];
        t.reward[first] = reward[i * reward_stride];
        t.discount[first] = discount[i * discount_stride];
        t.child[first] = leaf;
        t.parent[leaf] = node_[i];
        t.action[leaf] = action[i];
        memcpy(t.logits + leaf * actions, logits + i * logits_stride, (size_t)actions * sizeof(float));
        float total = t.raw[leaf] = t.mean[leaf] = value[i * value_stride];
        for (int64_t node = leaf, parent; (parent = t.parent[node]) >= 0; node = parent) {
            int64_t row = parent * actions, edge = row + t.action[node];
            float count = 1;
            for (int64_t a = 0; a < actions; a++) count += t.visits[row + a];
            total = t.reward[edge] + t.discount[edge] * total;
            t.value[edge] = t.mean[node];
            t.mean[parent] = (t.mean[parent] * count + total) / (count + 1);
            t.visits[edge] += 1;
        }
    }
}
