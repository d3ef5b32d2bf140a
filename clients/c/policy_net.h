/* policy_net.h: networks, and the tokens and value that they compute of a frame, for policy.h, which includes this.
 * Numbers of 8 tokens are a tile, (width, 8): feature by feature, so that compilers see vectors.
 * Places in arrays are ints: `p_take` refuses frames for which these are too small. */
#ifndef POLICY_NET_H
#define POLICY_NET_H
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Spaces and networks, as a file has them */

typedef struct p_json { const char *at, *end; } p_json; /* a part of the spaces' text */

enum { P_DIMS = 6, P_MOST = 1 << 24 }; /* coordinates; of what is counted in a file, and entities of a frame */
enum { P_RELU, P_NONE, P_LINEAR, P_GELU, P_SIGMOID };
enum { P_CATEGORICAL, P_GLOBAL, P_ENTITY, P_SET, P_NUMBERS };

typedef struct p_linear { const float *weight, *bias; int in, out; } p_linear; /* (out, in); of a LayerNorm (out) */
typedef struct p_pose { int position[P_DIMS], vector[2], angle; } p_pose;      /* columns; -1: there is none */

typedef struct p_column { /* of a row of features */
    int32_t kind;         /* 0 a plain number, -1 an angle, -2 a flag, otherwise the number of categories */
    int32_t slot;         /* its input of the first layer, or its table of categories */
} p_column;

typedef struct p_type { /* an entity type in a network; its rows are features, perhaps a distance, global features */
    p_json features;
    int num_given, num_own, num_columns; /* given by a frame; with the distance; with global ones */
    int num_plain, num_angles, moves, remembers, number; /* number: in tables of relative positions; -1: in none */
    p_column *columns;
    float *norm; /* means of the plain numbers, then 1 / std */
    const float *vector, **tables;
    p_linear first, finish;
    p_pose moved, related;
} p_type;

typedef struct p_block { p_linear before, mix, project, mlp, up, down; } p_block;

typedef struct p_net {
    int width, heads, layers, d_qk, pooling, remembers, num_types, most_columns; /* pooling: 1 mean, 2 max, 3 both */
    p_type *types;
    p_block *blocks;
    int reference, turns; /* of the translation: the type in the origin, -1: there is none; whether it rotates */
    p_json reference_name;
    int kind, dims, rotates, axes, sizes[P_DIMS], interpolates, per_type, num_rows, gate_kind; /* relative positions */
    float scale, *norm;
    const float *keys, *values, *first; /* first: the states that memories begin with */
    p_linear key_map, value_map, gate, norm_in, norm_out, gates, out, value;
    float mean, deviation; /* of values */
} p_net;

typedef struct p_action {
    p_json name;
    int kind, choices, nobody, exclude_self, ordered, min, max, in_turn, is_told, is_placed, num_after;
    int *after, selection;      /* earlier actions; that to whose actees mask_after belongs, -1: none */
    unsigned char **allowed;    /* for each earlier action (its choices, own choices); NULL: no table */
    int *cost, *budget;         /* a column for each type */
    float *low, *high;
    p_linear project, query, key, hidden, reader, told, selecting, taken, picked, left;
    const float *words, *nobody_key, *stop, *log_std; /* words: what later heads are told of choices */
} p_action;

struct policy {
    const char *spaces;
    p_json types, globals, named_actions; /* of `spaces` */
    int num_types, has_global, num_globals, num_actions, widest; /* num_types: without the frame, the last entity */
    p_net nets[2]; /* the policy; a separate value network, of width 0 if there is none */
    p_action *actions;
    int *order;
};


/* ---- Tiles */

enum { P_LANES = 8 };
#if defined(__GNUC__) && !defined(__clang__) /* whose -O3 would unroll such a loop before it sees the vector */
#define P_EACH_LANE _Pragma("GCC unroll 1") for (t = 0; t < P_LANES; t++)
#else
#define P_EACH_LANE for (t = 0; t < P_LANES; t++)
#endif
#if defined(_MSC_VER) || defined(__cplusplus)
#define P_RESTRICT __restrict
#else
#define P_RESTRICT restrict
#endif

