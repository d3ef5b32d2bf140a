/* policy.h: acts with the policies that enn-ppo trains. C99 or C++11, no dependencies, no globals. In one source file:
 *
 *     #define POLICY_IMPLEMENTATION
 *     #include "policy.h"
 *
 *     policy *trained = policy_read(data, size, error);         NULL: `error` names the part of the file that is wrong
 *     policy_agent *agent = policy_agent_new(trained);          one for each game; agents may run in different threads
 *     const char *wrong = policy_act(agent, &frame, &seed, &result);
 *     policy_agent_forget(agent);                               where an episode begins
 *
 * `policy_act` allocates memory where a frame has more in it than all before, never else. docs/ship_c.md has more. */
#ifndef POLICY_H
#define POLICY_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { POLICY_ERROR = 200 };              /* bytes of a message */
typedef struct policy policy;             /* spaces and weights; read-only, so threads may share it */
typedef struct policy_agent policy_agent; /* what is remembered of an episode, and room to compute */

typedef struct policy_entities { /* the entities of one type in a frame */
    int count;
    const float *features;  /* (count, features of the type), entity by entity */
    const uint8_t *visible; /* (count) 0: hidden from the policy; NULL: all are visible */
    const int64_t *ids;     /* (count) stays with an entity for an episode, -1: none; for networks that remember */
} policy_entities;

typedef struct policy_offer { /* who may take an action; entities are numbered from 0, type after type */
    int num_actors;           /* 0: nobody now; of a global action 1, and `actors` is not read */
    const int32_t *actors;    /* (num_actors) */
    int num_actees;           /* the entities that may be selected */
    const int32_t *actees;
    const uint8_t *mask;       /* (num_actors, choices or actees) 0: closed; NULL: all are open */
    const uint8_t *mask_after; /* (num_actors, actees of the selection before, choices); NULL: closes nothing */
} policy_offer;

typedef struct policy_frame {
    const policy_entities *entities; /* one for each entity type, in the order of the spaces */
    const float *global_features;
    const policy_offer *offers; /* one for each action */
} policy_frame;

typedef struct policy_choices { /* what the actors of one action do; valid until the agent acts again */
    int num_actors, num_logits;
    const int32_t *values;  /* (num_actors) the choice, or the selected entity, -1: nobody; of sets (num_actors, actees)
                               0 for those not in it, otherwise 1, or in ordered sets the place from 1 on */
    const float *numbers;   /* (num_actors, n) of a continuous action; NULL of others */
    const float *log_probs; /* (num_actors) */
    const float *logits;    /* (num_logits) log-probs of all choices, as ActResult.logits has them in Python */
} policy_choices;

typedef struct policy_result {
    float value;
    const policy_choices *actions; /* one for each action */
} policy_result;

/* Reads a policy file, which begins at a multiple of 8 in memory and stays there until policy_free. NULL: an error. */
policy *policy_read(const void *data, size_t size, char error[POLICY_ERROR]);
void policy_free(policy *);
const char *policy_spaces(const policy *);                /* JSON: types, features, actions and choices in order */
int policy_find_type(const policy *, const char *name);   /* place in `entities`, -1: none; names as JSON writes them */
int policy_find_action(const policy *, const char *name); /* place in `offers` */

policy_agent *policy_agent_new(const policy *); /* NULL: no memory */
void policy_agent_free(policy_agent *);
void policy_agent_forget(policy_agent *);
/* Acts in a frame. `seed` is the state of the random numbers, and goes on; NULL: takes the likeliest actions.
 * Returns NULL, or what is wrong with the frame; then the agent remembers what it did before. */
const char *policy_act(policy_agent *, const policy_frame *, uint64_t *seed, policy_result *);

#ifdef __cplusplus
}
#endif
#endif

#ifdef POLICY_IMPLEMENTATION
#ifndef POLICY_MALLOC
#define POLICY_MALLOC malloc
#define POLICY_FREE free
#endif
#include "policy_net.h"
#include "policy_file.h"

/* ---- Choices */

static float p_uniform(uint64_t *seed) { /* at least 0 and below 1. Source: SplitMix64, Steele, Lea & Flood 2014 */
    uint64_t bits = *seed += 0x9E3779B97F4A7C15u;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
    return (float)((bits ^ bits >> 31) >> 40) / 16777216.0f;
}

/* Turns logits, -inf where closed, into log-probs; returns the likeliest or a drawn one, -1 if all are closed. */
static int p_choose(policy_agent *a, float *logits, int count) {
    float most = -HUGE_VALF, total = 0, left;
    int k, chosen = -1;
    for (k = 0; k < count; k++)
        if (logits[k] > most) most = logits[k], chosen = k;
    for (k = 0; chosen >= 0 && k < count; k++) total += expf(logits[k] - most);
    for (total = most + logf(total), k = 0; chosen >= 0 && k < count; k++) logits[k] -= total;
    if (chosen < 0 || !a->seed) return chosen;
    for (left = p_uniform(a->seed), k = 0; k < count; k++)
        if (logits[k] > -HUGE_VALF && (chosen = k, left -= expf(logits[k])) < 0) break;
    return chosen;
}

static float p_softplus(float x) { return fmaxf(x, 0) + log1pf(expf(-fabsf(x))); }

static float p_logaddexp(float x, float y) { return fmaxf(x, y) + log1pf(expf(-fabsf(x - y))); }

/* Fills a->is_open with the choices that masks and earlier choices leave open to an actor of a categorical action. */
static void p_open_choices(policy_agent *a, int number, int actor, int token) {
    const p_action *action = &a->trained->actions[number];
    const policy_offer *offer = &a->frame->offers[number];
    const int n = action->choices;
    int e, c, k, j;
    for (c = 0; c < n; c++) a->is_open[c] = !offer->mask || offer->mask[actor * n + c];
    for (e = 0; e < action->num_after; e++) {
        const int earlier = action->after[e], is_selection = offer->mask_after && earlier == action->selection;
        const policy_offer *before = &a->frame->offers[earlier];
        if (!action->allowed[e] && !is_selection) continue;
        k = before->num_actors - 1; /* the row of the same entity; a global action has one row for all */
        while (a->trained->actions[earlier].kind != P_GLOBAL && k >= 0 && before->actors[k] != token) k--;
        if (k < 0) continue; /* it did not act before */
        j = a->of[earlier].values[k];
        for (c = 0; action->allowed[e] && c < n; c++) a->is_open[c] &= action->allowed[e][j * n + c];
        for (k = 0; is_selection && k < before->num_actees && before->actees[k] != j; k++) {}
        for (c = 0; is_selection && k < before->num_actees && c < n; c++)
            a->is_open[c] &= offer->mask_after[(actor * before->num_actees + k) * n + c] != 0;
    }
}

/* The head's query, or what stands for it, times the keys of the actees, -inf for those that are closed to an actor. */
static void p_products(policy_agent *a, int number, int actor, int token, const float *query, int stride, float *z) {
    const policy_offer *offer = &a->frame->offers[number];
    const int n = a->trained->nets[0].d_qk;
    int j, c;
    for (j = 0; j < offer->num_actees; j++) {
        const float *key = p_of(a->actee_keys, n, j);
        int is_open = !offer->mask || offer->mask[actor * offer->num_actees + j];
        if (a->trained->actions[number].exclude_self && offer->actees[j] == token) is_open = 0;
        for (z[j] = 0, c = 0; c < n; c++) z[j] += query[stride * c] * key[P_LANES * c];
        z[j] = is_open ? z[j] / sqrtf((float)n) : -HUGE_VALF;
    }
}

static void p_decide_entity(policy_agent *a, int number, int actor, int token, int t) {
    const p_action *action = &a->trained->actions[number];
    const policy_offer *offer = &a->frame->offers[number];
    const int n = offer->num_actees, width = a->trained->nets[0].d_qk;
    const float *query = a->tile[1] + t;
    float *logits = a->of[number].logits + actor * (n + action->nobody);
    int j, c, k;
    p_products(a, number, actor, token, query, P_LANES, logits);
    for (k = 0; action->taken.weight && k < actor; k++) /* how often earlier actors have selected it */
        for (j = 0; j < n; j++)
            if (offer->actees[j] == a->of[number].values[k]) logits[j] += a->tile[2][t];
    if (action->nobody) {
        for (logits[n] = 0, c = 0; c < width; c++) logits[n] += query[P_LANES * c] * action->nobody_key[c];
        logits[n] /= sqrtf((float)width);
    }
    k = p_choose(a, logits, n + action->nobody);
    a->of[number].values[actor] = k < 0 || k == n ? -1 : offer->actees[k];
    a->of[number].log_probs[actor] = k < 0 ? 0 : logits[k];
}