typedef struct p_decision { int32_t *values; float *numbers, *log_probs, *logits, *told, *selecting; } p_decision;

typedef struct p_kept { int count, most; void *room; int64_t *ids; int32_t *types; float *hidden; } p_kept;

struct policy_agent {
    const policy *trained;
    char error[POLICY_ERROR];
    p_kept before[2], after[2]; /* what each network remembers */
    policy_choices *choices;
    p_decision *of; /* each action */
    unsigned char *room;
    uint64_t room_size, used; /* of the room, which has all that follows */
    const policy_frame *frame;
    uint64_t *seed;
    int num_tokens;
    int32_t *types;
    int64_t *ids;
    unsigned char *visible, *is_open;
    float *rows, *positions, *facing, *x, *mixed, *gates, *tile[4], *scores, *keys, *values; /* relative ones */
    float *messages, *actee_keys, *picks, *z, *table; /* messages: of each token, and then of earlier actors in turn */
};

static int p_fail(char *error, const char *format, ...) { /* keeps the first error */
    va_list arguments;
    va_start(arguments, format);
    if (!*error) vsnprintf(error, POLICY_ERROR, format, arguments);
    va_end(arguments);
    return 0;
}

/* y = W x + b of a tile, or y += W x + b. */
static void p_apply(p_linear l, const float *P_RESTRICT x, float *P_RESTRICT y, int adds) {
    const float *w[4];
    float sum[4][P_LANES];
    int o, k, i, t;
    for (o = 0; o < l.out; o += 4) {
        for (k = 0; k < 4; k++) { /* behind the last row, that row again */
            int row = o + k < l.out ? o + k : l.out - 1;
            w[k] = l.weight + row * l.in;
            P_EACH_LANE sum[k][t] = l.bias[row];
        }
        for (i = 0; i < l.in; i++) {
            const float *from = x + P_LANES * i;
            P_EACH_LANE sum[0][t] += w[0][i] * from[t];
            P_EACH_LANE sum[1][t] += w[1][i] * from[t];
            P_EACH_LANE sum[2][t] += w[2][i] * from[t];
            P_EACH_LANE sum[3][t] += w[3][i] * from[t];
        }
        for (k = 0; k < 4 && o + k < l.out; k++) {
            float *to = y + P_LANES * (o + k);
            P_EACH_LANE to[t] = sum[k][t] + (adds ? to[t] : 0);
        }
    }
}

static void p_normalize(p_linear l, const float *x, float *y) { /* LayerNorm */
    float mean[P_LANES] = {0}, inverse[P_LANES] = {0}, n = (float)l.out;
    int i, t;
    for (i = 0; i < l.out; i++) P_EACH_LANE mean[t] += x[P_LANES * i + t];
    P_EACH_LANE mean[t] /= n;
    for (i = 0; i < l.out; i++)
        P_EACH_LANE inverse[t] += (x[P_LANES * i + t] - mean[t]) * (x[P_LANES * i + t] - mean[t]);
    P_EACH_LANE inverse[t] = 1 / sqrtf(inverse[t] / n + 1e-5f);
    for (i = 0; i < l.out; i++)
        P_EACH_LANE y[P_LANES * i + t] = (x[P_LANES * i + t] - mean[t]) * inverse[t] * l.weight[i] + l.bias[i];
}

static void p_activate(int kind, float *y, int count) {
    int i;
    for (i = 0; kind == P_RELU && i < count; i++) y[i] = y[i] > 0 ? y[i] : 0;
    for (i = 0; kind == P_SIGMOID && i < count; i++) y[i] = 1 / (1 + expf(-y[i]));
    for (i = 0; kind == P_GELU && i < count; i++) { /* erf(u) = u P(u^2) / Q(u^2) within 3e-8 up to 4; then it is 1 */
        float u = y[i] * 0.70710678f, s, p, q;
        u = u > 4 ? 4 : u < -4 ? -4 : u, s = u * u;
        p = 4.003671552e-3f + s * (2.880411310e-4f + s * 1.974814085e-6f);
        p = 1.128378976f + s * (0.1962497101f + s * (0.05346755886f + s * p));
        q = 0.01544447548f + s * (1.216364410e-3f + s * 3.748067895e-5f);
        q = 1 + s * (0.5072529360f + s * (0.1164767146f + s * q));
        y[i] *= 0.5f * (1 + u * p / q);
    }
}

/* Where token i begins in tiles of a width; its next feature is P_LANES further. */
static float *p_of(float *tiles, int width, int i) { return tiles + i / P_LANES * P_LANES * width + i % P_LANES; }

static int p_count(const policy_agent *a, int type) { /* the entities of a type; the frame is the last type */
    return type == a->trained->num_types ? 1 : a->frame->entities[type].count;
}

/* ---- From features to tokens */

static void p_facing(const p_pose *pose, const float *row, float facing[2]) { /* cosine and sine of an orientation */
    float x = pose->vector[0] < 0 ? 0 : row[pose->vector[0]], y = pose->vector[0] < 0 ? 0 : row[pose->vector[1]];
    float length = sqrtf(x * x + y * y);
    facing[0] = length > 0 ? x / length : 1, facing[1] = length > 0 ? y / length : 0;
    if (pose->angle >= 0) facing[0] = cosf(row[pose->angle]), facing[1] = sinf(row[pose->angle]);
}

static void p_turn(float *d, const float facing[2]) {
    float x = d[0], y = d[1];
    d[0] = facing[0] * x + facing[1] * y, d[1] = facing[0] * y - facing[1] * x;
}

/* Writes the row of features of each entity, as the translation moves them. */
static int p_rows(policy_agent *a, const p_net *net) {
    const policy_frame *frame = a->frame;
    float origin[P_DIMS] = {0}, facing[2] = {1, 0}, *row = a->rows;
    int type, i, k, shown = 0, token = 0;
    if (net->reference >= 0) {
        const policy_entities *own = &frame->entities[net->reference];
        const p_type *reference = &net->types[net->reference];
        for (i = 0; i < own->count; i++) {
            const float *found = own->features + i * reference->num_given;
            if (own->visible && !own->visible[i]) continue;
            if (shown++) return p_fail(a->error, "type %d is the origin of a translation: show one", net->reference);
            for (k = 0; k < P_DIMS; k++)
                if (reference->moved.position[k] >= 0) origin[k] = found[reference->moved.position[k]];
            if (net->turns) p_facing(&reference->moved, found, facing);
        }
    }
    for (type = 0; type < net->num_types; type++) {
        const p_type *own = &net->types[type];
        const float *from = type == a->trained->num_types ? frame->global_features : frame->entities[type].features;
        for (i = 0; i < p_count(a, type); i++, token++, row += net->most_columns) {
            const int *position = own->moved.position;
            float d[P_DIMS] = {0}, length = 0;
            for (k = 0; k < own->num_given; k++) row[k] = from[i * own->num_given + k];
            for (k = own->num_own; k < own->num_columns; k++) row[k] = frame->global_features[k - own->num_own];
            for (k = 0; own->moves && k < P_DIMS && position[k] >= 0; k++) d[k] = row[position[k]] - origin[k];
            if (own->moves && net->turns) p_turn(d, facing);
            for (k = 0; own->moves && k < P_DIMS && position[k] >= 0; k++)
                row[position[k]] = d[k], length += d[k] * d[k];
            if (own->num_own > own->num_given) row[own->num_given] = sqrtf(length);
            if (!net->kind || own->number < 0) continue;
            for (k = 0; k < net->dims; k++) a->positions[token * net->dims + k] = row[own->related.position[k]];
            p_facing(&own->related, row, a->facing + 2 * token);
        }
    }
    return 1;
}