/* Numbers f(u) of a Gaussian u, with f as in docs/actions.md; log-probs are those of the rounded numbers. */
static void p_decide_numbers(policy_agent *a, int number, int actor, int t) {
    const p_action *action = &a->trained->actions[number];
    const int n = action->choices;
    float *log_prob = &a->of[number].log_probs[actor], *logits = a->of[number].logits + actor * 2 * n;
    int k;
    for (*log_prob = 0, k = 0; k < n; k++) {
        const float low = action->low[k], high = action->high[k], mean = a->tile[1][P_LANES * k + t];
        const float log_std = fminf(fmaxf(action->log_std[k], -20), 20);
        const int has_low = low > -HUGE_VALF, has_high = high < HUGE_VALF, has_both = has_low && has_high;
        const double from = has_low ? low : 0, to = has_high ? high : 0, radius = (to - from) / 2;
        const float outermost = (float)fmax(fabs(from), fabs(to)), step = outermost - nextafterf(outermost, 0);
        const float sign = has_low ? 1.0f : -1.0f, edge = (float)(from + to), limit = (float)(1 - step / radius);
        float u = mean, value, y, slope = 0, z;
        if (a->seed) {
            const float size = sqrtf(-2 * logf(1 - p_uniform(a->seed)));
            u += expf(log_std) * size * cosf(6.2831853f * p_uniform(a->seed));
        }
        value = has_low || has_high ? edge + sign * p_softplus(sign * u) : u;
        value = has_both ? edge / 2 + (float)radius * tanhf(u) : value;
        u = value = fminf(fmaxf(value, low), high);
        if (has_both) {
            y = fminf(fmaxf((value - edge / 2) / (float)radius, -limit), limit);
            u = (log1pf(y) - log1pf(-y)) / 2, slope = (float)log(radius) + log1pf(y) + log1pf(-y);
        } else if (has_low || has_high) {
            y = fmaxf(sign * (value - edge), fmaxf(step, FLT_MIN));
            slope = logf(-expm1f(-y)), u = sign * (y + slope);
        }
        z = (u - mean) * expf(-log_std);
        *log_prob += -0.5f * z * z - log_std - 0.91893853f - slope;
        a->of[number].numbers[actor * n + k] = value, logits[k] = mean, logits[n + k] = log_std;
    }
}

#define P_NEVER -1e30f

static int p_is_limited(const p_action *action) { /* whether some sets of independent entities are not allowed */
    return action->kind == P_SET && !action->ordered && (action->min > 0 || action->max < P_MOST);
}

/* A set of independent entities, under the condition that its size is allowed: rogue_net/heads/sets.py has formulas. */
static void p_decide_set(policy_agent *a, int number, int actor) {
    const p_action *action = &a->trained->actions[number];
    const int n = a->frame->offers[number].num_actees, is_limited = p_is_limited(action);
    int32_t *chosen = a->of[number].values + actor * n;
    float *log_prob = &a->of[number].log_probs[actor], *path = a->of[number].logits + actor * 2 * n, *z = a->z;
    int j, c, k, open = 0, wanted = 0, least, most, sizes, taken = 0;
    for (j = 0; j < n; j++) open += z[j] > -HUGE_VALF, wanted += z[j] > 0;
    least = open < action->min ? open : action->min, most = open < action->max ? open : action->max, sizes = most + 2;
    wanted = wanted < least ? least : wanted > most ? most : wanted;
    for (j = n; j >= 0 && is_limited; j--) /* log W(j, c); the last column is never */
        for (c = 0; c < sizes; c++) {
            float *weight = a->table + j * sizes + c, *next = weight + sizes;
            if (j == n) *weight = c >= least && c <= most ? 0 : P_NEVER;
            else *weight = p_logaddexp(next[0], c + 1 < sizes ? fmaxf(z[j], P_NEVER) + next[1] : P_NEVER);
        }
    for (j = 0; !a->seed && j < n; j++) chosen[j] = !is_limited && z[j] > 0;
    for (c = 0; !a->seed && is_limited && c < wanted; c++) { /* the likeliest are those with the largest z */
        for (k = -1, j = 0; j < n; j++)
            if (!chosen[j] && z[j] > (k < 0 ? -HUGE_VALF : z[k])) k = j;
        if (k >= 0) chosen[k] = 1;
    }
    for (*log_prob = 0, j = 0; j < n; j++) {
        float out = -p_softplus(z[j]), in = -p_softplus(-z[j]);
        if (is_limited) {
            const float *weight = a->table + j * sizes + taken, *next = weight + sizes;
            out = next[0] - weight[0], in = fmaxf(z[j], P_NEVER) + next[1] - weight[0];
            out = out < P_NEVER / 2 ? -HUGE_VALF : out, in = in < P_NEVER / 2 ? -HUGE_VALF : in;
        }
        if (a->seed) chosen[j] = p_uniform(a->seed) < expf(in);
        path[2 * j] = out, path[2 * j + 1] = in, *log_prob += chosen[j] ? in : out, taken += chosen[j];
    }
}