/* Embeds the tokens of a type, 8 at a time. */
static int p_embed(policy_agent *a, const p_net *net, int type, int first) {
    const p_type *own = &net->types[type];
    const int w = net->width, count = p_count(a, type);
    float *in = a->tile[0], *y = a->tile[1];
    int at, t, k, i;
    for (at = 0; at < count; at += P_LANES) {
        memset(in, 0, sizeof *in * P_LANES * own->first.in);
        for (k = 0; k < w; k++) P_EACH_LANE y[P_LANES * k + t] = own->vector ? own->vector[k] : 0;
        for (t = 0; t < P_LANES && at + t < count; t++) {
            const float *row = a->rows + (first + at + t) * net->most_columns;
            for (k = 0; k < own->num_columns; k++) {
                const int kind = own->columns[k].kind, slot = own->columns[k].slot;
                const float *norm = own->norm + slot;
                if (kind == 0) in[P_LANES * slot + t] = fminf(fmaxf((row[k] - *norm) * norm[own->num_plain], -5), 5);
                if (kind == -1) in[P_LANES * slot + t] = cosf(row[k]);
                if (kind == -1) in[P_LANES * (slot + own->num_angles) + t] = sinf(row[k]);
                if (kind == -2) in[P_LANES * slot + t] = row[k];
                if (kind > 0 && !(row[k] >= 0 && row[k] < (float)kind))
                    return p_fail(a->error, "type %d, entity %d, feature %d: %g is none of %d categories", type, at + t,
                                  k, (double)row[k], kind);
            }
        }
        if (own->first.weight) p_apply(own->first, in, y, 0);
        for (t = 0; t < P_LANES && at + t < count; t++) /* rows of tables */
            for (k = 0; k < own->num_columns; k++) {
                const p_column *column = &own->columns[k];
                const float *from = a->rows + (first + at + t) * net->most_columns + k;
                if (column->kind <= 0) continue;
                from = own->tables[column->slot] + (int)*from * w;
                for (i = 0; i < w; i++) y[P_LANES * i + t] += from[i];
            }
        if (!own->vector) p_activate(P_RELU, y, w * P_LANES), p_normalize(own->finish, y, y);
        for (t = 0; t < P_LANES && at + t < count; t++)
            for (k = 0; k < w; k++) p_of(a->x, w, first + at + t)[P_LANES * k] = y[P_LANES * k + t];
    }
    return 1;
}

/* ---- Blocks */

/* The rows of the tables for a pair, and their shares; d: the difference of positions, and its length. */
static int p_buckets(const p_net *net, const float *d, int rows[1 << P_DIMS], float shares[1 << P_DIMS]) {
    int terms = 1, stride = 1, axis, m, low, high;
    rows[0] = 0, shares[0] = 1;
    for (axis = 0; axis < net->axes; stride *= net->sizes[axis++]) {
        const int size = net->sizes[axis], is_circular = axis == 0 && net->kind % 2 == 0;
        const float extent = (float)(size / 2), length = d[net->dims];
        float at, share;
        if (net->kind == 1) at = fminf(fmaxf(d[axis] / net->scale, -extent), extent) + extent;
        else if (is_circular) {
            at = atan2f(d[1], d[0]) / 6.28318530717958647692f;
            at = length == 0 ? 0 : (at - floorf(at)) * (float)size;
        } else at = fminf(length / net->scale, (float)(size - 1));
        /* the nearest of a grid, and else the one that it falls in; rounding must not decide on borders */
        if (!net->interpolates) at = floorf(at + (net->kind == 1 ? 0.5f : 0) + 1e-4f);
        share = at - floorf(at), low = (int)floorf(at), high = low + 1;
        low = is_circular ? low % size : low < size ? low : size - 1;
        high = is_circular ? high % size : high < size ? high : size - 1;
        for (m = 0; m < terms; m++) {
            if (net->interpolates) rows[terms + m] = rows[m] + high * stride, shares[terms + m] = shares[m] * share;
            rows[m] += low * stride, shares[m] *= 1 - share;
        }
        terms *= net->interpolates ? 2 : 1;
    }
    return terms;
}