static float p_feature(const policy_agent *a, const int *columns, int token) { /* 0 for types that lack it */
    const int column = columns[a->types[token]];
    return column < 0 ? 0 : a->rows[token * a->trained->nets[0].most_columns + column];
}

/* A pointer picks one entity after the other, and sees what it has picked, until it stops. */
static void p_decide_order(policy_agent *a, int number, int actor, int token, const float *query) {
    const p_action *action = &a->trained->actions[number];
    const policy_offer *offer = &a->frame->offers[number];
    const int n = offer->num_actees, width = a->trained->nets[0].d_qk, has_budget = action->left.weight != NULL;
    float *log_prob = &a->of[number].log_probs[actor], *z = a->z;
    float *first = a->table, *last = first + width, *sums = last + width, *q = sums + width;
    const double budget = has_budget ? p_feature(a, action->budget, token) : 0; /* sums of float32 are exact */
    int32_t *places = a->of[number].values + actor * n;
    double remains = budget;
    int j, c, k = -1, picks, some;
    memset(first, 0, sizeof *first * 3 * width), memset(places, 0, sizeof *places * n);
    for (*log_prob = 0, picks = 0; k < n; picks++) {
        const float share = (float)fmin(fmax(remains / fmax(budget, 1e-6), 0), 1);
        for (c = 0; c < width; c++) {
            q[c] = query[P_LANES * c] + first[c] + last[c] + sums[c] / (float)(n > 1 ? n : 1);
            if (has_budget) q[c] += action->left.weight[c] * share + action->left.bias[c];
        }
        p_products(a, number, actor, token, q, 1, z);
        for (some = 0, j = 0; j < n; j++) {
            if (places[j] || (has_budget && p_feature(a, action->cost, offer->actees[j]) > remains)) z[j] = -HUGE_VALF;
            some |= z[j] > -HUGE_VALF;
            z[j] = z[j] > -HUGE_VALF ? 10 * tanhf(z[j]) : z[j];
            if (picks >= action->max) z[j] = -HUGE_VALF;
        }
        for (z[n] = 0, c = 0; c < width; c++) z[n] += q[c] * action->stop[c];
        z[n] = some && picks < action->min ? -HUGE_VALF : 10 * tanhf(z[n] / sqrtf((float)width));
        if ((k = p_choose(a, z, n + 1)) < 0) k = n; /* all are NaN, and so is the log-prob */
        memcpy(a->of[number].logits + a->choices[number].num_logits, z, sizeof *z * (n + 1));
        a->choices[number].num_logits += n + 1;
        *log_prob += z[k];
        if (k == n) return;
        places[k] = picks + 1;
        for (c = 0; c < width; c++) {
            const float *picked = p_of(a->picks, 3 * width, k) + P_LANES * c;
            if (!picks) first[c] = *picked;
            last[c] = picked[P_LANES * width], sums[c] += picked[2 * P_LANES * width];
        }
        if (has_budget) remains -= p_feature(a, action->cost, offer->actees[k]);
    }
}

/* ---- Heads */