/* Relative keys and values that the tokens of a tile have for token j. */
static void p_relate(policy_agent *a, const p_net *net, int base, int j) {
    const int width = net->width / net->heads, n = net->dims, of = net->types[a->types[j]].number;
    float *key = a->keys + j * width * P_LANES, *value = a->values + j * width * P_LANES, d[P_DIMS + 1];
    float shares[1 << P_DIMS];
    int rows[1 << P_DIMS], t, k, m, c, terms;
    memset(key, 0, sizeof *key * P_LANES * width), memset(value, 0, sizeof *value * P_LANES * width);
    for (t = 0; t < P_LANES && base + t < a->num_tokens && of >= 0; t++) {
        const int i = base + t;
        if (net->types[a->types[i]].number < 0) continue;
        for (k = 0; k < n; k++) d[k] = a->positions[i * n + k] - a->positions[j * n + k];
        if (net->rotates) p_turn(d, a->facing + 2 * i);
        for (d[n] = 0, k = 0; k < n; k++) d[n] += d[k] * d[k];
        d[n] = sqrtf(d[n]);
        if (d[n] != d[n]) continue; /* infinite numbers */
        for (terms = p_buckets(net, d, rows, shares), m = 0; m < terms; m++) {
            const float *keys = net->keys + rows[m] * width, *values = net->values + rows[m] * width;
            if (net->per_type) values += of * net->num_rows * width;
            for (c = 0; c < width; c++) key[P_LANES * c + t] += shares[m] * keys[c];
            for (c = 0; c < width; c++) value[P_LANES * c + t] += shares[m] * values[c];
        }
        for (k = 0; net->norm && k <= n; k++) d[k] = fminf(fmaxf((d[k] - net->norm[k]) * net->norm[n + 1 + k], -5), 5);
        for (m = 0; m < 2; m++) {
            const p_linear *map = m ? &net->value_map : &net->key_map;
            float *to = m ? value + t : key + t;
            for (c = 0; map->weight && c < width; c++) {
                to[P_LANES * c] += map->bias[c];
                for (k = 0; k <= n; k++) to[P_LANES * c] += d[k] * map->weight[c * (n + 1) + k];
            }
        }
        for (c = 0; net->gate.weight && c < width; c++) value[P_LANES * c + t] *= p_of(a->gates, width, j)[P_LANES * c];
    }
}

/* Softmax attention of the tokens of a tile to all that they may see; `out` is a tile. */
static void p_attend(policy_agent *a, const p_net *net, int base, float *out) {
    const int w = net->width, width = w / net->heads;
    const float scale = 1 / sqrtf((float)width);
    int head, j, c, t;
    for (j = 0; net->kind && j < a->num_tokens; j++) p_relate(a, net, base, j);
    for (head = 0; head < net->heads; head++) {
        const float *q = a->mixed + base * 3 * w + P_LANES * head * width;
        float most[P_LANES], total[P_LANES] = {0}, sum[P_LANES];
        P_EACH_LANE most[t] = -HUGE_VALF;
        for (j = 0; j < a->num_tokens; j++) {
            const float *key = p_of(a->mixed, 3 * w, j) + P_LANES * (w + head * width);
            const float *related = a->keys + j * width * P_LANES;
            float *score = a->scores + P_LANES * j;
            P_EACH_LANE sum[t] = 0;
            for (c = 0; c < width * P_LANES; c += P_LANES) P_EACH_LANE sum[t] += q[c + t] * key[c];
            for (c = 0; net->kind && c < width * P_LANES; c += P_LANES) P_EACH_LANE sum[t] += q[c + t] * related[c + t];
            P_EACH_LANE score[t] = a->visible[j] || !a->visible[base + t] ? sum[t] * scale : -HUGE_VALF;
            P_EACH_LANE most[t] = score[t] > most[t] ? score[t] : most[t];
        }
        for (j = 0; j < a->num_tokens; j++) {
            float *score = a->scores + P_LANES * j;
            P_EACH_LANE total[t] += score[t] = expf(score[t] - most[t]);
        }
        for (c = 0; c < width; c++) {
            P_EACH_LANE sum[t] = 0;
            for (j = 0; j < a->num_tokens; j++) {
                const float value = p_of(a->mixed, 3 * w, j)[P_LANES * (2 * w + head * width + c)];
                const float *related = a->values + (j * width + c) * P_LANES, *score = a->scores + P_LANES * j;
                if (net->kind) P_EACH_LANE sum[t] += score[t] * (value + related[t]);
                else P_EACH_LANE sum[t] += score[t] * value;
            }
            P_EACH_LANE out[P_LANES * (head * width + c) + t] = sum[t] / total[t];
        }
    }
}

/* Pools over the frame for the tokens of a tile: over all tokens for hidden ones, over the visible ones for others. */
static void p_pool(policy_agent *a, const p_net *net, int base, float *out) {
    const int w = net->width;
    float *pooled = a->tile[3], count; /* means and maxima over the visible, means and maxima over all */
    int c, j, t, k;
    for (c = 0; base == 0 && c < 2 * w; c++) {
        float mean = 0, most = -HUGE_VALF;
        for (k = c / w, count = 0, j = 0; j < a->num_tokens; j++)
            if (k || a->visible[j]) {
                const float value = p_of(a->mixed, w, j)[P_LANES * (c % w)];
                count++, mean += value, most = fmaxf(most, value);
            }
        pooled[2 * k * w + c % w] = mean / fmaxf(count, 1), pooled[(2 * k + 1) * w + c % w] = count > 0 ? most : 0;
    }
    for (c = 0; c < (net->pooling == 3 ? 2 * w : w); c++)
        P_EACH_LANE out[P_LANES * c + t] = pooled[(a->visible[base + t] ? 0 : 2 * w) + (net->pooling == 2 ? w : 0) + c];
}

static int p_remembers(const policy_agent *a, const p_net *net, int token) {
    return net->types[a->types[token]].remembers && a->ids[token] != -1;
}

/* Memory of the tokens of a tile: a minimal GRU along ids. */
static void p_remember(policy_agent *a, const p_net *net, const p_kept *before, p_kept *after, int base) {
    const int w = net->width;
    float *x = a->x + base * w, *gates = a->tile[1], *hidden = a->tile[2], *out = a->tile[3];
    int t, c, k;
    p_normalize(net->norm_in, x, a->tile[0]);
    p_apply(net->gates, a->tile[0], gates, 0);
    memset(hidden, 0, sizeof *hidden * P_LANES * w);
    for (t = 0; t < P_LANES && base + t < a->num_tokens; t++) {
        const float *state = net->first + a->types[base + t] * w;
        if (!p_remembers(a, net, base + t)) continue;
        for (k = 0; k < before->count; k++) { /* most often entities are in the same order as before */
            const int row = (after->count + k) % before->count;
            if (before->ids[row] != a->ids[base + t] || before->types[row] != a->types[base + t]) continue;
            state = before->hidden + row * w;
            break;
        }
        for (c = 0; c < w; c++) {
            const float z = 1 / (1 + expf(-gates[P_LANES * c + t]));
            hidden[P_LANES * c + t] = state[c] + z * (gates[P_LANES * (w + c) + t] - state[c]);
            after->hidden[after->count * w + c] = hidden[P_LANES * c + t];
        }
        after->types[after->count] = a->types[base + t], after->ids[after->count++] = a->ids[base + t];
    }
    p_normalize(net->norm_out, hidden, hidden);
    p_apply(net->out, hidden, out, 0);
    for (t = 0; t < P_LANES && base + t < a->num_tokens; t++)
        for (c = 0; p_remembers(a, net, base + t) && c < w; c++) x[P_LANES * c + t] += out[P_LANES * c + t];
}