/* Gathers up to 8 tokens of a list as a head reads them: x, or after other choices x + W relu(V [x, m] + v) + w. */
static void p_read_tokens(policy_agent *a, const p_action *action, const int32_t *list, int count, const float *own) {
    const int w = a->trained->nets[0].width;
    float *both = a->tile[3];
    int t, c;
    memset(both, 0, sizeof *both * P_LANES * 2 * w);
    for (t = 0; t < count && t < P_LANES; t++)
        for (c = 0; c < w; c++) {
            both[P_LANES * c + t] = p_of(a->x, w, list[t])[P_LANES * c];
            if (!action->hidden.weight) continue;
            both[P_LANES * (w + c) + t] = a->messages[list[t] * w + c] + (own ? own[c] : 0);
        }
    memcpy(a->tile[0], both, sizeof *both * P_LANES * w);
    if (!action->hidden.weight) return;
    p_apply(action->hidden, both, a->tile[2], 0);
    p_activate(P_RELU, a->tile[2], w * P_LANES);
    p_apply(action->reader, a->tile[2], a->tile[0], 1);
}

/* The k-th entity that an actor has selected among `n`; -1: that one is not selected. */
static int p_selected(const policy_agent *a, int number, int actor, int n, int k) {
    const int value = a->of[number].values[actor * n + k];
    if (a->trained->actions[number].kind == P_ENTITY) return value;
    return value ? a->frame->offers[number].actees[k] : -1;
}

/* What later heads, or later actors, are told of the choice of an actor; 0 for nobody and for empty sets. */
static void p_tell(policy_agent *a, int number, int actor) {
    const p_action *action = &a->trained->actions[number];
    const policy_offer *offer = &a->frame->offers[number];
    const int w = a->trained->nets[0].width, n = action->kind == P_SET ? offer->num_actees : 1;
    float *message = a->of[number].told + actor * w, *in = a->tile[2], *out = a->tile[3];
    int c, k, count = 0;
    memset(in, 0, sizeof *in * P_LANES * a->trained->widest);
    for (k = 0; action->kind == P_NUMBERS && k < action->choices; k++) { /* those with two bounds from -1 to 1 */
        const float low = action->low[k], high = action->high[k];
        const float value = a->of[number].numbers[actor * action->choices + k];
        const float center = (float)(((double)low + high) / 2), radius = (float)(((double)high - low) / 2);
        in[P_LANES * k] = low > -HUGE_VALF && high < HUGE_VALF ? (value - center) / radius : value, count = 1;
    }
    for (k = 0; (action->kind == P_ENTITY || action->kind == P_SET) && k < n; k++) {
        const int token = p_selected(a, number, actor, n, k);
        for (c = 0; token >= 0 && c < w; c++) in[P_LANES * c] += p_of(a->x, w, token)[P_LANES * c];
        count += token >= 0;
    }
    for (c = 0; count > 1 && c < w; c++) in[P_LANES * c] /= (float)count;
    if (count) p_apply(action->told, in, out, 0);
    for (c = 0; c < w; c++)
        message[c] = action->words ? action->words[a->of[number].values[actor] * w + c] : count ? out[P_LANES * c] : 0;
    if (!action->selecting.weight) return;
    for (c = 0; c < w; c++) in[P_LANES * c] = p_of(a->x, w, offer->actors[actor])[P_LANES * c];
    p_apply(action->selecting, in, out, 0);
    for (c = 0; c < w; c++) a->of[number].selecting[actor * w + c] = out[P_LANES * c];
}

/* Adds up on each token the messages of the earlier choices that an action sees. */
static void p_add_messages(policy_agent *a, const p_action *action) {
    const int w = a->trained->nets[0].width;
    int e, k, c, i, token;
    memset(a->messages, 0, sizeof *a->messages * a->num_tokens * w);
    for (e = 0; e < action->num_after; e++) {
        const int number = action->after[e];
        const p_action *earlier = &a->trained->actions[number];
        const policy_offer *offer = &a->frame->offers[number];
        const int n = earlier->kind == P_SET ? offer->num_actees : 1;
        for (k = 0; k < offer->num_actors; k++) {
            const float *message = a->of[number].told + k * w, *mark = a->of[number].selecting + k * w;
            if (action->kind == P_GLOBAL || earlier->kind == P_GLOBAL) { /* the mean, on all tokens */
                for (i = 0; i < a->num_tokens * w; i++) a->messages[i] += message[i % w] / (float)offer->num_actors;
                continue;
            }
            for (c = 0; c < w; c++) a->messages[offer->actors[k] * w + c] += message[c];
            for (i = 0; earlier->selecting.weight && i < n; i++)
                if ((token = p_selected(a, number, k, n, i)) >= 0)
                    for (c = 0; c < w; c++) a->messages[token * w + c] += mark[c];
        }
    }
}