/* Room for what `count` entities remember; what it held is gone. */
static int p_keep(p_kept *kept, int count, int width) {
    if (count > kept->most) {
        POLICY_FREE(kept->room);
        kept->room = POLICY_MALLOC((12 + sizeof(float) * width) * count), kept->most = kept->room ? count : 0;
        if (!kept->room) return 0;
        kept->ids = (int64_t *)kept->room, kept->types = (int32_t *)(kept->ids + count);
        kept->hidden = (float *)(kept->types + count);
    }
    kept->count = 0;
    return 1;
}

/* Computes the tokens and the value of a network; 0 after an error. */
static int p_trunk(policy_agent *a, int which, float *value) {
    const p_net *net = &a->trained->nets[which];
    const int w = net->width, width = w / net->heads;
    int type, token = 0, layer, base, c, t, able = 0, known = 0;
    float *x;
    for (t = 0; net->remembers && t < a->num_tokens; t++)
        able += net->types[a->types[t]].remembers, known += p_remembers(a, net, t);
    if (able && !known) return p_fail(a->error, "net.memory needs ids of entities, and the frame has none");
    if (!p_keep(&a->after[which], known, w)) return p_fail(a->error, "no memory for what is remembered");
    if (!p_rows(a, net)) return 0;
    memset(a->x, 0, sizeof *a->x * w * ((a->num_tokens + P_LANES - 1) / P_LANES * P_LANES));
    for (type = 0; type < net->num_types; token += p_count(a, type++))
        if (!p_embed(a, net, type, token)) return 0;
    for (layer = 0; layer < net->layers; layer++) {
        const p_block *block = &net->blocks[layer];
        for (base = 0; base < a->num_tokens; base += P_LANES) {
            p_normalize(block->before, a->x + base * w, a->tile[0]);
            p_apply(block->mix, a->tile[0], a->mixed + base * block->mix.out, 0);
            if (!net->gate.weight) continue;
            p_apply(net->gate, a->tile[0], a->gates + base * width, 0);
            p_activate(net->gate_kind, a->gates + base * width, width * P_LANES);
        }
        for (base = 0; base < a->num_tokens; base += P_LANES) {
            x = a->x + base * w;
            if (net->pooling) p_pool(a, net, base, a->tile[0]);
            else p_attend(a, net, base, a->tile[0]);
            p_apply(block->project, a->tile[0], x, 1);
            p_normalize(block->mlp, x, a->tile[0]);
            p_apply(block->up, a->tile[0], a->tile[1], 0);
            p_activate(P_GELU, a->tile[1], 4 * w * P_LANES);
            p_apply(block->down, a->tile[1], x, 1);
        }
        for (base = 0; layer == 0 && net->remembers && base < a->num_tokens; base += P_LANES)
            p_remember(a, net, &a->before[which], &a->after[which], base);
    }
    for (base = 0; !net->layers && net->remembers && base < a->num_tokens; base += P_LANES)
        p_remember(a, net, &a->before[which], &a->after[which], base);
    for (*value = net->value.bias[0], c = 0; c < w; c++) {
        float sum = 0;
        for (t = 0; t < a->num_tokens; t++) sum += p_of(a->x, w, t)[P_LANES * c];
        *value += net->value.weight[c] * sum / fmaxf((float)a->num_tokens, 1);
    }
    *value = net->mean + net->deviation * *value;
    return isfinite(*value) || p_fail(a->error, "the value is NaN or infinite: features or weights are too large");
}
#endif