/* Decides an action for all of its actors; 0 after an error. */
static int p_decide(policy_agent *a, int number) {
    const p_action *action = &a->trained->actions[number];
    const policy_offer *offer = &a->frame->offers[number];
    const int32_t frame = a->num_tokens - 1, *actors = action->kind == P_GLOBAL ? &frame : offer->actors;
    const int w = a->trained->nets[0].width, n = a->trained->nets[0].d_qk, lanes = action->in_turn ? 1 : P_LANES;
    float *own = a->messages + a->num_tokens * w, *logits;
    int at, actor, t, k, c;
    if (!offer->num_actors) return 1;
    if (action->hidden.weight) p_add_messages(a, action);
    for (at = 0; action->key.weight && at < offer->num_actees; at += P_LANES) {
        p_read_tokens(a, action, offer->actees + at, offer->num_actees - at, NULL);
        p_apply(action->key, a->tile[0], p_of(a->actee_keys, n, at), 0);
        if (action->ordered) p_apply(action->picked, a->tile[0], p_of(a->picks, 3 * n, at), 0);
    }
    memset(own, 0, sizeof *own * w);
    for (at = 0; at < offer->num_actors; at += lanes) {
        p_read_tokens(a, action, actors + at, offer->num_actors - at < lanes ? offer->num_actors - at : lanes, own);
        p_apply(action->key.weight ? action->query : action->project, a->tile[0], a->tile[1], 0);
        if (action->taken.weight) p_apply(action->taken, a->tile[0], a->tile[2], 0);
        for (t = 0; t < lanes && at + t < offer->num_actors; t++) {
            actor = at + t;
            if (action->kind == P_ENTITY) p_decide_entity(a, number, actor, actors[actor], t);
            else if (action->kind == P_NUMBERS) p_decide_numbers(a, number, actor, t);
            else if (action->ordered) p_decide_order(a, number, actor, actors[actor], a->tile[1] + t);
            else if (action->kind == P_SET) {
                p_products(a, number, actor, actors[actor], a->tile[1] + t, P_LANES, a->z);
                p_decide_set(a, number, actor);
            } else {
                logits = a->of[number].logits + actor * action->choices;
                p_open_choices(a, number, actor, actors[actor]);
                for (c = 0; c < action->choices; c++)
                    logits[c] = a->is_open[c] ? a->tile[1][P_LANES * c + t] : -HUGE_VALF;
                if ((k = p_choose(a, logits, action->choices)) < 0)
                    return p_fail(a->error, "action %d: all is closed to entity %d", number, (int)actors[actor]);
                a->of[number].values[actor] = k, a->of[number].log_probs[actor] = logits[k];
            }
            if (!isfinite(a->of[number].log_probs[actor])) /* NaN comes from features or weights that are too large */
                return p_fail(a->error, "action %d: the log-prob of actor %d is NaN or infinite", number, actor);
        }
        for (t = 0; action->is_told && t < lanes && at + t < offer->num_actors; t++) p_tell(a, number, at + t);
        for (c = 0; action->in_turn && c < w; c++) own[c] += a->of[number].told[at * w + c];
    }
    return 1;
}

/* ---- Agents */

/* A part of the room for so many items, whose number may be too large for a place; NULL where the room is too small. */
static void *p_take(policy_agent *a, double count, size_t size) {
    const uint64_t at = a->used;
    if (count > INT_MAX) p_fail(a->error, "the frame is too large");
    if (*a->error) return NULL;
    a->used += ((uint64_t)count * size + 31) / 32 * 32;
    return a->used <= a->room_size ? a->room + at : NULL;
}

static float *p_take_floats(policy_agent *a, double count) { return (float *)p_take(a, count, sizeof(float)); }

/* Lays out the room for a frame that has been checked. */
static void p_layout(policy_agent *a) {
    const policy *trained = a->trained;
    const p_net *net = &trained->nets[0], *other = &trained->nets[1];
    const double tokens = (a->num_tokens / P_LANES + 1) * P_LANES, related = net->kind || other->kind ? tokens : 0;
    const int w = net->width > other->width ? net->width : other->width, n = net->d_qk;
    const int columns = net->most_columns > other->most_columns ? net->most_columns : other->most_columns;
    const int widest = trained->widest > 4 * w ? trained->widest : 4 * w;
    double most = P_LANES, table = 4 * n;
    int k;
    a->used = 0;
    for (k = 0; k < trained->num_actions; k++) {
        const p_action *action = &trained->actions[k];
        const policy_offer *offer = &a->frame->offers[k];
        const double actors = offer->num_actors, actees = offer->num_actees, choices = action->choices;
        double logits = choices;
        p_decision *of = &a->of[k];
        if (action->kind == P_NUMBERS) logits = 2 * choices;
        if (action->kind == P_ENTITY) logits = actees + action->nobody;
        if (action->kind == P_SET) logits = 2 * actees;
        if (action->ordered) logits = (fmin(actees, action->max) + 1) * (actees + 1);
        of->values = (int32_t *)p_take(a, actors * (action->kind == P_SET ? actees : 1), sizeof(int32_t));
        of->numbers = p_take_floats(a, action->kind == P_NUMBERS ? actors * choices : 0);
        of->log_probs = p_take_floats(a, actors), of->logits = p_take_floats(a, actors * logits);
        of->told = p_take_floats(a, action->is_told ? actors * w : 0);
        of->selecting = p_take_floats(a, action->selecting.weight ? actors * w : 0);
        if (offer->mask_after) p_take(a, actors * a->frame->offers[action->selection].num_actees * choices, 0);
        if (*a->error) return;
        a->choices[k].num_logits = action->ordered ? 0 : (int)(actors * logits); /* of ordered sets, pick by pick */
        most = fmax(most, actees + P_LANES);
        if (p_is_limited(action)) table = fmax(table, (actees + 1) * (fmin(actees, action->max) + 2));
    }
    a->types = (int32_t *)p_take(a, tokens, sizeof(int32_t)), a->ids = (int64_t *)p_take(a, tokens, sizeof(int64_t));
    a->visible = (unsigned char *)p_take(a, tokens, 1), a->is_open = (unsigned char *)p_take(a, widest, 1);
    a->rows = p_take_floats(a, tokens * columns);
    a->positions = p_take_floats(a, related * P_DIMS), a->facing = p_take_floats(a, related * 2);
    a->x = p_take_floats(a, tokens * w), a->mixed = p_take_floats(a, tokens * 3 * w);
    a->gates = p_take_floats(a, related * w), a->messages = p_take_floats(a, tokens * w);
    for (k = 0; k < 4; k++) a->tile[k] = p_take_floats(a, widest * P_LANES);
    a->scores = p_take_floats(a, tokens * P_LANES);
    a->keys = p_take_floats(a, related * w * P_LANES), a->values = p_take_floats(a, related * w * P_LANES);
    a->actee_keys = p_take_floats(a, most * n), a->picks = p_take_floats(a, most * 3 * n);
    a->z = p_take_floats(a, most), a->table = p_take_floats(a, table);
}

static int p_check_list(policy_agent *a, int number, const int32_t *list, int count) {
    int k;
    if (count < 0 || (count && !list)) return p_fail(a->error, "action %d: a list has %d entities", number, count);
    for (k = 0; k < count; k++)
        if (list[k] < 0 || list[k] >= a->num_tokens)
            return p_fail(a->error, "action %d: entity %d, and the frame has %d", number, (int)list[k], a->num_tokens);
    return 1;
}

/* Checks all in a frame that sizes and places depend on, and that its features are finite. */
static int p_check(policy_agent *a) {
    const policy *trained = a->trained;
    int type, k;
    for (a->num_tokens = 0, type = 0; type < trained->nets[0].num_types; type++) {
        const int is_global = type == trained->num_types, count = p_count(a, type);
        const int n = trained->nets[0].types[type].num_given;
        const float *features = is_global ? a->frame->global_features : a->frame->entities[type].features;
        if (count < 0 || count > P_MOST - a->num_tokens || (double)count * n > INT_MAX || (count && n && !features))
            return p_fail(a->error, "type %d: %d entities, or no features", type, count);
        for (k = 0; k < count * n; k++)
            if (!isfinite(features[k]))
                return p_fail(a->error, "type %d, entity %d, feature %d is NaN or infinite", type, k / n, k % n);
        a->num_tokens += count;
    }
    for (k = 0; k < trained->num_actions; k++) {
        const p_action *action = &trained->actions[k];
        const policy_offer *offer = &a->frame->offers[k];
        if (action->kind == P_GLOBAL && (offer->num_actors < 0 || offer->num_actors > 1))
            return p_fail(a->error, "action %d is the frame's, which has not %d actors", k, offer->num_actors);
        if (action->kind != P_GLOBAL && !p_check_list(a, k, offer->actors, offer->num_actors)) return 0;
        if (!p_check_list(a, k, offer->actees, offer->num_actees)) return 0;
        if (offer->mask_after && (action->selection < 0 || action->kind > P_GLOBAL))
            return p_fail(a->error, "action %d: mask_after, and it is not after one select-entity action", k);
    }
    return 1;
}

policy_agent *policy_agent_new(const policy *trained) {
    const size_t actions = (size_t)trained->num_actions;
    const size_t size = sizeof(policy_agent) + actions * (sizeof(policy_choices) + sizeof(p_decision));
    policy_agent *a = (policy_agent *)POLICY_MALLOC(size);
    if (!a) return NULL;
    memset(a, 0, size);
    a->trained = trained, a->choices = (policy_choices *)(a + 1), a->of = (p_decision *)(a->choices + actions);
    return a;
}

void policy_agent_forget(policy_agent *a) { a->before[0].count = a->before[1].count = 0; }

void policy_agent_free(policy_agent *a) {
    int k;
    for (k = 0; a && k < 2; k++) POLICY_FREE(a->before[k].room), POLICY_FREE(a->after[k].room);
    if (a) POLICY_FREE(a->room);
    POLICY_FREE(a);
}

const char *policy_act(policy_agent *a, const policy_frame *frame, uint64_t *seed, policy_result *result) {
    const policy *trained = a->trained;
    float unused;
    int k, type, i, token = 0;
    *a->error = 0, a->seed = seed, a->frame = frame;
    if (!p_check(a)) return a->error;
    p_layout(a);
    if (a->used > a->room_size && !*a->error) {
        POLICY_FREE(a->room);
        a->room = a->used < SIZE_MAX / 2 ? (unsigned char *)POLICY_MALLOC((size_t)a->used) : NULL;
        if (!(a->room_size = a->room ? a->used : 0)) p_fail(a->error, "no memory for the frame");
        p_layout(a);
    }
    if (*a->error) return a->error;
    for (type = 0; type < trained->nets[0].num_types; type++)
        for (i = 0; i < p_count(a, type); i++, token++) {
            const policy_entities *own = type == trained->num_types ? NULL : &frame->entities[type];
            a->types[token] = type, a->visible[token] = !own || !own->visible || own->visible[i];
            a->ids[token] = !own ? -2 : own->ids ? own->ids[i] : -1;
        }
    memset(a->visible + token, 0, (size_t)((P_LANES - token % P_LANES) % P_LANES));
    if (trained->nets[1].width && !p_trunk(a, 1, &result->value)) return a->error;
    if (!p_trunk(a, 0, trained->nets[1].width ? &unused : &result->value)) return a->error;
    for (k = 0; k < trained->num_actions; k++)
        if (!p_decide(a, trained->order[k])) return a->error;
    for (k = 0; k < 2; k++) {
        const p_kept kept = a->before[k];
        a->before[k] = a->after[k], a->after[k] = kept;
    }
    for (k = 0; k < trained->num_actions; k++) {
        const int is_real = trained->actions[k].kind == P_NUMBERS;
        a->choices[k].num_actors = frame->offers[k].num_actors;
        a->choices[k].values = is_real ? NULL : a->of[k].values;
        a->choices[k].numbers = is_real ? a->of[k].numbers : NULL;
        a->choices[k].log_probs = a->of[k].log_probs, a->choices[k].logits = a->of[k].logits;
    }
    result->actions = a->choices;
    return NULL;
}
#endif
